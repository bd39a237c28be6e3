//! What time it is for a Wasm guest in a case: the time of the host that its stream is played on.
//!
//! A guest asks for the time beside any stream, too, so the clock belongs to the thread: a case is played on
//! one, from loading the plugin to the stream's end.

use std::cell::Cell;
use std::time::Duration;

use outrider_wasm_runtime::Clock;

use crate::host::CLOCK_START_MS;

thread_local! {
    static ELAPSED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Puts this thread's clock to so long after its start.
pub(crate) fn set(elapsed: Duration) {
    ELAPSED.set(elapsed);
}

/// The clock of whichever thread asks it.
pub(crate) fn of_this_thread() -> Clock {
    Clock::new(|| Duration::from_millis(CLOCK_START_MS) + ELAPSED.get())
}
