//! What happens when a plugin fails: causes, policies, and saying so without flooding a log.

use std::fmt;
use std::hash::{DefaultHasher, Hasher as _};
use std::sync::{Arc, Mutex};

use crate::last_fault::LastFaults;
use crate::phase::Phase;

/// How many causes there are.
pub(crate) const CAUSES: usize = 6;

/// Why a plugin failed on a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// A handler raised an error.
    Error,
    /// A call used up its time budget.
    Time,
    /// The VM used up its memory budget.
    Memory,
    /// The plugin is not there, or could not be started on this worker.
    Unavailable,
    /// It failed so often that it is not called for a while.
    Circuit,
    /// The plugin, or all plugins together, used more CPU of this worker than their share.
    Share,
}

impl Cause {
    /// Every cause, in the order of [`Cause::index`].
    pub const ALL: [Self; CAUSES] = [
        Self::Error,
        Self::Time,
        Self::Memory,
        Self::Unavailable,
        Self::Circuit,
        Self::Share,
    ];

    /// The cause's word in statistics, response-code details and configuration.
    pub fn word(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Time => "time",
            Self::Memory => "memory",
            Self::Unavailable => "unavailable",
            Self::Circuit => "circuit",
            Self::Share => "share",
        }
    }

    /// Whether such a failure costs the gateway more than its own request, so that it counts towards opening
    /// the plugin's circuit.
    pub fn is_blamed(self) -> bool {
        matches!(self, Self::Time | Self::Memory)
    }

    /// A number from 0, for tables.
    pub fn index(self) -> usize {
        match self {
            Self::Error => 0,
            Self::Time => 1,
            Self::Memory => 2,
            Self::Unavailable => 3,
            Self::Circuit => 4,
            Self::Share => 5,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// What a stream gets when a plugin fails on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureAction {
    /// It goes on as if the plugin were not there: the plugin is not called again on this stream.
    Open,
    /// It ends with a local reply.
    Closed,
}

/// A plugin's failure policy: an action for each cause, and the status of closed ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailurePolicy {
    actions: [FailureAction; CAUSES],
    status: u16,
    may_open: bool,
}

impl FailurePolicy {
    /// The policy whose action for each cause `action` tells; `status` is the status code of closed
    /// failures.
    pub fn new(status: u16, action: impl Fn(Cause) -> FailureAction) -> Self {
        let actions = Cause::ALL.map(action);
        Self {
            actions,
            status,
            may_open: actions.contains(&FailureAction::Open),
        }
    }

    /// The action for one cause.
    pub fn action(&self, cause: Cause) -> FailureAction {
        self.actions
            .get(cause.index())
            .copied()
            .unwrap_or(FailureAction::Closed)
    }

    /// Whether the stream goes on after some failures.
    pub(crate) fn may_open(&self) -> bool {
        self.may_open
    }

    /// The status code of closed failures.
    pub fn status(&self) -> u16 {
        self.status
    }
}

/// A plugin's failure on one stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// Why.
    pub cause: Cause,
    /// What went wrong, with the plugin's file and line where they are known.
    pub message: String,
}

/// Decides which of many like events are logged: the first, and then at most one each [`LineInterval::MS`], with the
/// number of those that were not.
#[derive(Debug, Default)]
pub struct LineInterval {
    last_ms: Option<u64>,
    unsaid: u64,
}

impl LineInterval {
    /// The least time between two lines, in milliseconds.
    pub const MS: u64 = 10_000;

    /// Whether nothing is left to tell, and the next event is logged.
    fn is_over(&self, now_ms: u64) -> bool {
        self.unsaid == 0
            && self
                .last_ms
                .is_none_or(|last| now_ms.saturating_sub(last) >= Self::MS)
    }

    /// Counts an event at `now_ms` (any clock, milliseconds). Returns how many went unsaid since the last line, or
    /// `None` if this one is not to be logged.
    pub fn admit(&mut self, now_ms: u64) -> Option<u64> {
        let quiet = self
            .last_ms
            .is_some_and(|last| now_ms.saturating_sub(last) < Self::MS);
        if quiet {
            self.unsaid += 1;
            None
        } else {
            self.last_ms = Some(now_ms);
            Some(std::mem::take(&mut self.unsaid))
        }
    }
}

/// The faults of one cause, by message: a [`LineInterval`] for each of a few messages, and one that all others share.
#[derive(Debug, Default)]
struct MessageIntervals {
    known: Vec<(u64, LineInterval)>,
    others: LineInterval,
}

impl MessageIntervals {
    /// Most messages of one cause that have an interval of their own at once.
    const MOST: usize = 8;

    fn admit(&mut self, now_ms: u64, message: &str) -> Option<u64> {
        let kind = message_kind(message);
        if let Some((_, interval)) = self.known.iter_mut().find(|(known, _)| *known == kind) {
            return interval.admit(now_ms);
        }
        if self.known.len() == Self::MOST {
            // One whose faults all were told makes room.
            self.known.retain(|(_, interval)| !interval.is_over(now_ms));
        }
        if self.known.len() == Self::MOST {
            return self.others.admit(now_ms);
        }
        let mut interval = LineInterval::default();
        let admitted = interval.admit(now_ms);
        self.known.push((kind, interval));
        admitted
    }
}

/// Number for messages that differ in digits only: in counts, addresses and sizes.
fn message_kind(message: &str) -> u64 {
    // Messages may hold the text of clients, of any length.
    const LONGEST: usize = 1024;
    let mut hasher = DefaultHasher::new();
    let bytes = message.bytes().take(LONGEST);
    for byte in bytes.filter(|byte| !byte.is_ascii_digit()) {
        hasher.write_u8(byte);
    }
    hasher.finish()
}

/// Decides which of a plugin's faults are logged, with a [`LineInterval`] for each cause and message: one that fails all
/// the time hides no other.
#[derive(Debug, Default)]
pub struct FaultLog {
    causes: Mutex<[MessageIntervals; CAUSES]>,
    last: Arc<LastFaults>,
}

/// A fault log that several chains share.
pub type FailureLogHandle = std::sync::Arc<FaultLog>;

impl FaultLog {
    /// A log that has admitted nothing yet; the last fault is kept in `last`.
    pub fn new(last: Arc<LastFaults>) -> Self {
        Self {
            causes: Mutex::default(),
            last,
        }
    }

    /// Keeps a fault as the plugin's last one.
    pub fn note(&self, unix_ms: u64, phase: Phase, fault: &Fault) {
        self.last.note(unix_ms, phase, fault);
    }

    /// Counts a fault, as [`LineInterval::admit`] does, among those of its cause whose messages differ in digits only.
    pub fn admit(&self, now_ms: u64, fault: &Fault) -> Option<u64> {
        // A poisoned lock holds a valid state: every change of it is a plain store.
        let mut causes = self
            .causes
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        causes
            .get_mut(fault.cause.index())?
            .admit(now_ms, &fault.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_of_faults_makes_one_line_and_the_next_counts_the_rest() {
        let mut interval = LineInterval::default();
        assert_eq!(interval.admit(1_000), Some(0));
        for now in 1_001..1_006 {
            assert_eq!(interval.admit(now), None);
        }
        assert_eq!(interval.admit(1_000 + LineInterval::MS), Some(5));
        assert_eq!(interval.admit(1_001 + LineInterval::MS), None);
    }

    #[test]
    fn faults_of_one_cause_hide_none_of_another() {
        let log = FaultLog::default();
        let admit = |now, cause, message: &str| {
            let message = message.to_owned();
            log.admit(now, &Fault { cause, message })
        };
        assert_eq!(admit(1_000, Cause::Error, "a:1: x"), Some(0));
        assert_eq!(admit(1_001, Cause::Error, "a:1: x"), None);
        assert_eq!(admit(1_002, Cause::Memory, "a:1: x"), Some(0));
        assert_eq!(admit(1_003, Cause::Memory, "a:1: x"), None);
        assert_eq!(admit(1_004, Cause::Error, "a:1: y"), Some(0));
        assert_eq!(admit(1_005, Cause::Error, "a:22: x"), None);
        assert_eq!(
            admit(1_000 + LineInterval::MS, Cause::Error, "a:1: x"),
            Some(2)
        );
    }

    #[test]
    fn faults_of_ever_new_messages_are_bounded() {
        let log = FaultLog::default();
        let admitted = |now| {
            let lines = (0..1_000).filter(|number| {
                let message = "x".repeat(*number);
                let cause = Cause::Error;
                log.admit(now, &Fault { cause, message }).is_some()
            });
            lines.count()
        };
        let most = MessageIntervals::MOST + 1;
        assert_eq!(admitted(0), most);
        assert_eq!(admitted(1), 0);
        assert_eq!(admitted(LineInterval::MS), most);
        let known = log.causes.lock().unwrap()[Cause::Error.index()].known.len();
        assert_eq!(known, MessageIntervals::MOST);
    }
}
