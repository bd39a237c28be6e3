//! `outrider lab compare`: what changed between two runs.

use std::path::PathBuf;

use clap::Args;
use outrider_lab_report::{Role, compare_runs};
use serde_json::json;

use super::read_run;
use crate::exit::{self, Exit};
use crate::output::{self, Styled};

const EXAMPLES: &str = "\
Examples:
  outrider lab compare before after
  outrider lab compare before/run.json after/run.json --json";

/// Compare two runs of a scenario: what each variant adds to its baseline, before and after
///
/// Only what variants add is compared, each within its own run, so runs on different days can be; on different machines
/// they cannot.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
pub(super) struct Arguments {
    /// The run before: its run.json, or the folder that holds it
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// The run after
    #[arg(value_name = "AFTER")]
    after: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let before = read_run(&arguments.before)?;
    let after = read_run(&arguments.after)?;
    if before.environment.processor != after.environment.processor {
        output::warning(format_args!(
            "the runs are of different processors ({}, {}): the difference is that of the machines, too",
            before.environment.processor, after.environment.processor
        ));
    }
    let variants = before
        .variants
        .iter()
        .filter(|variant| variant.role == Role::Measured);
    let mut rows = Vec::new();
    let mut group = "";
    for variant in variants {
        let Some(change) = compare_runs(&before, &after, &variant.group, &variant.name) else {
            continue;
        };
        if arguments.json {
            rows.push(json!({ "group": variant.group, "variant": variant.name, "change": change }));
            continue;
        }
        if group != variant.group {
            group = &variant.group;
            output::line(format_args!("{}", Styled(output::BOLD, group)));
        }
        output::line(format_args!("  {:<28} {change}", variant.name));
        rows.push(json!({}));
    }
    anyhow::ensure!(
        !rows.is_empty(),
        "the two runs have no variant in common that both measured"
    );
    if arguments.json {
        output::json(&rows.into());
    }
    Ok(Exit::Good)
}
