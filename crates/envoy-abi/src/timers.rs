//! Timers of streams.
//!
//! Envoy offers filters no timers, but a scheduler that calls back to a stream's worker from any
//! thread. One thread for the process sleeps until the next timer is due and uses it.
//!
//! A stream that ends takes its timers with it ([`Timers::cancel`]), under the lock that the thread
//! holds while it calls a scheduler: so no scheduler is called for a worker that is gone.

use std::collections::BTreeMap;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::callbacks::callbacks;
use crate::raw::{FilterPtr, SchedulerPtr};

/// When a timer is due, and its number; the number alone is unique.
pub(crate) type TimerKey = (Instant, u64);

struct Scheduler(SchedulerPtr);

// SAFETY: Envoy documents schedulers as callable from any thread.
unsafe impl Send for Scheduler {}

impl Scheduler {
    fn commit(&self, event: u64) {
        if let Some(callbacks) = callbacks() {
            // SAFETY: the scheduler is alive until it is dropped; see the module's text for why the
            // stream's worker is, too.
            unsafe { (callbacks.http_filter_scheduler_commit)(self.0, event) }
        }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        if let Some(callbacks) = callbacks() {
            // SAFETY: made by `http_filter_scheduler_new` and deleted once, here.
            unsafe { (callbacks.http_filter_scheduler_delete)(self.0) }
        }
    }
}

#[derive(Default)]
struct Pending {
    due: BTreeMap<TimerKey, Scheduler>,
    last: u64,
}

/// The process's timers.
pub(crate) struct Timers {
    pending: Mutex<Pending>,
    earlier: Condvar,
}

static TIMERS: LazyLock<Option<&'static Timers>> = LazyLock::new(|| {
    let timers: &'static Timers = Box::leak(Box::new(Timers {
        pending: Mutex::default(),
        earlier: Condvar::new(),
    }));
    thread::Builder::new()
        .name("outrider-timers".into())
        .spawn(move || timers.run())
        .ok()
        .map(|_running_for_good| timers)
});

/// The process's timers; none when their thread could not be started.
pub(crate) fn timers() -> Option<&'static Timers> {
    *TIMERS
}

impl Timers {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        // The map stays valid whatever panicked while it was locked.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a timer that calls `on_http_filter_scheduled` of the filter with the key's number.
    pub(crate) fn start(&self, filter: FilterPtr, delay: Duration) -> Option<TimerKey> {
        let callbacks = callbacks()?;
        // SAFETY: called from a hook of this filter, so it is alive.
        let scheduler = unsafe { (callbacks.http_filter_scheduler_new)(filter) };
        if scheduler.is_null() {
            return None;
        }
        let mut pending = self.pending();
        pending.last += 1;
        let key = (Instant::now() + delay, pending.last);
        let is_next = pending.due.keys().next().is_none_or(|first| key < *first);
        pending.due.insert(key, Scheduler(scheduler));
        drop(pending);
        if is_next {
            self.earlier.notify_one();
        }
        Some(key)
    }

    /// Forgets a timer, if it is not over.
    pub(crate) fn cancel(&self, key: TimerKey) {
        self.pending().due.remove(&key);
    }

    fn run(&self) {
        let mut pending = self.pending();
        loop {
            let now = Instant::now();
            while let Some(entry) = pending.due.first_entry()
                && entry.key().0 <= now
            {
                let ((_, number), scheduler) = entry.remove_entry();
                scheduler.commit(number);
            }
            pending = match pending.due.keys().next() {
                Some((due, _)) => {
                    let wait = due.saturating_duration_since(Instant::now());
                    self.earlier
                        .wait_timeout(pending, wait)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
                None => self
                    .earlier
                    .wait(pending)
                    .unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}
