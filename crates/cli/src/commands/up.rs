//! `outrider up`: serves a gateway's file and follows each change of it.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::exit::{self, Exit};
use crate::fetching::FetchArguments;
use crate::up::gateway;
use crate::up::log_view::Verbosity;

const EXAMPLES: &str = "\
Examples:
  outrider up gateway.yaml
  outrider up gateway.yaml --verbose              show Envoy's whole log
  outrider up gateway.yaml --envoy /opt/envoy     run this Envoy
  kill -HUP PID                                   read the file again
  kill -USR1 PID                                  open log files again, after they were rotated
  kill -USR2 PID                                  start this command anew, with another Envoy and module if they were \
replaced, and have it take over
  outrider up gateway.yaml --take-over            the same, from another terminal

Each change of the file, of what it includes, and of its plugins is applied when it is saved, \
without closing a connection. A change with problems is refused with all of them, and what worked goes \
on. An Envoy that ends by itself is started again. Ctrl-C drains and stops; a second one stops at once.

What Envoy reads is kept in the state folder: --state, or a folder for this file in $STATE_DIRECTORY, \
$XDG_STATE_HOME/outrider or ~/.local/state/outrider. A start with a file that is refused serves what was \
served last, with a warning, unless --strict is given.";

/// Serve a gateway's file, and follow each change of it
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
pub(crate) struct Arguments {
    /// The gateway's file
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Show Envoy's whole log, not only warnings, errors and what plugins log
    #[arg(long, short)]
    verbose: bool,
    /// Run this Envoy; otherwise see `outrider envoy --help`
    #[arg(
        long,
        value_name = "FILE",
        env = "OUTRIDER_ENVOY",
        hide_env_values = true
    )]
    pub(crate) envoy: Option<PathBuf>,
    /// Load this module; otherwise liboutrider.so beside this command, or in ../lib of it
    #[arg(
        long,
        value_name = "FILE",
        env = "OUTRIDER_MODULE",
        hide_env_values = true
    )]
    pub(crate) module: Option<PathBuf>,
    /// Keep what Envoy reads in this folder
    #[arg(long, value_name = "FOLDER")]
    pub(crate) state: Option<PathBuf>,
    /// How many seconds requests and connections may take to end after Ctrl-C
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    drain: u64,
    /// End when the file is refused at the start, though an earlier run served a good one
    #[arg(long)]
    pub(crate) strict: bool,
    /// Take over from the `outrider up` that serves this file, without closing its listening sockets
    #[arg(long)]
    pub(crate) take_over: bool,
    #[command(flatten)]
    fetch: FetchArguments,
}

impl Arguments {
    pub(crate) fn verbosity(&self) -> Verbosity {
        if self.verbose {
            Verbosity::Whole
        } else {
            Verbosity::Tidy
        }
    }

    pub(crate) fn drain_time(&self) -> Duration {
        Duration::from_secs(self.drain)
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    arguments.fetch.apply();
    gateway::run(arguments)
}
