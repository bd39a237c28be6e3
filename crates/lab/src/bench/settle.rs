//! Waits until an Envoy has nothing to do: what it makes on threads of its own (a spare VM of a plugin that takes
//! long to make) is no request's.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::experiment::counters::ProcessCounters;

/// How long Envoy is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// Coraza takes minutes under callgrind.
const PATIENCE: Duration = Duration::from_mins(15);

/// Waits until a process has used less than a quarter of a processor for a while: under callgrind, the thread that
/// counts the time of Wasm's calls takes some of it.
///
/// # Errors
/// It goes on for too long, or is gone.
pub(crate) fn settle(process: u32) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let before = ProcessCounters::read(process)?;
        thread::sleep(LOOK);
        let used = Duration::from_nanos(ProcessCounters::read(process)?.since(before).cpu);
        if used < LOOK / 4 {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "Envoy does not come to rest");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_gone_is_an_error() {
        assert!(settle(u32::MAX).is_err());
    }
}
