//! `outrider lab instructions`: instructions per request, counted by callgrind.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use clap::builder::PossibleValuesParser;
use outrider_lab::bench::{self, BenchOptions, Family, Mechanism, Report, Selection};

use crate::exit::{self, Exit};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  outrider lab instructions --workload no-op
  outrider lab instructions --workload normal --mechanism outrider-lua --functions
  outrider lab instructions --family lua --json > before.json
  outrider lab instructions --family lua --against before.json --tolerance 1   # exit code 1 if something costs over 1 % more";

/// Count the instructions that plugins add to a request
///
/// Envoy runs under callgrind, once with few requests and once with many: the difference, divided by the number of
/// requests more, repeats to some tenths of a per cent on any machine. So it is what CI compares; what it does not see is
/// in milliseconds and microseconds of `lab run`. Needs valgrind.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
pub(super) struct Arguments {
    /// Kind of plugins
    #[arg(
        long,
        value_name = "NAME",
        default_value = "lua",
        value_parser = PossibleValuesParser::new(Family::ALL.map(Family::name))
    )]
    family: String,
    /// Work; again for each [default: all]
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(Selection::known()))]
    workload: Vec<String>,
    /// Mechanism; again for each [default: all of the family]
    #[arg(
        long,
        value_name = "NAME",
        value_parser = PossibleValuesParser::new(Mechanism::ALL.map(Mechanism::name))
    )]
    mechanism: Vec<String>,
    /// Print the functions that take the most
    #[arg(long)]
    functions: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Compare with the JSON of an earlier count
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Per cent by which an added count may be above the earlier one
    #[arg(
        long,
        value_name = "PERCENT",
        default_value_t = 1.0,
        requires = "against"
    )]
    tolerance: f64,
    /// Requests of the shorter runs
    #[arg(long, value_name = "N", default_value_t = 1000)]
    fewer: u64,
    /// Requests of the longer runs
    #[arg(long, value_name = "N", default_value_t = 4000)]
    more: u64,
    /// Envoys that run under callgrind at once [default: one for each processor]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Folder of the modules for Envoy [default: that of this command]
    #[arg(long, value_name = "FOLDER")]
    modules: Option<PathBuf>,
    /// Folder of the Wasm plugins that are measured, each LANGUAGE/plugin.wasm
    #[arg(long, value_name = "FOLDER", default_value = "crates/lab/guests")]
    guests: PathBuf,
    /// Envoy to run [default: the installed one]
    #[arg(long, value_name = "FILE")]
    envoy: Option<PathBuf>,
}

impl Arguments {
    fn options(&self) -> anyhow::Result<BenchOptions> {
        let outrider = std::env::current_exe().context("cannot find this command")?;
        let beside = outrider.parent().map(Path::to_owned).unwrap_or_default();
        let named =
            |mechanism: &Mechanism| self.mechanism.iter().any(|name| name == mechanism.name());
        Ok(BenchOptions {
            outrider,
            modules: self.modules.clone().unwrap_or(beside),
            guests: self.guests.clone(),
            coraza: PathBuf::new(),
            envoy: self.envoy.clone(),
            selection: Selection {
                workloads: self.workload.clone(),
                mechanisms: Mechanism::ALL.into_iter().filter(named).collect(),
            },
            warming: self.fewer,
            fewer: self.fewer,
            more: self.more,
            jobs: self
                .jobs
                .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)),
            instructions: true,
            rounds: 0,
            memory: false,
            ready: false,
        })
    }
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    // Before minutes of counting: a file that cannot be read is said at once.
    let earlier = arguments.against.as_deref().map(read).transpose()?;
    let family = Family::ALL
        .into_iter()
        .find(|family| family.name() == arguments.family)
        .context("no such family")?;
    let report = bench::run_here(family, &arguments.options()?, &mut std::io::stderr())?;
    if arguments.json {
        output::json(&serde_json::to_value(&report)?);
    } else {
        output::line(bench::summary(&report));
    }
    if arguments.functions {
        output::line(bench::functions(&report));
    }
    let Some(earlier) = earlier else {
        return Ok(Exit::Good);
    };
    let changes = bench::changes(&earlier, &report);
    anyhow::ensure!(
        !changes.is_empty(),
        "the earlier count has nothing that was counted now"
    );
    let mut exit = Exit::Good;
    for change in changes {
        let percent = (change.after / change.before - 1.0) * 100.0;
        let is_more = percent > arguments.tolerance;
        if is_more {
            exit = Exit::Problems;
        }
        output::note(format_args!(
            "{}, {}: {:.0} -> {:.0} instructions added ({percent:+.1} %){}",
            change.workload,
            change.mechanism.title(),
            change.before,
            change.after,
            if is_more { ", above the tolerance" } else { "" }
        ));
    }
    Ok(exit)
}

fn read(file: &Path) -> anyhow::Result<Report> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    serde_json::from_str(&text)
        .with_context(|| format!("{} is not the JSON of `lab instructions`", file.display()))
}
