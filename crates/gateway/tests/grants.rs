//! Limits that manifests ask for, and those that hold.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "support/folder.rs"]
mod support;

use outrider_gateway::{Compiled, Request, compile, explain};
use outrider_plugin_formats::{Budgets, Circuit, CircuitLimits, CircuitOff, PluginEntry};

fn compiled() -> Compiled {
    let compiled = compile("gateway.yaml", &support::Folder::new("grants"));
    assert_eq!(compiled.problems, []);
    compiled
}

fn entry(compiled: &Compiled, name: &str) -> PluginEntry {
    let plugins = &compiled.plan.as_ref().unwrap().filter.plugins;
    let entry = plugins.iter().find(|entry| entry.name == name);
    entry.unwrap().clone()
}

const fn budgets(time_ms: u32, memory_mib: u32, share: u32) -> Budgets {
    Budgets {
        time_ms,
        memory_mib,
        share,
    }
}

const OFF: Circuit = Circuit::Off(CircuitOff::Off);

const fn circuit(failures: u32, pause_ms: u32, longest_pause_ms: u32) -> Circuit {
    Circuit::On(CircuitLimits {
        failures,
        pause_ms,
        longest_pause_ms,
    })
}

#[test]
fn manifest_lowers_limits_and_raises_none() {
    let compiled = compiled();
    let limits = |name| {
        let entry = entry(&compiled, name);
        (entry.budgets, entry.circuit)
    };
    assert_eq!(
        limits("greedy"),
        (budgets(20, 16, 20), circuit(20, 1000, 60_000))
    );
    assert_eq!(limits("granted"), (budgets(8000, 512, 100), OFF));
    assert_eq!(
        limits("modest"),
        (budgets(5, 16, 20), circuit(3, 2000, 60_000))
    );
    assert_eq!(
        limits("raised"),
        (budgets(5, 16, 20), circuit(3, 1000, 60_000))
    );
    assert_eq!(
        limits("joined"),
        (budgets(20, 64, 20), circuit(20, 1000, 120_000))
    );
    assert_eq!(entry(&compiled, "joined").wasm.shared, "");
}

#[test]
fn manifest_that_asks_for_more_is_warned_with_the_line_that_grants_it() {
    let warnings: Vec<String> = compiled()
        .warnings
        .iter()
        .map(ToString::to_string)
        .collect();
    insta::assert_snapshot!(warnings.join("\n"));
}

#[test]
fn explanation_has_the_limits_that_hold_and_their_sources() {
    let explanation = explain(
        &compiled().plan.unwrap(),
        &Request {
            host: "any".to_owned(),
            path: "/".to_owned(),
            method: "GET".to_owned(),
            headers: Vec::new(),
            ..Request::get("", "")
        },
    );
    insta::assert_snapshot!(explanation);
}
