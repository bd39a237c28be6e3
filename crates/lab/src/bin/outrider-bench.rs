//! Counts what Lua plugins cost, and writes the result down.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use clap::builder::PossibleValuesParser;
use outrider_lab::bench::{self, BenchOptions, Mechanism, Selection};

/// Counts what plugins cost in a stock Envoy: instructions by callgrind, CPU time, memory; as Outrider
/// Lua, as Envoy's own Lua filter, and as native code.
///
/// Without --workload and --mechanism the result is kept: lua.json and the page lua.md in the folder
/// of --output. With one of them it is only printed.
#[derive(Debug, Parser)]
#[command(
    name = "outrider-bench",
    version,
    after_help = "\
Examples, from the repository's root:
  make bench                                             everything, kept under docs/benchmarks
  target/release/outrider-bench --workload no-op         one workload's instructions, printed
  target/release/outrider-bench --workload normal --mechanism outrider-lua --functions

Exit code 0 when all was measured, whatever came out; 1 when something could not be."
)]
struct Arguments {
    /// The outrider command.
    #[arg(long, value_name = "FILE", default_value = "target/release/outrider")]
    outrider: PathBuf,
    /// The folder of the modules.
    #[arg(long, value_name = "FOLDER", default_value = "target/release")]
    modules: PathBuf,
    /// The Envoy to run [default: the installed one].
    #[arg(long, value_name = "FILE")]
    envoy: Option<PathBuf>,
    /// Where the result is kept.
    #[arg(long, value_name = "FOLDER", default_value = "docs/benchmarks")]
    output: PathBuf,
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
    /// Requests of the shorter runs.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    fewer: u64,
    /// Requests of the longer runs.
    #[arg(long, value_name = "N", default_value_t = 4000)]
    more: u64,
    /// How many Envoys run under callgrind at once [default: one for each processor].
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Rounds of CPU time; 0 leaves it out [default: 20; with --workload or --mechanism 0].
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Print the module's dearest functions, too.
    #[arg(long)]
    functions: bool,
}

impl Arguments {
    fn options(&self) -> BenchOptions {
        let selection = Selection {
            workloads: self.workload.clone(),
            mechanisms: Mechanism::ALL
                .into_iter()
                .filter(|mechanism| self.mechanism.iter().any(|name| name == mechanism.name()))
                .collect(),
        };
        let everything = selection.is_everything();
        BenchOptions {
            outrider: self.outrider.clone(),
            modules: self.modules.clone(),
            envoy: self.envoy.clone(),
            selection,
            fewer: self.fewer,
            more: self.more,
            jobs: self
                .jobs
                .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)),
            rounds: self.rounds.unwrap_or(if everything { 20 } else { 0 }),
            memory: everything,
        }
    }
}

async fn run(arguments: &Arguments, out: &mut (dyn std::io::Write + Send)) -> anyhow::Result<()> {
    let options = arguments.options();
    let report = bench::run(&options, out).await?;
    if options.selection.is_everything() {
        bench::keep(&report, &arguments.output)?;
        writeln!(out, "\n{}", bench::summary(&report))?;
        writeln!(
            out,
            "kept: lua.json and lua.md in {}",
            arguments.output.display()
        )?;
    } else {
        writeln!(out, "\n{}", bench::summary(&report))?;
    }
    if arguments.functions {
        writeln!(out, "{}", bench::functions(&report))?;
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
}
