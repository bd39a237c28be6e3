//! An experiment: variants that are loaded in short slices, in an order that changes from round to round.
//!
//! Differences within a round are what counts: the machine's speed drifts, but little within some seconds. Every slice
//! comes with evidence of what else the machine did (`gates`), and one that fails is kept and not used.
//!
//! The trap: CPU time per request depends on how many requests wait at once, so only slices of the same kind and with
//! the same number of connections are comparable.

pub(crate) mod counters;
mod gates;
mod machine;
mod placement;
pub(crate) mod rig;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use outrider_envoy_process::Search;
use outrider_lab_report::{Absent, Measure, Pair, Run, SCHEMA, Settings, Slice, SliceKind, Stage};
use outrider_load::{Pacing, Schedule};

use crate::bench::filters::Sources;
use crate::scenario::{LatencySettings, Scenario};

use placement::Placement;
use rig::{Rig, Step};

/// What an experiment is run with.
#[derive(Debug, Clone)]
pub struct ExperimentOptions {
    /// The `outrider` command, which renders its plugins' filters.
    pub outrider: PathBuf,
    /// The folder of the modules for Envoy.
    pub modules: PathBuf,
    /// The folder of the Wasm guests.
    pub guests: PathBuf,
    /// The folder of the plugins that ship.
    pub plugins: PathBuf,
    /// The Envoy that the user named.
    pub envoy: Option<PathBuf>,
    /// Minutes of measuring, in place of the scenario's.
    pub minutes: Option<f64>,
    /// Seed of the order and of the bootstrap.
    pub seed: u64,
    /// The command line, for the report.
    pub command: Vec<String>,
}

/// State of an experiment, for people who wait.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExperimentProgress {
    /// Rounds that ended.
    pub rounds: usize,
    /// Slices that ran.
    pub slices: usize,
    /// Slices of them that failed a gate.
    pub rejected: usize,
    /// Time left until the last round begins.
    pub left: Duration,
}

/// What a scenario is prepared with.
#[derive(Debug)]
pub(crate) struct Workshop {
    /// The `outrider` command.
    pub(crate) outrider: PathBuf,
    /// Envoy's binary.
    pub(crate) envoy: PathBuf,
    /// The folder of the modules.
    pub(crate) modules: PathBuf,
    /// What filters are made of.
    pub(crate) sources: Sources,
    /// The folder of the plugins that ship.
    pub(crate) plugins: PathBuf,
}

impl Workshop {
    /// Arguments of `outrider up` that name the same Envoy and module.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let module = self.modules.join("liboutrider.so");
        vec![
            "--envoy".to_owned(),
            self.envoy.display().to_string(),
            "--module".to_owned(),
            module.display().to_string(),
        ]
    }

    fn new(options: &ExperimentOptions) -> anyhow::Result<Self> {
        let modules = std::path::absolute(&options.modules)?;
        let outrider = std::path::absolute(&options.outrider)?;
        Ok(Self {
            envoy: Search::from_environment(options.envoy.clone())
                .find()?
                .binary,
            sources: Sources {
                outrider: outrider.clone(),
                guests: options.guests.clone(),
                coraza: PathBuf::new(),
                compiled: modules.join("bench-compiled"),
            },
            outrider,
            modules,
            plugins: std::path::absolute(&options.plugins)?,
        })
    }
}

/// A scenario that is ready to be measured.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) rig: Rig,
    pub(crate) pace: Pace,
    pub(crate) pairs: Vec<Pair>,
    pub(crate) absent: Vec<Absent>,
    pub(crate) cumulative: Vec<String>,
    pub(crate) measures: Vec<Measure>,
    pub(crate) stages: Vec<Stage>,
}

impl Prepared {
    /// A scenario whose subjects are measured at this pace, with nothing besides.
    pub(crate) fn new(rig: Rig, pace: Pace) -> Self {
        Self {
            rig,
            pace,
            pairs: Vec::new(),
            absent: Vec::new(),
            cumulative: Vec::new(),
            measures: Vec::new(),
            stages: Vec::new(),
        }
    }
}

/// Slices of a round.
#[derive(Debug, Clone)]
pub(crate) struct Pace {
    /// At full load.
    pub(crate) cpu_slice: Duration,
    /// At one rate; none where it says so.
    pub(crate) latency: LatencySettings,
    /// At several rates.
    pub(crate) rates: Vec<f64>,
    pub(crate) rate_slice: Duration,
}

impl Pace {
    /// Slices at full load and at the scenario's one rate.
    pub(crate) fn of(scenario: &Scenario) -> Self {
        Self {
            cpu_slice: Duration::from_millis(scenario.cpu_slice_ms),
            latency: scenario.latency,
            rates: Vec::new(),
            rate_slice: Duration::ZERO,
        }
    }

    /// The steps of a round.
    fn steps(&self, round: usize, seed: u64) -> Vec<Step> {
        let LatencySettings {
            rate,
            slice_ms,
            every,
        } = self.latency;
        let mut steps = vec![Step {
            kind: SliceKind::Cpu,
            pacing: Pacing::closed(self.cpu_slice),
            offered: 0.0,
        }];
        if every > 0 && round % every == every - 1 {
            steps.push(Step {
                kind: SliceKind::Latency,
                pacing: Pacing::Open(Schedule::uniform(rate, Duration::from_millis(slice_ms))),
                offered: rate,
            });
        }
        for index in order(self.rates.len(), round, seed) {
            if let Some(rate) = self.rates.get(index).copied() {
                steps.push(Step {
                    kind: SliceKind::Rate,
                    pacing: Pacing::Open(Schedule::uniform(rate, self.rate_slice)),
                    offered: rate,
                });
            }
        }
        steps
    }
}

/// Runs a scenario. `report` is called after each round, and `say` with what is being prepared.
///
/// # Errors
///
/// Envoy, the module or a guest is not there or does not start.
pub fn run(
    scenario: &Scenario,
    options: &ExperimentOptions,
    say: &mut dyn FnMut(&str),
    report: &mut dyn FnMut(&ExperimentProgress),
) -> anyhow::Result<Run> {
    placement::raise_file_limit();
    let begin = Instant::now();
    let started = machine::now();
    let workshop = Workshop::new(options)?;
    let placement = Placement::choose();
    let rig = Rig {
        placement,
        ..Rig::default()
    };
    let environment =
        machine::environment(&workshop.envoy, &workshop.modules, placement.is_some())?;
    let prepared = scenario.prepare(&workshop, rig, say)?;
    let Prepared {
        mut rig,
        pace,
        pairs,
        absent,
        cumulative,
        measures,
        stages,
    } = prepared;
    rig.place_generator()?;
    say("warming every variant up");
    rig.warm_up()?;
    let minutes = options.minutes.unwrap_or(scenario.minutes);
    let until = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
    let mut slices = Vec::new();
    let mut rounds = 0;
    let mut longest = Duration::ZERO;
    // A round that would not end in time is not begun; one is run in any case.
    while !rig.subjects.is_empty() && (rounds == 0 || Instant::now() + longest < until) {
        let round_begin = Instant::now();
        for step in pace.steps(rounds, options.seed) {
            for variant in order(rig.subjects.len(), rounds, options.seed) {
                slices.push(rig.slice(variant, &step, rounds, begin)?);
            }
        }
        rounds += 1;
        longest = longest.max(round_begin.elapsed());
        report(&progress(rounds, &slices, until));
    }
    gates::apply_pressure(&mut slices);
    let variants = rig
        .subjects
        .iter()
        .map(|subject| subject.variant.clone())
        .collect();
    rig.stop();
    Ok(Run {
        schema: SCHEMA,
        scenario: options.command.last().cloned().unwrap_or_default(),
        title: scenario.title.clone(),
        about: scenario.about.clone(),
        started,
        seconds: (begin.elapsed().as_secs_f64() * 10.0).round() / 10.0,
        command: options.command.clone(),
        environment,
        settings: Settings {
            connections: scenario.connections,
            cpu_slice: pace.cpu_slice.as_secs_f64(),
            latency_slice: pace.latency.slice_ms as f64 / 1e3,
            latency_rate: if pace.latency.every > 0 {
                pace.latency.rate
            } else {
                0.0
            },
            rate_slice: pace.rate_slice.as_secs_f64(),
            rates: pace.rates,
            rounds,
            seed: options.seed,
        },
        variants,
        pairs,
        absent,
        cumulative,
        measures,
        stages,
        slices,
    })
}

fn progress(rounds: usize, slices: &[Slice], until: Instant) -> ExperimentProgress {
    ExperimentProgress {
        rounds,
        slices: slices.len(),
        rejected: slices.iter().filter(|slice| !slice.is_kept()).count(),
        left: until.saturating_duration_since(Instant::now()),
    }
}

/// The order of the variants in a round: shuffled, and every second time the one before backwards, so that no variant is
/// always behind the same one, and a drift within two rounds cancels out.
fn order(count: usize, round: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    fastrand::Rng::with_seed(seed.wrapping_add(round as u64 / 2)).shuffle(&mut order);
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_has_every_variant_and_runs_back_every_second_round() {
        let first = order(9, 4, 7);
        let mut second = order(9, 5, 7);
        second.reverse();
        assert_eq!(first, second);
        assert_ne!(first, order(9, 6, 7));
        let mut sorted = first.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..9).collect::<Vec<_>>());
        assert_eq!(first, order(9, 4, 7));
    }
}
