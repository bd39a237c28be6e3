//! The page against a report that is made up, and the kept page against the kept report.

use std::path::Path;

use super::*;
use crate::bench::profile::{EnvoyFunction, OwnCost, Part, PerRequest};
use crate::bench::report::{Counted, Environment, Held, Measured, Memory, Timed, Times};
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
    for (workload, factor) in WORKLOADS.iter().zip([1.0, 0.8, 2.0, 6.0, 9.0, 5.0]) {
        let base = all.iter().find(|one| one.shape == workload.shape).unwrap();
        let base = base.per_request.instructions + 50.0;
        for (mechanism, cost) in Mechanism::ALL.into_iter().zip([6000.0, 16_000.0, 4000.0]) {
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
        memory: Some(Memory {
            more_plugins: 50,
            routes: 1000,
            measured,
        }),
    }
}

#[test]
fn the_page_of_a_report() {
    insta::assert_snapshot!(page(&report()));
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

/// `UPDATE_DOCS=1 cargo test` writes the page again, after a change of its words.
#[test]
fn the_kept_page_is_that_of_the_kept_report() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/benchmarks");
    let path = folder.join("lua.md");
    let kept = std::fs::read(folder.join("lua.json")).unwrap();
    let report: Report = serde_json::from_slice(&kept).unwrap();
    let page = page(&report);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    assert!(
        std::fs::read_to_string(&path).unwrap() == page,
        "docs/benchmarks/lua.md is not the page of lua.json: UPDATE_DOCS=1 cargo test -p outrider-lab"
    );
}
