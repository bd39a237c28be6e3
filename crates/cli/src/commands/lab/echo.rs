//! `outrider lab echo`: an upstream for measurements.

use std::net::SocketAddr;

use clap::Args;
use outrider_lab::body_echo::{BodyEcho, HELP};

use crate::exit::{self, Exit};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  outrider lab echo --listen 127.0.0.1:10080 &
  curl -d hello 127.0.0.1:10080
  curl -d hello -H 'x-echo-headers: true' -H 'x-echo-delay-ms: 20' 127.0.0.1:10080";

/// Answer requests with their own body, cheaply enough not to be the limit
///
/// HTTP/1.1 and HTTP/2 (without TLS by prior knowledge) on one port.
#[derive(Debug, Args)]
#[command(after_help = format!("{HELP}\n\n{EXAMPLES}\n\n{}", exit::HELP))]
pub(super) struct Arguments {
    /// Address to listen on; port 0 for any that is free
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:10080")]
    listen: SocketAddr,
    /// Threads that answer
    #[arg(long, short = 't', value_name = "N", default_value_t = 1)]
    threads: usize,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let echo = BodyEcho::start(arguments.listen, arguments.threads)?;
    output::line(format_args!(
        "listens on http://{} (Ctrl-C stops it)",
        echo.address()
    ));
    echo.wait_for_interrupt()?;
    Ok(Exit::Good)
}
