//! Gates: in-band evidence that a slice measured the machine's other work, or the generator, and not the variant.

use outrider_lab_report::{Gate, Slice, SliceKind};

/// Foreign CPU time, as a share of one processor. Ticks of 10 ms make it coarse in short slices.
const FOREIGN: f64 = 0.15;
/// Waiting of Envoy's threads for a processor, as a share of the slice.
const RUN_QUEUE: f64 = 0.03;
/// CPU pressure beyond the usual of the same variant, as a share of the slice.
const PRESSURE: f64 = 0.25;
/// Time taken by the hypervisor, as a share of one processor.
const STEAL: f64 = 0.03;
/// Share of its time for which the generator may be busy at full load.
const GENERATOR: f64 = 0.97;
/// Lateness of the generator, 99th percentile, in nanoseconds.
const LATE: u64 = 500_000;
/// Requests below which a slice says nothing.
const REQUESTS: u64 = 100;

/// Returns the gates that a slice fails by itself. Workers that share a processor wait for each other as a part of what
/// is measured: their waiting is no gate.
pub(crate) fn failed(slice: &Slice, is_shared: bool) -> Vec<Gate> {
    let length = slice.seconds * 1e9;
    let mut failed = Vec::new();
    let mut check = |is_bad: bool, gate: Gate| {
        if is_bad {
            failed.push(gate);
        }
    };
    check(!slice.errors.is_empty(), Gate::Errors);
    check(slice.requests < REQUESTS, Gate::TooFewRequests);
    check(slice.foreign_ns as f64 > FOREIGN * length, Gate::ForeignCpu);
    check(slice.steal_ns as f64 > STEAL * length, Gate::Steal);
    check(
        !is_shared && slice.run_queue_ns as f64 > RUN_QUEUE * length,
        Gate::RunQueue,
    );
    match (slice.kind, &slice.latency) {
        (SliceKind::Cpu, _) => check(slice.generator_share > GENERATOR, Gate::GeneratorBound),
        (SliceKind::Latency | SliceKind::Rate, Some(latency)) => {
            check(latency.schedule_error_p99_ns > LATE, Gate::GeneratorBound);
        }
        (SliceKind::Latency | SliceKind::Rate, None) => check(true, Gate::TooFewRequests),
    }
    failed
}

/// Applies the gate of CPU pressure, which needs all slices of a run: generator and upstream share a processor, so some
/// pressure is the run's own, and what is unusual for a variant is not.
pub(crate) fn apply_pressure(slices: &mut [Slice]) {
    let share = |slice: &Slice| {
        slice
            .pressure_ns
            .map(|pressure| pressure as f64 / 1e9 / slice.seconds.max(1e-9))
    };
    let usual = |like: &Slice| {
        let mut shares: Vec<f64> = slices
            .iter()
            .filter(|slice| {
                slice.variant == like.variant
                    && slice.kind == like.kind
                    && (slice.offered - like.offered).abs() < 1e-6
            })
            .filter_map(share)
            .collect();
        shares.sort_by(f64::total_cmp);
        shares.get(shares.len() / 2).copied()
    };
    let unusual: Vec<bool> = slices
        .iter()
        .map(|slice| match (share(slice), usual(slice)) {
            (Some(share), Some(usual)) => share > usual + PRESSURE,
            _ => false,
        })
        .collect();
    for (slice, is_unusual) in slices.iter_mut().zip(unusual) {
        if is_unusual {
            slice.failed.push(Gate::Pressure);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use outrider_lab_report::LatencyResult;

    use super::*;

    fn slice() -> Slice {
        Slice {
            variant: 0,
            kind: SliceKind::Cpu,
            round: 0,
            at: 0.0,
            seconds: 0.5,
            offered: 0.0,
            requests: 10_000,
            errors: BTreeMap::new(),
            cpu_ns: 450_000_000,
            run_queue_ns: 1_000_000,
            generator_ns: 300_000_000,
            generator_share: 0.6,
            foreign_ns: 20_000_000,
            pressure_ns: Some(50_000_000),
            steal_ns: 0,
            memory_kib: 1,
            processes: BTreeMap::new(),
            latency: None,
            failed: Vec::new(),
        }
    }

    #[test]
    fn each_gate_closes_for_its_reason_only() {
        assert_eq!(failed(&slice(), false), []);
        let latency = |p99| Slice {
            kind: SliceKind::Latency,
            generator_share: 1.0,
            latency: Some(LatencyResult {
                latency: String::new(),
                service: String::new(),
                schedule_error_p99_ns: p99,
            }),
            ..slice()
        };
        assert_eq!(failed(&latency(1000), false), []);
        let errors = BTreeMap::from([("timeout".to_owned(), 1)]);
        for (slice, gate) in [
            (
                Slice {
                    foreign_ns: 100_000_000,
                    ..slice()
                },
                Gate::ForeignCpu,
            ),
            (
                Slice {
                    run_queue_ns: 20_000_000,
                    ..slice()
                },
                Gate::RunQueue,
            ),
            (
                Slice {
                    steal_ns: 20_000_000,
                    ..slice()
                },
                Gate::Steal,
            ),
            (
                Slice {
                    generator_share: 0.99,
                    ..slice()
                },
                Gate::GeneratorBound,
            ),
            (Slice { errors, ..slice() }, Gate::Errors),
            (
                Slice {
                    requests: 99,
                    ..slice()
                },
                Gate::TooFewRequests,
            ),
            (latency(600_000), Gate::GeneratorBound),
        ] {
            assert_eq!(failed(&slice, false), [gate]);
            let shared = failed(&slice, true);
            assert_eq!(shared.is_empty(), gate == Gate::RunQueue, "{gate:?}");
        }
    }

    #[test]
    fn pressure_is_judged_against_the_usual_of_the_variant() {
        let mut slices: Vec<Slice> = (0..9).map(|_| slice()).collect();
        slices.push(Slice {
            pressure_ns: Some(300_000_000),
            ..slice()
        });
        slices.push(Slice {
            pressure_ns: None,
            ..slice()
        });
        // A variant whose slices all have that pressure is as it is.
        slices.extend((0..3).map(|_| Slice {
            variant: 1,
            pressure_ns: Some(300_000_000),
            ..slice()
        }));
        apply_pressure(&mut slices);
        let failed: Vec<usize> = (0..slices.len())
            .filter(|index| !slices[*index].failed.is_empty())
            .collect();
        assert_eq!(failed, [9]);
    }
}
