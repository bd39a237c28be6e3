//! A plugin's last failure, kept for people who look.
//!
//! Workers write it, the proxy's main thread reads it: the lock is held for the exchange of one
//! pointer, so neither keeps the other waiting.

use std::sync::{Arc, Mutex, PoisonError};

use crate::failure::{Cause, Fault};
use crate::phase::Phase;

/// A failure that was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastFault {
    /// When, in milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// At which point of the stream.
    pub phase: Phase,
    /// Why.
    pub cause: Cause,
    /// What went wrong, no longer than [`LastFault::LONGEST`] and an ellipsis.
    pub message: String,
}

impl LastFault {
    /// How many bytes of a message are kept.
    pub const LONGEST: usize = 1024;
}

/// The place of a plugin's last failure; shared by all versions of the plugin.
#[derive(Debug, Default)]
pub struct LastFaults {
    last: Mutex<Option<Arc<LastFault>>>,
}

impl LastFaults {
    /// The plugin failed.
    pub fn note(&self, unix_ms: u64, phase: Phase, fault: &Fault) {
        let message = match fault.message.get(..end(&fault.message)) {
            Some(begin) if begin.len() < fault.message.len() => format!("{begin}…"),
            _ => fault.message.clone(),
        };
        let noted = Arc::new(LastFault {
            unix_ms,
            phase,
            cause: fault.cause,
            message,
        });
        // A poisoned lock holds a pointer that is as valid as any.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let before = last.replace(noted);
        drop(last);
        drop(before);
    }

    /// The last failure, if there was one.
    pub fn last(&self) -> Option<Arc<LastFault>> {
        self.last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Where a message is cut: between two characters.
fn end(message: &str) -> usize {
    message.floor_char_boundary(LastFault::LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(message: &str) -> Fault {
        Fault {
            cause: Cause::Time,
            message: message.to_owned(),
        }
    }

    #[test]
    fn the_last_one_is_kept_and_a_long_message_is_cut_between_characters() {
        let faults = LastFaults::default();
        assert_eq!(faults.last(), None);
        faults.note(7, Phase::Log, &fault("first"));
        faults.note(8, Phase::RequestBody, &fault("second"));
        let last = faults.last().unwrap();
        assert_eq!((last.unix_ms, last.phase), (8, Phase::RequestBody));
        assert_eq!(last.message, "second");

        let long = format!("{}€€", "x".repeat(LastFault::LONGEST - 1));
        faults.note(9, Phase::Log, &fault(&long));
        let expected = format!("{}…", "x".repeat(LastFault::LONGEST - 1));
        assert_eq!(faults.last().unwrap().message, expected);

        let fitting = "y".repeat(LastFault::LONGEST);
        faults.note(10, Phase::Log, &fault(&fitting));
        assert_eq!(faults.last().unwrap().message, fitting);
    }
}
