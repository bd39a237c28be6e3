//! Wake-ups of plugins on one worker: timers and events of streams, and calls beside streams.
//!
//! Envoy offers filters no timers, but a scheduler that calls back to a stream's worker from any thread. Envoy's
//! event loop runs such callbacks until none is left, before it looks at its sockets again: plugins whose timers
//! come faster than they are served would keep a worker from I/O for good. So wake-ups are delivered in turns:
//!
//! - A turn ends when its wake-ups have run for [`TURN`]. Those behind it wait.
//! - The next turn is committed at the earliest [`GAP`] after its end, and later after a long one, by the thread of
//!   the timers. In between nothing of ours is posted to the worker, so its event loop comes to its sockets, and
//!   a request, which needs it several times, does not wait for a long wake-up each time.
//! - Filters take turns: one that has more events than fit goes to the end of the queue. So do streams and calls
//!   beside streams.
//! - One event at a time is on its way to a worker.
//!
//! A filter that ends takes its scheduler with it ([`remove`]), under the lock that is held when a scheduler is
//! called: so no scheduler is called for a worker that is gone.
//!
//! The trap: a worker's queue may be locked while the alarms are, never the other way round; and no plugin runs
//! under either.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::background;
use crate::callbacks::{Callbacks, callbacks};
use crate::raw::{FilterPtr, SchedulerPtr};

/// How long the wake-ups of one turn may run before the turn ends. A single one may run longer: as long as its
/// plugin's budget allows. Miri takes tens of milliseconds to interpret a short one.
pub(crate) const TURN: Duration = Duration::from_millis(if cfg!(miri) { 100 } else { 1 });

/// How long a worker is left to its event loop after a turn; after a turn that took longer than [`TURN`], for as long
/// as that took beyond it, up to [`LONGEST_GAP`].
pub(crate) const GAP: Duration = Duration::from_micros(500);
const LONGEST_GAP: Duration = Duration::from_millis(50);

/// The cost of a wake-up beside what its plugin does.
const LEAST: Duration = Duration::from_micros(10);

/// How long streams wait for the calls beside streams when it is the turn of those.
const PATIENCE: Duration = Duration::from_millis(10);

/// Names a filter in its worker's queue, from 1.
pub(crate) type FilterKey = u64;

/// When an alarm is due, and its number; the number alone is unique.
pub(crate) type TimerKey = (Instant, u64);

/// The one event of schedulers.
const WAKE: u64 = 0;

struct Scheduler(SchedulerPtr);

// SAFETY: Envoy documents schedulers as callable from any thread.
unsafe impl Send for Scheduler {}

impl Scheduler {
    fn commit(&self) {
        if let Some(callbacks) = callbacks() {
            // SAFETY: the scheduler is alive until it is dropped; see the module's text for why the
            // stream's worker is, too.
            unsafe { (callbacks.http_filter_scheduler_commit)(self.0, WAKE) }
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

/// Where a filter is on its way to its next wake-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It has nothing to deliver.
    Idle,
    /// It waits for a turn.
    Ready,
    /// Its event is on the way to the worker.
    Committed,
    /// It is being woken.
    Running,
}

struct Waiting {
    scheduler: Scheduler,
    stage: Stage,
    /// Timers that are due and not delivered.
    due: VecDeque<u64>,
    /// An alarm will make it ready.
    delayed: bool,
}

/// Whose turn it is beside streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// It was refused, and comes first in the next turn.
    Due,
    /// The worker was asked to call again: until then streams wait.
    Asked(Instant),
}

struct Queue {
    filters: BTreeMap<FilterKey, Waiting>,
    ready: VecDeque<FilterKey>,
    last: FilterKey,
    /// An event is on its way to the worker.
    committed: bool,
    /// A wake-up runs.
    running: bool,
    /// How long wake-ups have run since the worker was last left to its event loop.
    used: Duration,
    /// When the last wake-up ended.
    ended: Instant,
    /// When an alarm will start the next turn.
    alarm: Option<Instant>,
    beside: Beside,
}

/// The wake-ups of one worker.
pub(crate) struct WakeQueue {
    queue: Mutex<Queue>,
}

thread_local! {
    static OWN: RefCell<Option<Arc<WakeQueue>>> = const { RefCell::new(None) };
}

/// This worker's queue. `None` while the thread ends.
fn own() -> Option<Arc<WakeQueue>> {
    OWN.try_with(|own| Arc::clone(own.borrow_mut().get_or_insert_with(WakeQueue::new)))
        .ok()
}

impl WakeQueue {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            queue: Mutex::new(Queue {
                filters: BTreeMap::new(),
                ready: VecDeque::new(),
                last: 0,
                committed: false,
                running: false,
                used: Duration::ZERO,
                ended: Instant::now(),
                alarm: None,
                beside: Beside::Nothing,
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Valid between any two statements that change it.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the next turn, if one may start now; otherwise sees to it that it starts later.
    fn advance(self: &Arc<Self>, queue: &mut Queue) {
        let asked = match queue.beside {
            Beside::Asked(since) if since.elapsed() < PATIENCE => Some(since + PATIENCE),
            _ => None,
        };
        if queue.running || queue.committed {
            return;
        }
        if queue.ready.is_empty() && queue.beside != Beside::Due {
            return;
        }
        let now = Instant::now();
        let starts = asked.or_else(|| queue.next_turn(now));
        if let Some(at) = starts {
            self.set_alarm(queue, at);
            return;
        }
        if queue.beside == Beside::Due {
            queue.beside = Beside::Asked(now);
            background::call_workers_again();
            if !queue.ready.is_empty() {
                self.set_alarm(queue, now + PATIENCE);
            }
            return;
        }
        if let Some(key) = queue.ready.pop_front()
            && let Some(waiting) = queue.filters.get_mut(&key)
        {
            waiting.stage = Stage::Committed;
            waiting.scheduler.commit();
            queue.committed = true;
        }
    }

    /// An alarm is due.
    fn on_turn(self: &Arc<Self>) {
        let mut queue = self.lock();
        // An alarm that was set before an earlier one changes nothing.
        if queue.alarm.is_some_and(|at| at <= Instant::now()) {
            queue.alarm = None;
        }
        self.advance(&mut queue);
    }

    /// Starts the next turn at a time, or at an earlier one for which an alarm is set.
    fn set_alarm(self: &Arc<Self>, queue: &mut Queue, at: Instant) {
        if queue.alarm.is_none_or(|known| at < known) {
            queue.alarm = Some(at);
            ALARMS.add(at, Alarm::Turn(Arc::clone(self)));
        }
    }

    fn on_timer(self: &Arc<Self>, key: FilterKey, number: u64) {
        let mut queue = self.lock();
        if let Some(waiting) = queue.filters.get_mut(&key) {
            waiting.due.push_back(number);
            self.make_ready(&mut queue, key);
        }
    }

    fn on_delay(self: &Arc<Self>, key: FilterKey) {
        let mut queue = self.lock();
        if let Some(waiting) = queue.filters.get_mut(&key) {
            waiting.delayed = false;
            self.make_ready(&mut queue, key);
        }
    }

    fn make_ready(self: &Arc<Self>, queue: &mut Queue, key: FilterKey) {
        if let Some(waiting) = queue.filters.get_mut(&key)
            && waiting.stage == Stage::Idle
        {
            waiting.stage = Stage::Ready;
            queue.ready.push_back(key);
            self.advance(queue);
        }
    }
}

impl Queue {
    /// When the next turn may start; `None`: now, or the current one goes on.
    fn next_turn(&mut self, now: Instant) -> Option<Instant> {
        let gap = GAP.max(self.used.saturating_sub(TURN)).min(LONGEST_GAP);
        let next = self.ended + gap;
        if now >= next {
            self.used = Duration::ZERO;
        }
        (self.used >= TURN).then_some(next)
    }
}

/// Sees to it that a filter is woken. `key` is where its name is kept: 0 before the first time. `filter` is alive.
fn register(
    own: &Arc<WakeQueue>,
    callbacks: &Callbacks,
    filter: FilterPtr,
    key: &Cell<FilterKey>,
) -> Option<FilterKey> {
    if key.get() != 0 {
        return Some(key.get());
    }
    // SAFETY: called from a hook of this filter, so it is alive.
    let scheduler = unsafe { (callbacks.http_filter_scheduler_new)(filter) };
    if scheduler.is_null() {
        return None;
    }
    let mut queue = own.lock();
    queue.last += 1;
    let number = queue.last;
    let waiting = Waiting {
        scheduler: Scheduler(scheduler),
        stage: Stage::Idle,
        due: VecDeque::new(),
        delayed: false,
    };
    queue.filters.insert(number, waiting);
    key.set(number);
    Some(number)
}

/// Wakes a filter of this worker: it has an event to deliver. Called in one of its hooks.
pub(crate) fn wake(callbacks: &Callbacks, filter: FilterPtr, key: &Cell<FilterKey>) {
    if let Some(own) = own()
        && let Some(key) = register(&own, callbacks, filter, key)
    {
        let mut queue = own.lock();
        own.make_ready(&mut queue, key);
    }
}

/// Starts a timer of a filter, which [`begin`] returns when it is due. Called in one of its hooks. `None`: it cannot
/// be started.
pub(crate) fn start_timer(
    callbacks: &Callbacks,
    filter: FilterPtr,
    key: &Cell<FilterKey>,
    delay: Duration,
) -> Option<TimerKey> {
    let own = own()?;
    let key = register(&own, callbacks, filter, key)?;
    let due = Instant::now().checked_add(delay)?;
    ALARMS.add(due, Alarm::Timer(own, key))
}

/// Forgets a timer, if it is not due.
pub(crate) fn cancel_timer(key: TimerKey) {
    ALARMS.cancel(key);
}

/// Takes a filter of this worker out: Envoy destroys it.
pub(crate) fn remove(key: FilterKey) {
    if key == 0 {
        return;
    }
    let Some(own) = own() else { return };
    let mut queue = own.lock();
    if let Some(waiting) = queue.filters.remove(&key) {
        if waiting.stage == Stage::Committed {
            // Envoy drops the event with the filter.
            queue.committed = false;
        }
        if waiting.stage == Stage::Ready {
            queue.ready.retain(|ready| *ready != key);
        }
        own.advance(&mut queue);
    }
}

/// A wake-up that runs, of a filter or beside streams. The next may run when it is dropped.
pub(crate) struct WakeUp {
    own: Arc<WakeQueue>,
    /// 0: beside streams.
    key: FilterKey,
    since: Instant,
    left: Duration,
    /// The filter has more to deliver.
    pub(crate) has_more: bool,
    /// It has more to deliver, after this time.
    pub(crate) delay: Option<Duration>,
}

impl WakeUp {
    /// Whether the turn is over: what is left waits for another.
    pub(crate) fn is_over(&self) -> bool {
        self.since.elapsed() >= self.left
    }
}

/// Begins a wake-up of a filter, whose event has come. Answers it with the timers that are due; `None`: not now, its
/// event will come again.
pub(crate) fn begin(key: FilterKey) -> Option<(WakeUp, VecDeque<u64>)> {
    let own = own()?;
    let mut queue = own.lock();
    if queue.filters.get(&key)?.stage != Stage::Committed {
        return None;
    }
    queue.committed = false;
    let now = Instant::now();
    if queue.running || queue.next_turn(now).is_some() {
        if let Some(waiting) = queue.filters.get_mut(&key) {
            waiting.stage = Stage::Ready;
        }
        queue.ready.push_front(key);
        own.advance(&mut queue);
        return None;
    }
    let waiting = queue.filters.get_mut(&key)?;
    waiting.stage = Stage::Running;
    let due = std::mem::take(&mut waiting.due);
    queue.running = true;
    let left = TURN.saturating_sub(queue.used);
    drop(queue);
    Some((WakeUp::new(own, key, now, left), due))
}

/// Begins the calls beside streams on this worker. `None`: not now, the worker will be called again.
pub(crate) fn begin_beside() -> Option<WakeUp> {
    let own = own()?;
    let mut queue = own.lock();
    let now = Instant::now();
    let is_asked = matches!(queue.beside, Beside::Asked(_));
    if queue.running || (!is_asked && queue.next_turn(now).is_some()) {
        queue.beside = Beside::Due;
        own.advance(&mut queue);
        return None;
    }
    queue.beside = Beside::Nothing;
    queue.running = true;
    let left = TURN.saturating_sub(queue.used);
    drop(queue);
    Some(WakeUp::new(own, 0, now, left))
}

impl WakeUp {
    fn new(own: Arc<WakeQueue>, key: FilterKey, since: Instant, left: Duration) -> Self {
        Self {
            own,
            key,
            since,
            left,
            has_more: false,
            delay: None,
        }
    }
}

impl Drop for WakeUp {
    fn drop(&mut self) {
        let mut queue = self.own.lock();
        queue.running = false;
        let now = Instant::now();
        queue.ended = now;
        queue.used += now.saturating_duration_since(self.since).max(LEAST);
        if self.key == 0 {
            if self.has_more {
                queue.beside = Beside::Due;
            }
        } else if let Some(waiting) = queue.filters.get_mut(&self.key) {
            let is_ready = self.has_more || !waiting.due.is_empty();
            waiting.stage = Stage::Idle;
            if let Some(delay) = self.delay
                && !is_ready
                && !std::mem::replace(&mut waiting.delayed, true)
            {
                let alarm = Alarm::Delay(Arc::clone(&self.own), self.key);
                ALARMS.add(now + delay, alarm);
            }
            if is_ready {
                self.own.make_ready(&mut queue, self.key);
            }
        }
        self.own.advance(&mut queue);
    }
}

enum Alarm {
    Timer(Arc<WakeQueue>, FilterKey),
    Delay(Arc<WakeQueue>, FilterKey),
    Turn(Arc<WakeQueue>),
}

#[derive(Default)]
struct PendingAlarms {
    due: BTreeMap<TimerKey, Alarm>,
    last: u64,
    has_thread: bool,
}

/// The process's alarms, and the thread that waits for them.
struct Alarms {
    pending: Mutex<PendingAlarms>,
    earlier: Condvar,
}

static ALARMS: LazyLock<Alarms> = LazyLock::new(|| Alarms {
    pending: Mutex::default(),
    earlier: Condvar::new(),
});

impl Alarms {
    fn pending(&self) -> MutexGuard<'_, PendingAlarms> {
        // The map stays valid whatever panicked while it was locked.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, at: Instant, alarm: Alarm) -> Option<TimerKey> {
        let mut pending = self.pending();
        if !pending.has_thread {
            let thread = thread::Builder::new().name("outrider-timers".into());
            // Where it cannot be started, the next alarm tries again.
            pending.has_thread = thread.spawn(run_alarms).is_ok();
        }
        if !pending.has_thread && matches!(alarm, Alarm::Timer(..)) {
            return None;
        }
        pending.last += 1;
        let key = (at, pending.last);
        let is_next = pending.due.keys().next().is_none_or(|first| key < *first);
        pending.due.insert(key, alarm);
        drop(pending);
        if is_next {
            self.earlier.notify_one();
        }
        Some(key)
    }

    fn cancel(&self, key: TimerKey) {
        let found = self.pending().due.remove(&key);
        drop(found);
    }
}

fn run_alarms() {
    let alarms = &*ALARMS;
    let mut pending = alarms.pending();
    loop {
        let now = Instant::now();
        if let Some(entry) = pending.due.first_entry()
            && entry.key().0 <= now
        {
            let ((_, number), alarm) = entry.remove_entry();
            // A queue's lock is not taken under this one.
            drop(pending);
            match alarm {
                Alarm::Timer(queue, key) => queue.on_timer(key, number),
                Alarm::Delay(queue, key) => queue.on_delay(key),
                Alarm::Turn(queue) => queue.on_turn(),
            }
            pending = alarms.pending();
            continue;
        }
        pending = match pending.due.keys().next() {
            Some((due, _)) => {
                let wait = due.saturating_duration_since(Instant::now());
                alarms
                    .earlier
                    .wait_timeout(pending, wait)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
            None => alarms
                .earlier
                .wait(pending)
                .unwrap_or_else(PoisonError::into_inner),
        };
    }
}
