//! Pauses between restarts of a VM that fails again and again.

use std::time::Duration;

/// Restart back-off of one VM: some failures in a row are free, then each doubles the pause before the
/// next restart.
#[derive(Debug, Clone)]
pub struct RestartBackoff {
    free_failures: u32,
    first_pause: Duration,
    longest_pause: Duration,
    failures: u32,
    /// On the caller's clock.
    failed_at: Duration,
    reason: String,
}

impl RestartBackoff {
    /// Returns a back-off without failures. `free_failures` in a row cost no pause; the next one costs
    /// `first_pause`, and each further one doubles it up to `longest_pause`.
    pub fn new(free_failures: u32, first_pause: Duration, longest_pause: Duration) -> Self {
        Self {
            free_failures,
            first_pause,
            longest_pause,
            failures: 0,
            failed_at: Duration::ZERO,
            reason: String::new(),
        }
    }

    /// Notes a failure at `now`, on any clock that the caller keeps to.
    pub fn note(&mut self, now: Duration, reason: String) {
        self.failures = self.failures.saturating_add(1);
        self.failed_at = now;
        self.reason = reason;
    }

    /// Notes a failure after which the next restart waits, however few there were before.
    pub fn note_at_once(&mut self, now: Duration, reason: String) {
        self.failures = self.failures.max(self.free_failures);
        self.note(now, reason);
    }

    /// Forgets the failures: the VM has served a stream.
    pub fn clear(&mut self) {
        self.failures = 0;
        self.reason.clear();
    }

    /// Returns the reason of the last failure; empty after [`RestartBackoff::clear`].
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns how many failures were noted since the last [`RestartBackoff::clear`].
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether the next restart may begin at `now`.
    pub fn is_due(&self, now: Duration) -> bool {
        self.wait(now).is_zero()
    }

    /// Returns how long the next restart has to wait from `now`.
    pub fn wait(&self, now: Duration) -> Duration {
        let Some(doublings) = self.failures.checked_sub(self.free_failures + 1) else {
            return Duration::ZERO;
        };
        let pause = self
            .first_pause
            .saturating_mul(1 << doublings.min(16))
            .min(self.longest_pause);
        // A clock that was set back must not put the next restart off for long.
        now.checked_sub(self.failed_at)
            .map_or(Duration::ZERO, |passed| pause.saturating_sub(passed))
    }
}

impl Default for RestartBackoff {
    /// Three free failures, then pauses from 100 ms to 30 s.
    fn default() -> Self {
        Self::new(3, Duration::from_millis(100), Duration::from_secs(30))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(mut backoff: RestartBackoff, failures: u32) -> RestartBackoff {
        backoff.failures = failures - 1;
        backoff.note(Duration::from_secs(1000), "bad".to_owned());
        backoff
    }

    fn holds_pauses(backoff: &RestartBackoff, pauses: &[(u32, u64)]) {
        for (failures, pause) in pauses {
            let backoff = failed(backoff.clone(), *failures);
            let due = backoff.failed_at + Duration::from_millis(*pause);
            assert!(backoff.is_due(due), "{failures}");
            if *pause > 0 {
                let early = due.checked_sub(Duration::from_millis(1)).unwrap();
                assert!(!backoff.is_due(early), "{failures}");
                assert_eq!(backoff.wait(early), Duration::from_millis(1), "{failures}");
            }
        }
    }

    #[test]
    fn pauses_follow_free_failures_and_double() {
        holds_pauses(
            &RestartBackoff::default(),
            &[
                (1, 0),
                (3, 0),
                (4, 100),
                (5, 200),
                (6, 400),
                (12, 25_600),
                (13, 30_000),
                (u32::MAX, 30_000),
            ],
        );
    }

    #[test]
    fn without_free_failures_the_first_costs_a_pause() {
        let backoff = RestartBackoff::new(0, Duration::from_millis(100), Duration::from_secs(30));
        assert!(backoff.is_due(Duration::ZERO));
        holds_pauses(
            &backoff,
            &[(1, 100), (2, 200), (3, 400), (9, 25_600), (10, 30_000)],
        );
    }

    #[test]
    fn clock_set_back_or_success_ends_the_pause() {
        let mut backoff = failed(RestartBackoff::default(), 100);
        assert_eq!(backoff.reason(), "bad");
        assert!(backoff.is_due(Duration::from_secs(999)));
        assert!(!backoff.is_due(Duration::from_secs(1001)));
        backoff.clear();
        assert!(backoff.is_due(Duration::from_secs(1001)));
        assert_eq!((backoff.failures(), backoff.reason()), (0, ""));
    }
}
