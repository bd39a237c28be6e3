//! Circuit of ticks: a configuration whose ticks fail is called at growing intervals, on all workers together.
//!
//! A failed tick costs its VM. So failures count by rate, not in a row: a guest that fails at every other tick, or
//! serves streams in between, gets the same intervals as one that fails each time.

use std::collections::BTreeMap;
use std::time::Duration;

/// Failed ticks of a plugin version, by configuration. Those that do not fail have no entry.
#[derive(Debug, Default)]
pub(crate) struct TickFailures(BTreeMap<u32, Failures>);

#[derive(Debug, Default, Clone, Copy)]
struct Failures {
    /// Grows by [`FAILURE`] with a failed tick, and shrinks by 1 with one that succeeds.
    score: u32,
    /// When the next tick may begin, by the plugin's clock.
    until: Duration,
}

/// So many ticks that succeed make up for one that failed.
const FAILURE: u32 = 32;
/// Interval after the first failure; each further one doubles it, up to [`LONGEST`].
const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(30);
/// Failures beyond which the score does not grow.
const MOST: u32 = 9;

impl TickFailures {
    /// Returns the time until the next tick of a configuration may begin.
    pub(crate) fn wait(&self, configuration: u32, now: Duration) -> Duration {
        let until = self.0.get(&configuration).map(|failures| failures.until);
        // A clock that was set back must not put ticks off for long.
        until.map_or(Duration::ZERO, |until| {
            until.saturating_sub(now).min(LONGEST)
        })
    }

    /// Counts a tick.
    pub(crate) fn note(&mut self, configuration: u32, succeeded: bool, now: Duration) {
        if succeeded {
            if let Some(failures) = self.0.get_mut(&configuration) {
                failures.score -= 1;
                if failures.score == 0 {
                    self.0.remove(&configuration);
                }
            }
            return;
        }
        let failures = self.0.entry(configuration).or_default();
        failures.score = (failures.score + FAILURE).min(MOST * FAILURE);
        let doublings = (failures.score - 1) / FAILURE;
        failures.until = now + FIRST.saturating_mul(1 << doublings).min(LONGEST);
    }

    /// Forgets a configuration that is no longer in use.
    pub(crate) fn remove(&mut self, configuration: u32) {
        self.0.remove(&configuration);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1000);

    #[test]
    fn failing_ticks_come_at_growing_intervals() {
        let mut failures = TickFailures::default();
        assert_eq!(failures.wait(1, NOW), Duration::ZERO);
        for milliseconds in [
            200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000,
        ] {
            failures.note(1, false, NOW);
            let wait = Duration::from_millis(milliseconds);
            assert_eq!(failures.wait(1, NOW), wait);
            assert_eq!(failures.wait(1, NOW + wait), Duration::ZERO);
            assert_eq!(failures.wait(2, NOW), Duration::ZERO, "another's");
        }
        failures.remove(1);
        assert_eq!(failures.wait(1, NOW), Duration::ZERO);
    }

    #[test]
    fn ticks_that_fail_every_other_time_come_at_growing_intervals_too() {
        let mut failures = TickFailures::default();
        for _ in 0..10 {
            failures.note(1, false, NOW);
            failures.note(1, true, NOW);
        }
        assert_eq!(failures.wait(1, NOW), LONGEST);
        for _ in 0..MOST * FAILURE {
            failures.note(1, true, NOW);
        }
        assert_eq!(failures.wait(1, NOW), Duration::ZERO);
        assert!(failures.0.is_empty());
    }
}
