//! `outrider render`: what a user can take away and run without this command.

mod envoy;
mod istio;

use clap::{Args, Subcommand};

use crate::exit::{self, Exit};

const EXAMPLES: &str = "\
Examples:
  outrider render envoy gateway.yaml --static > envoy.yaml
  outrider render envoy gateway.yaml --output /etc/envoy/gateway
  outrider render istio mesh.yaml | kubectl apply --server-side -f -";

/// Print configuration that runs without this command
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP), disable_help_subcommand = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Envoy(envoy::Arguments),
    Istio(istio::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    match &arguments.command {
        Command::Envoy(arguments) => envoy::run(arguments),
        Command::Istio(arguments) => istio::run(arguments),
    }
}
