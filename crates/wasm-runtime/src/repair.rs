//! When VMs that failed are replaced: at once, and, where they fail again and again, at growing distances.

use std::time::Duration;

/// When a VM that failed is replaced.
#[derive(Debug, Default)]
pub(crate) struct Repair {
    /// How often VMs failed in a row, without serving a stream to its end.
    pub(crate) failures: u32,
    /// When the last one failed, by the plugin's clock.
    pub(crate) failed_at: Duration,
    /// Why.
    pub(crate) reason: String,
}

/// So many failures in a row are mended at once.
const FREE_FAILURES: u32 = 3;
/// The next is mended when this is over.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Each failure doubles the pause, up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
impl Repair {
    /// A VM has failed.
    pub(crate) fn note(&mut self, now: Duration, reason: String) {
        self.failures = self.failures.saturating_add(1);
        self.failed_at = now;
        self.reason = reason;
    }

    /// Whether the time has come.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        self.wait(now).is_zero()
    }

    /// How long it takes until then.
    pub(crate) fn wait(&self, now: Duration) -> Duration {
        let Some(doublings) = self.failures.checked_sub(FREE_FAILURES + 1) else {
            return Duration::ZERO;
        };
        let pause = FIRST_PAUSE
            .saturating_mul(1 << doublings.min(16))
            .min(LONGEST_PAUSE);
        // A clock that was set back must not put the next attempt off for long.
        now.checked_sub(self.failed_at)
            .map_or(Duration::ZERO, |passed| pause.saturating_sub(passed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repairs_are_made_at_once_and_then_at_growing_distances() {
        let mut repair = Repair {
            failed_at: Duration::from_secs(1000),
            ..Repair::default()
        };
        for failures in 0..=FREE_FAILURES {
            repair.failures = failures;
            assert!(repair.is_due(repair.failed_at), "{failures}");
        }
        for (failures, pause) in [(4, 100), (5, 200), (6, 400), (12, 25_600), (13, 30_000)] {
            repair.failures = failures;
            let due = repair.failed_at + Duration::from_millis(pause);
            let early = repair.failed_at + Duration::from_millis(pause - 1);
            assert!(!repair.is_due(early), "{failures}");
            assert!(repair.is_due(due), "{failures}");
        }
        repair.failures = u32::MAX;
        assert!(
            repair.is_due(Duration::from_secs(999)),
            "the clock was set back"
        );
    }
}
