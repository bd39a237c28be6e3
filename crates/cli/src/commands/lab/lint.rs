//! `outrider lab lint`: what cannot be trusted in the output of a load generator.

use std::fs;
use std::io::Read as _;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use outrider_lab_report::lint::{Severity, lint, read_output};
use serde_json::json;

use crate::exit::{self, Exit};
use crate::output::{self, Styled};

const EXAMPLES: &str = "\
Examples:
  wrk -t1 -c16 -d10 --latency http://127.0.0.1:10000/ | outrider lab lint -
  outrider lab lint fortio.json
  outrider lab lint README.md            # tables of results, as articles print them";

/// Name what cannot be trusted in the output of wrk, hey, fortio or oha, or in a table of results
///
/// Ends with 1 if some number in it must not be used.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
pub(super) struct Arguments {
    /// File with the output; - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print JSON: {"runs": […], "findings": […]}
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let mut text = String::new();
    if arguments.file.as_os_str() == "-" {
        std::io::stdin()
            .read_to_string(&mut text)
            .context("cannot read standard input")?;
    } else {
        text = fs::read_to_string(&arguments.file)
            .with_context(|| format!("cannot read {}", arguments.file.display()))?;
    }
    let runs = read_output(&text).with_context(|| arguments.file.display().to_string())?;
    let findings = lint(&runs);
    if arguments.json {
        output::json(&json!({ "runs": runs, "findings": findings }));
    } else {
        for finding in &findings {
            let style = match finding.severity {
                Severity::Void => output::BAD,
                Severity::Doubtful => output::WARN,
                Severity::Note => output::DIM,
            };
            output::line(format_args!(
                "{} {} ({}): {}\n    {}",
                Styled(style, finding.severity),
                finding.rule.name(),
                finding.runs.join(", "),
                finding.problem,
                Styled(output::GOOD, &finding.advice)
            ));
        }
        output::line(format_args!(
            "{}, {}",
            output::counted(runs.len(), "run"),
            output::counted(findings.len(), "finding")
        ));
    }
    let is_void = findings
        .iter()
        .any(|finding| finding.severity == Severity::Void);
    Ok(if is_void { Exit::Problems } else { Exit::Good })
}
