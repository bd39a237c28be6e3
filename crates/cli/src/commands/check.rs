//! `outrider check`: every problem of a gateway's file, at once.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use outrider_plugin_formats::Problem;
use serde_json::json;

use crate::exit::{self, Exit};
use crate::fetching::FetchArguments;
use crate::loader::{STDIN, check_file};
use crate::output::{self, GOOD, Styled};
use crate::trial::LoadLine;

const EXAMPLES: &str = "\
Examples:
  outrider check gateway.yaml
  outrider check gateways/*.yaml --deny-warnings
  render-template | outrider check -
  outrider check gateway.yaml --json | jq -r '.problems[].file'";

/// Bytes that are read of the standard input: as much as of a file.
const LARGEST_INPUT: u64 = outrider_plugin_store::LARGEST_INCLUDE;

/// List every problem of gateways' files
///
/// Reads each file with all that it includes, loads each plugin, and checks every configuration
/// against its plugin. Envoy is not needed. Warnings are probable mistakes with which the gateway
/// serves all the same.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
pub(crate) struct Arguments {
    /// The files of gateways; `-` is the standard input, whose paths are relative to the current folder
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Warnings are problems, too
    #[arg(long)]
    deny_warnings: bool,
    /// Resolve the names of upstreams' hosts, too, and warn of those that lead nowhere from here
    #[arg(long)]
    resolve: bool,
    /// Print JSON: {"ok": ..., "problems": [{"file", "line", "column", "message", "mend"}], "warnings":
    /// [...as problems...], "logs": [{"plugin", "level", "message"}]}; without line and column where it is about the
    /// whole file
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    fetch: FetchArguments,
}

impl Arguments {
    fn passes(&self, problems: &[Problem], warnings: &[Problem]) -> bool {
        problems.is_empty() && (warnings.is_empty() || !self.deny_warnings)
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    arguments.fetch.apply();
    let stdin = Path::new("-");
    let mut input = String::new();
    let readers = arguments.files.iter().filter(|file| *file == stdin).count();
    anyhow::ensure!(
        readers <= 1,
        "`-` is the standard input, and can be read once"
    );
    if readers == 1 {
        std::io::stdin()
            .take(LARGEST_INPUT + 1)
            .read_to_string(&mut input)
            .context("the standard input cannot be read")?;
        anyhow::ensure!(
            input.len() as u64 <= LARGEST_INPUT,
            "the standard input is larger than {} MiB",
            LARGEST_INPUT >> 20
        );
    }
    let (mut problems, mut warnings, mut logs) = (Vec::new(), Vec::new(), Vec::new());
    for file in &arguments.files {
        let name = if file == stdin {
            Path::new(STDIN)
        } else {
            file
        };
        let text = (file == stdin).then_some(input.as_str());
        let (compiled, lines) = check_file(name, text, arguments.resolve);
        if !arguments.json {
            let is_good = arguments.passes(&compiled.problems, &compiled.warnings);
            tell(
                name,
                &lines,
                &compiled.warnings,
                &compiled.problems,
                is_good,
            );
        }
        problems.extend(compiled.problems);
        warnings.extend(compiled.warnings);
        logs.extend(lines);
    }
    let is_good = arguments.passes(&problems, &warnings);
    if arguments.json {
        output::json(&json!({
            "ok": is_good,
            "problems": problems,
            "warnings": warnings,
            "logs": logs,
        }));
    } else if !is_good {
        let mut counts = Vec::new();
        if !problems.is_empty() {
            counts.push(output::counted(problems.len(), "problem"));
        }
        if arguments.deny_warnings && !warnings.is_empty() {
            counts.push(output::counted(warnings.len(), "warning"));
        }
        output::line(format_args!("\n{}", counts.join(", ")));
    }
    Ok(if is_good { Exit::Good } else { Exit::Problems })
}

fn tell(
    file: &Path,
    lines: &[LoadLine],
    warnings: &[Problem],
    problems: &[Problem],
    is_good: bool,
) {
    for LoadLine {
        plugin,
        level,
        message,
    } in lines
    {
        output::line(format_args!("plugin `{plugin}` logs ({level}): {message}"));
    }
    output::warnings(warnings);
    for problem in problems {
        output::line(output::problem(problem));
    }
    if is_good {
        output::line(format_args!(
            "{} {} has no problems",
            Styled(GOOD, "ok:"),
            file.display()
        ));
    }
}
