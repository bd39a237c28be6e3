//! A run whose differences are known.

use std::collections::BTreeMap;

use outrider_lab_report::{
    Absent, Environment, Gate, LatencyResult, Measure, Pair, ProcessUse, Role, Run, SCHEMA,
    Settings, Slice, SliceKind, Stage, Variant,
};
use outrider_load::{histogram_text, new_histogram};

/// Rounds of the run.
pub(crate) const ROUNDS: usize = 12;

fn variant(name: &str, role: Role) -> Variant {
    Variant {
        group: "pass-through".to_owned(),
        about: "A handler that does nothing.".to_owned(),
        name: name.to_owned(),
        role,
        configuration: "0".repeat(64),
        note: String::new(),
    }
}

/// Costs in nanoseconds a request: 12,000, and what each variant adds; with noise of up to 150 that each round shares in
/// part.
pub(crate) fn run() -> Run {
    let variants = vec![
        variant("nothing", Role::Baseline),
        variant("nothing, again", Role::Twin),
        variant("Outrider Lua", Role::Measured),
        variant("Envoy's Lua filter", Role::Measured),
        variant("native <module>", Role::Measured),
        variant("always disturbed", Role::Measured),
    ];
    let added = [0, 0, 1_200, 3_200, 60, 900];
    let mut slices = Vec::new();
    for round in 0..ROUNDS {
        for (index, added) in added.into_iter().enumerate() {
            let noise = (round * 37 + index * 53) % 150;
            let cost = (12_000 + round as u64 * 40) + added + noise as u64;
            let mut slice = Slice {
                variant: index,
                kind: SliceKind::Cpu,
                round,
                at: (slices.len() as f64) * 0.5,
                seconds: 0.5,
                offered: 0.0,
                requests: 10_000,
                errors: BTreeMap::new(),
                cpu_ns: cost * 10_000,
                run_queue_ns: 0,
                generator_ns: 70_000_000,
                generator_share: 0.6,
                foreign_ns: 0,
                pressure_ns: Some(0),
                steal_ns: 0,
                memory_kib: 60_000,
                processes: BTreeMap::new(),
                latency: None,
                failed: Vec::new(),
            };
            if index == 5 && round > 2 {
                slice.failed = vec![Gate::ForeignCpu, Gate::RunQueue];
            }
            slices.push(slice.clone());
            let mut latency = new_histogram();
            for request in 1..=1000_u64 {
                latency.record(request * 200 + added).unwrap();
            }
            slice.kind = SliceKind::Latency;
            slice.latency = Some(LatencyResult {
                latency: histogram_text(&latency),
                service: histogram_text(&latency),
                schedule_error_p99_ns: 900,
            });
            slices.push(slice);
        }
    }
    Run {
        schema: SCHEMA,
        scenario: "mechanisms".to_owned(),
        title: "What does a plugin cost?".to_owned(),
        about: "One Envoy, a listener for each variant.".to_owned(),
        started: "2026-11-24T12:00:00Z".to_owned(),
        seconds: 72.0,
        command: ["outrider", "lab", "run", "mechanisms"]
            .map(str::to_owned)
            .to_vec(),
        environment: Environment {
            processor: "A processor".to_owned(),
            cores: 2,
            ..Environment::default()
        },
        settings: Settings {
            connections: 16,
            cpu_slice: 0.5,
            latency_slice: 1.0,
            latency_rate: 2000.0,
            rate_slice: 0.0,
            rates: Vec::new(),
            rounds: ROUNDS,
            seed: 1,
        },
        variants,
        pairs: vec![
            Pair {
                variant: 2,
                with: 3,
            },
            Pair {
                variant: 4,
                with: 2,
            },
        ],
        absent: vec![Absent {
            group: "pass-through".to_owned(),
            name: "native filter".to_owned(),
            reason: "Envoy has none that does nothing".to_owned(),
        }],
        cumulative: Vec::new(),
        measures: Vec::new(),
        stages: Vec::new(),
        slices,
    }
}

/// A run at four rates: the second variant does not keep up with the last one. Latency is 100 µs, and 400 µs with
/// telemetry; beyond the knee the last response comes late.
pub(crate) fn run_at_rates() -> Run {
    let rates = [1000.0, 2000.0, 3000.0, 4000.0];
    let mut run = run();
    run.variants.truncate(3);
    run.pairs.clear();
    run.settings.latency_rate = 0.0;
    run.settings.rates = rates.to_vec();
    run.settings.rate_slice = 1.0;
    run.slices
        .retain(|slice| slice.variant < 3 && slice.kind == SliceKind::Cpu);
    let template = run.slices.first().cloned().unwrap();
    for round in 0..ROUNDS {
        for rate in rates {
            for variant in 0..3 {
                let is_late = variant == 2 && rate > 3500.0;
                let mut latency = new_histogram();
                for request in 1..=1000_u64 {
                    latency
                        .record((if variant == 2 { 400_000 } else { 100_000 }) + request)
                        .unwrap();
                }
                let process = |cpu_ns| ProcessUse {
                    cpu_ns,
                    memory_kib: 50 * 1024,
                };
                run.slices.push(Slice {
                    variant,
                    kind: SliceKind::Rate,
                    round,
                    seconds: if is_late { 1.3 } else { 1.0 },
                    offered: rate,
                    requests: rate as u64,
                    processes: BTreeMap::from([
                        ("client sidecar".to_owned(), process(100_000_000)),
                        ("server sidecar".to_owned(), process(200_000_000)),
                    ]),
                    latency: Some(LatencyResult {
                        latency: histogram_text(&latency),
                        service: histogram_text(&latency),
                        schedule_error_p99_ns: 900,
                    }),
                    ..template.clone()
                });
            }
        }
    }
    run.cumulative = vec!["pass-through".to_owned()];
    run.measures = vec![Measure {
        group: "pass-through".to_owned(),
        name: "nothing".to_owned(),
        what: "Envoy's memory".to_owned(),
        unit: "MiB".to_owned(),
        values: vec![70.0, 72.0, 71.0],
    }];
    let mut time = new_histogram();
    time.record_n(12_000, 10).unwrap();
    run.stages = ["client: filters", "upstream"]
        .map(|name| Stage {
            group: "1000 requests a second".to_owned(),
            name: name.to_owned(),
            time: histogram_text(&time),
        })
        .to_vec();
    run
}
