//! Host functions with any arguments, in any callback: an answer or a trap, and the next stream is served.

use std::sync::LazyLock;

use outrider_plugin_api::{Phase, Slot};
use proptest::prelude::*;

use super::callers::{Functions, arguments, exchange, functions, leaping, module};
use super::fake::{FakeStream, Probe, load, source};
use crate::abi::Version;

struct Fixture {
    functions: Functions,
    probe: Probe,
}

static FIXTURE: LazyLock<Fixture> = LazyLock::new(|| {
    let functions = functions();
    let mut source = source(&module(&functions, Version::V0_2_1));
    source.clock = leaping();
    source.options.relaxed = true;
    let probe = load(source, "{}").unwrap();
    Fixture { functions, probe }
});

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn no_argument_does_harm(function in 0_usize..1000, arguments in arguments()) {
        let fixture = &*FIXTURE;
        let function = function % fixture.functions.len();
        let came_to = exchange(&fixture.probe, function, &arguments);
        let (_, name, _) = &fixture.functions[function];
        if name != "proc_exit" {
            // Not even a trap: what is wrong is told by a status.
            prop_assert_eq!(came_to.fault, None, "{}", name);
        }
        let (mut next, mut other) = (Slot::default(), FakeStream::new());
        let served = fixture.probe.call(Phase::RequestHeaders, &mut next, &mut other);
        fixture.probe.configured.end(next, 0);
        prop_assert!(served.is_ok(), "{}: {:?}", name, served);
    }
}

#[test]
fn the_list_of_functions_is_what_is_linked() {
    let linked: Vec<(String, String)> = functions()
        .into_iter()
        .map(|(module, name, _)| (module, name))
        .collect();
    let mut listed: Vec<(String, String)> = crate::host_functions()
        .map(|one| (one.module.to_owned(), one.name.to_owned()))
        .collect();
    listed.sort();
    assert_eq!(listed, linked);
}
