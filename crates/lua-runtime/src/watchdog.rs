//! One thread per process that ends calls whose time is over.
//!
//! While calls come, it looks at all VMs every [`TICK`]. When none has come for a while it parks, and
//! the next call wakes it: a process without traffic has no ticking thread, and one with traffic
//! pays a few atomic stores a call.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::ffi::{Sight, Watch};

/// How often calls are looked at.
const TICK: Duration = Duration::from_millis(2);
/// After so many looks that saw no call, the thread parks.
const IDLE_TICKS: u32 = 100;

#[derive(Debug)]
struct Watchdog {
    began: Instant,
    watches: Mutex<Vec<Weak<Watch>>>,
    asleep: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

static WATCHDOG: LazyLock<Watchdog> = LazyLock::new(|| Watchdog {
    began: Instant::now(),
    watches: Mutex::default(),
    asleep: AtomicBool::new(false),
    thread: Mutex::default(),
});

/// Has the watchdog look at a VM for as long as it lives.
pub(crate) fn register(watch: &Arc<Watch>) {
    let watchdog = &*WATCHDOG;
    let mut watches = watchdog
        .watches
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    watches.retain(|watch| watch.strong_count() > 0);
    watches.push(Arc::downgrade(watch));
    drop(watches);
    let mut thread = watchdog
        .thread
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if thread.is_none() {
        let spawned = std::thread::Builder::new()
            .name("outrider-watch".to_owned())
            .spawn(|| run(&WATCHDOG));
        // Without a thread the next VM tries again; a process that can start none is beyond help.
        *thread = spawned.ok().map(|handle| handle.thread().clone());
    }
}

/// A call begins on this thread that may run for `budget`. Its end is [`Watch::end`].
#[inline]
pub(crate) fn begin(watch: &Watch, budget: Duration) {
    watch.begin(budget.as_nanos() as u64);
    let watchdog = &*WATCHDOG;
    if watchdog.asleep.load(Ordering::SeqCst) && watchdog.asleep.swap(false, Ordering::SeqCst) {
        wake(watchdog);
    }
}

#[cold]
fn wake(watchdog: &Watchdog) {
    let thread = watchdog
        .thread
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if let Some(thread) = &*thread {
        thread.unpark();
    }
}

fn run(watchdog: &Watchdog) {
    let mut idle = 0;
    loop {
        if look(watchdog) == Sight::Busy {
            idle = 0;
        } else {
            idle += 1;
        }
        if idle < IDLE_TICKS {
            std::thread::sleep(TICK);
            continue;
        }
        // Say so first, look again, then sleep: a call that began in between is seen by that look, or
        // sees that it has to wake this thread.
        watchdog.asleep.store(true, Ordering::SeqCst);
        if look(watchdog) == Sight::Idle {
            while watchdog.asleep.load(Ordering::SeqCst) {
                std::thread::park();
            }
        } else {
            watchdog.asleep.store(false, Ordering::SeqCst);
        }
        idle = 0;
    }
}

fn look(watchdog: &Watchdog) -> Sight {
    let watches = watchdog
        .watches
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let mut sight = Sight::Idle;
    // Mostly no call runs at this moment, and nobody needs to know the time.
    for watch in watches.iter().filter_map(Weak::upgrade) {
        if watch.is_idle() {
            continue;
        }
        let now = watchdog.began.elapsed().as_nanos() as u64;
        if watch.look(now) == Sight::Busy {
            sight = Sight::Busy;
        }
    }
    sight
}
