//! A gateway that is operated under load, for ten minutes: nothing may be lost.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use outrider_lab::exit_code;
use outrider_lab::operations::{self, OperationsOptions};

/// Changes, reloads, stops, starts, takes over and upgrades a gateway under HTTP/1.1 and HTTP/2 load, and checks that no request
/// is lost.
#[derive(Debug, Parser)]
#[command(
    name = "outrider-operations",
    version,
    after_help = "\
Example, from the repository's root:
  target/release/outrider-operations --seconds 60 --seed 7

Exit code 0 when everything held, 1 when something did not."
)]
struct Arguments {
    /// The outrider command.
    #[arg(long, value_name = "FILE", default_value = "target/release/outrider")]
    outrider: PathBuf,
    /// How long the gateway is operated.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    seconds: u64,
    /// Seed of the order of operations.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Folder for operations.md and operations.json.
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let options = OperationsOptions {
        outrider: arguments.outrider,
        duration: Duration::from_secs(arguments.seconds),
        seed: arguments.seed,
        output: arguments.output,
    };
    exit_code(operations::run(&options, &mut std::io::stdout()).await)
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
