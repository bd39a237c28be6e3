//! Time of a run in nanoseconds, and the CPU time of the current thread.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Clock of one run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunClock {
    begin: Instant,
}

impl RunClock {
    /// A clock whose zero is `begin`, which may lie in the future.
    pub(crate) fn from(begin: Instant) -> Self {
        Self { begin }
    }

    /// Nanoseconds since the begin; 0 before it.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The instant of so many nanoseconds after the begin.
    pub(crate) fn instant(&self, nanoseconds: u64) -> Instant {
        self.begin + Duration::from_nanos(nanoseconds)
    }
}

/// CPU time of the current thread in nanoseconds.
pub(crate) fn thread_cpu_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or_default();
    seconds * 1_000_000_000 + nanoseconds
}
