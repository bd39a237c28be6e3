//! The watchdog: one thread per process that ends calls whose time budget is used up, charges long calls to
//! their plugin's CPU share, and has short calls metered for some time when it meets one.
//!
//! A worker numbers its calls into a VM ([`CallSlot::begin`], [`CallSlot::end`]) and reads no clock, unless they are
//! metered. While calls come, the watchdog looks at all slots each [`TICK`]; a call's time begins when its number is seen
//! first. When no call was seen for a while the thread parks, and the next call wakes it.
//!
//! Time is CPU time of the worker's thread, not wall-clock time: a thread that a busy machine does not let
//! run must not cost a stream its plugin.
//!
//! The trap is a call that ends in the moment in which the watchdog finds it overdue. The call's number
//! decides: the watchdog may interrupt the VM only if it has changed the number to `OVERDUE`, and the
//! worker that finds `OVERDUE` at the end of a call takes the lock that the watchdog holds meanwhile.

use std::fmt::Debug;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::shares::{MeteredUntil, ShareAccount};

/// Interval between two looks at the slots.
pub(crate) const TICK: Duration = Duration::from_millis(2);
/// A call that is still running this long after a look is charged to its plugin's share.
pub(crate) const SAMPLE: Duration = Duration::from_micros(500);
/// After so many looks that saw no call the thread parks.
const IDLE_TICKS: u32 = 100;
/// A call that uses so much CPU time after its interrupt is late: its VM is not to be used again.
const LATE: Duration = Duration::from_millis(20);

const IDLE: u64 = 0;
const OVERDUE: u64 = u64::MAX;

/// The clock id of no thread.
pub const NO_CLOCK: i32 = -1;
/// The worker of a VM that no worker uses.
pub const NO_WORKER: usize = usize::MAX;

/// Ends the call that runs in one VM.
pub trait Interrupt: Debug + Send + Sync {
    /// Ends the call that runs. Called on the watchdog's thread while the call runs, and again at each
    /// tick until the call ends; `attempt` counts from 0.
    fn interrupt(&self, attempt: u32);
}

/// Reads the CPU time of threads. It is the runtimes' because another thread's clock needs unsafe code.
pub trait ThreadClock: Debug + Sync {
    /// Returns the id of the calling thread's CPU clock, or [`NO_CLOCK`].
    fn this_thread(&self) -> i32;

    /// Returns the CPU time that the thread of a clock has used, in nanoseconds, or `None` if the thread
    /// has ended.
    fn cpu_time(&self, clock: i32) -> Option<u64>;

    /// Returns the CPU time that the calling thread has used, or `None` if the system does not say.
    fn this_thread_time(&self) -> Option<Duration> {
        self.cpu_time(self.this_thread()).map(Duration::from_nanos)
    }
}

/// A call that used up its time budget and was interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overrun {
    /// The CPU time that the call used after the first interrupt.
    pub late_by: Duration,
}

impl Overrun {
    /// Whether the VM did not react to its interrupts: it is not to be used again.
    pub fn is_late(self) -> bool {
        self.late_by >= LATE
    }
}

/// The calls of one VM, as its worker and the watchdog see them.
#[derive(Debug)]
pub struct CallSlot {
    /// The number of the call that runs, or `IDLE`, or `OVERDUE`.
    call: AtomicU64,
    /// The number of the last call; only the VM's user writes it.
    last: AtomicU64,
    /// Time budget of the call, in nanoseconds.
    budget: AtomicU64,
    /// The CPU clock of the thread that the call runs on.
    clock: AtomicI32,
    /// The worker that uses the VM.
    worker: AtomicUsize,
    seen: Mutex<Seen>,
    interrupt: Box<dyn Interrupt>,
    clocks: &'static dyn ThreadClock,
    account: Option<Arc<ShareAccount>>,
    /// The call is charged by its worker, from its beginning to its end.
    charged_in_full: AtomicBool,
    /// Until when calls are metered ([`MeteredUntil`]); 0: they are not.
    metered_until: AtomicU64,
    /// When the call that runs, and is metered, began; 0: it is not. Only the VM's user writes it.
    metered_from: AtomicU64,
}

/// What the watchdog keeps of the call that it saw last.
#[derive(Debug, Default)]
struct Seen {
    call: u64,
    /// When it was seen first, in nanoseconds of the watchdog's clock.
    at: u64,
    /// CPU time of its thread when it was seen first.
    cpu: Option<u64>,
    /// CPU time of its thread at its first interrupt.
    interrupted: Option<u64>,
    attempts: u32,
    /// CPU time of its thread at the last look, if the call ran then.
    sample: Option<(u64, u64)>,
    /// The call that was charged last, and the CPU time of its thread up to which it was charged.
    charged: Option<(u64, u64)>,
}

/// What one look at a slot saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sight {
    Idle,
    Running,
}

impl CallSlot {
    /// Returns the slot of a VM. Long calls are charged to `account` while a worker uses the VM
    /// ([`CallSlot::set_worker`]).
    pub fn new(
        interrupt: Box<dyn Interrupt>,
        clocks: &'static dyn ThreadClock,
        account: Option<Arc<ShareAccount>>,
    ) -> Self {
        Self {
            call: AtomicU64::new(IDLE),
            last: AtomicU64::new(IDLE),
            budget: AtomicU64::new(0),
            clock: AtomicI32::new(NO_CLOCK),
            worker: AtomicUsize::new(NO_WORKER),
            seen: Mutex::default(),
            interrupt,
            clocks,
            account,
            charged_in_full: AtomicBool::new(false),
            metered_until: AtomicU64::new(0),
            metered_from: AtomicU64::new(0),
        }
    }

    /// Has the watchdog look at a slot for as long as it lives.
    ///
    /// # Errors
    /// The watchdog's thread cannot start; the next VM tries again.
    pub fn register(self: &Arc<Self>) -> io::Result<()> {
        let watchdog = &*WATCHDOG;
        let mut slots = watchdog.slots();
        slots.retain(|slot| slot.strong_count() > 0);
        slots.push(Arc::downgrade(self));
        drop(slots);
        let mut thread = watchdog.thread();
        if thread.is_none() {
            let spawned = std::thread::Builder::new()
                .name("outrider-watch".to_owned())
                .spawn(|| run(&WATCHDOG))?;
            *thread = Some(spawned.thread().clone());
        }
        Ok(())
    }

    /// Sets the worker that uses the VM; [`NO_WORKER`]: none.
    pub fn set_worker(&self, worker: usize) {
        self.worker.store(worker, Ordering::Relaxed);
    }

    /// Returns the account that long calls are charged to.
    pub fn account(&self) -> Option<&Arc<ShareAccount>> {
        self.account.as_ref()
    }

    /// Charges CPU time to the account, if a worker uses the VM.
    pub fn charge(&self, cost: Duration) {
        let worker = self.worker.load(Ordering::Relaxed);
        if let Some(account) = &self.account
            && worker != NO_WORKER
        {
            account.charge(worker, cost);
        }
    }

    /// Returns the CPU time that the calling thread has used, in nanoseconds.
    pub(crate) fn cpu_time(&self) -> Option<u64> {
        self.clocks.cpu_time(self.clocks.this_thread())
    }

    pub(crate) fn set_charged_in_full(&self, charged: bool) {
        self.charged_in_full.store(charged, Ordering::Relaxed);
    }

    /// Begins a call on this thread that may use `budget` of CPU time.
    #[inline]
    pub fn begin(&self, budget: Duration) {
        // At one a nanosecond, numbers last for five centuries.
        let call = self.last.load(Ordering::Relaxed) + 1;
        self.last.store(call, Ordering::Relaxed);
        self.budget
            .store(budget.as_nanos() as u64, Ordering::Relaxed);
        self.clock
            .store(self.clocks.this_thread(), Ordering::Relaxed);
        // SeqCst: the watchdog, before it parks, says so and then looks at the calls; a worker sets its
        // call and then looks whether the watchdog is parked. One of them sees the other.
        self.call.store(call, Ordering::SeqCst);
        let watchdog = &*WATCHDOG;
        if watchdog.parked.load(Ordering::SeqCst) && watchdog.parked.swap(false, Ordering::SeqCst) {
            watchdog.unpark();
        }
        if self.metered_until.load(Ordering::Relaxed) != 0 {
            self.begin_metered();
        }
    }

    #[cold]
    fn begin_metered(&self) {
        if self.charged_in_full.load(Ordering::Relaxed) {
            return;
        }
        match MeteredUntil(self.metered_until.load(Ordering::Relaxed)).begin() {
            Some(now) => self.metered_from.store(now, Ordering::Relaxed),
            // A look that comes in between is lost; the next one is not.
            None => self.metered_until.store(0, Ordering::Relaxed),
        }
    }

    #[cold]
    fn end_metered(&self) {
        let began = self.metered_from.swap(0, Ordering::Relaxed);
        let worker = self.worker.load(Ordering::Relaxed);
        if let Some(account) = &self.account
            && worker != NO_WORKER
        {
            account.charge_metered(worker, began);
        }
    }

    /// Ends the call; called on the call's own thread. After it returns, the VM is not interrupted until
    /// the next call.
    ///
    /// # Errors
    /// The call was interrupted because it was over its time budget.
    #[inline]
    pub fn end(&self) -> Result<(), Overrun> {
        if self.metered_from.load(Ordering::Relaxed) != 0 {
            self.end_metered();
        }
        if self.call.swap(IDLE, Ordering::AcqRel) != OVERDUE {
            return Ok(());
        }
        Err(self.end_overdue())
    }

    #[cold]
    fn end_overdue(&self) -> Overrun {
        // The watchdog, which may be interrupting the VM, lets go of the lock when it is done.
        let mut seen = self.seen();
        let now = self.clocks.cpu_time(self.clock.load(Ordering::Relaxed));
        let late_by = now
            .zip(seen.interrupted.take())
            .map_or(0, |(now, then)| now.saturating_sub(then));
        seen.attempts = 0;
        Overrun {
            late_by: Duration::from_nanos(late_by),
        }
    }

    /// Whether the call that runs is over its budget; asked by host functions that run for long.
    #[inline]
    pub fn is_overdue(&self) -> bool {
        self.call.load(Ordering::Relaxed) == OVERDUE
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the VM, and interrupts its call if that has used up its budget. `now` is in nanoseconds
    /// of the watchdog's clock.
    fn look(&self, now: impl Fn() -> u64) -> Sight {
        let call = self.call.load(Ordering::SeqCst);
        if call == IDLE {
            return Sight::Idle;
        }
        let mut seen = self.seen();
        let cpu = self.clocks.cpu_time(self.clock.load(Ordering::Relaxed));
        seen.sample = cpu.map(|cpu| (self.last.load(Ordering::Relaxed), cpu));
        self.meter();
        if call != OVERDUE && !self.is_over_budget(&mut seen, call, cpu, now()) {
            return Sight::Running;
        }
        let claimed = call == OVERDUE && self.call.load(Ordering::SeqCst) == OVERDUE
            || self
                .call
                .compare_exchange(call, OVERDUE, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok();
        if claimed {
            if seen.attempts == 0 {
                seen.interrupted = cpu;
            }
            // The call has not ended: its end waits for the lock.
            self.interrupt.interrupt(seen.attempts);
            seen.attempts = seen.attempts.saturating_add(1);
        }
        Sight::Running
    }

    /// Whether the call of this number has run for its budget. A call that began meanwhile may lend its
    /// clock or its budget to this question; it has another number, so nothing follows from that.
    fn is_over_budget(&self, seen: &mut Seen, call: u64, cpu: Option<u64>, now: u64) -> bool {
        let budget = self.budget.load(Ordering::Relaxed);
        if seen.call != call {
            seen.call = call;
            seen.at = now;
            seen.cpu = cpu;
            seen.attempts = 0;
        }
        if now.saturating_sub(seen.at) < budget {
            return false;
        }
        match (seen.cpu, cpu) {
            (Some(then), Some(now)) => now.saturating_sub(then) >= budget,
            // Without the thread's clock, wall-clock time has to do.
            _ => true,
        }
    }

    /// Has the plugin's calls metered from now on for some time: it is at work.
    fn meter(&self) {
        let worker = self.worker.load(Ordering::Relaxed);
        if let Some(account) = &self.account
            && worker != NO_WORKER
        {
            let MeteredUntil(until) = account.meter(worker);
            self.metered_until.store(until, Ordering::Relaxed);
        }
    }

    /// Charges the call that ran at the last look, if it still runs. The first sample of a call stands for a whole
    /// tick; from then on the call is charged for all CPU time since, however late the watchdog comes.
    ///
    /// Short calls are never charged here: what is sampled is the time left of a call, and a call of less than
    /// [`SAMPLE`] has less. A call that is longer cannot hide among short ones, since each sample stands
    /// for itself.
    fn charge_sample(&self) {
        let Some(account) = &self.account else {
            return;
        };
        if self.call.load(Ordering::SeqCst) == IDLE {
            return;
        }
        let worker = self.worker.load(Ordering::Relaxed);
        let mut seen = self.seen();
        let now = self.clocks.cpu_time(self.clock.load(Ordering::Relaxed));
        let Some(((call, then), now)) = seen.sample.take().zip(now) else {
            return;
        };
        let is_same =
            self.last.load(Ordering::SeqCst) == call && self.call.load(Ordering::SeqCst) != IDLE;
        let charged = self.charged_in_full.load(Ordering::Relaxed);
        if worker == NO_WORKER || !is_same || charged {
            return;
        }
        let cost = match seen.charged {
            Some((charged, until)) if charged == call => now.saturating_sub(until),
            _ => {
                let used = now.saturating_sub(then);
                let tick = TICK.as_nanos() as u64;
                let weight = tick / (SAMPLE.as_nanos() as u64);
                // A watchdog that a busy machine woke late has seen more than its sample.
                (used * weight).min(tick).max(used)
            }
        };
        seen.charged = Some((call, now));
        drop(seen);
        account.charge(worker, Duration::from_nanos(cost));
    }
}

#[derive(Debug)]
struct Watchdog {
    began: Instant,
    slots: Mutex<Vec<Weak<CallSlot>>>,
    parked: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

static WATCHDOG: LazyLock<Watchdog> = LazyLock::new(|| Watchdog {
    began: Instant::now(),
    slots: Mutex::default(),
    parked: AtomicBool::new(false),
    thread: Mutex::default(),
});

impl Watchdog {
    fn slots(&self) -> MutexGuard<'_, Vec<Weak<CallSlot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn thread(&self) -> MutexGuard<'_, Option<Thread>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    fn unpark(&self) {
        if let Some(thread) = &*self.thread() {
            thread.unpark();
        }
    }

    /// Looks at all slots. Returns those in which a call runs.
    fn look(&self) -> Vec<Arc<CallSlot>> {
        // The list is not locked while a slot is looked at: a plugin that is loaded on another thread
        // does not wait for an interrupt.
        let slots: Vec<_> = {
            let slots = self.slots();
            slots
                .iter()
                .filter_map(Weak::upgrade)
                .filter(|slot| slot.call.load(Ordering::SeqCst) != IDLE)
                .collect()
        };
        let now = || self.began.elapsed().as_nanos() as u64;
        slots
            .into_iter()
            .filter(|slot| slot.look(now) == Sight::Running)
            .collect()
    }
}

fn run(watchdog: &Watchdog) {
    let mut idle = 0;
    loop {
        let running = watchdog.look();
        if running.is_empty() {
            idle += 1;
            if idle < IDLE_TICKS {
                std::thread::sleep(TICK);
                continue;
            }
        } else {
            idle = 0;
            std::thread::sleep(SAMPLE);
            for slot in running {
                slot.charge_sample();
            }
            std::thread::sleep(TICK.saturating_sub(SAMPLE));
            continue;
        }
        // Announce the pause first, look again, then park: a call that began in between is seen by that
        // look, or sees that it has to wake this thread.
        watchdog.parked.store(true, Ordering::SeqCst);
        if watchdog.look().is_empty() {
            while watchdog.parked.load(Ordering::SeqCst) {
                std::thread::park();
            }
        } else {
            watchdog.parked.store(false, Ordering::SeqCst);
        }
        idle = 0;
    }
}

#[cfg(test)]
mod tests;
