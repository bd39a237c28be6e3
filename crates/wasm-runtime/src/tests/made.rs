//! VMs that are made off their worker, because that takes long.

use std::time::{Duration, Instant};

use outrider_plugin_api::{Cause, Decision, Phase, Slot};

use super::beside::World;
use super::fake::{FakeMetrics, FakeStream, config};

/// A guest that takes its time for each configuration, and says how many its VM has taken in.
fn slow(rounds: u32) -> String {
    format!(
        r#"(global $configured (mut i32) (i32.const 0))
  (func (export "proxy_on_configure") (param i32 i32) (result i32)
    (local $left i32)
    (local.set $left (i32.const {rounds}))
    (loop $again
      (local.set $left (i32.sub (local.get $left) (i32.const 1)))
      (br_if $again (local.get $left)))
    (global.set $configured (i32.add (global.get $configured) (i32.const 1)))
    (i32.const 1))
  (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
    (call $say_number (global.get $configured)) (i32.const 0))
  (func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
    (call $say_number (global.get $configured)) (i32.const 0))
  (func (export "proxy_on_response_trailers") (param i32 i32) (result i32) (unreachable))"#
    )
}

#[test]
fn a_configuration_that_takes_long_is_there_before_its_streams() {
    let world = World::new(&slow(60_000_000));
    let first = &world.probe;
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    first
        .call(Phase::RequestHeaders, &mut slot, &mut stream)
        .unwrap();
    let mut metrics = FakeMetrics::default();
    let second = first.plugin.configure(&config("{\"a\":1}"), &mut metrics);
    let second = super::fake::Probe {
        plugin: std::sync::Arc::clone(&first.plugin),
        configured: second.unwrap(),
        metrics,
    };
    // What goes on goes on in the VM that it has begun in, and so does what needs no other.
    first
        .call(Phase::ResponseHeaders, &mut slot, &mut stream)
        .unwrap();
    assert_eq!(stream.logged(), ["01", "01"]);
    assert_eq!(first.said(), ["01"]);
    assert_eq!(second.said(), ["02"], "it was taken in by another VM");
    assert_eq!(first.said(), ["02"], "which has all of them");
    first
        .call(Phase::ResponseHeaders, &mut slot, &mut stream)
        .unwrap();
    assert_eq!(stream.logged(), ["01", "01", "01"]);
    first.configured.end(slot, 0);
    assert_eq!(first.plugin.status().workers[0].replacements, 0);
}

#[test]
fn a_vm_that_takes_long_to_make_is_made_elsewhere() {
    let world = World::new(&slow(400_000_000));
    let probe = &world.probe;
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    probe
        .call(Phase::RequestHeaders, &mut slot, &mut stream)
        .unwrap();
    let fault = probe.call(Phase::ResponseTrailers, &mut slot, &mut stream);
    assert_eq!(fault.unwrap_err().cause, Cause::Error);
    let deadline = Instant::now() + Duration::from_mins(1);
    let mut refused = 0;
    loop {
        let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
        match probe.call(Phase::RequestHeaders, &mut slot, &mut stream) {
            Ok(decision) => {
                assert_eq!(decision, Decision::Continue);
                assert_eq!(stream.logged(), ["01"]);
                break;
            }
            Err(fault) => {
                assert_eq!(fault.cause, Cause::Unavailable, "{fault:?}");
                refused += 1;
            }
        }
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(refused > 0, "the worker does not wait for it");
    assert_eq!(probe.plugin.status().workers[0].replacements, 1);
}
