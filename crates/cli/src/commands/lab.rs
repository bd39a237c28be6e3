//! `outrider lab`: what plugins, proxies and services cost.

mod echo;
mod load;

use clap::{Args, Subcommand};

use crate::exit::{self, Exit};

const EXAMPLES: &str = "\
Examples:
  outrider lab echo --listen 127.0.0.1:10080
  outrider lab load http://127.0.0.1:10080/ --rate 1000 --duration 10s
  outrider lab load http://127.0.0.1:10080/ --max --connections 32 --json";

/// Measure what plugins, proxies and services cost
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP), disable_help_subcommand = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Load(Box<load::Arguments>),
    Echo(echo::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    match &arguments.command {
        Command::Load(arguments) => load::run(arguments),
        Command::Echo(arguments) => echo::run(arguments),
    }
}
