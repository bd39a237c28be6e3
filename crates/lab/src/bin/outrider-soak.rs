//! Mixed faults at full load, for ten minutes: what has to hold then is checked and written down.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use outrider_lab::exit_code;
use outrider_lab::soak::{self, SoakOptions};

/// Loads a gateway whose plugins fail in every way, changes it meanwhile, and checks that memory stays
/// flat, nothing crashes, and only the streams of what fails are affected.
#[derive(Debug, Parser)]
#[command(
    name = "outrider-soak",
    version,
    after_help = "\
Example, from the repository's root:
  target/release/outrider-soak --seconds 60

Exit code 0 when everything held, 1 when something did not."
)]
struct Arguments {
    /// The outrider command.
    #[arg(long, value_name = "FILE", default_value = "target/release/outrider")]
    outrider: PathBuf,
    /// How long the load runs.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    seconds: u64,
    /// Where soak.md and soak.json are written.
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let options = SoakOptions {
        outrider: arguments.outrider,
        duration: Duration::from_secs(arguments.seconds),
        output: arguments.output,
    };
    let run = soak::run(&options, &mut std::io::stdout()).await;
    exit_code(run)
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
