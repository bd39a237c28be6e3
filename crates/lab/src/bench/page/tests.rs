//! The page against a report that is made up, and the kept page against the kept report.

use std::path::Path;

use super::*;
use crate::bench::profile::{EnvoyFunction, OwnCost, Part, PerRequest};
use crate::bench::report::{
    Counted, Environment, Held, Measured, Memory, Ready, Start, Timed, Times,
};
use crate::bench::variant::{BASELINE, TWIN};

fn counted(
    workload: &str,
    mechanism: Option<Mechanism>,
    shape: Shape,
    instructions: f64,
) -> Counted {
    let own = if mechanism == Some(Mechanism::OutriderLua) {
        1000.0
    } else {
        0.0
    };
    let called = mechanism.is_some_and(|mechanism| mechanism != Mechanism::EnvoyLua);
    Counted {
        workload: workload.to_owned(),
        mechanism,
        shape,
        totals: [300_000_000, 300_000_000 + (instructions * 3000.0) as u64],
        per_request: PerRequest {
            instructions,
            parts: [(Part::Envoy, instructions - own), (Part::LuaJit, own)].into(),
            into_envoy: if called {
                vec![EnvoyFunction {
                    name: "envoy_dynamic_module_callback_http_set_header".to_owned(),
                    calls: 40.0,
                    instructions: 30_000.0,
                }]
            } else {
                Vec::new()
            },
            functions: vec![OwnCost {
                part: Part::LuaJit,
                name: "lj_vm_call".to_owned(),
                instructions: own,
            }],
        },
    }
}

fn report() -> Report {
    let mut all = Vec::new();
    for (shape, base) in Shape::ALL.into_iter().zip([70_000.0, 90_000.0, 150_000.0]) {
        all.push(counted(BASELINE, None, shape, base - 50.0));
        all.push(counted(TWIN, None, shape, base + 50.0));
    }
    for (workload, factor) in Family::Lua.workloads().zip([1.0, 0.8, 2.0, 6.0, 9.0, 5.0]) {
        let base = all.iter().find(|one| one.shape == workload.shape).unwrap();
        let base = base.per_request.instructions + 50.0;
        for (mechanism, cost) in Family::Lua
            .mechanisms()
            .iter()
            .copied()
            .zip([6000.0, 16_000.0, 4000.0])
        {
            let instructions = base + factor * cost;
            all.push(counted(
                workload.name,
                Some(mechanism),
                workload.shape,
                instructions,
            ));
        }
    }
    all.push(counted(
        EMPTY,
        Some(Mechanism::OutriderLua),
        Shape::Plain,
        74_000.0,
    ));
    let timed = |workload: &str, mechanism, microseconds: [f64; 3]| Timed {
        workload: workload.to_owned(),
        mechanism,
        shape: Shape::Plain,
        microseconds: microseconds.to_vec(),
    };
    let sizes = [
        (None, [60_000, 0, 61_000], [62_000, 0, 63_000]),
        (
            Some(Mechanism::OutriderLua),
            [61_000, 71_000, 64_000],
            [64_000, 84_000, 67_000],
        ),
        (
            Some(Mechanism::EnvoyLua),
            [61_000, 71_000, 90_000],
            [63_000, 78_000, 110_000],
        ),
    ];
    let mut measured = Vec::new();
    for (mechanism, one, two) in sizes {
        for (workers, sizes) in [(1, one), (2, two)] {
            for (held, kib) in [Held::One, Held::Many, Held::Routes].into_iter().zip(sizes) {
                measured.push(Measured {
                    mechanism,
                    held,
                    workers,
                    kib,
                });
            }
        }
    }
    Report {
        format: 1,
        family: Family::Lua,
        environment: Environment {
            date: "2026-01-02 03:04 UTC".to_owned(),
            envoy: "0123abcd/1.40.0/Clean/RELEASE/BoringSSL".to_owned(),
            commit: "0123456789ab".to_owned(),
            module: "aa".to_owned(),
            native_module: "bb".to_owned(),
            processor: "A processor".to_owned(),
            processors: 2,
            kernel: "Linux 6.1".to_owned(),
            valgrind: "valgrind-3.19.0".to_owned(),
        },
        compared: 108,
        instructions: Instructions {
            requests: [1000, 4000],
            counted: all,
        },
        time: Some(Times {
            connections: 8,
            slice_ms: 150,
            timed: vec![
                timed(BASELINE, None, [10.0, 11.0, 12.0]),
                timed(TWIN, None, [10.1, 11.0, 11.8]),
                timed("no-op", Some(Mechanism::OutriderLua), [10.5, 11.4, 12.6]),
                timed("no-op", Some(Mechanism::EnvoyLua), [12.0, 13.0, 14.0]),
            ],
        }),
        ready: None,
        memory: Some(Memory {
            more_plugins: 50,
            routes: 1000,
            measured,
        }),
    }
}

/// The same of Wasm plugins: what Outrider takes is what Lua takes there.
fn wasm_report() -> Report {
    let mut report = report();
    let counted = &report.instructions.counted;
    let of = |workload: &str, mechanism: Option<Mechanism>| {
        let mut matching = counted.iter().filter(move |one| one.mechanism == mechanism);
        matching.find(|one| one.workload == workload).cloned()
    };
    let mut all: Vec<_> = counted
        .iter()
        .filter(|one| matches!(one.mechanism, None | Some(Mechanism::Native)))
        .filter(|one| one.workload != "no-op-request")
        .cloned()
        .collect();
    for workload in Family::Wasm.workloads() {
        for guest in Guest::ALL {
            let pairs = [
                (guest.outrider(), Mechanism::OutriderLua),
                (guest.envoy(), Mechanism::EnvoyLua),
            ];
            for (mechanism, like) in pairs {
                if !mechanism.does(workload) {
                    continue;
                }
                let mut one = of(workload.name, Some(like))
                    .or_else(|| of("complex", Some(like)))
                    .unwrap();
                workload.name.clone_into(&mut one.workload);
                one.mechanism = Some(mechanism);
                one.shape = workload.shape;
                all.push(one);
            }
        }
    }
    let memory = |mechanism, held, workers, kib| Measured {
        mechanism,
        held,
        workers,
        kib,
    };
    let rust = Some(Mechanism::OutriderRust);
    report.family = Family::Wasm;
    report.instructions.counted = all;
    report.memory = Some(Memory {
        more_plugins: 10,
        routes: 1000,
        measured: vec![
            memory(None, Held::One, 1, 60_000),
            memory(None, Held::One, 2, 62_000),
            memory(rust, Held::One, 1, 62_000),
            memory(rust, Held::One, 2, 64_500),
            memory(rust, Held::Many, 1, 82_000),
            memory(rust, Held::Many, 2, 104_500),
            memory(Some(Mechanism::EnvoyGo), Held::Firewall, 1, 260_000),
            memory(Some(Mechanism::EnvoyGo), Held::Firewall, 2, 362_000),
        ],
    });
    let start = |mechanism, milliseconds: [f64; 2]| Start {
        mechanism,
        milliseconds: milliseconds.to_vec(),
    };
    report.ready = Some(Ready {
        module_bytes: 30_000_000,
        starts: vec![
            start(None, [101.0, 100.0]),
            start(Some(Mechanism::OutriderGo), [144.0, 140.0]),
            start(Some(Mechanism::EnvoyGo), [9000.0, 9100.0]),
        ],
    });
    report
}

#[test]
fn the_page_of_a_report() {
    insta::assert_snapshot!(page(&report()));
}

#[test]
fn the_page_of_a_report_of_wasm_plugins() {
    insta::assert_snapshot!(page(&wasm_report()));
}

#[test]
fn the_summary_of_a_report_of_wasm_plugins() {
    insta::assert_snapshot!(summary(&wasm_report()));
}

#[test]
fn the_summary_and_the_functions_of_a_report() {
    let report = report();
    insta::assert_snapshot!(format!("{}\n{}", summary(&report), functions(&report)));
}

#[test]
fn a_part_of_a_report_has_a_page() {
    let mut report = report();
    report.time = None;
    report.memory = None;
    report
        .instructions
        .counted
        .retain(|one| one.mechanism != Some(Mechanism::EnvoyLua) && one.workload != "simple");
    let page = page(&report);
    assert!(!page.contains("CPU time of Envoy") && !page.contains("## Memory"));
    // Only what is compared with native code can be judged.
    assert_eq!(page.matches("the target is at most").count(), 1);
}

#[test]
fn a_report_is_read_as_it_was_written() {
    let report = report();
    let text = serde_json::to_string_pretty(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
}

/// `UPDATE_DOCS=1 cargo test` writes the pages again, after a change of their words.
#[test]
fn the_kept_pages_are_those_of_the_kept_reports() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/benchmarks");
    for family in Family::ALL {
        let name = family.name();
        let path = folder.join(format!("{name}.md"));
        let kept = std::fs::read(folder.join(format!("{name}.json"))).unwrap();
        let report: Report = serde_json::from_slice(&kept).unwrap();
        assert_eq!(report.family, family);
        let page = page(&report);
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, &page).unwrap();
        }
        assert!(
            std::fs::read_to_string(&path).unwrap() == page,
            "docs/benchmarks/{name}.md is not the page of {name}.json: UPDATE_DOCS=1 cargo test -p outrider-lab"
        );
    }
}
