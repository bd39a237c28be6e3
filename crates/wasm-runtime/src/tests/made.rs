//! VMs that are made off their worker, because that takes long.

use outrider_plugin_api::{Phase, Slot};

use super::beside::World;
use super::fake::{FakeMetrics, FakeStream, config};

/// A guest that takes its time for each configuration, and says how many its VM has taken in.
pub(super) fn slow(rounds: u32) -> String {
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

/// Has one configuration after the other come, each with a stream that goes on. Answers how many configurations the VM
/// has whose stream is the first, in the end; none: the stream was lost.
fn first_after(guest: &str, updates: usize) -> Option<String> {
    let world = World::new(guest);
    let plugin = &world.probe.plugin;
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    let begin = |probe: &super::fake::Probe| {
        let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
        probe
            .call(Phase::RequestHeaders, &mut slot, &mut stream)
            .unwrap();
    };
    let first = &world.probe;
    first
        .call(Phase::RequestHeaders, &mut slot, &mut stream)
        .unwrap();
    for update in 0..updates {
        let mut metrics = FakeMetrics::default();
        let configured = plugin.configure(&config(&format!("{update}")), &mut metrics);
        begin(&super::fake::Probe {
            plugin: std::sync::Arc::clone(plugin),
            configured: configured.unwrap(),
            metrics,
        });
    }
    first
        .call(Phase::ResponseHeaders, &mut slot, &mut stream)
        .ok()?;
    stream.logged().pop()
}

#[test]
fn streams_of_many_configurations_go_on_within_the_memory_of_four_vms() {
    let small = slow(60_000_000);
    assert_eq!(first_after(&small, 8).unwrap(), "01");
    let large = small.replace(
        "(local $left i32)",
        "(local $left i32) (drop (memory.grow (i32.sub (i32.const 48) (memory.size))))",
    );
    assert_eq!(first_after(&large, 5).unwrap(), "01");
    assert_eq!(first_after(&large, 6), None);
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
