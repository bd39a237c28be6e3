//! Test rig of a scenario: processes, connections to their listeners, and changes that are made under load.
//!
//! A scenario makes a [`Rig`]; the experiment loads its subjects in slices and reads the counters of its processes, and
//! knows nothing of what they are.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use outrider_envoy_process::{Envoy, Level, Options};
use outrider_lab_report::{LatencyResult, ProcessUse, Slice, SliceKind, Variant};
use outrider_load::{Load, Outcome, Pacing, RequestTemplate, Session, histogram_text};

use super::counters::{ProcessCounters, SystemCounters, resident_memory, workers};
use super::gates;
use super::placement::Placement;
use crate::bench::settle::settle;

/// Many Wasm modules are compiled at the start.
const READY: Duration = Duration::from_mins(5);
/// Requests that each variant gets before anything is measured, so that code is compiled and caches are warm.
const WARM_UP: Duration = Duration::from_millis(400);
/// Time after a slice with changes, in which the last of them comes into force.
const CALM: Duration = Duration::from_millis(300);

/// Process, or thread of this process, whose CPU time is known by name.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) name: String,
    counted: Counted,
    /// Threads whose waiting for a processor counts against a slice.
    workers: Vec<i32>,
}

#[derive(Debug, Clone, Copy)]
enum Counted {
    Process(u32),
    OwnThread(i32),
}

impl Watched {
    /// An Envoy.
    ///
    /// # Errors
    ///
    /// It is gone.
    pub(crate) fn envoy(name: &str, process: u32) -> anyhow::Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            counted: Counted::Process(process),
            workers: workers(process)?,
        })
    }

    /// Another process.
    pub(crate) fn process(name: &str, process: u32) -> Self {
        Self {
            name: name.to_owned(),
            counted: Counted::Process(process),
            workers: Vec::new(),
        }
    }

    /// A thread of this process.
    pub(crate) fn own_thread(name: &str, thread: i32) -> Self {
        Self {
            name: name.to_owned(),
            counted: Counted::OwnThread(thread),
            workers: Vec::new(),
        }
    }

    fn read(&self) -> anyhow::Result<ProcessCounters> {
        match self.counted {
            Counted::Process(process) => ProcessCounters::read(process),
            Counted::OwnThread(thread) => ProcessCounters::of_thread(std::process::id(), thread),
        }
        .with_context(|| format!("{} ended while it was measured", self.name))
    }

    fn waited(&self) -> anyhow::Result<u64> {
        let Counted::Process(process) = self.counted else {
            return Ok(0);
        };
        let mut waited = 0;
        for worker in &self.workers {
            waited += ProcessCounters::of_thread(process, *worker)?.run_queue;
        }
        Ok(waited)
    }

    fn memory(&self) -> anyhow::Result<u64> {
        match self.counted {
            Counted::Process(process) => resident_memory(process),
            Counted::OwnThread(_) => Ok(0),
        }
    }
}

/// Changes that are made while a subject is under load.
pub(crate) struct Meanwhile {
    /// Time between two changes.
    pub(crate) every: Duration,
    /// Makes change number N, from 1 on.
    pub(crate) change: Box<dyn Fn(u64) -> anyhow::Result<()> + Send + Sync>,
    /// Changes that were made.
    pub(crate) made: AtomicU64,
}

impl Meanwhile {
    pub(crate) fn new(
        every: Duration,
        change: impl Fn(u64) -> anyhow::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self {
            every,
            change: Box::new(change),
            made: AtomicU64::new(0),
        }
    }

    /// Makes changes until `stop`.
    fn run(&self, stop: &AtomicBool) -> anyhow::Result<()> {
        let begin = Instant::now();
        let mut due = begin;
        while !stop.load(Ordering::Relaxed) {
            (self.change)(self.made.fetch_add(1, Ordering::Relaxed) + 1)?;
            due += self.every;
            while !stop.load(Ordering::Relaxed) && Instant::now() < due {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Meanwhile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Meanwhile")
            .field("every", &self.every)
            .field("made", &self.made)
            .finish_non_exhaustive()
    }
}

/// Variant with connections to it.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) variant: Variant,
    pub(crate) session: Session,
    /// Requests, sent in turns.
    pub(crate) requests: Vec<RequestTemplate>,
    /// Processes whose CPU time is the variant's, as indices of [`Rig::watched`].
    pub(crate) processes: Vec<usize>,
    pub(crate) meanwhile: Option<Meanwhile>,
}

/// What a scenario has started.
#[derive(Debug, Default)]
pub(crate) struct Rig {
    pub(crate) subjects: Vec<Subject>,
    pub(crate) watched: Vec<Watched>,
    pub(crate) placement: Option<Placement>,
    /// Whether workers of a variant share a processor, so that waiting for it is a part of what is measured.
    pub(crate) is_shared: bool,
    pub(crate) envoys: Vec<Envoy>,
    /// What has to live as long: servers, folders.
    pub(crate) keep: Vec<Box<dyn Any>>,
}

/// Pace of a slice.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) kind: SliceKind,
    pub(crate) pacing: Pacing,
    /// Requests a second; 0 at full load.
    pub(crate) offered: f64,
}

impl Rig {
    /// Starts an Envoy of this rig with one worker on the target's processor, and waits until it has come to rest.
    /// Returns the index of its [`Watched`].
    ///
    /// # Errors
    ///
    /// Envoy does not start.
    pub(crate) fn start_envoy(
        &mut self,
        name: &str,
        mut options: Options,
    ) -> anyhow::Result<usize> {
        options.concurrency = Some(1);
        options.log_level = Level::Error;
        let mut envoy = Envoy::start(options)?;
        envoy.wait_ready(READY)?;
        settle(envoy.process_id())?;
        let index = self.watch_envoy(name, envoy.process_id())?;
        self.envoys.push(envoy);
        Ok(index)
    }

    /// Watches an Envoy that something else has started, and puts it on the target's processor.
    ///
    /// # Errors
    ///
    /// It is gone.
    pub(crate) fn watch_envoy(&mut self, name: &str, process: u32) -> anyhow::Result<usize> {
        if let Some(placement) = self.placement {
            placement.place_target(process)?;
        }
        self.watched.push(Watched::envoy(name, process)?);
        Ok(self.watched.len() - 1)
    }

    /// Watches a thread of this process, and puts it on the generator's processor.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub(crate) fn watch_own_thread(&mut self, name: &str, thread: i32) -> anyhow::Result<usize> {
        self.place_own_thread(thread)?;
        self.watched.push(Watched::own_thread(name, thread));
        Ok(self.watched.len() - 1)
    }

    /// Puts the current thread, which is to generate load, on its processor. What it starts afterwards stays there.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub(crate) fn place_generator(&self) -> anyhow::Result<()> {
        match self.placement {
            Some(placement) => placement.place_generator(None),
            None => Ok(()),
        }
    }

    /// Puts a thread of this process on the generator's processor.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub(crate) fn place_own_thread(&self, thread: i32) -> anyhow::Result<()> {
        match self.placement {
            Some(placement) => placement.place_generator(Some(thread)),
            None => Ok(()),
        }
    }

    /// Ends all that was started.
    pub(crate) fn stop(mut self) {
        self.subjects.clear();
        for envoy in self.envoys.drain(..) {
            envoy.stop(Duration::from_secs(5));
        }
    }

    /// Loads each variant once, and makes sure that it answers.
    ///
    /// # Errors
    ///
    /// A variant does not answer as expected.
    pub(crate) fn warm_up(&mut self) -> anyhow::Result<()> {
        for subject in &mut self.subjects {
            let load = Load {
                pacing: Pacing::closed(WARM_UP),
                requests: subject.requests.clone(),
            };
            let total = subject.session.run(&load)?.total();
            if total.failed() > 0 || total.succeeded == 0 {
                let said: Vec<String> = self
                    .envoys
                    .iter()
                    .flat_map(Envoy::last_lines)
                    .map(|line| line.to_string())
                    .collect();
                anyhow::bail!(
                    "{}, {}: {} of {} requests failed ({:?}, statuses {:?}), so it cannot be measured\n{}",
                    subject.variant.group,
                    subject.variant.name,
                    total.failed(),
                    total.sent,
                    total.errors,
                    total.statuses,
                    said.join("\n")
                );
            }
        }
        Ok(())
    }

    /// Loads a variant for a moment.
    ///
    /// # Errors
    ///
    /// A process is gone.
    pub(crate) fn slice(
        &mut self,
        variant: usize,
        step: &Step,
        round: usize,
        begin: Instant,
    ) -> anyhow::Result<Slice> {
        let at = begin.elapsed().as_secs_f64();
        let before = Sample::take(&self.watched)?;
        let subject = self.subjects.get_mut(variant).context("no such variant")?;
        let load = Load {
            pacing: step.pacing.clone(),
            requests: subject.requests.clone(),
        };
        let stop = AtomicBool::new(false);
        let (session, meanwhile) = (&mut subject.session, &subject.meanwhile);
        let outcome = std::thread::scope(|scope| -> anyhow::Result<Outcome> {
            let changes = meanwhile
                .as_ref()
                .map(|meanwhile| scope.spawn(|| meanwhile.run(&stop)));
            let outcome = session.run(&load);
            stop.store(true, Ordering::Relaxed);
            if let Some(Err(error)) = changes.map(|thread| thread.join().unwrap_or(Ok(()))) {
                return Err(error.context("a change under load cannot be made"));
            }
            Ok(outcome?)
        })?;
        let used = Sample::take(&self.watched)?.since(&before);
        if meanwhile.is_some() {
            std::thread::sleep(CALM);
        }
        let subject = self.subjects.get(variant).context("no such variant")?;
        let mut slice = used.slice(variant, step, round, &outcome);
        for (index, watched) in subject
            .processes
            .iter()
            .filter_map(|index| Some((*index, self.watched.get(*index)?)))
        {
            let memory_kib = watched.memory()?;
            let cpu_ns = used
                .watched
                .get(index)
                .map(|counters| counters.cpu)
                .unwrap_or_default();
            slice.cpu_ns += cpu_ns;
            slice.memory_kib += memory_kib;
            slice.run_queue_ns += used.waited.get(index).copied().unwrap_or_default();
            slice
                .processes
                .insert(watched.name.clone(), ProcessUse { cpu_ns, memory_kib });
        }
        if slice.processes.len() < 2 {
            slice.processes.clear();
        }
        slice.foreign_ns = used.foreign(&self.watched);
        slice.at = (at * 1e3).round() / 1e3;
        slice.failed = gates::failed(&slice, self.is_shared);
        Ok(slice)
    }
}

/// Counters of everything that takes part, at one time or between two.
#[derive(Debug, Clone)]
struct Sample {
    watched: Vec<ProcessCounters>,
    /// Nanoseconds for which the workers of each waited for a processor.
    waited: Vec<u64>,
    lab: ProcessCounters,
    system: SystemCounters,
}

impl Sample {
    fn take(watched: &[Watched]) -> anyhow::Result<Self> {
        Ok(Self {
            watched: watched
                .iter()
                .map(Watched::read)
                .collect::<anyhow::Result<_>>()?,
            waited: watched
                .iter()
                .map(Watched::waited)
                .collect::<anyhow::Result<_>>()?,
            lab: ProcessCounters::read(std::process::id())?,
            system: SystemCounters::read()?,
        })
    }

    fn since(self, before: &Self) -> Self {
        Self {
            watched: self
                .watched
                .iter()
                .zip(&before.watched)
                .map(|(after, before)| after.since(*before))
                .collect(),
            waited: self
                .waited
                .iter()
                .zip(&before.waited)
                .map(|(after, before)| after.saturating_sub(*before))
                .collect(),
            lab: self.lab.since(before.lab),
            system: self.system.since(before.system),
        }
    }

    /// CPU time of processes that do not belong to the experiment.
    fn foreign(&self, watched: &[Watched]) -> u64 {
        let known: u64 = watched
            .iter()
            .zip(&self.watched)
            .filter(|(watched, _)| matches!(watched.counted, Counted::Process(_)))
            .map(|(_, counters)| counters.cpu)
            .sum();
        self.system.busy.saturating_sub(known + self.lab.cpu)
    }

    fn slice(&self, variant: usize, step: &Step, round: usize, outcome: &Outcome) -> Slice {
        let total = outcome.total();
        Slice {
            variant,
            kind: step.kind,
            round,
            at: 0.0,
            // A closed loop has no last response that counts: its length is the whole of it.
            seconds: match step.kind {
                SliceKind::Cpu => outcome.elapsed as f64 / 1e9,
                SliceKind::Latency | SliceKind::Rate => outcome.seconds,
            },
            offered: step.offered,
            requests: total.succeeded,
            errors: total
                .errors
                .iter()
                .map(|(kind, count)| (kind.describe().to_owned(), *count))
                .collect(),
            cpu_ns: 0,
            run_queue_ns: 0,
            generator_ns: outcome.generator_cpu,
            generator_share: outcome.busiest_thread as f64 / outcome.elapsed.max(1) as f64,
            foreign_ns: 0,
            pressure_ns: self.system.pressure,
            steal_ns: self.system.steal,
            memory_kib: 0,
            processes: std::collections::BTreeMap::new(),
            latency: (step.kind != SliceKind::Cpu).then(|| LatencyResult {
                latency: histogram_text(&total.latency),
                service: histogram_text(&total.service),
                schedule_error_p99_ns: total.schedule_error.value_at_quantile(0.99),
            }),
            failed: Vec::new(),
        }
    }
}
