//! VMs that are kept beside the workers', because they take long to make.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outrider_plugin_api::{Cause, Decision, Fault, Phase, Slot};

use super::beside::World;
use super::fake::{FakeMetrics, FakeStream, Probe, config};
use super::made::slow;

/// Long enough for a VM of it to be made ahead.
pub(super) const LONG: u32 = 400_000_000;

/// Waits until a spare VM is there.
pub(super) fn wait_for_spare(probe: &Probe) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while probe.plugin.status().spares.is_empty() {
        assert!(Instant::now() < deadline, "no VM was made");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A stream begins.
fn begin(probe: &Probe) -> (Slot, FakeStream, Result<Decision, Fault>) {
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    let begun = probe.call(Phase::RequestHeaders, &mut slot, &mut stream);
    (slot, stream, begun)
}

/// A stream on which the guest traps in the response's trailers.
fn trap(probe: &Probe) {
    let (mut slot, mut stream, begun) = begin(probe);
    assert_eq!(begun, Ok(Decision::Continue));
    let fault = probe.call(Phase::ResponseTrailers, &mut slot, &mut stream);
    assert_eq!(fault.unwrap_err().cause, Cause::Error);
}

/// What a guest does on which a stream fails, and the same with an item that it leaves in its queue.
const FAILS: &str = "(param i32 i32) (result i32) (unreachable)";
const LEAVES_AND_FAILS: &str = "(param i32 i32) (result i32)
    (drop (call $enqueue (i32.load (i32.const 8)) (i32.const 100) (i32.const 5)))
    (unreachable)";

#[test]
fn a_worker_whose_vm_fails_takes_a_spare_one_at_once() {
    let world = World::new(&slow(LONG));
    let probe = &world.probe;
    wait_for_spare(&world.probe);
    let (mut other, mut its, _) = begin(probe);
    trap(&world.probe);
    let lost = probe.call(Phase::ResponseHeaders, &mut other, &mut its);
    assert_eq!(lost.unwrap_err().cause, Cause::Unavailable);
    assert_eq!(probe.said(), ["01"], "the next stream is served");
    // Two failures one after the other: the worker has to wait for the next VM.
    trap(&world.probe);
    let deadline = Instant::now() + Duration::from_mins(1);
    let mut refused = 0;
    while let (_, _, Err(fault)) = begin(probe) {
        assert_eq!(fault.cause, Cause::Unavailable, "{fault:?}");
        assert!(fault.message.contains("tried again"), "{fault}");
        assert!(Instant::now() < deadline);
        refused += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(refused > 0, "the worker does not wait for it");
    assert_eq!(probe.plugin.status().workers[0].replacements, 2);
    assert_eq!(probe.plugin.status().workers[0].trouble, None);
}

#[test]
fn failures_in_a_row_are_mended_at_growing_distances_all_the_same() {
    let failing = slow(LONG).replace(
        "(call $say_number (global.get $configured)) (i32.const 0))",
        "(unreachable))",
    );
    let world = World::new(&failing);
    for number in 0..5 {
        if number == 4 {
            wait_for_spare(&world.probe);
            let fault = begin(&world.probe).2.unwrap_err();
            assert_eq!(fault.cause, Cause::Unavailable, "{fault}");
            assert!(fault.message.contains("unreachable"), "{fault}");
            let status = world.probe.plugin.status();
            assert!(status.workers[0].trouble.is_some());
            world.pass(100);
        } else {
            wait_for_spare(&world.probe);
        }
        let fault = begin(&world.probe).2.unwrap_err();
        assert_eq!(fault.cause, Cause::Error, "{number}: {fault}");
    }
}

#[test]
fn a_spare_vm_has_the_newest_configurations_and_forgets_those_that_are_gone() {
    let done = "(func (export \"proxy_on_done\") (param i32) (result i32)
        (call $say_number (i32.const 77)) (i32.const 1))";
    let world = World::new(&format!("{}{done}", slow(LONG)));
    wait_for_spare(&world.probe);
    let mut metrics = FakeMetrics::default();
    let second = Probe {
        plugin: Arc::clone(&world.probe.plugin),
        configured: (world.probe.plugin)
            .configure(&config("{\"a\":1}"), &mut metrics)
            .unwrap(),
        metrics,
    };
    wait_for_spare(&world.probe);
    let World {
        background, probe, ..
    } = world;
    drop(probe);
    let (mut slot, mut stream, _) = begin(&second);
    background.said();
    let fault = second.call(Phase::ResponseTrailers, &mut slot, &mut stream);
    assert_eq!(fault.unwrap_err().cause, Cause::Error);
    assert_eq!(background.said(), ["77"], "the first is gone from it");
    assert_eq!(second.said(), ["02"], "it has had both");
}

#[test]
fn a_spare_vm_does_not_tick_and_hears_of_no_queue() {
    let guest = slow(LONG)
        .replace(
            "(i32.const 1))\n  (func (export \"proxy_on_request_headers\")",
            "(drop (call $tick (i32.const 30)))
             (drop (call $register (i32.const 100) (i32.const 11) (i32.const 8)))
             (i32.const 1))
             (func (export \"proxy_on_tick\") (param i32) (call $say_number (i32.const 55)))
             (func (export \"proxy_on_queue_ready\") (param i32 i32)
               (drop (call $dequeue (local.get 1) (i32.const 0) (i32.const 4))) (call $say_given))
             (func (export \"proxy_on_request_headers\")",
        )
        .replace(FAILS, LEAVES_AND_FAILS)
        .replace(
            "(func (export \"proxy_on_response_headers\") (param i32 i32 i32) (result i32)",
            "(func (export \"proxy_on_response_headers\") (param i32 i32 i32) (result i32)
               (drop (call $enqueue (i32.load (i32.const 8)) (i32.const 100) (i32.const 5)))",
        );
    let world = World::new(&format!("{guest}(data (i32.const 100) \"spare-queue\")"));
    wait_for_spare(&world.probe);
    world.call();
    world.pass(40);
    let (mut slot, mut stream, _) = begin(&world.probe);
    world
        .probe
        .call(Phase::ResponseHeaders, &mut slot, &mut stream)
        .unwrap();
    // The worker's VM is told, and ticks.
    assert_eq!(world.call().0, ["55", "spare"]);
    world.pass(20);
    // The item that this stream leaves, nobody is told of: who listened is gone.
    let fault = (world.probe).call(Phase::ResponseTrailers, &mut slot, &mut stream);
    assert_eq!(fault.unwrap_err().cause, Cause::Error);
    assert_eq!(world.call().0, [""; 0], "a tick takes its time from here");
    world.pass(30);
    let (mut slot, mut stream, _) = begin(&world.probe);
    world
        .probe
        .call(Phase::ResponseHeaders, &mut slot, &mut stream)
        .unwrap();
    assert_eq!(world.call().0, ["55", "spare"]);
}

#[test]
fn a_spare_vm_that_cannot_be_made_is_told_of_and_tried_again() {
    let guest = slow(LONG)
        .replace(
            "(global.set $configured",
            "(drop (call $register (i32.const 100) (i32.const 11) (i32.const 8)))
             (if (i32.eqz (call $dequeue (i32.load (i32.const 8)) (i32.const 0) (i32.const 4)))
               (then (unreachable)))
             (global.set $configured",
        )
        .replace(FAILS, LEAVES_AND_FAILS);
    let world = World::new(&format!("{guest}(data (i32.const 100) \"poison-queue\")"));
    wait_for_spare(&world.probe);
    trap(&world.probe);
    let deadline = Instant::now() + Duration::from_mins(1);
    let said = loop {
        let said = world.background.said();
        if let Some(line) = said.into_iter().find(|line| line.contains("unreachable")) {
            break line;
        }
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(said.contains("proxy_on_configure"), "{said}");
    world.pass(100);
    world.call();
    wait_for_spare(&world.probe);
    assert_eq!(world.probe.said(), ["01"]);
    trap(&world.probe);
    assert_eq!(world.probe.said(), ["01"], "there was another");
}
