//! `outrider check`: every problem of a gateway's file, at once.

use std::path::PathBuf;

use clap::Args;
use outrider_plugin_formats::Problem;
use serde_json::json;

use crate::exit::{self, Exit};
use crate::loader::compile_watched;
use crate::output::{self, GOOD, Styled};
use crate::trial::LoadLine;

const EXAMPLES: &str = "\
Examples:
  outrider check gateway.yaml
  outrider check gateway.yaml --json | jq -r '.problems[].file'";

/// List every problem of a gateway's file
///
/// Reads the file with all that it includes, loads each plugin, and checks every configuration
/// against its plugin. Envoy is not needed.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
pub(crate) struct Arguments {
    /// The gateway's file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print JSON: {"ok": ..., "problems": [{"file", "line", "column", "message", "mend"}], "warnings":
    /// [...as problems...], "logs": [{"plugin", "level", "message"}]}
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Exit {
    let (compiled, lines, _) = compile_watched(&arguments.file);
    let problems = compiled.problems;
    if arguments.json {
        output::json(&json!({
            "ok": problems.is_empty(),
            "problems": problems,
            "warnings": compiled.warnings,
            "logs": lines,
        }));
        return conclusion(&problems);
    }
    for LoadLine {
        plugin,
        level,
        message,
    } in &lines
    {
        output::line(format_args!("plugin `{plugin}` logs ({level}): {message}"));
    }
    output::warnings(&compiled.warnings);
    if problems.is_empty() {
        output::line(format_args!(
            "{} {} has no problems",
            Styled(GOOD, "ok:"),
            arguments.file.display()
        ));
    } else {
        for problem in &problems {
            output::line(output::problem(problem));
        }
        output::line(format_args!(
            "\n{}",
            output::counted(problems.len(), "problem")
        ));
    }
    conclusion(&problems)
}

fn conclusion(problems: &[Problem]) -> Exit {
    if problems.is_empty() {
        Exit::Good
    } else {
        Exit::Problems
    }
}
