//! Hostile plugins beside other tenants' requests: the bounds of isolation are measured, judged and written down.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use outrider_lab::exit_code;
use outrider_lab::hostile::{self, HostileOptions};

/// Sends other tenants' requests at a steady rate through a gateway, first alone, then beside hostile plugins of
/// every kind, then after these have left, and compares latency, answers, memory and logs.
#[derive(Debug, Parser)]
#[command(
    name = "outrider-hostile",
    version,
    after_help = "\
Example, from the repository's root:
  target/release/outrider-hostile --seconds 60 --only burner,tick

Exit code 0 when every bound held, 1 when one was missed."
)]
struct Arguments {
    /// The outrider command.
    #[arg(long, value_name = "FILE", default_value = "target/release/outrider")]
    outrider: PathBuf,
    /// Time of the three phases together.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    seconds: u64,
    /// Names of attackers, with commas between them. Default: all but frames, at-once and reset, whose clients
    /// send all they can at once: those are judged apart.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Folder for hostile.md and hostile.json.
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let options = HostileOptions {
        outrider: arguments.outrider,
        duration: Duration::from_secs(arguments.seconds),
        only: arguments.only,
        output: arguments.output,
    };
    let run = hostile::run(&options, &mut std::io::stdout()).await;
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
