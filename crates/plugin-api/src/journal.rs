//! Undoing the changes of a handler that failed.
//!
//! A stream whose plugin fails under an open policy goes on as if the plugin had not been called: half of a
//! handler's changes would be a message that nobody wrote. So a call records the old value of whatever it changes
//! for the first time. Where the policy is closed, the stream ends, and nothing is recorded.
//!
//! Limits: metadata, filter state, metrics and requests that were sent stay.

use std::sync::Arc;

use crate::memory::{MemoryAccount, MemoryExceeded, Reservation};
use crate::phase::{Direction, HeaderMap};
use crate::view::Changes;

/// The values that a header had.
#[derive(Debug)]
pub(crate) struct OldHeader {
    pub(crate) map: HeaderMap,
    pub(crate) name: Vec<u8>,
    pub(crate) values: Vec<Vec<u8>>,
}

/// The bytes that a change of a body replaced.
#[derive(Debug)]
pub(crate) struct OldPart {
    pub(crate) direction: Direction,
    /// Where they began in the part of the body that the call saw.
    pub(crate) start: usize,
    pub(crate) bytes: Vec<u8>,
    /// Number of bytes that took their place.
    pub(crate) replaced_by: usize,
}

/// The changes of one handler, with which it began.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    pub(crate) headers: Vec<OldHeader>,
    /// In the order of the changes.
    pub(crate) parts: Vec<OldPart>,
    /// The direction of a message that came without a body, and was given one.
    pub(crate) made_body: Option<Direction>,
    pub(crate) changes: Option<Changes>,
    /// The route was chosen anew.
    pub(crate) routed: bool,
    /// Memory of the recorded parts.
    pub(crate) memory: Option<Reservation>,
}

impl Journal {
    /// Whether there is anything to undo.
    pub(crate) fn is_used(&self) -> bool {
        !self.headers.is_empty()
            || !self.parts.is_empty()
            || self.made_body.is_some()
            || self.changes.is_some()
            || self.routed
    }

    /// Reserves the memory of a part that is about to be recorded.
    pub(crate) fn reserve(
        &mut self,
        account: &Arc<MemoryAccount>,
        bytes: usize,
    ) -> Result<(), MemoryExceeded> {
        if let Some(memory) = &mut self.memory {
            return memory.grow(bytes);
        }
        self.memory = Some(account.reserve(bytes)?);
        Ok(())
    }

    /// Whether the old values of a header are recorded.
    pub(crate) fn has(&self, map: HeaderMap, name: &[u8]) -> bool {
        self.headers
            .iter()
            .any(|old| old.map == map && old.name.eq_ignore_ascii_case(name))
    }
}

/// The journal of a handler that paused.
#[derive(Debug)]
pub(crate) struct KeptJournal {
    pub(crate) link: usize,
    pub(crate) direction: Direction,
    pub(crate) journal: Journal,
}
