//! The watchdog, with clocks that the test turns.

use std::sync::atomic::AtomicU32;

use super::*;

/// CPU time of the one thread there is, in nanoseconds, for each test.
#[derive(Debug)]
struct Turned(AtomicU64);

impl ThreadClock for Turned {
    fn this_thread(&self) -> i32 {
        1
    }

    fn cpu_time(&self, clock: i32) -> Option<u64> {
        (clock == 1).then(|| self.0.load(Ordering::SeqCst))
    }
}

#[derive(Debug, Default)]
struct Counted(Arc<AtomicU32>);

impl Interrupt for Counted {
    fn interrupt(&self, attempt: u32) {
        assert_eq!(self.0.fetch_add(1, Ordering::SeqCst), attempt);
    }
}

struct Test {
    slot: CallSlot,
    interrupts: Arc<AtomicU32>,
    clock: &'static Turned,
}

const MS: u64 = 1_000_000;
const BUDGET: Duration = Duration::from_millis(10);

impl Test {
    fn new(account: Option<Arc<ShareAccount>>) -> Self {
        let clock: &'static Turned = Box::leak(Box::new(Turned(AtomicU64::new(0))));
        let interrupts = Arc::new(AtomicU32::new(0));
        let counted = Box::new(Counted(Arc::clone(&interrupts)));
        Self {
            slot: CallSlot::new(counted, clock, account),
            interrupts,
            clock,
        }
    }

    fn use_cpu(&self, time: u64) {
        self.clock.0.fetch_add(time, Ordering::SeqCst);
    }

    fn look(&self, now: u64) -> Sight {
        self.slot.look(|| now)
    }

    fn interrupts(&self) -> u32 {
        self.interrupts.load(Ordering::SeqCst)
    }
}

#[test]
fn call_that_waits_is_not_interrupted() {
    let test = Test::new(None);
    assert_eq!(test.look(0), Sight::Idle);
    test.slot.begin(BUDGET);
    assert_eq!(test.look(1), Sight::Running);
    assert_eq!(test.look(1000 * MS), Sight::Running);
    assert_eq!(test.interrupts(), 0);
    assert_eq!(test.slot.end(), Ok(()));
    assert_eq!(test.look(2000 * MS), Sight::Idle);
}

#[test]
fn overdue_call_is_interrupted_until_it_ends() {
    let test = Test::new(None);
    for _ in 0..2 {
        test.interrupts.store(0, Ordering::SeqCst);
        test.slot.begin(BUDGET);
        test.look(0);
        test.use_cpu(10 * MS - 1);
        test.look(100 * MS);
        assert!(!test.slot.is_overdue());
        test.use_cpu(1);
        test.look(100 * MS);
        assert!(test.slot.is_overdue());
        test.use_cpu(19 * MS);
        test.look(102 * MS);
        assert_eq!(test.interrupts(), 2);
        let overrun = test.slot.end().unwrap_err();
        assert_eq!(overrun.late_by, Duration::from_millis(19));
        assert!(!overrun.is_late());
        assert!(!test.slot.is_overdue());
        test.look(104 * MS);
        assert_eq!(test.interrupts(), 2);
    }
}

#[test]
fn call_that_goes_on_after_its_interrupt_is_late() {
    let test = Test::new(None);
    test.slot.begin(BUDGET);
    test.look(0);
    test.use_cpu(10 * MS);
    test.look(10 * MS);
    test.use_cpu(20 * MS);
    assert!(test.slot.end().unwrap_err().is_late());
    // The next call begins anew.
    test.slot.begin(BUDGET);
    test.look(60 * MS);
    test.use_cpu(9 * MS);
    test.look(90 * MS);
    assert_eq!(test.slot.end(), Ok(()));
}

#[test]
#[cfg_attr(miri, ignore = "makes 40,000 calls, which takes Miri minutes")]
fn long_calls_are_charged_in_full_and_short_ones_are_not() {
    let account = ShareAccount::of("watchdog-test", 20, 1).unwrap();
    let test = Test::new(Some(Arc::clone(&account)));
    test.slot.set_worker(0);
    // A saturated worker: 10,000 calls of 100 us, each running whenever the watchdog looks.
    for tick in 0..10_000 {
        test.slot.begin(BUDGET);
        test.look(tick);
        // Meters go by another clock.
        test.slot.metered_until.store(0, Ordering::Relaxed);
        test.use_cpu(MS / 10);
        test.slot.end().unwrap();
        test.slot.begin(BUDGET);
        test.slot.charge_sample();
        test.slot.end().unwrap();
        test.look(tick);
        test.slot.charge_sample();
    }
    assert_eq!(account.wait(0, Duration::ZERO), None);
    assert_eq!(account.waits(), 0);
    // Calls of 2 ms just below a tick, each hidden among short ones.
    for tick in 0..100 {
        for _ in 0..5 {
            test.slot.begin(BUDGET);
            test.slot.end().unwrap();
        }
        test.slot.begin(BUDGET);
        test.look(tick);
        test.use_cpu(MS / 2);
        test.slot.charge_sample();
        test.slot.end().unwrap();
    }
    // 100 samples of 2 ms at 20 %: it has to wait for most of a second.
    assert!(account.wait(0, Duration::ZERO).unwrap() > Duration::from_millis(500));
}

#[test]
fn long_call_is_charged_for_all_it_used_however_late_the_watchdog_comes() {
    let account = ShareAccount::of("watchdog-test-3", 20, 8).unwrap();
    let test = Test::new(Some(Arc::clone(&account)));
    test.slot.set_worker(7);
    test.slot.begin(BUDGET);
    test.look(0);
    test.use_cpu(MS / 2);
    test.slot.charge_sample();
    // Nobody looked for 50 ms.
    test.use_cpu(50 * MS);
    test.look(1);
    test.slot.charge_sample();
    test.slot.end().unwrap();
    // 52 ms at 20 % drain in 260 ms, of which 100 ms are granted at once, and some of which have passed. Without the 50
    // ms nothing is left.
    let wait = account.wait(7, Duration::ZERO).unwrap();
    assert!(wait > Duration::from_millis(50), "{wait:?}");
}

/// Keeps the thread at work for as long as the meter charges for one call.
fn spin() {
    let began = Instant::now();
    while began.elapsed() < SAMPLE {}
}

#[test]
#[cfg_attr(miri, ignore = "Miri spends more time between the calls than in them")]
fn short_calls_are_metered_once_one_was_met_at_work() {
    let account = ShareAccount::of("watchdog-test-4", 20, 7).unwrap();
    let test = Test::new(Some(Arc::clone(&account)));
    test.slot.set_worker(6);
    let call = || {
        test.slot.begin(BUDGET);
        spin();
        test.slot.end().unwrap();
    };
    // Nobody is met between calls.
    for _ in 0..40 {
        call();
        assert_eq!(test.look(0), Sight::Idle);
    }
    assert_eq!(account.wait(6, Duration::ZERO), None);
    // What is met is metered from the next call on.
    let began = Instant::now();
    while account.wait(6, Duration::ZERO).is_none() {
        test.slot.begin(BUDGET);
        assert_eq!(test.look(0), Sight::Running);
        test.slot.charge_sample();
        test.slot.end().unwrap();
        for _ in 0..10 {
            call();
        }
        assert!(began.elapsed() < Duration::from_secs(10));
    }
    // It ends by itself.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(account.wait(6, Duration::ZERO), None);
    for _ in 0..40 {
        call();
    }
    assert_eq!(account.wait(6, Duration::ZERO), None);
}

#[test]
fn metered_call_is_charged_for_no_more_than_a_short_one() {
    let account = ShareAccount::of("watchdog-test-5", 20, 9).unwrap();
    let test = Test::new(Some(Arc::clone(&account)));
    test.slot.set_worker(8);
    test.slot.begin(BUDGET);
    test.look(0);
    test.slot.end().unwrap();
    test.slot.begin(BUDGET);
    // The worker is not let run.
    std::thread::sleep(Duration::from_millis(50));
    test.slot.end().unwrap();
    assert_eq!(account.wait(8, Duration::ZERO), None);
}

#[test]
fn call_that_is_charged_in_full_is_not_metered() {
    let account = ShareAccount::of("watchdog-test-6", 20, 10).unwrap();
    let test = Test::new(Some(Arc::clone(&account)));
    test.slot.set_worker(9);
    test.slot.set_charged_in_full(true);
    for _ in 0..40 {
        test.slot.begin(BUDGET);
        test.look(0);
        test.slot.end().unwrap();
        test.slot.begin(BUDGET);
        spin();
        test.slot.end().unwrap();
    }
    assert_eq!(account.wait(9, Duration::ZERO), None);
}

#[test]
fn what_a_plugin_has_the_proxy_do_is_charged_on_its_worker() {
    let account = ShareAccount::of("watchdog-test-7", 20, 11).unwrap();
    let test = Test::new(Some(Arc::clone(&account)));
    test.slot.charge(Duration::from_millis(50));
    test.slot.set_worker(10);
    assert_eq!(account.wait(10, Duration::ZERO), None);
    test.slot.charge(Duration::from_millis(50));
    assert!(account.wait(10, Duration::ZERO).is_some());
}

#[test]
fn vm_without_a_worker_is_not_charged() {
    let account = ShareAccount::of("watchdog-test-2", 20, 3).unwrap();
    let test = Test::new(Some(Arc::clone(&account)));
    for tick in 0..100 {
        test.slot.begin(BUDGET);
        test.slot.look(|| tick);
        test.use_cpu(MS);
        test.slot.charge_sample();
        test.slot.end().unwrap();
    }
    // On a worker that no other test uses: its buckets belong to the process.
    assert_eq!(account.wait(2, Duration::ZERO), None);
}

#[test]
fn watchdog_thread_ends_a_call_and_parks() {
    #[derive(Debug)]
    struct Wall(Instant);
    impl ThreadClock for Wall {
        fn this_thread(&self) -> i32 {
            1
        }
        fn cpu_time(&self, _: i32) -> Option<u64> {
            Some(self.0.elapsed().as_nanos() as u64)
        }
    }
    let clock: &'static Wall = Box::leak(Box::new(Wall(Instant::now())));
    let interrupts = Arc::new(AtomicU32::new(0));
    let counted = Box::new(Counted(Arc::clone(&interrupts)));
    let slot = Arc::new(CallSlot::new(counted, clock, None));
    slot.register().unwrap();
    for _ in 0..2 {
        interrupts.store(0, Ordering::SeqCst);
        slot.begin(BUDGET);
        let began = Instant::now();
        while !slot.is_overdue() {
            assert!(began.elapsed() < Duration::from_secs(10));
            std::thread::yield_now();
        }
        assert!(began.elapsed() >= BUDGET);
        assert!(slot.end().is_err());
        let began = Instant::now();
        while !WATCHDOG.parked.load(Ordering::SeqCst) {
            assert!(began.elapsed() < Duration::from_secs(10));
            std::thread::yield_now();
        }
    }
}
