//! The watchdog's thread beside workers that begin and end calls, charge their accounts and drop their VMs, all at
//! once. What is judged holds for each order of events; `make tsan` and `make miri` run the same test for orders
//! that a processor does not show by itself.

#![allow(
    clippy::unwrap_used,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use outrider_vm_pool::{CallSlot, Interrupt, NO_CLOCK, Overrun, ShareAccount, ThreadClock};
use outrider_vm_pool::{NO_WORKER, WakeCharge};

const WORKERS: usize = 4;
/// VMs that each worker has, one after the other.
const VMS: u32 = 6;
const BUDGET: Duration = Duration::from_millis(5);
/// Longer than the test may take.
const NEVER: Duration = Duration::from_hours(1);
/// What each VM is charged for wake-ups, and how long that takes to drain at [`SHARE`] per cent.
const WAKE_UP: Duration = Duration::from_secs(2000);
const SHARE: u32 = 20;
const DRAINS_IN: Duration = Duration::from_secs(10_000);

/// CPU clocks that the workers advance themselves: a call uses as much time as its test says.
#[derive(Debug)]
struct TestClocks([AtomicU64; WORKERS]);

static CLOCKS: TestClocks = TestClocks([const { AtomicU64::new(0) }; WORKERS]);

thread_local! {
    static WORKER: Cell<usize> = const { Cell::new(NO_WORKER) };
}

impl ThreadClock for TestClocks {
    fn this_thread(&self) -> i32 {
        i32::try_from(WORKER.get()).unwrap_or(NO_CLOCK)
    }

    fn cpu_time(&self, clock: i32) -> Option<u64> {
        let clock = self.0.get(usize::try_from(clock).ok()?)?;
        Some(clock.load(Ordering::Relaxed))
    }
}

fn use_cpu(time: Duration) {
    let clock = CLOCKS.0.get(WORKER.get()).unwrap();
    let time = u64::try_from(time.as_nanos()).unwrap();
    clock.fetch_add(time, Ordering::Relaxed);
}

/// A VM as its worker and its interrupt see it. All accesses are relaxed: only [`CallSlot`] orders them.
#[derive(Debug, Default)]
struct Vm {
    is_called: AtomicBool,
    interrupts: AtomicU32,
}

/// Interrupts that did not belong to a call that was running. A panic would end the watchdog.
static VIOLATIONS: AtomicU32 = AtomicU32::new(0);
/// Interrupts that are not dropped.
static INTERRUPTS: AtomicUsize = AtomicUsize::new(0);

#[derive(Debug)]
struct TestInterrupt(Arc<Vm>);

impl TestInterrupt {
    fn new(vm: &Arc<Vm>) -> Self {
        INTERRUPTS.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(vm))
    }
}

impl Interrupt for TestInterrupt {
    fn interrupt(&self, attempt: u32) {
        let is_called = self.0.is_called.load(Ordering::Relaxed);
        let count = self.0.interrupts.fetch_add(1, Ordering::Relaxed);
        if !is_called || count != attempt {
            VIOLATIONS.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for TestInterrupt {
    fn drop(&mut self) {
        INTERRUPTS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Makes a call, and returns its end and how often it was interrupted.
fn call(vm: &Vm, slot: &CallSlot, budget: Duration, run: impl FnOnce()) -> Result<(), Overrun> {
    vm.is_called.store(true, Ordering::Relaxed);
    slot.begin(budget);
    run();
    let ended = slot.end();
    // From here on no interrupt may come, and each that has come is seen.
    vm.is_called.store(false, Ordering::Relaxed);
    let interrupts = vm.interrupts.swap(0, Ordering::Relaxed);
    assert_eq!(interrupts > 0, ended.is_err(), "{interrupts} interrupts");
    ended
}

/// Uses CPU time until the watchdog ends the call.
fn overrun(slot: &CallSlot) {
    let deadline = Instant::now() + Duration::from_mins(2);
    while !slot.is_overdue() {
        assert!(Instant::now() < deadline, "the watchdog did not come");
        use_cpu(BUDGET / 50);
        thread::yield_now();
    }
}

/// The life of one VM on a worker.
fn use_vm(worker: usize, account: &Arc<ShareAccount>) {
    let vm = Arc::<Vm>::default();
    let interrupt = Box::new(TestInterrupt::new(&vm));
    let slot = CallSlot::new(interrupt, &CLOCKS, Some(Arc::clone(account)));
    let slot = Arc::new(slot);
    slot.register().unwrap();
    slot.set_worker(worker);
    for _ in 0..100 {
        call(&vm, &slot, BUDGET, || use_cpu(BUDGET / 50)).unwrap();
    }
    call(&vm, &slot, BUDGET, || overrun(&slot)).unwrap_err();
    let late = call(&vm, &slot, BUDGET, || {
        overrun(&slot);
        use_cpu(Duration::from_millis(20));
    });
    assert!(late.unwrap_err().is_late());
    let charge = WakeCharge::begin(&slot, worker);
    call(&vm, &slot, NEVER, || use_cpu(WAKE_UP)).unwrap();
    drop(charge);
    assert!(account.wait(worker, Duration::ZERO).is_some());
    // Another thread uses the VM, as one that loads a configuration does. It has no clock.
    slot.set_worker(NO_WORKER);
    let loaded = thread::scope(|scope| {
        let load = || call(&vm, &slot, NEVER, || ());
        scope.spawn(load).join().unwrap()
    });
    loaded.unwrap();
    slot.set_worker(worker);
    call(&vm, &slot, BUDGET, || ()).unwrap();
    // The watchdog may have the slot in its hands while the worker drops it.
}

#[test]
fn workers_and_watchdog_at_once_keep_calls_accounts_and_vms_apart() {
    // One worker more, on which nothing runs.
    let account = ShareAccount::of("concurrency", SHARE, WORKERS + 1).unwrap();
    let began = Instant::now();
    thread::scope(|scope| {
        for worker in 0..WORKERS {
            let account = &account;
            scope.spawn(move || {
                WORKER.set(worker);
                for _ in 0..VMS {
                    use_vm(worker, account);
                }
            });
        }
    });
    assert_eq!(VIOLATIONS.load(Ordering::Relaxed), 0);
    for worker in 0..WORKERS {
        // The watchdog charged as well, and no charge took the place of another.
        let least = (DRAINS_IN * VMS).checked_sub(began.elapsed()).unwrap();
        let wait = account.wait(worker, Duration::ZERO).unwrap();
        assert!(wait + Duration::from_secs(1) > least, "{wait:?} {least:?}");
    }
    assert_eq!(account.wait(WORKERS, Duration::ZERO), None);
    let deadline = Instant::now() + Duration::from_mins(1);
    while INTERRUPTS.load(Ordering::Relaxed) > 0 {
        assert!(Instant::now() < deadline, "a VM is kept");
        thread::yield_now();
    }
}
