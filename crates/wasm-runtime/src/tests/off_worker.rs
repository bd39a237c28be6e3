//! Guests start, and take configurations in, off the workers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outrider_plugin_api::{Cause, Decision, Fault, Phase, Slot};

use super::beside::World;
use super::fake::{FakeMetrics, FakeStream, Probe, config, cpu_time};
use super::made::slow;
use super::spare::wait_for_spare;

fn begin(probe: &Probe) -> Result<Decision, Fault> {
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    let begun = probe.call(Phase::RequestHeaders, &mut slot, &mut stream);
    probe.configured.end(slot, 0);
    begun
}

/// CPU time that this thread, in the place of a worker, uses for something.
fn cost<T>(run: impl FnOnce() -> T) -> (T, Duration) {
    let began = cpu_time();
    let result = run();
    (result, cpu_time().saturating_sub(began))
}

/// Less than any start that is made to take long here.
const SHORT: Duration = Duration::from_millis(40);

/// A guest that starts quickly until one of its VMs has put an item into a queue; each later start never ends.
const LATE: &str = r#"
  (data (i32.const 100) "late")
  (func (export "proxy_on_vm_start") (param i32 i32) (result i32)
    (drop (call $register (i32.const 100) (i32.const 4) (i32.const 40)))
    (if (i32.eqz (call $dequeue (i32.load (i32.const 40)) (i32.const 44) (i32.const 48)))
      (then
        (drop (call $enqueue (i32.load (i32.const 40)) (i32.const 100) (i32.const 4)))
        (loop $again (br $again))))
    (i32.const 1))
  (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
    (drop (call $enqueue (i32.load (i32.const 40)) (i32.const 100) (i32.const 4)))
    (unreachable))"#;

#[test]
fn a_start_that_never_ends_any_more_does_not_hold_up_the_worker() {
    let world = World::new(LATE);
    let probe = &world.probe;
    wait_for_spare(probe);
    world.background.said();
    let deadline = Instant::now() + Duration::from_mins(1);
    let mut said = Vec::new();
    while !said
        .iter()
        .any(|line: &String| line.contains("time budget"))
    {
        assert!(Instant::now() < deadline, "{said:?}");
        let (begun, took) = cost(|| begin(probe));
        assert!(begun.is_err());
        let ((), more) = cost(|| probe.plugin.background(0));
        assert!(took + more < SHORT, "{took:?}, {more:?}");
        said.extend(world.background.said());
        std::thread::sleep(Duration::from_millis(5));
    }
    // The budget of the start, not of a call.
    let line = said
        .iter()
        .find(|line| line.contains("time budget"))
        .unwrap();
    assert!(line.contains("proxy_on_vm_start"), "{line}");
    assert!(line.contains("time budget of 1000 ms"), "{line}");
    assert_eq!(begin(probe).unwrap_err().cause, Cause::Unavailable);
}

#[test]
fn a_quick_guest_is_served_again_at_once_after_a_trap() {
    let world = World::new(&slow(1));
    let probe = &world.probe;
    for number in 0..20 {
        wait_for_spare(probe);
        let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
        let begun = probe.call(Phase::RequestHeaders, &mut slot, &mut stream);
        assert_eq!(begun, Ok(Decision::Continue), "{number}");
        let fault = probe.call(Phase::ResponseTrailers, &mut slot, &mut stream);
        assert_eq!(fault.unwrap_err().cause, Cause::Error);
        probe.configured.end(slot, 0);
        assert_eq!(begin(probe), Ok(Decision::Continue), "{number}");
    }
}

#[test]
fn a_stream_waits_for_a_vm_that_is_being_made() {
    let world = World::new(&slow(100_000_000));
    let probe = &world.probe;
    wait_for_spare(probe);
    assert_eq!(probe.configured.wait_for_share(0, Duration::ZERO), None);
    for _ in 0..2 {
        let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
        probe
            .call(Phase::RequestHeaders, &mut slot, &mut stream)
            .unwrap();
        let fault = probe.call(Phase::ResponseTrailers, &mut slot, &mut stream);
        assert!(fault.is_err());
    }
    let wait = probe.configured.wait_for_share(0, Duration::ZERO);
    assert!(wait.is_some_and(|wait| wait <= SHORT), "{wait:?}");
    wait_for_spare(probe);
    assert_eq!(probe.configured.wait_for_share(0, Duration::ZERO), None);
    assert_eq!(begin(probe), Ok(Decision::Continue));
}

#[test]
fn a_configuration_is_not_taken_in_on_a_worker_that_has_streams() {
    let world = World::new(&slow(200_000_000));
    let first = &world.probe;
    assert_eq!(begin(first), Ok(Decision::Continue));
    let mut metrics = FakeMetrics::default();
    let mut latest = None;
    for number in 0..4 {
        let configured = first
            .plugin
            .configure(&config(&format!("{number}")), &mut metrics);
        latest = Some(configured.unwrap());
    }
    let second = Probe {
        plugin: Arc::clone(&first.plugin),
        configured: latest.unwrap(),
        metrics,
    };
    for probe in [&second, first] {
        let (begun, took) = cost(|| begin(probe));
        assert_eq!(begun, Ok(Decision::Continue));
        assert!(took < SHORT, "{took:?}");
        let ((), took) = cost(|| probe.plugin.background(0));
        assert!(took < SHORT, "{took:?}");
    }
}
