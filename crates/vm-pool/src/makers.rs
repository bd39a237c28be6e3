//! Threads that make VMs, so that no VM is made and no plugin is configured on a worker.
//!
//! One queue for the process, fair between plugins: a plugin version has at most one entry
//! ([`Making`]), each entry does one unit of work at a time, and a plugin whose unit took long rests for
//! several times as long. So [`MOST_MAKERS`] plugins with slow starts cannot keep the others from theirs
//! for longer than one unit, which the runtime bounds.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// How many threads make VMs.
const MOST_MAKERS: usize = 4;
/// After a unit the plugin rests. The rest is so many times as long as the unit took.
const REST: u32 = 4;
const LONGEST_REST: Duration = Duration::from_secs(30);

/// What a unit of work left to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Nothing.
    Done,
    /// More, after a pause.
    Again(Duration),
}

/// A plugin version, as the maker threads see it.
pub trait MakeVm: Debug + Send + Sync {
    /// Makes one VM, or loads what one lacks. Called on a maker thread, never on two at once.
    fn make(&self) -> Progress;

    /// Returns the entry of this plugin version in the queue.
    fn making(&self) -> &Making;
}

/// Where a plugin version is in the queue.
#[derive(Debug, Default)]
pub struct Making(AtomicU8);

const NOT_QUEUED: u8 = 0;
const QUEUED: u8 = 1;
const RUNNING: u8 = 2;
/// It was asked for again while it ran.
const RUNNING_AGAIN: u8 = 3;

#[derive(Debug)]
struct Entry {
    due: Instant,
    /// In the order in which they came.
    number: u64,
    work: Weak<dyn MakeVm>,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

#[derive(Debug, Default)]
struct Queue {
    entries: BinaryHeap<Reverse<Entry>>,
    last: u64,
    threads: usize,
    idle: usize,
    lower_priority: Option<fn()>,
}

impl Queue {
    fn push(&mut self, work: Weak<dyn MakeVm>, due: Instant) {
        self.last += 1;
        let number = self.last;
        self.entries.push(Reverse(Entry { due, number, work }));
    }
}

#[derive(Debug, Default)]
struct Makers {
    queue: Mutex<Queue>,
    changed: Condvar,
}

static MAKERS: LazyLock<Makers> = LazyLock::new(Makers::default);

fn queue() -> MutexGuard<'static, Queue> {
    MAKERS.queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the first maker thread: called where a plugin is loaded, not on a worker. Each maker thread calls
/// `lower_priority` on itself, so that a worker comes before it where processors are scarce.
pub fn start_makers(lower_priority: fn()) {
    let mut queue = queue();
    queue.lower_priority.get_or_insert(lower_priority);
    if queue.threads == 0 {
        spawn(&mut queue);
    }
}

/// Has a plugin version's [`MakeVm::make`] called on a maker thread. Costs a worker a lock and a wake-up at
/// most; nothing if it is queued already.
pub fn request_vms<W: MakeVm + 'static>(work: &Arc<W>) {
    let state = &work.making().0;
    let changed = state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| match state {
        NOT_QUEUED => Some(QUEUED),
        RUNNING => Some(RUNNING_AGAIN),
        _ => None,
    });
    if changed == Ok(NOT_QUEUED) {
        let work: Weak<W> = Arc::downgrade(work);
        queue().push(work, Instant::now());
        MAKERS.changed.notify_one();
    }
}

fn spawn(queue: &mut Queue) {
    let spawned = thread::Builder::new()
        .name("outrider-make".into())
        .spawn(run);
    if spawned.is_ok() {
        queue.threads += 1;
    }
}

fn run() {
    if let Some(lower_priority) = queue().lower_priority {
        lower_priority();
    }
    let mut queue = queue();
    loop {
        let now = Instant::now();
        let due = queue.entries.peek().map(|Reverse(entry)| entry.due);
        if due.is_some_and(|due| due <= now)
            && let Some(Reverse(entry)) = queue.entries.pop()
        {
            let more = queue.entries.peek();
            let more_is_due = more.is_some_and(|Reverse(entry)| entry.due <= now);
            if more_is_due && queue.idle == 0 && queue.threads < MOST_MAKERS {
                spawn(&mut queue);
            }
            drop(queue);
            let again = do_unit(&entry.work);
            queue = self::queue();
            if let Some(rest) = again {
                queue.push(entry.work, Instant::now() + rest);
            }
            continue;
        }
        queue.idle += 1;
        queue = if let Some(due) = due {
            let wait = due.saturating_duration_since(now);
            let waited = MAKERS.changed.wait_timeout(queue, wait);
            waited.unwrap_or_else(PoisonError::into_inner).0
        } else {
            let waited = MAKERS.changed.wait(queue);
            waited.unwrap_or_else(PoisonError::into_inner)
        };
        queue.idle -= 1;
    }
}

/// Does one unit of a plugin version's work. Returns when to do the next, or `None` if there is nothing more
/// to do.
fn do_unit(work: &Weak<dyn MakeVm>) -> Option<Duration> {
    let work = work.upgrade()?;
    let state = &work.making().0;
    state.store(RUNNING, Ordering::Release);
    let began = Instant::now();
    // A panic must not end the thread; the plugin goes without its VM until it is asked for again.
    let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work.make()));
    let took = began.elapsed();
    let rest = took.saturating_mul(REST).min(LONGEST_REST);
    let pause = match made {
        Ok(Progress::Again(pause)) => Some(pause),
        Ok(Progress::Done) | Err(_) => None,
    };
    let pause = if pause.is_none() {
        let done = state.compare_exchange(RUNNING, NOT_QUEUED, Ordering::AcqRel, Ordering::Acquire);
        done.is_err().then_some(Duration::ZERO)
    } else {
        pause
    };
    // The last owner may be this thread; VMs are dropped elsewhere.
    let again = pause.map(|pause| pause.max(rest));
    if again.is_some() {
        state.store(QUEUED, Ordering::Release);
    }
    crate::drop_later(work);
    again
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32};
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    #[derive(Debug)]
    struct Plugin {
        making: Making,
        units: AtomicU32,
        takes: Duration,
        /// How many units follow each other without a request.
        repeats: u32,
        /// Keeps a unit from ending.
        is_held: AtomicBool,
        done: Mutex<Sender<Instant>>,
    }

    impl MakeVm for Plugin {
        fn make(&self) -> Progress {
            let unit = self.units.fetch_add(1, Ordering::SeqCst);
            thread::sleep(self.takes);
            while self.is_held.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            self.done.lock().unwrap().send(Instant::now()).unwrap();
            assert_ne!(unit, 1000, "a unit that panics");
            if unit < self.repeats {
                Progress::Again(Duration::ZERO)
            } else {
                Progress::Done
            }
        }

        fn making(&self) -> &Making {
            &self.making
        }
    }

    fn plugin(takes: u64, repeats: u32) -> (Arc<Plugin>, std::sync::mpsc::Receiver<Instant>) {
        let (sender, receiver) = channel();
        let plugin = Plugin {
            making: Making::default(),
            units: AtomicU32::new(0),
            takes: Duration::from_millis(takes),
            repeats,
            is_held: AtomicBool::new(false),
            done: Mutex::new(sender),
        };
        (Arc::new(plugin), receiver)
    }

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn plugins_with_slow_starts_leave_makers_to_others() {
        start_makers(|| {});
        let slow: Vec<_> = (0..8).map(|_| plugin(100, u32::MAX)).collect();
        for (slow, _) in &slow {
            request_vms(slow);
        }
        for (_, done) in &slow {
            done.recv_timeout(SOON).unwrap();
        }
        // Eight of them keep the four threads busy for some two fifths of the time.
        let (quick, done) = plugin(0, 0);
        for _ in 0..10 {
            request_vms(&quick);
            done.recv_timeout(SOON).unwrap();
            while quick.making.0.load(Ordering::SeqCst) != NOT_QUEUED {
                thread::yield_now();
            }
        }
        let (_, done) = &slow[0];
        let times: Vec<_> = (0..3).map(|_| done.recv_timeout(SOON).unwrap()).collect();
        assert!(
            times[2] - times[1] >= Duration::from_millis(100 + 400),
            "it rests"
        );
    }

    #[test]
    fn request_during_a_unit_is_not_lost() {
        start_makers(|| {});
        let (plugin, done) = plugin(0, 0);
        plugin.is_held.store(true, Ordering::SeqCst);
        request_vms(&plugin);
        while plugin.units.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        request_vms(&plugin);
        request_vms(&plugin);
        plugin.is_held.store(false, Ordering::SeqCst);
        for _ in 0..2 {
            done.recv_timeout(SOON).unwrap();
        }
        assert!(done.recv_timeout(Duration::from_millis(300)).is_err());
    }

    #[test]
    fn plugin_can_be_queued_after_a_panic() {
        start_makers(|| {});
        let (plugin, done) = plugin(0, 0);
        plugin.units.store(1000, Ordering::SeqCst);
        for _ in 0..2 {
            request_vms(&plugin);
            done.recv_timeout(SOON).unwrap();
            while plugin.making.0.load(Ordering::SeqCst) != NOT_QUEUED {
                thread::yield_now();
            }
        }
    }
}
