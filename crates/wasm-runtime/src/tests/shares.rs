//! CPU shares of guests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use outrider_vm_pool::ThreadClock;

use super::beside::FakeBackground;
use super::fake::{clock, guest, load, source};

/// A clock by which half a second of CPU time passes between two readings.
#[derive(Debug)]
struct Costly(AtomicU64);

impl ThreadClock for Costly {
    fn this_thread(&self) -> i32 {
        1
    }

    fn cpu_time(&self, _clock: i32) -> Option<u64> {
        Some(self.0.fetch_add(500_000_000, Ordering::Relaxed))
    }
}

static COSTLY: Costly = Costly(AtomicU64::new(0));

const TICKING: &str = r#"
  (func (export "proxy_on_configure") (param i32 i32) (result i32)
    (drop (call $tick (i32.const 30))) (i32.const 1))
  (func (export "proxy_on_tick") (param i32) (call $say_number (i32.const 1)))
  (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) (i32.const 0))"#;

#[test]
fn ticks_are_charged_and_wait_for_the_plugins_share() {
    let (clock, now) = clock();
    let background = Arc::new(FakeBackground::default());
    let mut source = source(&guest(TICKING));
    source.name = "probe-ticks".to_owned();
    source.clock = clock;
    source.background = Some(Arc::<FakeBackground>::clone(&background));
    source.share = 20;
    source.cpu_clock = &COSTLY;
    let probe = load(source, "{}").unwrap();
    let tick = || {
        now.fetch_add(1000, Ordering::Relaxed);
        background.rings();
        probe.plugin.background(0);
        background.said().len()
    };
    let began = Instant::now();
    let mut ticks = 0;
    while ticks == 0 || probe.configured.wait_for_share(0, Duration::ZERO).is_none() {
        ticks += tick();
        assert!(began.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(tick(), 0, "it waits");
    assert!(!background.rings().is_empty(), "and is called again");
    assert!(probe.plugin.status().share_waits > 0);
    while tick() == 0 {
        assert!(began.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(5));
    }
}
