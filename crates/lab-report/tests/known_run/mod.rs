//! A run whose differences are known.

use std::collections::BTreeMap;

use outrider_lab_report::{
    Absent, Environment, Gate, LatencyResult, Pair, Role, Run, SCHEMA, Settings, Slice, SliceKind,
    Variant,
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
        slices,
    }
}
