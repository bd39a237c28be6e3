//! Configurations whose place another took, while streams have them: which VM takes them in.

use std::sync::Arc;

use outrider_plugin_api::{Cause, ConfigPlace, Phase, Plugin, ScopedConfig, Slot};

use super::beside::World;
use super::fake::{FakeMetrics, FakeStream, Probe, config, guest, source};
use super::made::slow;
use super::spare::{LONG, wait_for_spare};

fn place(name: &str, generation: u64) -> ConfigPlace {
    ConfigPlace {
        name: name.into(),
        generation,
    }
}

/// The configuration of a generation: a number of so many digits.
fn configure(plugin: &Arc<dyn Plugin>, generation: u64) -> Probe {
    let mut metrics = FakeMetrics::default();
    let config = ScopedConfig {
        place: Some(place("gateway", generation)),
        ..config(&"1".repeat(generation as usize))
    };
    Probe {
        configured: plugin.configure(&config, &mut metrics).unwrap(),
        plugin: Arc::clone(plugin),
        metrics,
    }
}

/// A guest that takes its time for each configuration, and says with request headers how many its VM has taken in, and
/// how long the stream's own is.
fn telling() -> String {
    let size = |context| format!("(i32.add (i32.const 8192) (i32.mul {context} (i32.const 4)))");
    let guest = slow(60_000_000)
        .replace(
            "(global.set $configured",
            &format!(
                "(i32.store {} (local.get 1)) (global.set $configured",
                size("(local.get 0)")
            ),
        )
        .replacen(
            "(call $say_number (global.get $configured))",
            &format!(
                "(call $say_number (global.get $configured)) (call $say_number (i32.load {}))",
                size("(local.get 0)")
            ),
            1,
        );
    format!(
        r#"{guest} (func (export "proxy_on_context_create") (param i32 i32)
            (i32.store {} (i32.load {})))"#,
        size("(local.get 0)"),
        size("(local.get 1)")
    )
}

/// A stream that begins, and goes on.
fn begin(probe: &Probe) -> (Slot, FakeStream) {
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    probe
        .call(Phase::RequestHeaders, &mut slot, &mut stream)
        .unwrap();
    (slot, stream)
}

fn plugin() -> Arc<dyn Plugin> {
    crate::load(source(&guest(&telling())), 1, &mut FakeMetrics::default()).unwrap()
}

/// Four generations, each with a stream that goes on.
fn four(plugin: &Arc<dyn Plugin>) -> Vec<(Probe, Slot, FakeStream)> {
    let expected = [["01", "01"], ["02", "02"], ["02", "03"], ["02", "04"]];
    let generations = (1..).zip(expected).map(|(generation, expected)| {
        let probe = configure(plugin, generation);
        let (slot, stream) = begin(&probe);
        assert_eq!(stream.logged(), expected);
        (probe, slot, stream)
    });
    generations.collect()
}

#[test]
fn a_vm_that_follows_takes_in_the_newest_and_the_one_before_however_many_streams_go_on() {
    let plugin = plugin();
    let mut old = four(&plugin);
    // A stream of the first generation, which comes to the plugin only now, has its own all the same.
    assert_eq!(old[0].0.said(), ["03", "01"]);
    assert_eq!(old[0].0.said(), ["03", "01"], "the VM has it now");
    assert_eq!(old[3].0.said(), ["03", "04"]);
    for (number, (probe, slot, stream)) in old.iter_mut().enumerate() {
        probe.call(Phase::ResponseHeaders, slot, stream).unwrap();
        let expected = ["01", "02", "02", "03"][number];
        assert_eq!(stream.logged().pop().unwrap(), expected);
    }
}

#[test]
fn a_generation_that_is_refused_leaves_vms_with_the_one_before() {
    let plugin = plugin();
    let old = four(&plugin);
    drop(configure(&plugin, 5));
    assert_eq!(old[3].0.said(), ["02", "04"]);
    let next = configure(&plugin, 6);
    assert_eq!(next.said(), ["03", "06"], "its VM had taken in 4 and 5");
    assert_eq!(old[3].0.said(), ["03", "04"], "nothing was left to do");
}

#[test]
fn what_another_scope_has_too_stays_and_what_comes_for_an_old_generation_does_not() {
    let plugin = plugin();
    let old = four(&plugin);
    old[3].0.configured.also_for(Some(&place("route", 4)));
    let _late = configure(&plugin, 2);
    assert_eq!(old[3].0.said(), ["02", "04"], "no other VM was made");
    let next = configure(&plugin, 5);
    assert_eq!(next.said(), ["02", "05"]);
    let last = configure(&plugin, 6);
    let (mut slot, mut stream) = begin(&last);
    assert_eq!(stream.logged(), ["03", "06"], "4, 5 and 6");
    // One comes back, and is there before its streams: in a VM of its own.
    old[1].0.configured.also_for(Some(&place("route", 6)));
    assert_eq!(old[1].0.said(), ["04", "02"], "2, 4, 5 and 6");
    last.call(Phase::ResponseHeaders, &mut slot, &mut stream)
        .unwrap();
    assert_eq!(stream.logged().pop().unwrap(), "03");
}

#[test]
fn spare_vms_take_in_the_newest_and_the_one_before() {
    let world = World::new(&slow(LONG));
    wait_for_spare(&world.probe);
    let plugin = &world.probe.plugin;
    let probes = [1, 2, 3].map(|generation| {
        let probe = configure(plugin, generation);
        begin(&probe);
        probe
    });
    wait_for_spare(&world.probe);
    let (mut slot, mut stream) = begin(&probes[2]);
    let fault = probes[2].call(Phase::ResponseTrailers, &mut slot, &mut stream);
    assert_eq!(fault.unwrap_err().cause, Cause::Error);
    // That of the world takes nobody's place.
    assert_eq!(probes[2].said(), ["03"]);
    assert_eq!(world.probe.said(), ["03"]);
}
