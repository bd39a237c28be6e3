//! `outrider lab report`: the report of a run, rendered again.

use std::path::PathBuf;

use clap::Args;

use super::{read_run, write_report};
use crate::exit::{self, Exit};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  outrider lab report lab-results
  outrider lab report run.json --output report";

/// Render the report of a run again, from its run.json; no machine is needed
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
pub(super) struct Arguments {
    /// The run.json, or the folder that holds it
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Folder for the report [default: that of the run]
    #[arg(long, short = 'o', value_name = "FOLDER")]
    output: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let run = read_run(&arguments.run)?;
    let folder = match (&arguments.output, arguments.run.is_dir()) {
        (Some(folder), _) => folder.clone(),
        (None, true) => arguments.run.clone(),
        (None, false) => arguments
            .run
            .parent()
            .map(PathBuf::from)
            .unwrap_or_default(),
    };
    write_report(&run, &folder)?;
    output::line(format_args!(
        "report: {}",
        folder.join("report.html").display()
    ));
    Ok(Exit::Good)
}
