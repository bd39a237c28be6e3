//! The time that calls of guests may take.
//!
//! Every [`TICK`] a thread counts on, and tells each guest to look ([`memory::tell_all`]); a guest that runs does so
//! soon ([`crate::looks`]), and [`Time::look`] says whether its call goes on. When no call has begun for a while the
//! thread parks, and the next call wakes it: a process without such plugins, or without traffic, has no ticking
//! thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use wasmtime::Trap;

use crate::memory;

/// How often guests are told to look.
pub(crate) const TICK: Duration = Duration::from_millis(2);
/// So many times the thread ticks on after the last call has begun, two minutes: longer than any call may take.
const IDLE_TICKS: u32 = 60_000;
/// The longest that any call may take.
pub(crate) const LONGEST_BUDGET: Duration = Duration::from_mins(1);

/// How many ticks there were.
static NOW: AtomicU64 = AtomicU64::new(0);

static TICKER: Ticker = Ticker {
    called: AtomicBool::new(false),
    asleep: AtomicBool::new(false),
    thread: Mutex::new(None),
};

struct Ticker {
    /// A call has begun since the thread last looked.
    called: AtomicBool,
    asleep: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

/// Starts the thread, if it does not run.
///
/// # Errors
/// The system has no thread for it.
pub(crate) fn start() -> Result<(), String> {
    let mut thread = TICKER.thread.lock().unwrap_or_else(PoisonError::into_inner);
    if thread.is_none() {
        let spawned = std::thread::Builder::new()
            .name("outrider-time".to_owned())
            .spawn(tick)
            .map_err(|error| format!("the thread that ends endless calls cannot start: {error}"))?;
        *thread = Some(spawned.thread().clone());
    }
    Ok(())
}

/// How many ticks half a budget is: at least one whole.
pub(crate) fn half_ticks(budget: Duration) -> u64 {
    let half = budget.min(LONGEST_BUDGET).as_nanos() / 2;
    let ticks = half.div_ceil(TICK.as_nanos());
    u64::try_from(ticks).unwrap_or(u64::MAX).max(1)
}

/// The time of a VM's call.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Time {
    /// The tick at which it is seen to.
    deadline: u64,
    patience: Patience,
}

impl Time {
    /// A call begins whose budget is twice so many ticks.
    #[inline]
    pub(crate) fn begin(&mut self, half_ticks: u64) {
        if !TICKER.called.load(Ordering::Relaxed) {
            TICKER.called.store(true, Ordering::SeqCst);
        }
        if TICKER.asleep.load(Ordering::SeqCst) && TICKER.asleep.swap(false, Ordering::SeqCst) {
            wake();
        }
        self.deadline = NOW.load(Ordering::Relaxed).saturating_add(half_ticks);
        self.patience = Patience::new(half_ticks);
    }

    /// The guest looks. What it was told was taken back before: what comes from now on is told anew.
    ///
    /// # Errors
    /// The call has had its time, and ends.
    pub(crate) fn look(&mut self) -> wasmtime::Result<()> {
        let now = NOW.load(Ordering::SeqCst);
        if now >= self.deadline {
            self.deadline = now.saturating_add(self.patience.at_deadline()?);
        }
        Ok(())
    }
}

/// Whether a call that has taken long may go on. On a machine with more to do than it has processors for,
/// time passes in which the worker does not run: that is not the guest's. So a call is looked at when half of
/// its budget has passed, and again and again after that, until it has run for half of the other half.
#[derive(Debug, Clone, Copy, Default)]
struct Patience {
    half_ticks: u64,
    /// What the worker's thread had run for when the call was first looked at, in nanoseconds.
    first: Option<u64>,
    looks: u32,
}

/// After so many looks a call ends in any case: some sixty times its budget.
const MOST_LOOKS: u32 = 120;

impl Patience {
    #[inline]
    fn new(half_ticks: u64) -> Self {
        Self {
            half_ticks,
            first: None,
            looks: 0,
        }
    }

    /// The deadline has come. Answers after how many ticks the next one does.
    ///
    /// # Errors
    /// The call has had its time, and ends.
    fn at_deadline(&mut self) -> wasmtime::Result<u64> {
        let now = time_run();
        let goes_on = match (self.first, now) {
            (None, _) => true,
            (Some(first), Some(now)) => {
                let quarter = u128::from(self.half_ticks) * TICK.as_nanos() / 2;
                self.looks < MOST_LOOKS && u128::from(now.saturating_sub(first)) < quarter
            }
            (Some(_), None) => false,
        };
        if !goes_on {
            return Err(Trap::Interrupt.into());
        }
        self.looks += 1;
        self.first = self.first.or(Some(now.unwrap_or(0)));
        Ok(self.half_ticks)
    }
}

/// For how long this thread has run, in nanoseconds; none: the system does not say.
pub(crate) fn time_run() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

#[cold]
fn wake() {
    let thread = TICKER.thread.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(thread) = &*thread {
        thread.unpark();
    }
}

fn tick() {
    // Counted: this runs as long as there is traffic, and a look at the clock costs more than all the rest.
    let mut idle = 0;
    loop {
        std::thread::sleep(TICK);
        NOW.fetch_add(1, Ordering::SeqCst);
        memory::tell_all();
        if TICKER.called.load(Ordering::Relaxed) {
            TICKER.called.store(false, Ordering::SeqCst);
            idle = 0;
            continue;
        }
        idle += 1;
        if idle < IDLE_TICKS {
            continue;
        }
        idle = 0;
        // Say so first, look again, then sleep: a call that began in between is seen by that look, or
        // sees that it has to wake this thread.
        TICKER.asleep.store(true, Ordering::SeqCst);
        if !TICKER.called.load(Ordering::SeqCst) {
            while TICKER.asleep.load(Ordering::SeqCst) {
                std::thread::park();
            }
        }
        TICKER.asleep.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_budget_is_a_tick_at_least() {
        assert_eq!(half_ticks(Duration::from_millis(20)), 5);
        assert_eq!(half_ticks(Duration::from_micros(1)), 1);
        assert_eq!(
            half_ticks(Duration::from_secs(100_000)),
            half_ticks(LONGEST_BUDGET)
        );
    }

    #[test]
    fn a_call_that_runs_ends_and_one_that_waits_goes_on() {
        let mut patience = Patience::new(2);
        assert!(patience.at_deadline().is_ok());
        let first = time_run().unwrap();
        // This thread has hardly run since.
        patience.first = Some(first + 1_000_000_000);
        assert!(patience.at_deadline().is_ok());
        // A call with no budget has run for all of it at once.
        let mut spent = Patience::new(0);
        assert!(spent.at_deadline().is_ok());
        assert!(spent.at_deadline().is_err());
        patience.first = Some(first + 1_000_000_000);
        patience.looks = MOST_LOOKS;
        assert!(patience.at_deadline().is_err());
    }

    #[test]
    fn before_its_deadline_a_call_goes_on() {
        start().unwrap();
        let mut time = Time::default();
        time.begin(u64::MAX);
        assert!(time.look().is_ok());
        assert_eq!(time.patience.looks, 0);
        time.begin(0);
        assert!(time.look().is_ok());
        assert_eq!(time.patience.looks, 1);
        assert!(time.look().is_err());
    }
}
