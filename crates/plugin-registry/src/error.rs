//! Why a plugin cannot be had.

use std::fmt::Display;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

/// A failure in one sentence, and how to fix it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct FetchError {
    /// The sentence, without a full stop.
    pub message: String,
    /// How to fix it, one sentence without a full stop.
    pub mend: Option<String>,
    /// Whether another try, or another host, may succeed.
    pub(crate) kind: Kind,
}

/// What may help against a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The server is down, slow or overloaded. With the time it asks for.
    Unavailable(Option<Duration>),
    /// The server has no such thing: status 404.
    NotFound,
    /// Another try gives the same.
    Final,
}

impl FetchError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            mend: None,
            kind: Kind::Final,
        }
    }

    pub(crate) fn mend(mut self, mend: impl Into<String>) -> Self {
        self.mend = Some(mend.into());
        self
    }

    pub(crate) fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Puts words in front of the message.
    pub(crate) fn context(mut self, context: impl Display) -> Self {
        self.message = format!("{context}: {}", self.message);
        self
    }

    /// Whether the server cannot be used now, and nothing is known of what it would say.
    pub fn is_unavailable(&self) -> bool {
        matches!(self.kind, Kind::Unavailable(_))
    }

    /// The failure of an operation on a file.
    pub(crate) fn file(path: &Path, doing: &str, error: &std::io::Error) -> Self {
        let place = path.display();
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                Self::new(format!("{place} cannot be {doing}: the disk is full"))
                    .mend("make room, or name another folder with `--plugin-cache`")
            }
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                Self::new(format!("{place} cannot be {doing}: {error}"))
                    .mend("name a folder that this user may write to with `--plugin-cache`")
            }
            _ => Self::new(format!("{place} cannot be {doing}: {error}")),
        }
    }
}
