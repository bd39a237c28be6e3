//! What the supervisor tells of the gateway's file: whether it is served, or was refused, when and why. The module itself
//! sees only what reaches Envoy.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

/// Bytes of one message.
const LONGEST: usize = 64 * 1024;

/// The gateway's file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    /// Its path.
    pub(super) path: String,
    /// Nothing: what it says is served, or is about to be.
    pub(super) refused: Option<Refused>,
}

/// Why what the file says is not served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Refused {
    /// Seconds since 1970.
    pub(super) at: u64,
    /// All that is wrong, a line each.
    pub(super) reason: String,
}

static TOLD: Mutex<Option<File>> = Mutex::new(None);

/// Takes a message; whether it tells of a refusal. The error is a sentence.
pub(super) fn tell(message: &[u8]) -> Result<bool, String> {
    if message.len() > LONGEST {
        return Err(format!("the message has more than {LONGEST} bytes\n"));
    }
    let file: File = serde_json::from_slice(message)
        .map_err(|error| format!("the message is none of the supervisor's: {error}\n"))?;
    let is_refused = file.refused.is_some();
    *TOLD.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
    Ok(is_refused)
}

/// What was told last; `None`: there is no supervisor.
pub(super) fn told() -> Option<File> {
    TOLD.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

impl Refused {
    /// When that was.
    pub(super) fn time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(self.at.min(u64::from(u32::MAX)))
    }
}
