//! CPU shares: how much of a worker one plugin may use, and all plugins together.
//!
//! A [`ShareAccount`] belongs to a plugin's name, so a new version of the plugin goes on with the account of
//! the old one. For each worker it keeps two leaky buckets; the worker has a third one for all plugins.
//! What is charged drains at the bucket's rate:
//!
//! - the plugin's own bucket at `budgets.share`, per cent of one worker;
//! - the worker's bucket at the limit of all plugins together;
//! - the fair bucket at the plugin's part of that limit, were it divided evenly.
//!
//! A plugin waits while its own bucket is over, or while the worker's bucket is over and the plugin has
//! used more than its fair part. So a plugin that is charged nothing never waits for the others.
//!
//! Fair parts alone let many plugins with long calls run one after the other, each with its part, and keep the
//! worker from its event loop for as long as all of them take. So a plugin that was charged for a long call
//! lately also waits until the worker's pace bucket, which drains at the limit of all plugins, is empty: after each
//! long call the worker is free of long calls for more than twice as long as that one took. Each long call after a
//! time without one is remembered twice as long as the last, so plugins that agree on a moment in which all of them
//! run at once cannot do so again soon. A plugin whose long calls are rare ([`RARE`]) comes before those that have
//! them all the time: it waits only until the bucket holds what drains in [`HEAD_START`].
//!
//! Charged to these buckets are: a call that is seen running for longer than
//! [`SAMPLE`](crate::watchdog::SAMPLE), by samples of the watchdog; and in full, by two readings of the thread's
//! clock, what a plugin does by wake-ups of its own ([`WakeCharge`]).
//!
//! Short calls that requests cause are what a gateway is for, and may use most of a worker. But one client can
//! cause thousands of them in one turn of the event loop, and then nothing else is done until the last has ended.
//! So calls of any length have a limit of their own, [`ALL_CALLS`] over [`WINDOW_OF_CALLS`], of all plugins together
//! and divided evenly as above. A plugin over it waits for a timer, which has the worker return to its event loop.
//! A plugin's calls are metered for this while the watchdog meets it at work ([`METERED`] from then on), so a plugin
//! that is seldom at work pays nothing, and each that is metered is charged for what it uses.
//!
//! The accounting is bounded by the number of plugins: buckets are single numbers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

/// All plugins together may use this part of a worker, in per cent; more if one plugin alone may.
const ALL_PLUGINS: u32 = 30;
/// The window over which a plugin's share is granted at once.
const WINDOW: Duration = Duration::from_millis(100);
/// The same of the limit for all plugins together.
const WINDOW_OF_ALL: Duration = Duration::from_millis(50);
/// Calls of any length may use this part of a worker, in per cent; more if the limit of all plugins is more.
const ALL_CALLS: u32 = 50;
/// The same of calls of any length: a worker that does nothing else for as long is over it.
const WINDOW_OF_CALLS: Duration = Duration::from_micros(1500);
/// Calls of any length wait, whatever their plugin used, over this: many plugins that take turns are no way around.
const MOST_OF_CALLS: Duration = Duration::from_micros(2500);
/// The same of short calls only, for a plugin that uses less than one part in [`RARE_CALLS`] of what it may.
const MOST_OF_RARE_CALLS: Duration = Duration::from_millis(5);
/// See [`MOST_OF_RARE_CALLS`].
const RARE_CALLS: u32 = 4;
/// Calls are metered for so long after the watchdog met their plugin at work: some five of its looks.
const METERED: Duration = Duration::from_millis(10);
/// Most that the meter charges for one call. What is longer is charged by the watchdog's samples, by CPU time: a worker
/// that a busy machine does not let run must not cost a plugin its share.
const MOST_METERED: Duration = crate::watchdog::SAMPLE;
/// A charge of at least this is one of a long call.
const LONG: Duration = Duration::from_millis(1);
/// A plugin counts as one with long calls for this time after its first long call; each long call after that time
/// doubles it.
const REMEMBERED: Duration = Duration::from_secs(20);
/// Most doublings: some 45 minutes.
const MOST_DOUBLINGS: u32 = 7;
/// Long calls are rare that take less than this part of a worker, in per cent.
const RARE: u32 = 1;
/// How much earlier a plugin with rare long calls comes than one with many.
const HEAD_START: Duration = Duration::from_millis(40);
/// By so much more than other calls may those of the log phase be over the limit of calls of any length: they cannot
/// wait, and are lost.
const LOG_SPELL: Duration = Duration::from_millis(25);
/// A call that has waited for so long may run as soon as its plugin is within its even part of the limit for calls of any
/// length: else it might lose the race for what is left to others again and again.
const LONG_WAITED: Duration = Duration::from_millis(250);
/// The least wait that is asked of a stream.
const LEAST_WAIT: Duration = Duration::from_millis(1);
/// Each wait ends so long after the one before: thousands of streams that wait and ask again take a small part of a
/// worker.
const APART: Duration = Duration::from_micros(50);

/// Leaky bucket as one number: the time at which it will be empty, in nanoseconds of the process; 0: it is
/// empty.
#[derive(Debug, Default)]
struct Bucket(AtomicU64);

impl Bucket {
    /// Fills in `cost`, which drains at `per_cent` of time.
    fn charge(&self, cost: Duration, per_cent: u32, now: u64) {
        let cost = u64::try_from(cost.as_nanos()).unwrap_or(u64::MAX);
        let drains_in = cost.saturating_mul(100) / u64::from(per_cent.max(1));
        // The watchdog and the worker may charge at once.
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |empty_at| {
                Some(empty_at.max(now).saturating_add(drains_in))
            });
    }

    /// Returns how long until the bucket holds less than drains in `window`.
    fn wait(&self, window: Duration, now: u64) -> Duration {
        let empty_at = self.0.load(Ordering::Relaxed);
        Duration::from_nanos(empty_at.saturating_sub(now)).saturating_sub(window)
    }

    fn is_empty(&self, now: u64) -> bool {
        self.0.load(Ordering::Relaxed) <= now
    }
}

/// One plugin on one worker.
#[derive(Debug)]
struct Cell {
    /// Not 0 as long as one of the two holds something.
    own: Bucket,
    fair: Bucket,
    /// The fair bucket of calls of any length.
    calls: Bucket,
    /// Empty while calls of any length are rare.
    rare_calls: Bucket,
    /// Until when calls are metered.
    metered_until: AtomicU64,
    worker: Arc<WorkerBuckets>,
    /// Until when the plugin counts as one with long calls; 0: it does not.
    long_until: AtomicU64,
    /// How often a long call came when the plugin did not count as one with long calls.
    times: AtomicU32,
    /// Empty while long calls are rare.
    rare: Bucket,
    /// Waits that have not ended.
    waits: Bucket,
}

impl Cell {
    fn new(worker: &Arc<WorkerBuckets>) -> Self {
        Self {
            own: Bucket::default(),
            fair: Bucket::default(),
            calls: Bucket::default(),
            rare_calls: Bucket::default(),
            metered_until: AtomicU64::new(0),
            worker: Arc::clone(worker),
            long_until: AtomicU64::new(0),
            times: AtomicU32::new(0),
            rare: Bucket::default(),
            waits: Bucket::default(),
        }
    }

    /// Notes a long call.
    fn note_long(&self, cost: Duration, limit_of_all: u32, now: u64) {
        self.worker.pace.charge(cost, limit_of_all, now);
        self.rare.charge(cost, RARE, now);
        let until = self.long_until.load(Ordering::Relaxed);
        let mut times = self.times.load(Ordering::Relaxed);
        if until <= now {
            times = (times + 1).min(MOST_DOUBLINGS + 1);
            self.times.store(times, Ordering::Relaxed);
        }
        let remembered = (REMEMBERED.as_nanos() as u64) << times.saturating_sub(1);
        (self.long_until).store(now.saturating_add(remembered), Ordering::Relaxed);
    }

    /// Returns how much longer one more stream waits than those before it.
    fn stagger(&self, now: u64) -> Duration {
        let after = self.waits.wait(Duration::ZERO, now);
        self.waits.charge(APART, 100, now);
        after
    }

    /// Returns how long the plugin has to wait after long calls of any plugin.
    fn pace(&self, now: u64) -> Duration {
        let long_until = self.long_until.load(Ordering::Relaxed);
        if long_until <= now {
            if long_until != 0 {
                self.long_until.store(0, Ordering::Relaxed);
            }
            return Duration::ZERO;
        }
        let head_start = if self.rare.is_empty(now) {
            HEAD_START
        } else {
            Duration::ZERO
        };
        self.worker.pace.wait(head_start, now)
    }
}

/// All plugins on one worker.
#[derive(Debug, Default)]
struct WorkerBuckets {
    all: Bucket,
    /// Calls of any length.
    calls: Bucket,
    /// Short calls only.
    short: Bucket,
    /// Long calls only.
    pace: Bucket,
}

/// The CPU shares of one plugin, on all workers.
#[derive(Debug)]
pub struct ShareAccount {
    name: String,
    /// `budgets.share`.
    per_cent: AtomicU32,
    cells: Vec<Cell>,
    waits: AtomicU64,
}

/// A limit of CPU that a plugin waits for. Its text says who is over it and what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CpuLimit {
    /// `budgets.share`, in per cent of a worker.
    Plugin(u32),
    /// That of all plugins together for long calls, timers and ticks, in per cent of a worker.
    LongCalls(u32),
    /// That of all plugins together for calls of any length, in per cent of a worker.
    Calls(u32),
}

impl fmt::Display for CpuLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MEND: &str = "shorten calls that take long, give the gateway more `workers`, or raise `budgets.share`";
        match self {
            Self::Plugin(per_cent) => write!(
                f,
                "the plugin's long calls and timers used more than its {per_cent} % of this worker's CPU; shorten them, \
                 or raise `budgets.share`"
            ),
            Self::LongCalls(per_cent) => write!(
                f,
                "long calls and timers of all plugins together used more than {per_cent} % of this worker's CPU; {MEND}"
            ),
            Self::Calls(per_cent) => write!(
                f,
                "calls of all plugins together used more than {per_cent} % of this worker's CPU; {MEND}"
            ),
        }
    }
}

/// The accounts of the process, by plugin name.
static ACCOUNTS: LazyLock<Mutex<BTreeMap<String, Weak<ShareAccount>>>> =
    LazyLock::new(Mutex::default);
/// The buckets of all plugins together, by worker.
static ALL: LazyLock<RwLock<Vec<Arc<WorkerBuckets>>>> = LazyLock::new(RwLock::default);
/// How many accounts there are.
static LIVING: AtomicUsize = AtomicUsize::new(0);
/// The limit of all plugins together, in per cent.
static LIMIT_OF_ALL: AtomicU32 = AtomicU32::new(ALL_PLUGINS);
static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// How long a plugin waits for a bucket of all plugins: more than its fair part counts only while all together are over.
fn divided(all: &Bucket, fair: &Bucket, window: Duration, now: u64) -> Duration {
    all.wait(window, now).min(fair.wait(window, now))
}

/// The part of a limit of all plugins that each has if it is divided evenly, in per cent.
fn fair_part(limit: u32) -> u32 {
    let plugins = LIVING.load(Ordering::Relaxed).max(1);
    limit / u32::try_from(plugins).unwrap_or(u32::MAX)
}

/// Nanoseconds of the process; never 0.
fn now() -> u64 {
    u64::try_from(BEGAN.elapsed().as_nanos())
        .unwrap_or(u64::MAX)
        .saturating_add(1)
}

fn accounts() -> MutexGuard<'static, BTreeMap<String, Weak<ShareAccount>>> {
    ACCOUNTS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ShareAccount {
    /// Returns the account of a plugin that may use `per_cent` of each of `workers`, or `None` if that is
    /// not limited (100 or more).
    pub fn of(name: &str, per_cent: u32, workers: usize) -> Option<Arc<Self>> {
        let mut accounts = accounts();
        accounts.retain(|_, account| account.strong_count() > 0);
        let limited = (per_cent < 100).then(|| {
            let known = accounts.get(name).and_then(Weak::upgrade);
            match known.filter(|known| known.cells.len() >= workers) {
                Some(known) => {
                    known.per_cent.store(per_cent.max(1), Ordering::Relaxed);
                    known
                }
                None => Self::new(name, per_cent, workers),
            }
        });
        if let Some(account) = &limited {
            accounts.insert(name.to_owned(), Arc::downgrade(account));
        }
        LIVING.store(accounts.len(), Ordering::Relaxed);
        let largest = accounts
            .values()
            .filter_map(Weak::upgrade)
            .map(|account| account.per_cent.load(Ordering::Relaxed))
            .max();
        LIMIT_OF_ALL.store(ALL_PLUGINS.max(largest.unwrap_or(0)), Ordering::Relaxed);
        limited
    }

    fn new(name: &str, per_cent: u32, workers: usize) -> Arc<Self> {
        let mut all = ALL.write().unwrap_or_else(PoisonError::into_inner);
        while all.len() < workers {
            all.push(Arc::default());
        }
        let cells = all.iter().take(workers).map(Cell::new).collect();
        Arc::new(Self {
            name: name.to_owned(),
            per_cent: AtomicU32::new(per_cent.max(1)),
            cells,
            waits: AtomicU64::new(0),
        })
    }

    /// Returns the plugin's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Charges CPU time that the plugin used on a worker by long calls and wake-ups of its own. It counts among calls of
    /// any length, too.
    pub fn charge(&self, worker: usize, cost: Duration) {
        let limit = LIMIT_OF_ALL.load(Ordering::Relaxed);
        let now = now();
        self.charge_at(worker, cost, limit, fair_part(limit), now);
        let limit = limit.max(ALL_CALLS);
        self.charge_call_at(worker, cost, limit, fair_part(limit), now);
    }

    /// Charges the time of a call of the log phase, unless the meter does.
    pub fn charge_log(&self, worker: usize, cost: Duration) {
        let metered_until = (self.cells.get(worker)).map(|cell| &cell.metered_until);
        if metered_until.is_none_or(|until| until.load(Ordering::Relaxed) < now()) {
            self.charge_short(worker, cost);
        }
    }

    fn charge_short(&self, worker: usize, cost: Duration) {
        let limit = LIMIT_OF_ALL.load(Ordering::Relaxed).max(ALL_CALLS);
        self.charge_short_at(worker, cost, limit, fair_part(limit), now());
    }

    /// The plugin was met at work: its calls are metered until the time that is returned.
    pub(crate) fn meter(&self, worker: usize) -> MeteredUntil {
        let until = now().saturating_add(METERED.as_nanos() as u64);
        if let Some(cell) = self.cells.get(worker) {
            cell.metered_until.store(until, Ordering::Relaxed);
        }
        MeteredUntil(until)
    }

    fn charge_call_at(&self, worker: usize, cost: Duration, limit: u32, fair: u32, now: u64) {
        if let Some(cell) = self.cells.get(worker) {
            cell.calls.charge(cost, fair, now);
            cell.rare_calls.charge(cost * RARE_CALLS, fair, now);
            cell.worker.calls.charge(cost, limit, now);
        }
    }

    fn charge_short_at(&self, worker: usize, cost: Duration, limit: u32, fair: u32, now: u64) {
        if let Some(cell) = self.cells.get(worker) {
            cell.worker.short.charge(cost, limit, now);
        }
        self.charge_call_at(worker, cost, limit, fair, now);
    }

    fn charge_at(&self, worker: usize, cost: Duration, limit_of_all: u32, fair: u32, now: u64) {
        let Some(cell) = self.cells.get(worker) else {
            return;
        };
        cell.own
            .charge(cost, self.per_cent.load(Ordering::Relaxed), now);
        cell.fair.charge(cost, fair, now);
        cell.worker.all.charge(cost, limit_of_all, now);
        if cost >= LONG {
            cell.note_long(cost, limit_of_all, now);
        }
    }

    /// Returns how long a call has to wait until it may run on a worker, or `None` if it may now. `waited`: how long its
    /// stream has waited for the plugin.
    #[inline]
    pub fn wait(&self, worker: usize, waited: Duration) -> Option<Duration> {
        let cell = self.cells.get(worker)?;
        let charged = cell.own.0.load(Ordering::Relaxed)
            | cell.calls.0.load(Ordering::Relaxed)
            | cell.long_until.load(Ordering::Relaxed);
        if charged == 0 {
            return None;
        }
        let now = now();
        let wait = Self::wait_at(cell, waited, now)?;
        self.waits.fetch_add(1, Ordering::Relaxed);
        Some(wait + cell.stagger(now))
    }

    /// Returns the limit that the plugin waits for on a worker, or `None` if it may run now.
    pub fn limit_reached(&self, worker: usize) -> Option<CpuLimit> {
        self.limit_at(self.cells.get(worker)?, now())
    }

    fn limit_at(&self, cell: &Cell, now: u64) -> Option<CpuLimit> {
        let own = cell.own.wait(WINDOW, now);
        let long = Self::wait_for_long(cell, now);
        let calls = Self::wait_for_calls(cell, Duration::ZERO, now);
        let all = LIMIT_OF_ALL.load(Ordering::Relaxed);
        if own.max(long).max(calls).is_zero() {
            None
        } else if calls > long {
            Some(CpuLimit::Calls(all.max(ALL_CALLS)))
        } else if own == long {
            // The wait for long calls is at least the plugin's own.
            Some(CpuLimit::Plugin(self.per_cent.load(Ordering::Relaxed)))
        } else {
            Some(CpuLimit::LongCalls(all))
        }
    }

    /// Whether a call that cannot wait, one of the log phase, may run on a worker now. A spell of short calls, such as
    /// those of streams that end at once, may go on for [`LOG_SPELL`] longer than calls that can wait.
    pub fn may_log(&self, worker: usize) -> bool {
        let Some(cell) = self.cells.get(worker) else {
            return true;
        };
        let now = now();
        let may = Self::wait_for_long(cell, now).is_zero()
            && Self::wait_for_calls(cell, Duration::ZERO, now) <= LOG_SPELL;
        if !may {
            self.waits.fetch_add(1, Ordering::Relaxed);
        }
        may
    }

    /// How long a plugin waits for what long calls and wake-ups used.
    fn wait_for_long(cell: &Cell, now: u64) -> Duration {
        let worker = &cell.worker;
        (cell.own.wait(WINDOW, now))
            .max(divided(&worker.all, &cell.fair, WINDOW_OF_ALL, now))
            .max(cell.pace(now))
    }

    /// How long a plugin waits for what calls of any length used. One whose calls are rare comes before the others, and
    /// waits for short calls only: else each of its calls would wait for the others' long ones.
    fn wait_for_calls(cell: &Cell, waited: Duration, now: u64) -> Duration {
        let all = &cell.worker.calls;
        if cell.rare_calls.is_empty(now) {
            return cell.worker.short.wait(MOST_OF_RARE_CALLS, now);
        }
        let own = divided(all, &cell.calls, WINDOW_OF_CALLS, now);
        if waited >= LONG_WAITED {
            return own;
        }
        own.max(all.wait(MOST_OF_CALLS, now))
    }

    #[cold]
    fn wait_at(cell: &Cell, waited: Duration, now: u64) -> Option<Duration> {
        let wait = Self::wait_for_long(cell, now).max(Self::wait_for_calls(cell, waited, now));
        if wait.is_zero() {
            // A charge that comes in between is lost; the next one is not.
            if cell.own.is_empty(now) && cell.fair.is_empty(now) {
                cell.own.0.store(0, Ordering::Relaxed);
            }
            if cell.rare_calls.is_empty(now) {
                cell.calls.0.store(0, Ordering::Relaxed);
            }
            return None;
        }
        Some(wait.max(LEAST_WAIT))
    }

    /// Returns how often streams, timers and ticks of the plugin had to wait.
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }
}

/// When calls are no longer metered; nanoseconds of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MeteredUntil(pub(crate) u64);

impl MeteredUntil {
    /// Begins to meter a call. Returns when that was, or `None` if calls are no longer metered.
    #[cold]
    pub(crate) fn begin(self) -> Option<u64> {
        let now = now();
        (now <= self.0).then_some(now)
    }
}

impl ShareAccount {
    /// Charges a call that was metered from `began` on.
    #[cold]
    pub(crate) fn charge_metered(&self, worker: usize, began: u64) {
        let took = Duration::from_nanos(now().saturating_sub(began));
        self.charge_short(worker, took.min(MOST_METERED));
    }
}

/// Charges all CPU time from its creation to its drop, on the thread that it lives on: for what a plugin
/// does by timers, ticks and other wake-ups of its own.
#[derive(Debug)]
#[must_use]
pub struct WakeCharge {
    slot: Arc<crate::CallSlot>,
    worker: usize,
    /// CPU time of this thread at the beginning.
    began: Option<u64>,
}

impl WakeCharge {
    /// Begins to charge the account of a VM's slot, or returns `None` if it has no account.
    pub fn begin(slot: &Arc<crate::CallSlot>, worker: usize) -> Option<Self> {
        slot.account()?;
        slot.set_charged_in_full(true);
        Some(Self {
            began: slot.cpu_time(),
            slot: Arc::clone(slot),
            worker,
        })
    }
}

impl Drop for WakeCharge {
    fn drop(&mut self) {
        self.slot.set_charged_in_full(false);
        let used = self
            .began
            .zip(self.slot.cpu_time())
            .map(|(then, now)| Duration::from_nanos(now.saturating_sub(then)));
        if let (Some(account), Some(used)) = (self.slot.account(), used) {
            account.charge(self.worker, used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Accounts of one worker that share a bucket of their own, apart from other tests.
    fn fresh(per_cents: &[u32]) -> Vec<ShareAccount> {
        let worker = Arc::new(WorkerBuckets::default());
        per_cents
            .iter()
            .map(|per_cent| ShareAccount {
                name: String::new(),
                per_cent: AtomicU32::new(*per_cent),
                cells: vec![Cell::new(&worker)],
                waits: AtomicU64::new(0),
            })
            .collect()
    }

    fn wait(account: &ShareAccount, now: u64) -> Option<Duration> {
        ShareAccount::wait_at(&account.cells[0], Duration::ZERO, now)
    }

    /// Runs calls of `cost` for a second of one worker, each account whenever it may, and returns the CPU
    /// time that each used.
    fn run(accounts: &[ShareAccount], costs: &[u64], limit_of_all: u32) -> Vec<u64> {
        let fair = limit_of_all / u32::try_from(accounts.len()).unwrap();
        let mut used = vec![0; accounts.len()];
        let mut now = MS;
        while now < 1001 * MS {
            let mut ran = false;
            for (index, account) in accounts.iter().enumerate() {
                if costs[index] > 0 && wait(account, now).is_none() {
                    now += costs[index] * MS;
                    used[index] += costs[index];
                    account.charge_at(0, ms(costs[index]), limit_of_all, fair, now);
                    ran = true;
                }
            }
            if !ran {
                now += MS;
            }
        }
        used
    }

    #[test]
    fn plugin_over_its_share_waits_until_it_has_drained() {
        let account = &fresh(&[20])[0];
        assert_eq!(wait(account, MS), None);
        // A share of 20 % over 100 ms are 20 ms. The limit of all is none, so its pace is that of the calls.
        account.charge_at(0, ms(20), 100, 100, MS);
        assert_eq!(wait(account, MS), Some(ms(20)));
        assert_eq!(wait(account, 21 * MS), None);
        account.charge_at(0, ms(8), 100, 100, 21 * MS);
        assert_eq!(wait(account, 21 * MS), Some(ms(20)));
        assert_eq!(wait(account, 41 * MS), None);
    }

    #[test]
    fn call_that_has_waited_long_does_not_wait_for_what_others_use() {
        let accounts = fresh(&[20, 20]);
        let now = 10 * MS;
        let (sound, greedy) = (&accounts[0], &accounts[1]);
        // The sound plugin is no rare one, but within its even part.
        sound.charge_short_at(0, Duration::from_micros(300), 50, 25, now);
        greedy.charge_short_at(0, ms(50), 50, 25, now);
        let wait_after =
            |account: &ShareAccount, waited| ShareAccount::wait_at(&account.cells[0], waited, now);
        assert!(wait_after(sound, ms(249)).is_some());
        assert_eq!(wait_after(sound, LONG_WAITED), None);
        assert!(wait_after(greedy, LONG_WAITED).is_some());
    }

    #[test]
    fn limit_that_a_plugin_waits_for_is_told() {
        let limit = |account: &ShareAccount| account.limit_at(&account.cells[0], MS);
        let account = &fresh(&[20])[0];
        assert_eq!(limit(account), None);
        account.charge_at(0, ms(30), 100, 100, MS);
        assert_eq!(limit(account), Some(CpuLimit::Plugin(20)));
        let accounts = fresh(&[100, 100]);
        accounts[0].charge_at(0, ms(100), 30, 15, MS);
        accounts[1].charge_at(0, ms(10), 30, 15, MS);
        assert!(matches!(limit(&accounts[1]), Some(CpuLimit::LongCalls(_))));
        let account = &fresh(&[20])[0];
        account.charge_short_at(0, ms(10), 50, 50, MS);
        assert!(matches!(limit(account), Some(CpuLimit::Calls(_))));
    }

    #[test]
    #[cfg_attr(
        miri,
        ignore = "simulates thousands of calls, which takes Miri minutes"
    )]
    fn plugin_uses_its_share_over_a_second_and_no_more() {
        for cost in [1, 12, 20] {
            let used = run(&fresh(&[20]), &[cost], 30)[0];
            assert!(
                (180..=250).contains(&used),
                "{used} ms by calls of {cost} ms"
            );
        }
    }

    #[test]
    #[cfg_attr(
        miri,
        ignore = "simulates thousands of calls, which takes Miri minutes"
    )]
    fn all_plugins_together_keep_to_their_limit() {
        for cost in [1, 12, 20] {
            let used = run(&fresh(&[20; 8]), &[cost; 8], 30);
            let total: u64 = used.iter().sum();
            assert!(total <= 300 + 8 * 20 + 60, "{used:?} by calls of {cost} ms");
            assert!(used.iter().all(|used| *used > 0), "{used:?}");
        }
    }

    #[test]
    #[cfg_attr(
        miri,
        ignore = "simulates thousands of calls, which takes Miri minutes"
    )]
    fn plugin_that_is_charged_nothing_does_not_wait_for_others() {
        let accounts = fresh(&[20, 20, 20, 20]);
        run(&accounts, &[20, 20, 20, 0], 30);
        assert_eq!(wait(&accounts[3], 1001 * MS), None);
    }

    #[test]
    fn plugin_within_its_fair_part_does_not_wait_for_others() {
        let accounts = fresh(&[20, 20, 20]);
        let mut now = MS;
        for _ in 0..100 {
            now += 10 * MS;
            // 5 % of the worker, where 10 % is the fair part.
            assert_eq!(wait(&accounts[2], now), None);
            accounts[2].charge_at(0, Duration::from_micros(500), 30, 10, now);
            for hostile in &accounts[..2] {
                hostile.charge_at(0, ms(3), 30, 10, now);
            }
        }
    }

    #[test]
    fn worker_is_free_of_long_calls_after_each_of_them() {
        let accounts = fresh(&[20; 20]);
        // Each has had a long call, and has all its parts again.
        for account in &accounts {
            account.charge_at(0, ms(20), 30, 1, MS);
        }
        let now = 1501 * MS;
        assert!(accounts.iter().all(|account| wait(account, now).is_none()));
        accounts[0].charge_at(0, ms(20), 30, 1, now);
        for account in &accounts[1..] {
            assert!(wait(account, now).unwrap() > ms(66));
            assert!(wait(account, now + 66 * MS).is_some());
            assert_eq!(wait(account, now + 67 * MS), None);
        }
        // A plugin without long calls does not wait for them, nor one that had its last some time ago.
        let other = &fresh(&[20])[0];
        assert_eq!(wait(other, now), None);
        let later = 24_000 * MS;
        accounts[0].charge_at(0, ms(20), 30, 1, later);
        assert_eq!(wait(&accounts[1], later), None);
    }

    #[test]
    fn plugins_that_run_long_at_once_are_paced_for_twice_as_long_each_time() {
        const SECOND: u64 = 1000 * MS;
        let worker = Arc::new(WorkerBuckets::default());
        let cell = Cell::new(&worker);
        let is_paced = |at: u64| {
            worker.pace.0.store(at + SECOND, Ordering::Relaxed);
            ShareAccount::wait_at(&cell, Duration::ZERO, at).is_some()
        };
        assert!(!is_paced(9 * SECOND));
        cell.note_long(ms(1), 30, 9 * SECOND);
        assert!(is_paced(28 * SECOND));
        assert!(!is_paced(30 * SECOND));
        // Calls that follow each other are one time.
        for call in 0..100 {
            cell.note_long(ms(1), 30, 40 * SECOND + call * MS);
        }
        assert!(is_paced(79 * SECOND));
        assert!(!is_paced(81 * SECOND));
        for _ in 0..20 {
            cell.long_until.store(0, Ordering::Relaxed);
            cell.note_long(ms(1), 30, 100 * SECOND);
        }
        assert!(is_paced(2600 * SECOND));
        assert!(!is_paced(2700 * SECOND));
    }

    #[test]
    #[cfg_attr(
        miri,
        ignore = "simulates thousands of calls, which takes Miri minutes"
    )]
    fn plugin_whose_long_calls_are_rare_comes_before_the_others() {
        let accounts = fresh(&[20; 10]);
        let sound = &accounts[0];
        let mut now = MS;
        sound.charge_at(0, ms(3), 30, 3, now);
        let mut waits = Vec::new();
        // Nine others run whenever they may; the sound one has a short call every 20 ms.
        let (mut asked, mut from) = (10_000 * MS, None);
        while now < 19_000 * MS {
            now += MS / 2;
            if now >= asked {
                let since = *from.get_or_insert(now);
                if wait(sound, now).is_none() {
                    waits.push((now - since) / MS);
                    (asked, from) = (now + 20 * MS, None);
                }
            }
            for other in &accounts[1..] {
                if wait(other, now).is_none() {
                    now += 20 * MS;
                    other.charge_at(0, ms(20), 30, 3, now);
                }
            }
        }
        assert!(waits.len() > 100, "{}", waits.len());
        assert!(waits.iter().all(|wait| *wait < 60), "{waits:?}");
    }

    /// Has a worker do nothing but short calls of these accounts in turn, for as long as they may, and returns the
    /// longest time that it went on without a wait, and the part of a second that they had, in milliseconds.
    fn saturate(accounts: &[ShareAccount], limit: u32) -> (u64, u64) {
        let fair = limit / u32::try_from(accounts.len()).unwrap();
        let (mut now, mut worked, mut longest, mut went_on) = (MS, 0, 0, 0);
        let half = Duration::from_micros(500);
        while now < 1001 * MS {
            let able = accounts.iter().find(|account| wait(account, now).is_none());
            if let Some(account) = able {
                now += MS / 2;
                account.charge_short_at(0, half, limit, fair, now);
                (worked, went_on) = (worked + 1, went_on + 1);
                longest = longest.max(went_on);
            } else {
                (now, went_on) = (now + MS, 0);
            }
        }
        (longest / 2, worked / 2)
    }

    #[test]
    #[cfg_attr(
        miri,
        ignore = "simulates thousands of calls, which takes Miri minutes"
    )]
    fn short_calls_leave_a_worker_to_its_event_loop() {
        for plugins in [1, 2, 20, 60] {
            let accounts = fresh(&vec![20; plugins]);
            let (longest, worked) = saturate(&accounts, ALL_CALLS);
            assert!(longest <= 6, "{longest} ms by {plugins} plugins");
            assert!(
                (450..=520).contains(&worked),
                "{worked} ms by {plugins} plugins"
            );
        }
    }

    #[test]
    #[cfg_attr(
        miri,
        ignore = "simulates thousands of calls, which takes Miri minutes"
    )]
    fn short_calls_below_their_limit_never_wait() {
        let account = &fresh(&[20])[0];
        let mut now = MS;
        // At work for 40 % of the time, in spells of 1.5 ms.
        for _ in 0..1000 {
            for _ in 0..3 {
                assert_eq!(wait(account, now), None);
                now += MS / 2;
                let half = Duration::from_micros(500);
                account.charge_short_at(0, half, ALL_CALLS, ALL_CALLS, now);
            }
            now += 9 * MS / 4;
        }
    }

    /// One that was met at work once is not kept back by those that are met all the time.
    #[test]
    #[cfg_attr(
        miri,
        ignore = "simulates thousands of calls, which takes Miri minutes"
    )]
    fn plugin_whose_short_calls_are_rare_does_not_wait_for_others() {
        let accounts = fresh(&[20; 20]);
        let (others, rare) = (&accounts[1..], &accounts[0]);
        let (cost, fair) = (Duration::from_micros(100), ALL_CALLS / 20);
        let (mut now, mut calls) = (MS, 0);
        for request in 0..1000 {
            if request % 25 == 0 {
                assert_eq!(wait(rare, now), None);
                rare.charge_short_at(0, cost, ALL_CALLS, fair, now);
            }
            for other in others {
                if wait(other, now).is_none() {
                    other.charge_short_at(0, cost, ALL_CALLS, fair, now);
                    calls += 1;
                }
            }
            if request % 50 == 0 {
                others[0].charge_call_at(0, ms(20), ALL_CALLS, fair, now);
            }
            now += MS;
        }
        assert!((900..=1100).contains(&calls), "{calls}");
    }

    #[test]
    fn calls_of_the_log_phase_have_more_room_for_short_calls_only() {
        let account = ShareAccount::of("shares-test-log", 20, 8).unwrap();
        account.charge_log(7, ms(12));
        assert!(account.wait(7, Duration::ZERO).is_some());
        assert!(account.may_log(7));
        account.charge_log(7, ms(30));
        assert!(!account.may_log(7));
        // A long call of 25 ms is 5 ms over the share.
        account.charge(6, ms(25));
        assert!(!account.may_log(6));
    }

    #[test]
    #[cfg_attr(
        miri,
        ignore = "the clock runs on: Miri is slower than the waits that are compared"
    )]
    fn streams_that_wait_ask_again_one_after_the_other() {
        let account = ShareAccount::of("shares-test-stagger", 20, 6).unwrap();
        account.charge(5, ms(50));
        let first = account.wait(5, Duration::ZERO).unwrap();
        let waits: Vec<_> = (0..1000)
            .map(|_| account.wait(5, Duration::ZERO).unwrap())
            .collect();
        // The clock goes on meanwhile, so each of these is a bit less than it would be.
        assert!(waits[999] > first + ms(30), "{first:?} {:?}", waits[999]);
    }

    #[test]
    fn account_is_kept_by_name_across_versions() {
        // Workers that no other test uses: their buckets belong to the process.
        let first = ShareAccount::of("shares-test", 20, 5).unwrap();
        first.charge(4, ms(50));
        assert!(first.wait(4, Duration::ZERO).is_some());
        assert!(first.wait(3, Duration::ZERO).is_none());
        assert!(first.wait(5, Duration::ZERO).is_none());
        assert_eq!(first.waits(), 1);
        let second = ShareAccount::of("shares-test", 30, 5).unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        assert!(ShareAccount::of("shares-test", 100, 5).is_none());
    }
}
