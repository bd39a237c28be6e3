//! `outrider lab`: what plugins, proxies and services cost.

mod compare;
mod echo;
mod instructions;
mod lint;
mod load;
mod report;
mod requests;
mod run;
mod search;
mod stages;

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use outrider_lab_report::{Run, render};

use crate::exit::{self, Exit};

const EXAMPLES: &str = "\
Examples:
  outrider lab run mechanisms
  outrider lab compare before/run.json after/run.json
  outrider lab compare before.yaml after.yaml
  outrider lab echo --listen 127.0.0.1:10080
  outrider lab load http://127.0.0.1:10080/ --rate 1000 --duration 10s
  outrider lab load http://127.0.0.1:10080/ --max --connections 32 --json";

/// Reads the `run.json` of a file, or of a folder that `lab run` wrote.
fn read_run(path: &Path) -> anyhow::Result<Run> {
    let file = if path.is_dir() {
        path.join("run.json")
    } else {
        path.to_owned()
    };
    let text =
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    Run::read(&text).with_context(|| file.display().to_string())
}

/// Writes a run and its report into a folder, `run.json` last: where it is, the others are.
fn write_report(run: &Run, folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut files = render(run)?.files;
    files.push(("run.json".to_owned(), run.write()?));
    for (name, text) in files {
        let file = folder.join(&name);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// Measure what plugins, proxies and services cost
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP), disable_help_subcommand = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Arguments),
    Report(report::Arguments),
    Compare(compare::Arguments),
    Stages(stages::Arguments),
    Instructions(Box<instructions::Arguments>),
    Search(Box<search::Arguments>),
    Lint(lint::Arguments),
    Load(Box<load::Arguments>),
    Echo(echo::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    match &arguments.command {
        Command::Run(arguments) => run::run(arguments),
        Command::Report(arguments) => report::run(arguments),
        Command::Compare(arguments) => compare::run(arguments),
        Command::Stages(arguments) => stages::run(arguments),
        Command::Instructions(arguments) => instructions::run(arguments),
        Command::Search(arguments) => search::run(arguments),
        Command::Lint(arguments) => lint::run(arguments),
        Command::Load(arguments) => load::run(arguments),
        Command::Echo(arguments) => echo::run(arguments),
    }
}
