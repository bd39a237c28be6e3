//! What a plugin costs: `make bench`.
//!
//! Each mechanism does the same work (checked first) in the same stock Envoy. Instructions are counted
//! by callgrind: what a long run takes more than a short one, divided by how many more requests it
//! had, over the same with no filter. CPU time and memory stand beside. The result is a [`Report`],
//! which is kept as it is, and a page made of it.
//!
//! Not a load test: no latencies, no throughput. The trap: counts are of user mode only, so what a
//! system call costs is not in them; CPU time has it.

pub(crate) mod bootstrap;
mod callgrind;
mod environment;
pub(crate) mod filters;
mod lanes;
pub(crate) mod load;
mod mechanism;
mod memory;
mod page;
mod preflight;
mod profile;
mod ready;
mod report;
pub(crate) mod scripts;
pub(crate) mod settle;
mod time;
mod upstream;
mod variant;
pub(crate) mod workload;

use std::collections::VecDeque;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::Context as _;
use outrider_envoy_process::Search;

use callgrind::Callgrind;
use filters::Sources;
use profile::{PerRequest, Profile};
use variant::{Variant, variants};

pub use lanes::lanes;
pub use mechanism::{Family, Mechanism};
pub use page::{functions, page, summary};
pub use report::Report;
pub use variant::Selection;

use report::{Counted, Instructions};
use upstream::Upstream;

/// What the benchmark is run with.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    /// The `outrider` command.
    pub outrider: PathBuf,
    /// The folder of `liboutrider.so` and `liboutrider_bench_native.so`, built for release. Compiled code of
    /// guests is kept in it, too.
    pub modules: PathBuf,
    /// The folder of the Wasm guests.
    pub guests: PathBuf,
    /// Coraza's module.
    pub coraza: PathBuf,
    /// The Envoy that the user named.
    pub envoy: Option<PathBuf>,
    /// What is counted.
    pub selection: Selection,
    /// How many requests come before those that are counted.
    pub warming: u64,
    /// How many requests the shorter runs count.
    pub fewer: u64,
    /// How many the longer ones have.
    pub more: u64,
    /// How many Envoys run under callgrind at the same time.
    pub jobs: usize,
    /// Whether instructions are counted.
    pub instructions: bool,
    /// How many rounds of CPU times; none: no CPU times.
    pub rounds: usize,
    /// Whether memory is measured.
    pub memory: bool,
    /// Whether the time of starts is.
    pub ready: bool,
}

impl BenchOptions {
    /// How many more requests the longer run of a variant has.
    fn counted(&self, variant: &Variant) -> u64 {
        (self.more / variant.divisor)
            .saturating_sub(self.fewer / variant.divisor)
            .max(1)
    }
}

/// Runs the benchmark of one family, tells what it does to `out`.
pub async fn run(
    family: Family,
    options: &BenchOptions,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<Report> {
    anyhow::ensure!(
        options.fewer > 0 && options.more > options.fewer,
        "the longer runs need more requests than the shorter ones, and those need some"
    );
    let envoy = Search::from_environment(options.envoy.clone())
        .find()?
        .binary;
    let modules = std::path::absolute(&options.modules)?;
    let sources = Sources {
        outrider: std::path::absolute(&options.outrider)?,
        guests: options.guests.clone(),
        coraza: options.coraza.clone(),
        compiled: modules.join("bench-compiled"),
    };
    let environment = environment::environment(&envoy, &modules)?;
    writeln!(out, "Envoy {}, {}", environment.envoy, environment.valgrind)?;

    let compared = preflight::check(&envoy, &modules, &sources, family, &options.selection).await?;
    writeln!(
        out,
        "the mechanisms do the same work ({compared} comparisons)"
    )?;

    let upstream = Upstream::start().await?;
    let variants = variants(family, &options.selection, &sources)?;
    let callgrind = Callgrind {
        envoy: envoy.clone(),
        modules: modules.clone(),
        upstream: upstream.address(),
        warming: options.warming,
    };
    // What follows blocks, and the upstream has threads of its own.
    let instructions = if options.instructions {
        tokio::task::block_in_place(|| count(&callgrind, &variants, options, out))?
    } else {
        Instructions {
            requests: [options.fewer, options.more],
            counted: Vec::new(),
        }
    };
    let time = if options.rounds > 0 {
        write!(out, "CPU time, {} rounds ", options.rounds)?;
        let address = upstream.address();
        Some(tokio::task::block_in_place(|| {
            time::measure(&envoy, &modules, address, &variants, options.rounds, out)
        })?)
    } else {
        None
    };
    let memory = if options.memory {
        Some(tokio::task::block_in_place(|| {
            memory::measure(&envoy, &modules, family, &sources, |line| {
                Ok(writeln!(out, "memory, {line}")?)
            })
        })?)
    } else {
        None
    };
    let ready = if options.ready && family == Family::Wasm {
        write!(out, "starts ")?;
        Some(tokio::task::block_in_place(|| {
            ready::measure(&envoy, &modules, &sources, out)
        })?)
    } else {
        None
    };
    Ok(Report {
        format: 1,
        family,
        environment,
        compared,
        instructions,
        time,
        memory,
        ready,
    })
}

/// Runs the benchmark of one family on a runtime of its own, for callers without one.
///
/// # Errors
///
/// As [`run`].
pub fn run_here(
    family: Family,
    options: &BenchOptions,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<Report> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(run(family, options, out))
}

/// Instructions that a mechanism adds to a request in two counts.
#[derive(Debug, Clone, PartialEq)]
pub struct InstructionChange {
    /// Work.
    pub workload: String,
    /// Mechanism.
    pub mechanism: Mechanism,
    /// Instructions added in the earlier count.
    pub before: f64,
    /// Instructions added in the later one.
    pub after: f64,
}

/// Compares two counts: what both of them have, in the order of the later one.
pub fn changes(before: &Report, after: &Report) -> Vec<InstructionChange> {
    after
        .instructions
        .counted
        .iter()
        .filter_map(|counted| {
            let mechanism = counted.mechanism?;
            Some(InstructionChange {
                workload: counted.workload.clone(),
                mechanism,
                before: before.instructions.added(&counted.workload, mechanism)?,
                after: after.instructions.added(&counted.workload, mechanism)?,
            })
        })
        .collect()
}

/// Keeps a report, for example `lua.json`, and its page `lua.md`.
pub fn keep(report: &Report, folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder)?;
    let json = serde_json::to_string_pretty(report)?;
    let name = report.family.name();
    for (ending, text) in [("json", format!("{json}\n")), ("md", page(report))] {
        let path = folder.join(format!("{name}.{ending}"));
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Two runs of each variant, some at the same time: counts do not depend on the neighbours.
fn count(
    callgrind: &Callgrind,
    variants: &[Variant],
    options: &BenchOptions,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<Instructions> {
    let begin = Instant::now();
    let requests = [options.fewer, options.more];
    // The longest first, so that none goes on alone at the end.
    let (short, long): (Vec<_>, Vec<_>) = (0..variants.len()).partition(|index| {
        variants
            .get(*index)
            .is_none_or(|variant| variant.divisor == 1)
    });
    let waiting: Mutex<VecDeque<_>> = Mutex::new(
        long.into_iter()
            .rev()
            .chain(short)
            .flat_map(|index| requests.map(|requests| (index, requests)))
            .collect(),
    );
    let (sender, results) = std::sync::mpsc::channel();
    let mut profiles: Vec<[Option<Profile>; 2]> = variants.iter().map(|_| [None, None]).collect();
    thread::scope(|scope| -> anyhow::Result<()> {
        for _ in 0..options.jobs.max(1) {
            let (sender, waiting) = (sender.clone(), &waiting);
            scope.spawn(move || {
                loop {
                    let next = lock(waiting).pop_front();
                    let Some((index, requests)) = next else {
                        return;
                    };
                    let Some(variant) = variants.get(index) else {
                        return;
                    };
                    let result = callgrind.run(variant, requests);
                    if sender.send((index, requests, result)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for (index, requests, result) in results {
            let (Some(variant), Some(slots)) = (variants.get(index), profiles.get_mut(index))
            else {
                continue;
            };
            let profile = result
                .inspect_err(|_| lock(&waiting).clear())
                .with_context(|| format!("counting {}", variant.name()))?;
            let [fewer, more] = slots;
            *if requests == options.fewer {
                fewer
            } else {
                more
            } = Some(profile);
            if let [Some(fewer), Some(more)] = slots {
                let each =
                    (more.total as f64 - fewer.total as f64) / options.counted(variant) as f64;
                writeln!(
                    out,
                    "[{:>4.0} s] {each:>10.0}  {}",
                    begin.elapsed().as_secs_f64(),
                    variant.name()
                )?;
            }
        }
        Ok(())
    })?;
    let counted = variants
        .iter()
        .zip(profiles)
        .map(|(variant, [fewer, more])| {
            let (fewer, more) = fewer
                .zip(more)
                .with_context(|| format!("{} was not counted", variant.name()))?;
            Ok(Counted {
                workload: variant.workload.clone(),
                mechanism: variant.mechanism,
                shape: variant.shape,
                totals: [fewer.total, more.total],
                per_request: PerRequest::between(&fewer, &more, options.counted(variant)),
            })
        })
        .collect::<anyhow::Result<_>>()?;
    Ok(Instructions { requests, counted })
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
