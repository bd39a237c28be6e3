//! The walls between crates: who may know whom. The table is the design's; see ARCHITECTURE.md.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// Each crate, and what it may know of the others. Tests and build scripts may know more, but for
/// what `INSIDE` says.
const MAY_KNOW: &[(&str, &[&str])] = &[
    ("plugin-api", &[]),
    ("plugin-formats", &[]),
    ("yaml", &["plugin-formats"]),
    ("telemetry", &["plugin-formats"]),
    ("envoy-abi", &["plugin-api", "telemetry"]),
    ("signatures", &[]),
    ("lanes", &["plugin-formats"]),
    ("luajit", &[]),
    ("vm-pool", &["plugin-api"]),
    (
        "lua-runtime",
        &["luajit", "plugin-api", "signatures", "vm-pool"],
    ),
    ("wasm-runtime", &["plugin-api", "signatures", "vm-pool"]),
    (
        "envoy-module",
        &[
            "plugin-api",
            "plugin-formats",
            "envoy-abi",
            "lanes",
            "lua-runtime",
            "telemetry",
            "vm-pool",
            "wasm-runtime",
        ],
    ),
    ("gateway", &["lanes", "plugin-formats", "telemetry", "yaml"]),
    ("mesh", &["gateway", "plugin-formats"]),
    ("cluster", &[]),
    ("istio-lab", &["cluster", "envoy-process", "lab", "yaml"]),
    ("plugin-store", &["plugin-formats", "yaml"]),
    (
        "plugin-catalog",
        &["plugin-formats", "plugin-store", "yaml"],
    ),
    (
        "plugin-registry",
        &["plugin-formats", "plugin-store", "signatures"],
    ),
    ("envoy-process", &[]),
    (
        "supervisor",
        &[
            "plugin-formats",
            "yaml",
            "gateway",
            "plugin-store",
            "envoy-process",
        ],
    ),
    (
        "cli",
        &[
            "supervisor",
            "plugin-api",
            "plugin-formats",
            "yaml",
            "lua-runtime",
            "wasm-runtime",
            "gateway",
            "mesh",
            "cluster",
            "plugin-catalog",
            "plugin-registry",
            "plugin-store",
            "envoy-process",
            "plugin-testkit",
            "plugin-replay",
            "lab",
            "lab-report",
            "load",
        ],
    ),
    (
        "plugin-replay",
        &["gateway", "envoy-process", "lab", "plugin-testkit"],
    ),
    ("load", &[]),
    ("lab-report", &["load"]),
    (
        "lab",
        &["gateway", "envoy-process", "lab-report", "load", "yaml"],
    ),
    ("bench-native", &[]),
    (
        "plugin-testkit",
        &[
            "plugin-api",
            "plugin-formats",
            "yaml",
            "lua-runtime",
            "wasm-runtime",
        ],
    ),
    (
        "e2e",
        &[
            "plugin-formats",
            "gateway",
            "plugin-store",
            "envoy-process",
            "lab",
            "plugin-testkit",
            "plugin-replay",
        ],
    ),
];

/// What ships inside Envoy: an async runtime only for the exporter of telemetry, which has threads of its own; and no test
/// kit.
const INSIDE: &str = "outrider-envoy-module";
const NEVER_INSIDE: &[&str] = &["outrider-plugin-testkit"];
/// What no other crate may bring inside.
const OF_TELEMETRY: &[&str] = &["tokio", "hyper", "rustls"];

/// The only crates in which `unsafe` may be switched on.
const MAY_BE_UNSAFE: &[&str] = &[
    "bench-native",
    "envoy-abi",
    "lua-runtime",
    "wasm-runtime",
    "envoy-module",
    "supervisor",
];

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(outrider_e2e::root())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Crate to the crates of ours that it needs, tests' and build scripts' needs left out.
fn needs() -> BTreeMap<String, BTreeSet<String>> {
    let metadata = metadata();
    let ours = |name: &str| name.strip_prefix("outrider-").map(ToOwned::to_owned);
    metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|package| {
            let needs = package["dependencies"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|dependency| dependency["kind"].is_null())
                .filter_map(|dependency| ours(dependency["name"].as_str().unwrap()))
                .collect();
            (ours(package["name"].as_str().unwrap()).unwrap(), needs)
        })
        .collect()
}

#[test]
fn every_crate_knows_only_whom_it_may() {
    let needs = needs();
    let listed: BTreeMap<_, BTreeSet<_>> = MAY_KNOW
        .iter()
        .map(|(name, may)| (*name, may.iter().copied().collect()))
        .collect();
    for (name, needs) in &needs {
        let may = listed
            .get(name.as_str())
            .unwrap_or_else(|| panic!("{name} is not in the table"));
        for need in needs {
            assert!(may.contains(need.as_str()), "{name} must not know {need}");
        }
    }
    for name in listed.keys() {
        assert!(
            needs.contains_key(*name),
            "{name} is in the table, but not in the workspace"
        );
    }
}

#[test]
fn only_telemetry_brings_an_async_runtime_into_envoy() {
    let tree = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO"))
            .args([
                "tree",
                "--offline",
                "-e",
                "normal,build",
                "--prefix",
                "none",
            ])
            .args(arguments)
            .current_dir(outrider_e2e::root())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    };
    let names = |tree: &str| -> BTreeSet<String> {
        let first = |line: &str| line.split_whitespace().next().map(ToOwned::to_owned);
        tree.lines().filter_map(first).collect()
    };
    let inside = names(&tree(&["-p", INSIDE]));
    assert!(
        inside.contains("mlua-sys"),
        "the tree is not the module's: {inside:?}"
    );
    for name in NEVER_INSIDE {
        assert!(!inside.contains(*name), "{name} is inside Envoy");
    }
    let without = names(&tree(&["-p", INSIDE, "--prune", "outrider-telemetry"]));
    assert!(!without.contains("outrider-telemetry"));
    for name in OF_TELEMETRY {
        assert!(
            inside.contains(*name),
            "{name} is not inside Envoy any more: shorten the list"
        );
        assert!(
            !without.contains(*name),
            "{name} is inside Envoy, and not by telemetry"
        );
    }
}

#[test]
fn unsafe_code_stays_where_the_design_puts_it() {
    let crates = outrider_e2e::root().join("crates");
    let mut switched_on = BTreeSet::new();
    let mut folders = vec![crates.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                // Split, so that this line does not count.
                let lint = concat!("unsafe", "_code");
                let on = ["expect(", "allow("].iter().any(|word| {
                    text.split(word)
                        .skip(1)
                        .any(|rest| rest.trim_start().starts_with(lint))
                });
                if on {
                    for name in ["wasm-runtime", "supervisor"] {
                        let within = path.strip_prefix(crates.join(name)).ok();
                        assert!(
                            within.is_none_or(|within| within.ends_with("src/memory.rs")),
                            "of {name}, memory.rs alone switches unsafe code on: {}",
                            path.display()
                        );
                    }
                    let name = path.strip_prefix(&crates).unwrap().iter().next().unwrap();
                    switched_on.insert(name.to_string_lossy().into_owned());
                }
            }
        }
    }
    for name in &switched_on {
        assert!(
            MAY_BE_UNSAFE.contains(&name.as_str()),
            "{name} switches unsafe code on"
        );
    }
    assert!(
        switched_on.contains("envoy-abi"),
        "the search found nothing: {switched_on:?}"
    );
}

#[test]
fn the_workspace_unwinds() {
    // `panic = "abort"` in any profile would turn a plugin's bug into the end of Envoy.
    let manifest = std::fs::read_to_string(outrider_e2e::root().join("Cargo.toml")).unwrap();
    let abort = concat!("\"", "abort", "\"");
    assert!(
        !manifest
            .lines()
            .any(|line| line.starts_with("panic") && line.contains(abort))
    );
}
