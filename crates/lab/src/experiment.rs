//! An experiment: one Envoy with a listener for each variant, loaded in short slices, in an order that changes from
//! round to round.
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

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use outrider_envoy_process::{Envoy, Level, Options, Search};
use outrider_lab_report::{LatencyResult, Run, SCHEMA, Settings, Slice, SliceKind, Variant};
use outrider_load::{
    Load, Outcome, Pacing, RequestTemplate, Schedule, Session, SessionOptions, Target,
    histogram_text,
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::bench::bootstrap::{Answers, Listener, bootstrap};
use crate::bench::filters::Sources;
use crate::bench::settle::settle;
use crate::bench::workload::{BODY_BYTES, Shape, VALUE};
use crate::body_echo::BodyEcho;
use crate::echo::hexadecimal;
use crate::ext_proc::ExtProc;
use crate::free_address::own_addresses;
use crate::scenario::Scenario;
use crate::scenario::mechanisms::{Plan, Planned, ext_proc_cluster};

use counters::{ProcessCounters, SystemCounters, resident_memory, workers};
use placement::Placement;

/// Many Wasm modules are compiled at the start.
const READY: Duration = Duration::from_mins(5);
/// Requests that each variant gets before anything is measured, so that code is compiled and caches are warm.
const WARM_UP: Duration = Duration::from_millis(400);

/// What an experiment is run with.
#[derive(Debug, Clone)]
pub struct ExperimentOptions {
    /// The `outrider` command, which renders its plugins' filters.
    pub outrider: PathBuf,
    /// The folder of the modules for Envoy.
    pub modules: PathBuf,
    /// The folder of the Wasm guests.
    pub guests: PathBuf,
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
    let envoy = Search::from_environment(options.envoy.clone())
        .find()?
        .binary;
    let modules = std::path::absolute(&options.modules)?;
    let sources = Sources {
        outrider: std::path::absolute(&options.outrider)?,
        guests: options.guests.clone(),
        coraza: PathBuf::new(),
        compiled: modules.join("bench-compiled"),
    };
    say("rendering the variants");
    let plan = Plan::of(scenario, &sources)?;
    say("starting Envoy");
    let mut experiment = Experiment::start(scenario, &plan, &envoy, &modules)?;
    let environment = machine::environment(&envoy, &modules, experiment.placement.is_some())?;
    say("warming every variant up");
    experiment.warm_up()?;
    let minutes = options.minutes.unwrap_or(scenario.minutes);
    let until = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
    let mut slices = Vec::new();
    let mut rounds = 0;
    let mut longest = Duration::ZERO;
    // A round that would not end in time is not begun; one is run in any case.
    while rounds == 0 || Instant::now() + longest < until {
        let round_begin = Instant::now();
        experiment.round(rounds, options.seed, begin, &mut slices)?;
        rounds += 1;
        longest = longest.max(round_begin.elapsed());
        report(&ExperimentProgress {
            rounds,
            slices: slices.len(),
            rejected: slices
                .iter()
                .filter(|slice| !slice.failed.is_empty())
                .count(),
            left: until.saturating_duration_since(Instant::now()),
        });
    }
    experiment.stop();
    gates::apply_pressure(&mut slices);
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
            cpu_slice: scenario.cpu_slice_ms as f64 / 1e3,
            latency_slice: scenario.latency.slice_ms as f64 / 1e3,
            latency_rate: scenario.latency.rate,
            rounds,
            seed: options.seed,
        },
        variants: plan.variants.iter().map(describe).collect(),
        pairs: plan.pairs,
        absent: plan.absent,
        slices,
    })
}

fn describe(planned: &Planned) -> Variant {
    let configuration = Value::Array(planned.filters.clone()).to_string();
    Variant {
        group: planned.group.clone(),
        about: planned.about.clone(),
        name: planned.name.clone(),
        role: planned.role,
        configuration: hexadecimal(Sha256::new_with_prefix(configuration)),
        note: planned.note.clone(),
    }
}

/// One Envoy with all variants, and connections to each.
struct Experiment<'plan> {
    scenario: &'plan Scenario,
    plan: &'plan Plan,
    envoy: Envoy,
    workers: Vec<i32>,
    ext_proc: ExtProc,
    _upstream: BodyEcho,
    sessions: Vec<Session>,
    placement: Option<Placement>,
    _folder: tempfile::TempDir,
}

impl<'plan> Experiment<'plan> {
    fn start(
        scenario: &'plan Scenario,
        plan: &'plan Plan,
        envoy: &Path,
        modules: &Path,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("outrider-lab-").tempdir()?;
        let upstream = BodyEcho::start(SocketAddr::from(([127, 0, 0, 1], 0)), 1)?;
        let ext_proc = ExtProc::start(&folder.path().join("ext-proc.sock"))?;
        let addresses = own_addresses(plan.variants.len())?;
        let listeners = plan
            .variants
            .iter()
            .zip(&addresses)
            .map(|(variant, address)| {
                Listener::new(
                    *address,
                    Answers::from(variant.shape),
                    variant.filters.clone(),
                )
            })
            .collect();
        let mut document = bootstrap(listeners, Some(upstream.address()), true);
        document
            .pointer_mut("/static_resources/clusters")
            .and_then(Value::as_array_mut)
            .context("the bootstrap has no clusters")?
            .push(ext_proc_cluster(ext_proc.socket()));
        let file = folder.path().join("bootstrap.json");
        fs::write(&file, document.to_string())?;
        let mut options = Options::new(envoy, file);
        options.concurrency = Some(1);
        options.module_folder = Some(modules.to_owned());
        options.log_level = Level::Error;
        let mut envoy = Envoy::start(options)?;
        envoy.wait_ready(READY)?;
        settle(envoy.process_id())?;
        let placement = Placement::choose();
        if let Some(placement) = placement {
            placement.place_target(envoy.process_id())?;
            placement.place_generator(None)?;
            for thread in upstream.thread_ids() {
                placement.place_generator(Some(thread))?;
            }
            placement.place_generator(Some(ext_proc.thread_id()))?;
        }
        let sessions = addresses
            .iter()
            .map(|address| {
                let target = Target::parse(&format!("http://{address}/"))?;
                let options = SessionOptions {
                    connections: scenario.connections,
                    ..SessionOptions::default()
                };
                Ok(Session::open(&target, &options)?)
            })
            .collect::<anyhow::Result<_>>()?;
        Ok(Self {
            scenario,
            plan,
            workers: workers(envoy.process_id())?,
            envoy,
            ext_proc,
            _upstream: upstream,
            sessions,
            placement,
            _folder: folder,
        })
    }

    fn stop(mut self) {
        self.sessions.clear();
        self.envoy.stop(Duration::from_secs(5));
    }

    /// Loads each variant once, and makes sure that it answers.
    fn warm_up(&mut self) -> anyhow::Result<()> {
        for (variant, session) in self.plan.variants.iter().zip(&mut self.sessions) {
            let load = Load {
                pacing: Pacing::closed(WARM_UP),
                requests: vec![request(variant.shape)],
            };
            let total = session.run(&load)?.total();
            if total.failed() > 0 || total.succeeded == 0 {
                let said: Vec<String> = self
                    .envoy
                    .last_lines()
                    .iter()
                    .map(ToString::to_string)
                    .collect();
                anyhow::bail!(
                    "{}, {}: {} of {} requests failed ({:?}), so it cannot be measured\n{}",
                    variant.group,
                    variant.name,
                    total.failed(),
                    total.sent,
                    total.errors,
                    said.join("\n")
                );
            }
        }
        Ok(())
    }

    fn round(
        &mut self,
        round: usize,
        seed: u64,
        begin: Instant,
        slices: &mut Vec<Slice>,
    ) -> anyhow::Result<()> {
        let latency = self.scenario.latency;
        let mut kinds = vec![SliceKind::Cpu];
        if latency.every > 0 && round % latency.every == latency.every - 1 {
            kinds.push(SliceKind::Latency);
        }
        for kind in kinds {
            for variant in order(self.plan.variants.len(), round, seed) {
                slices.push(self.slice(variant, kind, round, begin)?);
            }
        }
        Ok(())
    }

    fn slice(
        &mut self,
        variant: usize,
        kind: SliceKind,
        round: usize,
        begin: Instant,
    ) -> anyhow::Result<Slice> {
        let planned = self.plan.variants.get(variant).context("no such variant")?;
        let session = self.sessions.get_mut(variant).context("no such variant")?;
        let pacing = match kind {
            SliceKind::Cpu => Pacing::closed(Duration::from_millis(self.scenario.cpu_slice_ms)),
            SliceKind::Latency => Pacing::Open(Schedule::uniform(
                self.scenario.latency.rate,
                Duration::from_millis(self.scenario.latency.slice_ms),
            )),
        };
        let load = Load {
            pacing,
            requests: vec![request(planned.shape)],
        };
        let at = begin.elapsed().as_secs_f64();
        let before = Sample::take(&self.envoy, &self.workers, &self.ext_proc)?;
        let outcome = session.run(&load)?;
        let used = Sample::take(&self.envoy, &self.workers, &self.ext_proc)?.since(&before);
        let mut slice = used.slice(variant, kind, round, &outcome, planned.uses_ext_proc);
        slice.at = (at * 1e3).round() / 1e3;
        slice.memory_kib = resident_memory(self.envoy.process_id())?;
        slice.failed = gates::failed(&slice);
        Ok(slice)
    }
}

/// Counters of everything that takes part, at one time or between two.
#[derive(Debug, Clone, Copy)]
struct Sample {
    envoy: ProcessCounters,
    /// Nanoseconds for which Envoy's workers waited for a processor.
    waited: u64,
    ext_proc: ProcessCounters,
    lab: ProcessCounters,
    system: SystemCounters,
}

impl Sample {
    fn take(envoy: &Envoy, workers: &[i32], ext_proc: &ExtProc) -> anyhow::Result<Self> {
        let mut waited = 0;
        for worker in workers {
            waited += ProcessCounters::of_thread(envoy.process_id(), *worker)?.run_queue;
        }
        Ok(Self {
            envoy: ProcessCounters::read(envoy.process_id())?,
            waited,
            ext_proc: ProcessCounters::of_thread(std::process::id(), ext_proc.thread_id())?,
            lab: ProcessCounters::read(std::process::id())?,
            system: SystemCounters::read()?,
        })
    }

    fn since(self, before: &Self) -> Self {
        Self {
            envoy: self.envoy.since(before.envoy),
            waited: self.waited.saturating_sub(before.waited),
            ext_proc: self.ext_proc.since(before.ext_proc),
            lab: self.lab.since(before.lab),
            system: self.system.since(before.system),
        }
    }

    fn slice(
        &self,
        variant: usize,
        kind: SliceKind,
        round: usize,
        outcome: &Outcome,
        uses_ext_proc: bool,
    ) -> Slice {
        let total = outcome.total();
        let mut cpu = self.envoy.cpu;
        if uses_ext_proc {
            cpu += self.ext_proc.cpu;
        }
        Slice {
            variant,
            kind,
            round,
            at: 0.0,
            seconds: outcome.elapsed as f64 / 1e9,
            requests: total.succeeded,
            errors: total
                .errors
                .iter()
                .map(|(kind, count)| (kind.describe().to_owned(), *count))
                .collect(),
            cpu_ns: cpu,
            run_queue_ns: self.waited,
            generator_ns: outcome.generator_cpu,
            generator_share: outcome.busiest_thread as f64 / outcome.elapsed.max(1) as f64,
            foreign_ns: self
                .system
                .busy
                .saturating_sub(self.envoy.cpu + self.lab.cpu),
            pressure_ns: self.system.pressure,
            steal_ns: self.system.steal,
            memory_kib: 0,
            latency: (kind == SliceKind::Latency).then(|| LatencyResult {
                latency: histogram_text(&total.latency),
                service: histogram_text(&total.service),
                schedule_error_p99_ns: total.schedule_error.value_at_quantile(0.99),
            }),
            failed: Vec::new(),
        }
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

fn request(shape: Shape) -> RequestTemplate {
    let get = RequestTemplate::get("/").header("host", "lab.test");
    match shape {
        Shape::Plain | Shape::Browser | Shape::Traced => get,
        Shape::TenHeaders => (1..=10).fold(get, |request, number| {
            request.header(&format!("x-h-{number}"), VALUE)
        }),
        Shape::Body => RequestTemplate {
            method: "POST".to_owned(),
            body: vec![b'b'; BODY_BYTES].into(),
            ..get
        },
    }
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
