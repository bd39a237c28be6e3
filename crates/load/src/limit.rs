//! Judgement of a run: was the target the limit, or the generator?

use std::fmt;

use crate::outcome::Outcome;

/// Share of a thread's time above which it had no time left.
const SATURATED: f64 = 0.95;
/// Lateness of the generator, 99th percentile in nanoseconds, above which latencies are partly its own.
const LATE_GENERATOR: u64 = 500_000;

/// What limited a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    /// The generator had time left and kept its schedule.
    None,
    /// A thread of the generator was busy for this share of its time: rates are the generator's, not the target's.
    GeneratorBusy {
        /// Share of the busiest thread, from 0 to 1.
        share: f64,
    },
    /// The generator sent late although a connection was free: latencies are partly its own.
    GeneratorLate {
        /// 99th percentile of its lateness in nanoseconds.
        p99: u64,
    },
    /// Requests waited for a free connection: the target is slower than the rate with so many connections.
    Connections {
        /// Share of the requests that were sent late or not at all, from 0 to 1.
        share: f64,
    },
}

impl Limit {
    pub(crate) fn of(outcome: &Outcome) -> Self {
        let total = outcome.total();
        let share = outcome.busiest_thread as f64 / outcome.elapsed.max(1) as f64;
        if share >= SATURATED {
            return Self::GeneratorBusy { share };
        }
        let p99 = total.schedule_error.value_at_quantile(0.99);
        if p99 > LATE_GENERATOR {
            return Self::GeneratorLate { p99 };
        }
        let waiting = (total.late + total.unsent) as f64 / total.due.max(1) as f64;
        if waiting > 0.01 {
            return Self::Connections { share: waiting };
        }
        Self::None
    }

    /// Whether the results describe the generator, and not the target.
    pub fn is_generator(self) -> bool {
        matches!(
            self,
            Self::GeneratorBusy { .. } | Self::GeneratorLate { .. }
        )
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("the generator had time left and kept its schedule"),
            Self::GeneratorBusy { share } => write!(
                f,
                "the generator was the limit: a thread of it was busy for {:.0} % of the time; use more threads, or \
                 another machine",
                share * 100.0
            ),
            Self::GeneratorLate { p99 } => write!(
                f,
                "the generator was the limit: it sent {:.0} µs late (p99) although a connection was free; lower the \
                 rate, or leave it a core of its own",
                *p99 as f64 / 1000.0
            ),
            Self::Connections { share } => write!(
                f,
                "{:.1} % of the requests waited for a free connection: the target is too slow for this rate, or there \
                 are too few connections",
                share * 100.0
            ),
        }
    }
}
