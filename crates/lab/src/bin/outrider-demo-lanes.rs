//! Shows lanes on a chain of services, and checks each claim on the way.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use outrider_lab::demo_lanes;
use outrider_lab::exit_code;

/// Starts three services in two versions each, with a sidecar for each version and a gateway at the edge, sends requests
/// of both lanes through the chain, and checks every answer that it prints.
#[derive(Debug, Parser)]
#[command(
    name = "outrider-demo-lanes",
    version,
    after_help = "\
Example, from the repository's root:
  target/release/outrider-demo-lanes --outrider target/release/outrider

Exit code 0 when every claim held, 1 when one did not."
)]
struct Arguments {
    /// The outrider command.
    #[arg(long, value_name = "FILE", default_value = "target/release/outrider")]
    outrider: PathBuf,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let run = demo_lanes::run(&arguments.outrider, &mut std::io::stdout()).await;
    exit_code(run.map_err(|error| error.context("The demonstration failed")))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn arguments_are_sound() {
        Arguments::command().debug_assert();
    }
}
