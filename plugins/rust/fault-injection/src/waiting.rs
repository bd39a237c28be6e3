//! The requests that wait, and until when.
//!
//! Proxy-Wasm has no timer for a stream, only one tick for all of a configuration: so the streams are kept
//! here in the order in which their waits end.

use std::collections::BTreeMap;
use std::time::SystemTime;

/// Streams that wait.
#[derive(Default)]
pub(crate) struct Waiting {
    /// By the end of the wait; whether an abort follows.
    by_end: BTreeMap<(SystemTime, u32), bool>,
    /// When each stream's wait ends.
    ends: BTreeMap<u32, SystemTime>,
}

impl Waiting {
    /// Whether nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_end.is_empty()
    }

    /// `stream` waits until `end`, and then goes on, or is aborted.
    pub(crate) fn add(&mut self, stream: u32, end: SystemTime, aborted: bool) {
        self.by_end.insert((end, stream), aborted);
        self.ends.insert(stream, end);
    }

    /// `stream` waits no more, if it did.
    pub(crate) fn remove(&mut self, stream: u32) {
        if let Some(end) = self.ends.remove(&stream) {
            self.by_end.remove(&(end, stream));
        }
    }

    /// The streams whose wait is over, with whether an abort follows; they wait no more.
    pub(crate) fn take_due(&mut self, now: SystemTime) -> Vec<(u32, bool)> {
        let mut due = Vec::new();
        while let Some(first) = self.by_end.first_entry() {
            let (end, stream) = *first.key();
            if end > now {
                break;
            }
            due.push((stream, first.remove()));
            self.ends.remove(&stream);
        }
        due
    }
}
