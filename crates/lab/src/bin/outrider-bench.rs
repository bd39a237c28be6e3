//! Counts what plugins cost, and writes the result down.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Parser, ValueEnum};
use outrider_lab::bench::{self, BenchOptions, Family, Mechanism, Selection};

/// Counts what plugins cost in a stock Envoy: instructions by callgrind, CPU time, memory; in Outrider, in
/// Envoy's own Lua and Wasm filters, and as native code.
///
/// Without --only, --workload and --mechanism the result is kept: lua.json and wasm.json, and the pages
/// lua.md and wasm.md, in the folder of --output. With one of them it is only printed.
#[derive(Debug, Parser)]
#[command(
    name = "outrider-bench",
    version,
    after_help = "\
Examples, from the repository's root:
  make bench                                             everything, kept under docs/benchmarks
  target/release/outrider-bench --family wasm           everything of Wasm plugins, kept
  target/release/outrider-bench --workload no-op         one workload's instructions, printed
  target/release/outrider-bench --workload normal --mechanism outrider-lua --functions
  target/release/outrider-bench --only memory            memory, without counting anything

Exit code 0 when all was measured, whatever came out; 1 when something could not be."
)]
struct Arguments {
    /// The outrider command.
    #[arg(long, value_name = "FILE", default_value = "target/release/outrider")]
    outrider: PathBuf,
    /// The folder of the modules.
    #[arg(long, value_name = "FOLDER", default_value = "target/release")]
    modules: PathBuf,
    /// The folder of the Wasm guests.
    #[arg(long, value_name = "FOLDER", default_value = "crates/lab/guests")]
    guests: PathBuf,
    /// Coraza's module.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "crates/e2e/guests/coraza/plugin.wasm"
    )]
    coraza: PathBuf,
    /// The Envoy to run [default: the installed one].
    #[arg(long, value_name = "FILE")]
    envoy: Option<PathBuf>,
    /// Where the result is kept.
    #[arg(long, value_name = "FOLDER", default_value = "docs/benchmarks")]
    output: PathBuf,
    /// Measure this; may be repeated [default: all; with --workload or --mechanism instructions].
    #[arg(long, value_name = "WHAT")]
    only: Vec<What>,
    /// Count this kind of plugins; may be repeated [default: all].
    #[arg(
        long,
        value_name = "NAME",
        value_parser = PossibleValuesParser::new(Family::ALL.map(Family::name))
    )]
    family: Vec<String>,
    /// Count this workload; may be repeated.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(Selection::known()))]
    workload: Vec<String>,
    /// Count this mechanism; may be repeated.
    #[arg(
        long,
        value_name = "NAME",
        value_parser = PossibleValuesParser::new(Mechanism::ALL.map(Mechanism::name))
    )]
    mechanism: Vec<String>,
    /// Requests before those that are counted.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    warming: u64,
    /// Requests of the shorter runs.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    fewer: u64,
    /// Requests of the longer runs.
    #[arg(long, value_name = "N", default_value_t = 4000)]
    more: u64,
    /// How many Envoys run under callgrind at once [default: one for each processor].
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Rounds of CPU time.
    #[arg(long, value_name = "N", default_value_t = 20)]
    rounds: usize,
    /// Count what lanes cost, and nothing else; kept as lanes.md in the folder of --output.
    #[arg(long, conflicts_with_all = ["only", "family", "workload", "mechanism"])]
    lanes: bool,
    /// Print the module's dearest functions, too.
    #[arg(long)]
    functions: bool,
}

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    Instructions,
    Time,
    Memory,
    Ready,
}

impl Arguments {
    /// Whether it is the whole benchmark, whose result is kept.
    fn is_everything(&self) -> bool {
        self.only.is_empty() && self.workload.is_empty() && self.mechanism.is_empty()
    }

    /// The families that have something to be counted.
    fn families(&self) -> impl Iterator<Item = Family> {
        let selection = self.selection();
        Family::ALL.into_iter().filter(move |family| {
            (self.family.is_empty() || self.family.iter().any(|name| name == family.name()))
                && selection.is_of(*family)
        })
    }

    fn measures(&self, what: What) -> bool {
        if self.only.is_empty() {
            self.is_everything() || what == What::Instructions
        } else {
            self.only.contains(&what)
        }
    }

    fn selection(&self) -> Selection {
        Selection {
            workloads: self.workload.clone(),
            mechanisms: Mechanism::ALL
                .into_iter()
                .filter(|mechanism| self.mechanism.iter().any(|name| name == mechanism.name()))
                .collect(),
        }
    }

    fn options(&self) -> BenchOptions {
        let selection = self.selection();
        BenchOptions {
            outrider: self.outrider.clone(),
            modules: self.modules.clone(),
            guests: self.guests.clone(),
            coraza: self.coraza.clone(),
            envoy: self.envoy.clone(),
            selection,
            warming: self.warming,
            fewer: self.fewer,
            more: self.more,
            jobs: self
                .jobs
                .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)),
            instructions: self.measures(What::Instructions),
            rounds: if self.measures(What::Time) {
                self.rounds
            } else {
                0
            },
            memory: self.measures(What::Memory),
            ready: self.measures(What::Ready),
        }
    }
}

async fn run(arguments: &Arguments, out: &mut (dyn std::io::Write + Send)) -> anyhow::Result<()> {
    let options = arguments.options();
    if arguments.lanes {
        let page = bench::lanes(&options, out).await?;
        writeln!(out, "\n{page}")?;
        std::fs::create_dir_all(&arguments.output)?;
        std::fs::write(arguments.output.join("lanes.md"), page)?;
        return Ok(());
    }
    for family in arguments.families() {
        writeln!(out, "\n-- {}", family.name())?;
        let report = bench::run(family, &options, out).await?;
        writeln!(out, "\n{}", bench::summary(&report))?;
        if arguments.is_everything() {
            bench::keep(&report, &arguments.output)?;
            let (name, folder) = (family.name(), arguments.output.display());
            writeln!(out, "kept: {name}.json and {name}.md in {folder}")?;
        }
        if arguments.functions {
            writeln!(out, "{}", bench::functions(&report))?;
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments, &mut std::io::stdout()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            use std::io::Write as _;
            // Nothing is left to try when standard error is gone, too.
            let _ = writeln!(std::io::stderr(), "\nThe benchmark failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn arguments_are_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn what_is_measured_follows_from_what_is_asked_for() {
        let measured = |line: &str| {
            let arguments = Arguments::parse_from(line.split_whitespace());
            let options = arguments.options();
            (
                arguments.is_everything(),
                options.instructions,
                options.rounds > 0,
                options.memory,
            )
        };
        assert_eq!(measured("bench"), (true, true, true, true));
        assert_eq!(measured("bench --only memory"), (false, false, false, true));
        assert_eq!(
            measured("bench --workload no-op"),
            (false, true, false, false)
        );
        assert_eq!(
            measured("bench --workload no-op --only time"),
            (false, false, true, false)
        );
    }
}
