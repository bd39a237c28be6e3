//! The process's Wasmtime engine, and the thread that lets calls end in time.
//!
//! Compiled code counts the engine's epoch: every [`TICK`] it is raised, and a call whose deadline has
//! come ends with a trap. When no call has begun for a while the thread parks, and the next call wakes
//! it: a process without such plugins, or without traffic, has no ticking thread.
//!
//! The trap: an engine installs signal handlers for good, so there is one for the process, made when the
//! first plugin loads, and the library that holds it is never unloaded.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use wasmtime::{Config, Engine, OptLevel, Strategy, WasmBacktraceDetails};

/// How often the epoch is raised.
pub(crate) const TICK: Duration = Duration::from_millis(2);
/// For so long after the last call has begun the thread ticks on: longer than any call may take.
const IDLE: Duration = Duration::from_mins(2);
/// The longest that any call may take.
pub(crate) const LONGEST_BUDGET: Duration = Duration::from_mins(1);

/// How deep guests may call, in bytes of the worker's stack, of which Envoy's threads have 8 MiB.
const STACK: usize = 1024 * 1024;

static ENGINE: LazyLock<Result<Engine, String>> =
    LazyLock::new(|| Engine::new(&config()).map_err(|error| format!("{error:#}")));

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

fn config() -> Config {
    let mut config = Config::new();
    config
        .strategy(Strategy::Cranelift)
        .cranelift_opt_level(OptLevel::Speed)
        .epoch_interruption(true)
        .max_wasm_stack(STACK)
        .wasm_backtrace_details(WasmBacktraceDetails::Enable)
        .memory_init_cow(true);
    config
}

/// The process's engine.
///
/// # Errors
/// This machine cannot run it, with the reason.
pub(crate) fn engine() -> Result<&'static Engine, String> {
    let engine = ENGINE
        .as_ref()
        .map_err(|reason| format!("Wasmtime cannot run WebAssembly on this machine: {reason}"))?;
    let mut thread = TICKER.thread.lock().unwrap_or_else(PoisonError::into_inner);
    if thread.is_none() {
        let spawned = std::thread::Builder::new()
            .name("outrider-epoch".to_owned())
            .spawn(move || tick(engine))
            .map_err(|error| format!("the thread that ends endless calls cannot start: {error}"))?;
        *thread = Some(spawned.thread().clone());
    }
    Ok(engine)
}

/// A call begins: the epoch has to advance. Answers how many ticks stand for a budget.
#[inline]
pub(crate) fn begin() {
    if !TICKER.called.load(Ordering::Relaxed) {
        TICKER.called.store(true, Ordering::SeqCst);
    }
    if TICKER.asleep.load(Ordering::SeqCst) && TICKER.asleep.swap(false, Ordering::SeqCst) {
        wake();
    }
}

/// How many ticks a budget is: at least one whole, after the one that is running.
pub(crate) fn ticks(budget: Duration) -> u64 {
    let budget = budget.min(LONGEST_BUDGET).as_nanos();
    let ticks = budget.div_ceil(TICK.as_nanos());
    u64::try_from(ticks).unwrap_or(u64::MAX).saturating_add(1)
}

#[cold]
fn wake() {
    let thread = TICKER.thread.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(thread) = &*thread {
        thread.unpark();
    }
}

fn tick(engine: &'static Engine) {
    let mut last_call = Instant::now();
    loop {
        std::thread::sleep(TICK);
        engine.increment_epoch();
        if TICKER.called.swap(false, Ordering::SeqCst) {
            last_call = Instant::now();
        }
        if last_call.elapsed() < IDLE {
            continue;
        }
        // Say so first, look again, then sleep: a call that began in between is seen by that look, or
        // sees that it has to wake this thread.
        TICKER.asleep.store(true, Ordering::SeqCst);
        if !TICKER.called.load(Ordering::SeqCst) {
            while TICKER.asleep.load(Ordering::SeqCst) {
                std::thread::park();
            }
        }
        TICKER.asleep.store(false, Ordering::SeqCst);
        last_call = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_at_least_its_ticks() {
        assert_eq!(ticks(Duration::from_millis(20)), 11);
        assert_eq!(ticks(Duration::from_micros(1)), 2);
        assert_eq!(ticks(Duration::from_secs(100_000)), ticks(LONGEST_BUDGET));
    }
}
