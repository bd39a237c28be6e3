//! Calls beside streams over a stub table of Envoy's functions.

use super::*;
use crate::bootstrap::AdminPages;
use crate::exchanges::tests::TestProcess;
use crate::module::{ConfigContext, RouteConfig};
use crate::stub::{Asked, asked, wait_asked};

#[test]
fn every_request_for_a_call_is_kept() {
    let process = TestProcess::new();
    // The cluster's own first call.
    wait_asked(process.cluster);
    process.run_main();
    let began = Instant::now();
    let delays = [120, 40, 200, 80].map(Duration::from_millis);
    for delay in delays {
        EnvoyBackground.ring_in(delay);
    }
    // Those whose time has come when the main thread is late come as one.
    let mut called = Vec::new();
    let deadline = began + Duration::from_secs(10);
    while called.last().is_none_or(|last| *last < began + delays[2]) {
        assert!(Instant::now() < deadline, "{called:?}");
        let before = CALLS.load(Ordering::Acquire);
        if asked(process.cluster).contains(&Asked::Commit(0)) {
            process.run_main();
        }
        if CALLS.load(Ordering::Acquire) > before {
            called.push(Instant::now());
        }
        thread::yield_now();
    }
    assert!(called[0] >= began + delays[1]);
}

#[test]
#[cfg_attr(
    miri,
    ignore = "computes 400,000 times, which Miri interprets for minutes"
)]
fn requests_with_like_delays_meet_and_none_is_early() {
    let now = Instant::now();
    for delay in [1, 999, 60_000, 86_400_000] {
        let delay = Duration::from_millis(delay);
        let due = due_time(now, delay).unwrap();
        assert!(due >= now + delay);
        assert!(due <= now + delay + Duration::from_millis(2) + delay / 100);
        let mut all = BTreeSet::new();
        for micros in 0..100_000 {
            let now = now + Duration::from_micros(micros * 10);
            all.extend(due_time(now, delay));
        }
        assert!(all.len() <= 1002, "{delay:?}: {}", all.len());
    }
}

struct Plugins {
    called: Mutex<Vec<usize>>,
    /// The plugin that runs long.
    long: usize,
}

impl Module for Plugins {
    fn filter_config(
        &self,
        _: &ConfigContext<'_>,
        _: &str,
        _: &[u8],
    ) -> Option<Arc<dyn FilterConfig>> {
        None
    }

    fn route_config(&self, _: &str, _: &[u8]) -> Option<RouteConfig> {
        None
    }

    fn background(&self, _: usize, plugin: usize) -> bool {
        self.called.lock().unwrap().push(plugin);
        if plugin == self.long {
            thread::sleep(wake_queue::TURN * 2);
        }
        plugin < 3
    }

    fn unrouted_logs(&self) -> Option<Arc<outrider_telemetry::worker::StreamLogs>> {
        None
    }

    fn admin(&self) -> &dyn AdminPages {
        unreachable!("no test asks for pages")
    }
}

#[test]
fn plugin_that_runs_long_ends_the_turn_and_the_others_come_in_the_next() {
    let _process = TestProcess::new();
    // A thread of its own: a worker.
    let worker = thread::spawn(|| {
        let module = Plugins {
            called: Mutex::default(),
            long: 1,
        };
        CALLS.fetch_add(1, Ordering::Release);
        on_worker(&module);
        assert_eq!(*module.called.lock().unwrap(), [0, 1]);
        // Events that come at once find the turn over.
        let deadline = Instant::now() + Duration::from_secs(10);
        while module.called.lock().unwrap().len() < 4 {
            assert!(Instant::now() < deadline);
            on_worker(&module);
        }
        assert_eq!(*module.called.lock().unwrap(), [0, 1, 2, 3]);
        // Without another call there is nothing to do.
        thread::sleep(Duration::from_millis(2));
        on_worker(&module);
        assert_eq!(module.called.lock().unwrap().len(), 4);
    });
    worker.join().unwrap();
}
