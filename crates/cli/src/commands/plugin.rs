//! `outrider plugin`: for those who write plugins.

mod new;
mod test;
mod types;

use clap::{Args, Subcommand};

use crate::exit::Exit;

const EXAMPLES: &str = "\
Examples:
  outrider plugin new lua hello      make the plugin ./hello, which works
  outrider plugin test hello         run its cases, without Envoy
  outrider plugin test hello --envoy and again on the real Envoy
  outrider plugin types              have editors complete and check plugins";

/// Begin a plugin, and test plugins
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, disable_help_subcommand = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    New(new::Arguments),
    Test(test::Arguments),
    Types(types::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    match &arguments.command {
        Command::New(arguments) => new::run(arguments),
        Command::Test(arguments) => test::run(arguments),
        Command::Types(arguments) => types::run(arguments),
    }
}
