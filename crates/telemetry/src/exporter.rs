//! The thread that reads the rings.
//!
//! Two threads share the work, one at a time: `outrider-logs` runs at `SCHED_IDLE`, where it gets a CPU only when no other
//! thread wants it, and `outrider-rescue` has the priority of the process. A thread may leave `SCHED_IDLE` only with a
//! capability that Envoy's user seldom has, so the work goes to the other thread instead when a ring was over half full for
//! too long, and comes back when the rings have been empty enough for a while. What both need is behind one lock; a thread
//! that is to give way does so after a bounded number of records.
//!
//! All talk with receivers is the async runtime's of whichever thread has the work; Envoy's threads never run it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use outrider_plugin_formats::{self as formats, Scheduling};
use thread_priority::{
    NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy,
    set_thread_priority_and_policy, thread_native_id,
};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

use crate::registry::{self, Definition};
use crate::ring::{Consumer, Gauge};
use crate::sink::{Sink, SinkKey};
use crate::stats::{self, Counter};
use crate::worker;

/// Between two passes over the rings while records come.
const BUSY: Duration = Duration::from_millis(20);
/// Between two passes while none come.
const QUIET: Duration = Duration::from_millis(100);
/// Records of one ring in one pass: then the thread looks whether the other one is to go on.
const TURN: usize = 2048;
/// How long rings have to be less than half full before the work goes back to `SCHED_IDLE`.
const CALM: Duration = Duration::from_secs(5);

/// The threads run.
static RUNNING: AtomicBool = AtomicBool::new(false);
/// Which of the threads has the work.
static NORMAL_HAS_IT: AtomicBool = AtomicBool::new(false);
static SCHEDULING: AtomicU32 = AtomicU32::new(0);
static STARVATION: AtomicU32 = AtomicU32::new(formats::DEFAULT_STARVATION);
/// Somebody waits for everything to be written.
static FLUSHING: AtomicBool = AtomicBool::new(false);
/// Passes that ended with nothing left anywhere.
static EMPTY_PASSES: AtomicU64 = AtomicU64::new(0);
static WAKE: Notify = Notify::const_new();
static FLUSH_LIMIT: AtomicU32 = AtomicU32::new(formats::DEFAULT_FLUSH);
static PUBLISHER: OnceLock<Publisher> = OnceLock::new();
static GAUGES: Mutex<Vec<Gauge>> = Mutex::new(Vec::new());
static STATE: Mutex<Option<State>> = Mutex::new(None);
static FLUSHED: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // After a panic in a pass, a record or a batch may be missing; the lists are valid all the same.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the threads, once for the process, and sets how they are scheduled.
///
/// # Errors
/// If a thread or its runtime cannot be made.
pub fn start(scheduling: Scheduling, starvation: Duration) -> std::io::Result<()> {
    static STARTED: Once = Once::new();
    SCHEDULING.store(scheduling as u32, Ordering::Relaxed);
    let starvation = u32::try_from(starvation.as_millis()).unwrap_or(u32::MAX);
    STARVATION.store(starvation, Ordering::Relaxed);
    let mut result = Ok(());
    STARTED.call_once(|| result = start_threads());
    result
}

fn start_threads() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    *locked(&STATE) = Some(State {
        runtime,
        rings: Vec::new(),
        definitions: BTreeMap::new(),
        sinks: BTreeMap::new(),
        record: Vec::new(),
        last_sweep: Instant::now(),
    });
    std::thread::Builder::new()
        .name("outrider-logs".to_owned())
        .spawn(run_idle)?;
    std::thread::Builder::new()
        .name("outrider-rescue".to_owned())
        .spawn(run_normal)?;
    RUNNING.store(true, Ordering::Release);
    Ok(())
}

/// Sets how long [`flush_at_stop`] may wait.
pub fn set_flush_limit(longest: Duration) {
    let longest = u32::try_from(longest.as_millis()).unwrap_or(u32::MAX);
    FLUSH_LIMIT.store(longest, Ordering::Relaxed);
}

/// Takes an amount that a counter grew by; `false`: it cannot take it now.
pub type Publisher = fn(Counter, u64) -> bool;

/// Has the counters published, several times a second, by a thread of normal priority.
pub fn publish_with(publisher: Publisher) {
    // The same one, when it is set again.
    let _same = PUBLISHER.set(publisher);
}

fn publish(published: &mut [u64; Counter::ALL.len()]) {
    let Some(publisher) = PUBLISHER.get() else {
        return;
    };
    for (counter, published) in Counter::ALL.iter().zip(published) {
        let value = stats::value(*counter);
        if value > *published && publisher(*counter, value - *published) {
            *published = value;
        }
    }
}

/// Has a ring's fill level watched.
pub(crate) fn watch(gauge: Gauge) {
    locked(&GAUGES).push(gauge);
}

fn run_idle() {
    let policy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
    // Where a sandbox forbids it, the thread works at the process's priority, which is only less polite.
    let _forbidden =
        set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy);
    loop {
        if NORMAL_HAS_IT.load(Ordering::Acquire) {
            std::thread::park_timeout(QUIET);
        } else {
            work(false);
        }
    }
}

fn run_normal() {
    let mut over_since: Option<Instant> = None;
    let mut calm_since = Instant::now();
    let mut published = [0; Counter::ALL.len()];
    loop {
        publish(&mut published);
        let over = is_over_half();
        let now = Instant::now();
        if over {
            calm_since = now;
        }
        over_since = over.then(|| over_since.unwrap_or(now));
        let starvation = Duration::from_millis(STARVATION.load(Ordering::Relaxed).into());
        let is_starved = over_since.is_some_and(|since| since.elapsed() >= starvation);
        let has_it = NORMAL_HAS_IT.load(Ordering::Relaxed);
        let scheduling = SCHEDULING.load(Ordering::Relaxed);
        let wants = FLUSHING.load(Ordering::Acquire)
            || scheduling == Scheduling::Normal as u32
            || (scheduling == Scheduling::Idle as u32
                && (is_starved || (has_it && calm_since.elapsed() < CALM)));
        if wants != has_it {
            NORMAL_HAS_IT.store(wants, Ordering::Release);
            // The thread that has it may be in its pause.
            WAKE.notify_one();
            if wants && is_starved {
                stats::add(Counter::Rescues, 1);
            }
        }
        if wants {
            work(true);
        } else {
            let pause =
                (starvation / 4).clamp(Duration::from_millis(5), Duration::from_millis(250));
            std::thread::park_timeout(pause);
        }
    }
}

fn is_over_half() -> bool {
    let mut gauges = locked(&GAUGES);
    gauges.retain(|gauge| !gauge.is_closed());
    gauges.iter().any(Gauge::is_over_half)
}

/// One pass over the rings, and a pause in which receivers are talked to.
fn work(normal: bool) {
    let mut state = locked(&STATE);
    let Some(state) = state.as_mut() else {
        return;
    };
    if NORMAL_HAS_IT.load(Ordering::Acquire) != normal {
        return;
    }
    let pass = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| state.pass()));
    // A pass that panics has lost the record that it was at; the next one goes on behind it.
    let (records, is_empty) = pass.unwrap_or((0, false));
    if is_empty {
        EMPTY_PASSES.fetch_add(1, Ordering::AcqRel);
        drop(locked(&FLUSHED.0));
        FLUSHED.1.notify_all();
    }
    let pause = match records {
        // More waits already.
        TURN.. => Duration::ZERO,
        1.. => BUSY,
        0 if FLUSHING.load(Ordering::Acquire) => Duration::from_millis(1),
        0 => QUIET,
    };
    state.runtime.block_on(async {
        if pause.is_zero() {
            tokio::task::yield_now().await;
        } else {
            let _woken = tokio::time::timeout(pause, WAKE.notified()).await;
        }
    });
}

/// What the threads share.
struct State {
    runtime: Runtime,
    rings: Vec<Consumer>,
    definitions: BTreeMap<u32, Arc<Definition>>,
    sinks: BTreeMap<SinkKey, Sink>,
    record: Vec<u8>,
    last_sweep: Instant,
}

impl State {
    /// Reads the rings and writes to the sinks. Returns the most records that one ring had, and whether nothing is left in
    /// rings and sinks.
    fn pass(&mut self) -> (usize, bool) {
        // Before the rings are read: records of these ids are in them, or nowhere.
        let retired = registry::retired();
        self.rings.extend(worker::take_new());
        let mut most = 0;
        let mut place = 0;
        while let Some(mut ring) = self.take_ring(place) {
            let closed = ring.is_closed();
            let records = self.drain(&mut ring);
            most = most.max(records);
            stats::add(Counter::RingFull, ring.take_dropped());
            if !closed || records == TURN {
                self.rings.insert(place, ring);
                place += 1;
            }
        }
        let drained = most < TURN;
        if drained {
            registry::forget(&retired);
            for id in &retired {
                self.definitions.remove(id);
            }
        }
        let mut waiting = 0;
        let flushing = FLUSHING.load(Ordering::Acquire);
        for sink in self.sinks.values_mut() {
            sink.flush(flushing);
            waiting += sink.waiting();
        }
        if flushing || self.last_sweep.elapsed() > Duration::from_millis(250) {
            self.last_sweep = Instant::now();
            if drained {
                self.close_unused();
            }
            stats::set_sinks(self.sinks.values().map(Sink::status).collect());
        }
        (most, drained && most == 0 && waiting == 0)
    }

    fn take_ring(&mut self, place: usize) -> Option<Consumer> {
        (place < self.rings.len()).then(|| self.rings.remove(place))
    }

    fn drain(&mut self, ring: &mut Consumer) -> usize {
        let mut record = std::mem::take(&mut self.record);
        let mut records = 0;
        while records < TURN && ring.pop(&mut record) {
            records += 1;
            self.write(&record);
        }
        self.record = record;
        records
    }

    fn write(&mut self, record: &[u8]) {
        let Some((id, fields)) = record.split_first_chunk() else {
            return stats::add(Counter::Unknown, 1);
        };
        let id = u32::from_le_bytes(*id);
        let known = self.definitions.get(&id).map(Arc::clone);
        let Some(definition) = known.or_else(|| registry::definition(id)) else {
            return stats::add(Counter::Unknown, 1);
        };
        self.definitions
            .entry(id)
            .or_insert_with(|| Arc::clone(&definition));
        let key = SinkKey::of(&definition.sink);
        let runtime = &self.runtime;
        let sink = self
            .sinks
            .entry(key)
            .or_insert_with(|| Sink::open(&definition.sink, runtime));
        sink.append(&definition, fields);
    }

    /// Closes sinks that no access log has any more, when nothing waits in them.
    fn close_unused(&mut self) {
        let used = registry::sinks();
        self.sinks
            .retain(|key, sink| used.contains(key) || !sink.is_done());
    }
}

/// Waits until all records that were saved before are with their sinks, or given up; at most `longest`. Returns whether
/// they are.
pub fn flush(longest: Duration) -> bool {
    if !RUNNING.load(Ordering::Acquire) {
        return true;
    }
    let until = Instant::now() + longest;
    let before = EMPTY_PASSES.load(Ordering::Acquire);
    FLUSHING.store(true, Ordering::Release);
    WAKE.notify_one();
    let mut guard = locked(&FLUSHED.0);
    // A pass that was under way may have read a ring before the last record came: the second one has not.
    let is_done = || EMPTY_PASSES.load(Ordering::Acquire) >= before + 2;
    while !is_done() {
        let Some(left) = until.checked_duration_since(Instant::now()) else {
            break;
        };
        WAKE.notify_one();
        let wait = left.min(Duration::from_millis(20));
        guard = FLUSHED
            .1
            .wait_timeout(guard, wait)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
    drop(guard);
    FLUSHING.store(false, Ordering::Release);
    is_done()
}

/// As [`flush`], for as long as the configuration allows.
pub fn flush_at_stop() -> bool {
    flush(Duration::from_millis(
        FLUSH_LIMIT.load(Ordering::Relaxed).into(),
    ))
}
