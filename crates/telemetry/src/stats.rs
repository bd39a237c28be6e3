//! Counters of the process: records that were written, and those that were lost, by cause.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// A counter.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Counter {
            $($(#[$doc])* $name,)*
        }

        impl Counter {
            /// All counters.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Its name below `outrider.telemetry.`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

counters! {
    /// Records that were handed to their sink: written to a file, or accepted by a receiver.
    Written = "written";
    /// Records that did not fit into a worker's ring.
    RingFull = "dropped.ring_full";
    /// Records that found the queue of their sink full.
    QueueFull = "dropped.queue_full";
    /// Records that a receiver refused, in whole or in part of a batch.
    Rejected = "dropped.rejected";
    /// Records that a sink still had when it was given up.
    Abandoned = "dropped.abandoned";
    /// Records that no access log knows any more, which would be a bug.
    Unknown = "dropped.unknown";
    /// Attempts to write or to send that failed and are made again.
    Retries = "retries";
    /// Times that a thread of normal priority took over.
    Rescues = "rescues";
    /// Files that were opened again after they were moved, removed or full.
    Reopened = "reopened";
}

static VALUES: [AtomicU64; Counter::ALL.len()] = [const { AtomicU64::new(0) }; Counter::ALL.len()];

/// Adds to a counter.
pub fn add(counter: Counter, amount: u64) {
    if let Some(value) = VALUES.get(counter as usize) {
        value.fetch_add(amount, Ordering::Relaxed);
    }
}

/// Returns a counter's value.
pub fn value(counter: Counter) -> u64 {
    VALUES
        .get(counter as usize)
        .map_or(0, |value| value.load(Ordering::Relaxed))
}

/// A sink, for administrators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkStatus {
    /// The file's path, the receiver's address, or `stdout`.
    pub place: String,
    /// Bytes that wait in it.
    pub waiting: usize,
    /// The last failure, if it is not over.
    pub failure: Option<String>,
}

static SINKS: Mutex<Vec<SinkStatus>> = Mutex::new(Vec::new());

fn locked() -> MutexGuard<'static, Vec<SinkStatus>> {
    // A list that is replaced as a whole is valid whenever it is locked.
    SINKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sinks, as they were after the exporter's last pass.
pub fn sinks() -> Vec<SinkStatus> {
    locked().clone()
}

pub(crate) fn set_sinks(sinks: Vec<SinkStatus>) {
    *locked() = sinks;
}
