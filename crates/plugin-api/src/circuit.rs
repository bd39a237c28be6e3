//! A plugin that fails again and again is not called for a while: its circuit opens, its streams get
//! its failure policy for [`crate::Cause::Circuit`], and now and then one stream is served on trial.
//!
//! Failures that cost the gateway count: a call over its time budget, and a VM over its memory budget. The
//! circuit opens when so many streams as the policy says failed so within 10 seconds, and they are at least
//! one in ten of the plugin's streams in that time. An error ends its own request and costs nothing more,
//! so it never counts: otherwise, whoever sends requests that a plugin cannot handle would turn it off for
//! everybody else.
//!
//! There is a circuit for each configuration of a plugin version, so that a configuration which does
//! not work on one route costs the others nothing.
//!
//! The trap is the request path: while no stream fails, a circuit is one relaxed load when a stream
//! begins and one when it ends. All else is behind a lock that is held for a few instructions.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The time in which failures are counted together.
pub(crate) const WINDOW: Duration = Duration::from_secs(10);

/// A circuit opens only if at least one in so many streams failed.
const SHARE: u32 = 10;

/// The parts of a window, which leave it one by one.
const SLICES: usize = 10;

/// Streams of one part of a window.
#[derive(Debug, Clone, Copy, Default)]
struct Slice {
    failed: u32,
    good: u32,
}

/// The streams of the last 10 seconds, by how they ended.
#[derive(Debug, Default)]
struct Window {
    slices: [Slice; SLICES],
    /// The number of the newest slice, since the clock's zero.
    newest: u64,
}

impl Window {
    /// The slice of a time. A clock that was set back is in the newest one.
    fn slice(&mut self, now: u64) -> Option<&mut Slice> {
        let number = (now / (millis(WINDOW) / SLICES as u64)).max(self.newest);
        let passed = number - self.newest;
        self.newest = number;
        let count = self.slices.len();
        for back in 0..passed.min(count as u64) {
            let index = (number - back) as usize % count;
            if let Some(slice) = self.slices.get_mut(index) {
                *slice = Slice::default();
            }
        }
        self.slices.get_mut(number as usize % count)
    }

    fn failed(&self) -> u32 {
        let all = self.slices.iter().map(|slice| slice.failed);
        all.fold(0, u32::saturating_add)
    }

    fn all(&self) -> u32 {
        let good = self.slices.iter().map(|slice| slice.good);
        good.fold(self.failed(), u32::saturating_add)
    }

    fn clear(&mut self) {
        self.slices = <[Slice; SLICES]>::default();
    }
}

/// When a circuit opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CircuitPolicy {
    /// So many streams must fail within 10 seconds, and one in ten of all.
    pub failures: u32,
    /// How long it is open at first; each opening that follows soon doubles that.
    pub pause: Duration,
    /// The longest pause.
    pub longest_pause: Duration,
}

impl Default for CircuitPolicy {
    fn default() -> Self {
        Self {
            failures: 20,
            pause: Duration::from_secs(1),
            longest_pause: Duration::from_mins(1),
        }
    }
}

/// So many streams on trial in a row must be good before a circuit closes.
const TRIALS: u32 = 3;

/// Whether a stream may call the plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It may.
    Go,
    /// It may, and what comes of it decides about the circuit.
    Trial,
    /// The circuit is open.
    Refused,
}

/// What has become of a circuit, for the log and for statistics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CircuitChange {
    /// It opened.
    Opened {
        /// How many streams failed within 10 seconds; 0: one on trial did.
        failures: u32,
        /// For so long.
        pause: Duration,
        /// What the last of them failed of.
        last_failure: String,
    },
    /// Streams are served on trial.
    HalfOpened,
    /// It closed.
    Closed {
        /// It was not closed for so long.
        after: Duration,
    },
}

/// Where a circuit stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CircuitState {
    /// The plugin is called.
    #[default]
    Closed,
    /// It is not called.
    Open,
    /// It is called on trial, one stream at a time.
    HalfOpen,
}

impl CircuitState {
    /// The state's word for people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half open",
        }
    }
}

/// What there is to see of a circuit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CircuitStatus {
    /// The first scope with its configuration: `gateway`, or `project shop, route cart`.
    pub scope: String,
    /// Where it stands.
    pub state: CircuitState,
    /// Streams that failed within the last 10 seconds, while it is closed.
    pub failures: u32,
    /// Number of times that it has opened.
    pub openings: u64,
    /// While it is open: when it is tried again, in milliseconds since the Unix epoch.
    pub retry_at: Option<u64>,
    /// What the last failed stream failed of.
    pub last_failure: Option<String>,
}

/// How many circuits of one plugin are open, and how many of those the statistics show.
#[derive(Debug, Default)]
pub struct OpenCircuits {
    count: Mutex<OpenCount>,
}

#[derive(Debug, Default)]
struct OpenCount {
    open: i64,
    shown: i64,
}

impl OpenCircuits {
    fn add(&self, change: i64) {
        self.locked().open += change;
    }

    /// What is to be added to the gauge.
    fn unshown(&self) -> i64 {
        let mut count = self.locked();
        let change = count.open - count.shown;
        count.shown = count.open;
        change
    }

    fn locked(&self) -> MutexGuard<'_, OpenCount> {
        // Two numbers that are valid whatever panicked.
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// No stream has failed within the window, and the gauge is right.
const CALM: u8 = 0;
/// Something is to be done when a stream begins or ends.
const TROUBLED: u8 = 1;
/// It is open until `retry_at`.
const OPEN: u8 = 2;

/// See the module.
#[derive(Debug)]
pub struct Circuit {
    mood: AtomicU8,
    /// When an open circuit is tried again.
    retry_at: AtomicU64,
    policy: Option<CircuitPolicy>,
    scope: String,
    open: Arc<OpenCircuits>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    state: CircuitState,
    window: Window,
    /// Good streams on trial in a row.
    good: u32,
    /// A stream on trial is under way since then.
    trial_since: Option<u64>,
    /// Openings that followed each other soon.
    level: u32,
    openings: u64,
    /// When it stopped being closed.
    troubled_since: u64,
    closed_at: u64,
    last_failure: Option<String>,
}

impl Circuit {
    /// A closed circuit of the configuration of `scope`; without a policy it never opens.
    pub fn new(scope: String, policy: Option<CircuitPolicy>, open: Arc<OpenCircuits>) -> Self {
        Self {
            // The first stream sees to the gauge: the circuit of an older version may have been open.
            mood: AtomicU8::new(if policy.is_some() { TROUBLED } else { CALM }),
            retry_at: AtomicU64::new(0),
            policy,
            scope,
            open,
            inner: Mutex::default(),
        }
    }

    /// Whether there is nothing to ask and nothing to tell.
    #[inline]
    pub fn is_calm(&self) -> bool {
        self.mood.load(Ordering::Relaxed) == CALM
    }

    /// What is to be added to the gauge of the plugin's open circuits.
    pub fn gauge_change(&self) -> i64 {
        self.open.unshown()
    }

    /// A stream wants to call the plugin for the first time. `now` is any clock, in milliseconds.
    pub fn admit(&self, now: u64) -> (Admission, Option<CircuitChange>) {
        let Some(policy) = self.policy else {
            return (Admission::Go, None);
        };
        if self.mood.load(Ordering::Relaxed) == OPEN {
            let retry_at = self.retry_at.load(Ordering::Relaxed);
            // A clock that was set back must not keep it open for long.
            if now < retry_at && retry_at - now <= millis(policy.longest_pause) {
                return (Admission::Refused, None);
            }
        }
        let mut inner = self.locked();
        match inner.state {
            CircuitState::Closed => {
                self.settle(&inner);
                (Admission::Go, None)
            }
            CircuitState::Open => {
                inner.state = CircuitState::HalfOpen;
                inner.good = 0;
                inner.trial_since = Some(now);
                self.settle(&inner);
                (Admission::Trial, Some(CircuitChange::HalfOpened))
            }
            CircuitState::HalfOpen => {
                // One that takes long, or was lost, does not keep others from their trial.
                let lease = millis(pause(policy, inner.level));
                let busy = inner
                    .trial_since
                    .is_some_and(|since| now >= since && now - since < lease);
                if busy {
                    return (Admission::Refused, None);
                }
                inner.trial_since = Some(now);
                (Admission::Trial, None)
            }
        }
    }

    /// A stream came to its end, and the plugin did not fail on it.
    pub fn succeeded(&self, admission: Admission, now: u64) -> Option<CircuitChange> {
        let mut inner = self.locked();
        let change = match (inner.state, admission) {
            (CircuitState::Closed, _) => {
                if let Some(slice) = inner.window.slice(now) {
                    slice.good = slice.good.saturating_add(1);
                }
                None
            }
            (CircuitState::HalfOpen, Admission::Trial) => {
                inner.trial_since = None;
                inner.good += 1;
                (inner.good >= TRIALS).then(|| {
                    inner.state = CircuitState::Closed;
                    inner.window.clear();
                    inner.closed_at = now;
                    self.open.add(-1);
                    CircuitChange::Closed {
                        after: Duration::from_millis(now.saturating_sub(inner.troubled_since)),
                    }
                })
            }
            // It began before the circuit opened.
            _ => None,
        };
        self.settle(&inner);
        change
    }

    /// The plugin failed on a stream, with this message; to be told once a stream.
    pub fn failed(&self, admission: Admission, message: &str, now: u64) -> Option<CircuitChange> {
        let policy = self.policy?;
        let mut inner = self.locked();
        let opens = match (inner.state, admission) {
            (CircuitState::Closed, _) => {
                if let Some(slice) = inner.window.slice(now) {
                    slice.failed = slice.failed.saturating_add(1);
                }
                let failed = inner.window.failed();
                failed >= policy.failures && failed.saturating_mul(SHARE) >= inner.window.all()
            }
            (CircuitState::HalfOpen, Admission::Trial) => true,
            // It began before the circuit opened.
            _ => return None,
        };
        inner.last_failure = Some(message.to_owned());
        let change = opens.then(|| {
            let failures = if inner.state == CircuitState::Closed {
                let quiet = now.saturating_sub(inner.closed_at);
                let soon = inner.openings > 0 && quiet < millis(policy.longest_pause);
                inner.level = if soon {
                    inner.level.saturating_add(1)
                } else {
                    0
                };
                inner.troubled_since = now;
                self.open.add(1);
                inner.window.failed()
            } else {
                inner.level = inner.level.saturating_add(1);
                0
            };
            inner.state = CircuitState::Open;
            inner.trial_since = None;
            inner.openings += 1;
            let pause = pause(policy, inner.level);
            self.retry_at
                .store(now.saturating_add(millis(pause)), Ordering::Relaxed);
            CircuitChange::Opened {
                failures,
                pause,
                last_failure: message.to_owned(),
            }
        });
        self.settle(&inner);
        change
    }

    /// What there is to see.
    pub fn status(&self) -> CircuitStatus {
        let inner = self.locked();
        CircuitStatus {
            scope: self.scope.clone(),
            state: inner.state,
            failures: inner.window.failed(),
            openings: inner.openings,
            retry_at: (inner.state == CircuitState::Open)
                .then(|| self.retry_at.load(Ordering::Relaxed)),
            last_failure: inner.last_failure.clone(),
        }
    }

    /// The scope that it was made for.
    pub fn scope(&self) -> &str {
        &self.scope
    }

    fn settle(&self, inner: &Inner) {
        let mood = match inner.state {
            CircuitState::Closed if inner.window.failed() == 0 => CALM,
            CircuitState::Closed | CircuitState::HalfOpen => TROUBLED,
            CircuitState::Open => OPEN,
        };
        self.mood.store(mood, Ordering::Relaxed);
    }

    fn locked(&self) -> MutexGuard<'_, Inner> {
        // Plain data, whose parts are valid by themselves whatever panicked.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Circuit {
    fn drop(&mut self) {
        if self.locked().state != CircuitState::Closed {
            self.open.add(-1);
        }
    }
}

/// How long a circuit is open that opens for the `level`th time, from 0.
fn pause(policy: CircuitPolicy, level: u32) -> Duration {
    let doubled = policy.pause.saturating_mul(1 << level.min(16));
    doubled.min(policy.longest_pause.max(policy.pause))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: u64 = 1_000_000;

    fn circuit() -> Circuit {
        let policy = CircuitPolicy {
            failures: 3,
            ..CircuitPolicy::default()
        };
        let circuit = Circuit::new("gateway".to_owned(), Some(policy), Arc::default());
        assert_eq!(circuit.admit(SOON), (Admission::Go, None));
        assert!(circuit.is_calm());
        circuit
    }

    fn fail(circuit: &Circuit, admission: Admission, now: u64) -> Option<Duration> {
        match circuit.failed(admission, "bad", now)? {
            CircuitChange::Opened { pause, .. } => Some(pause),
            other => panic!("{other:?}"),
        }
    }

    fn open(circuit: &Circuit, now: u64) -> Duration {
        assert_eq!(fail(circuit, Admission::Go, now), None);
        assert_eq!(fail(circuit, Admission::Go, now), None);
        fail(circuit, Admission::Go, now).expect("the third")
    }

    #[test]
    fn failures_within_the_window_open_it_and_good_streams_do_not_hide_them() {
        let circuit = circuit();
        for _ in 0..2 {
            assert_eq!(fail(&circuit, Admission::Go, SOON), None);
            assert!(!circuit.is_calm());
            for _ in 0..5 {
                assert_eq!(circuit.admit(SOON), (Admission::Go, None));
                assert_eq!(circuit.succeeded(Admission::Go, SOON), None);
            }
        }
        let pause = fail(&circuit, Admission::Go, SOON + 9_000);
        assert_eq!(pause, Some(Duration::from_secs(1)));
        let opened = SOON + 9_000;
        assert_eq!(circuit.admit(opened + 999), (Admission::Refused, None));
        // Streams that began before it opened do not matter any more.
        assert_eq!(fail(&circuit, Admission::Go, opened + 5), None);
        assert_eq!(circuit.succeeded(Admission::Go, opened + 5), None);
        assert_eq!(circuit.admit(opened + 999), (Admission::Refused, None));
        let status = circuit.status();
        assert_eq!(status.state, CircuitState::Open);
        assert_eq!(status.retry_at, Some(opened + 1000));
        assert_eq!(status.last_failure.as_deref(), Some("bad"));
    }

    #[test]
    fn failures_that_are_few_among_good_streams_do_not_open_it() {
        let circuit = circuit();
        for _ in 0..100 {
            for _ in 0..10 {
                assert_eq!(circuit.succeeded(Admission::Go, SOON), None);
            }
            assert_eq!(fail(&circuit, Admission::Go, SOON), None);
        }
        assert_eq!(circuit.status().failures, 100);
    }

    #[test]
    fn failures_leave_the_window_and_the_circuit_is_calm_again() {
        let circuit = circuit();
        let window = millis(WINDOW);
        for turn in 0..10 {
            let now = SOON + turn * window;
            assert_eq!(fail(&circuit, Admission::Go, now), None);
            assert_eq!(fail(&circuit, Admission::Go, now), None);
            assert_eq!(circuit.status().failures, 2);
        }
        assert!(!circuit.is_calm());
        circuit.succeeded(Admission::Go, SOON + 10 * window);
        assert!(circuit.is_calm());
    }

    #[test]
    fn it_closes_after_streams_on_trial_one_at_a_time() {
        let circuit = circuit();
        open(&circuit, SOON);
        let later = SOON + 1000;
        let (admission, change) = circuit.admit(later);
        assert_eq!(admission, Admission::Trial);
        assert_eq!(change, Some(CircuitChange::HalfOpened));
        assert_eq!(circuit.admit(later), (Admission::Refused, None));
        for _ in 0..2 {
            assert_eq!(circuit.succeeded(Admission::Trial, later), None);
            assert_eq!(circuit.admit(later), (Admission::Trial, None));
        }
        let after = Duration::from_secs(1);
        assert_eq!(
            circuit.succeeded(Admission::Trial, later),
            Some(CircuitChange::Closed { after })
        );
        assert!(circuit.is_calm());
        assert_eq!(circuit.status().openings, 1);
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew_after_quiet_times() {
        let circuit = circuit();
        let mut now = SOON;
        let mut pauses = vec![open(&circuit, now).as_secs()];
        for _ in 0..7 {
            now += pauses.last().unwrap() * 1000;
            assert_eq!(circuit.admit(now).0, Admission::Trial);
            pauses.push(fail(&circuit, Admission::Trial, now).unwrap().as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        now += 60_000;
        for _ in 0..TRIALS {
            assert_eq!(circuit.admit(now).0, Admission::Trial);
            circuit.succeeded(Admission::Trial, now);
        }
        assert!(circuit.is_calm());
        // It fails again soon: the pauses go on; after a minute's quiet they begin anew.
        assert_eq!(open(&circuit, now + 59_999).as_secs(), 60);
        now += 59_999 + 60_000;
        for _ in 0..TRIALS {
            circuit.admit(now);
            circuit.succeeded(Admission::Trial, now);
        }
        assert_eq!(open(&circuit, now + 60_000).as_secs(), 1);
    }

    #[test]
    fn a_stream_on_trial_that_takes_long_makes_room_for_another() {
        let circuit = circuit();
        open(&circuit, SOON);
        assert_eq!(circuit.admit(SOON + 1000).0, Admission::Trial);
        assert_eq!(circuit.admit(SOON + 1999).0, Admission::Refused);
        assert_eq!(circuit.admit(SOON + 2000).0, Admission::Trial);
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_keep_it_open() {
        let circuit = circuit();
        open(&circuit, SOON);
        assert_eq!(circuit.admit(SOON - 120_000).0, Admission::Trial);
    }

    #[test]
    fn without_a_policy_it_never_opens() {
        let circuit = Circuit::new(String::new(), None, Arc::default());
        assert!(circuit.is_calm());
        for _ in 0..1000 {
            assert_eq!(circuit.failed(Admission::Go, "bad", SOON), None);
            assert!(circuit.is_calm());
        }
    }

    #[test]
    fn the_gauge_follows_what_opens_closes_and_goes() {
        let open_circuits = Arc::new(OpenCircuits::default());
        let made = || {
            let policy = CircuitPolicy {
                failures: 3,
                ..CircuitPolicy::default()
            };
            Circuit::new(String::new(), Some(policy), Arc::clone(&open_circuits))
        };
        let (one, two) = (made(), made());
        open(&one, SOON);
        open(&two, SOON);
        assert_eq!(one.gauge_change(), 2);
        assert_eq!(one.gauge_change(), 0);
        drop(two);
        // The first stream of another one says so.
        let three = made();
        assert!(!three.is_calm());
        assert_eq!(three.gauge_change(), -1);
        for _ in 0..TRIALS {
            one.admit(SOON + 1000);
            one.succeeded(Admission::Trial, SOON + 1000);
        }
        assert_eq!(one.gauge_change(), -1);
    }
}
