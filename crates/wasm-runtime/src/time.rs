//! Time budgets of calls into guests, held by Wasmtime's epochs.
//!
//! Compiled code compares the engine's epoch with the call's deadline at the beginning of each function and loop, and
//! between the parts of a long bulk operation. Every [`TICK`] a thread increments the epoch; at the deadline Wasmtime
//! calls [`Time::at_deadline`], which decides by the CPU time of the calling thread whether the call goes on.
//! Host functions that may take long ask [`Time::check`] themselves.
//!
//! When no call has begun for a while the thread parks, and the next call unparks it: a process without such plugins,
//! or without traffic, has no ticking thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use outrider_plugin_api::bytes::copy;
use wasmtime::{Engine, Trap};

use crate::memory::thread_cpu_time;

/// Period of the epoch.
pub(crate) const TICK: Duration = Duration::from_millis(2);
/// Ticks after the last call's beginning until the thread parks: two minutes, longer than any call may take.
const IDLE_TICKS: u32 = 60_000;
/// The longest budget of any call.
pub(crate) const LONGEST_BUDGET: Duration = Duration::from_mins(1);

/// The engine's epoch, readable by host functions.
static EPOCH: AtomicU64 = AtomicU64::new(0);

static TICKER: Ticker = Ticker {
    called: AtomicBool::new(false),
    asleep: AtomicBool::new(false),
    thread: Mutex::new(None),
};

struct Ticker {
    /// A call has begun since the thread last cleared this.
    called: AtomicBool,
    asleep: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

/// Starts the thread that increments the engine's epoch, unless it runs.
///
/// # Errors
/// The system has no thread for it.
pub(crate) fn start(engine: &'static Engine) -> Result<(), String> {
    let mut thread = TICKER.thread.lock().unwrap_or_else(PoisonError::into_inner);
    if thread.is_none() {
        let spawned = std::thread::Builder::new()
            .name("outrider-epoch".to_owned())
            .spawn(move || tick(engine))
            .map_err(|error| format!("the thread that ends endless calls cannot start: {error}"))?;
        *thread = Some(spawned.thread().clone());
    }
    Ok(())
}

/// Returns half a budget in ticks, at least one.
pub(crate) fn half_ticks(budget: Duration) -> u64 {
    let half = budget.min(LONGEST_BUDGET).as_nanos() / 2;
    let ticks = half.div_ceil(TICK.as_nanos());
    u64::try_from(ticks).unwrap_or(u64::MAX).max(1)
}

/// Deadline of a VM's call.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Time {
    /// The epoch at which the budget is checked next.
    deadline: u64,
    patience: Patience,
}

impl Time {
    /// Begins a call whose budget is twice so many ticks.
    #[inline]
    pub(crate) fn begin(&mut self, half_ticks: u64) {
        if !TICKER.called.load(Ordering::Relaxed) {
            TICKER.called.store(true, Ordering::SeqCst);
        }
        if TICKER.asleep.load(Ordering::SeqCst) && TICKER.asleep.swap(false, Ordering::SeqCst) {
            wake();
        }
        self.deadline = EPOCH.load(Ordering::Relaxed).saturating_add(half_ticks);
        self.patience = Patience::new(half_ticks);
    }

    /// Returns the number of ticks until the next check, for Wasmtime's deadline callback.
    ///
    /// # Errors
    /// `Trap::Interrupt`: the budget is used up.
    pub(crate) fn at_deadline(&mut self) -> wasmtime::Result<u64> {
        self.check()?;
        let epoch = EPOCH.load(Ordering::SeqCst);
        Ok(self.deadline.saturating_sub(epoch).max(1))
    }

    /// Checks the budget within a host function. Costs one load while the deadline has not come.
    ///
    /// # Errors
    /// `Trap::Interrupt`: the budget is used up.
    #[inline]
    pub(crate) fn check(&mut self) -> wasmtime::Result<()> {
        let epoch = EPOCH.load(Ordering::SeqCst);
        if epoch >= self.deadline {
            self.deadline = epoch.saturating_add(self.patience.at_deadline()?);
        }
        Ok(())
    }
}

/// Bytes that a host function copies between two checks of the budget: some 0.1 ms.
const CHUNK: usize = 1024 * 1024;

impl Time {
    /// Appends bytes, and checks the budget between parts of a long copy.
    ///
    /// # Errors
    /// `Trap::Interrupt`: the budget is used up.
    #[inline]
    pub(crate) fn append(&mut self, into: &mut Vec<u8>, bytes: &[u8]) -> wasmtime::Result<()> {
        if bytes.len() <= CHUNK {
            into.extend_from_slice(bytes);
            return Ok(());
        }
        into.reserve(bytes.len());
        for part in bytes.chunks(CHUNK) {
            self.check()?;
            into.extend_from_slice(part);
        }
        Ok(())
    }

    /// Copies bytes to a place of the same length, and checks the budget between parts of a long copy.
    ///
    /// # Errors
    /// `Trap::Interrupt`: the budget is used up.
    #[inline]
    pub(crate) fn copy(&mut self, to: &mut [u8], from: &[u8]) -> wasmtime::Result<()> {
        if from.len() <= CHUNK {
            copy(to, from);
            return Ok(());
        }
        for (to, from) in to.chunks_mut(CHUNK).zip(from.chunks(CHUNK)) {
            self.check()?;
            copy(to, from);
        }
        Ok(())
    }
}

/// Decides whether an overdue call goes on. On an overloaded machine time passes in which the worker does not run;
/// that is not the guest's. So the CPU time of the thread is read when half of the budget has passed, and again after
/// each further half, and the call ends once it has used a quarter of its budget since the first reading.
#[derive(Debug, Clone, Copy, Default)]
struct Patience {
    half_ticks: u64,
    /// CPU time of the thread at the first check.
    first: Option<Duration>,
    checks: u32,
}

/// After so many checks a call ends in any case, at some sixty times its budget.
const MOST_CHECKS: u32 = 120;

impl Patience {
    #[inline]
    fn new(half_ticks: u64) -> Self {
        Self {
            half_ticks,
            first: None,
            checks: 0,
        }
    }

    /// Returns the number of ticks until the next check.
    ///
    /// # Errors
    /// `Trap::Interrupt`: the budget is used up.
    fn at_deadline(&mut self) -> wasmtime::Result<u64> {
        let now = thread_cpu_time();
        let goes_on = match (self.first, now) {
            (None, _) => true,
            (Some(first), Some(now)) => {
                let quarter = u128::from(self.half_ticks) * TICK.as_nanos() / 2;
                self.checks < MOST_CHECKS && now.saturating_sub(first).as_nanos() < quarter
            }
            (Some(_), None) => false,
        };
        if !goes_on {
            return Err(Trap::Interrupt.into());
        }
        self.checks += 1;
        self.first = self.first.or(Some(now.unwrap_or_default()));
        Ok(self.half_ticks)
    }
}

#[cold]
fn wake() {
    let thread = TICKER.thread.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(thread) = &*thread {
        thread.unpark();
    }
}

fn tick(engine: &Engine) {
    // Counted: this runs as long as there is traffic, and reading the clock costs more than all the rest.
    let mut idle = 0;
    loop {
        std::thread::sleep(TICK);
        EPOCH.fetch_add(1, Ordering::SeqCst);
        engine.increment_epoch();
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
        // `asleep` is set before `called` is read again: a call that begins in between is seen by this read, or
        // sees that it has to unpark this thread.
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
        let first = thread_cpu_time().unwrap();
        // This thread has hardly run since.
        patience.first = Some(first + Duration::from_secs(1));
        assert!(patience.at_deadline().is_ok());
        // A call with no budget has run for all of it at once.
        let mut spent = Patience::new(0);
        assert!(spent.at_deadline().is_ok());
        assert!(spent.at_deadline().is_err());
        patience.first = Some(first + Duration::from_secs(1));
        patience.checks = MOST_CHECKS;
        assert!(patience.at_deadline().is_err());
    }

    #[test]
    fn before_its_deadline_a_call_goes_on() {
        let mut time = Time::default();
        time.begin(u64::MAX);
        assert!(time.check().is_ok());
        assert_eq!(time.patience.checks, 0);
        time.begin(0);
        assert!(time.check().is_ok());
        assert_eq!(time.patience.checks, 1);
        assert!(time.check().is_err());
    }

    #[test]
    fn thread_cpu_time_counts_work_and_not_sleep() {
        let begun = thread_cpu_time().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let used = || thread_cpu_time().unwrap().saturating_sub(begun);
        let slept = used();
        assert!(slept < Duration::from_millis(40), "{slept:?}");
        let mut sum = 0_u64;
        while used() < slept + Duration::from_millis(5) {
            sum = std::hint::black_box(sum + 1);
        }
    }
}
