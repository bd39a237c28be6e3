//! Random plugins, clients, upstreams and changes of the configuration against one gateway.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Parser, ValueEnum};
use outrider_lab::chaos::{self, ChaosOptions, SeededFault};
use outrider_lab::exit_code;

/// Runs random plugins behind random clients and before upstreams that break the protocol, changes the configuration
/// meanwhile, and checks that Envoy lives, that calm tenants get every byte, and that memory comes back.
#[derive(Debug, Parser)]
#[command(
    name = "outrider-chaos",
    version,
    after_help = "\
Example, from the repository's root:
  target/release/outrider-chaos --seconds 60 --seed 7

Exit code 0 when everything held, 1 when something did not: then the seed and the folder with the logs are printed."
)]
struct Arguments {
    /// The outrider command.
    #[arg(long, value_name = "FILE", default_value = "target/release/outrider")]
    outrider: PathBuf,
    /// How long the chaos lasts.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    seconds: u64,
    /// Seed of the random numbers. Default: the clock.
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// The longest time between two changes of the configuration; 0: a dozen changes at first, then none.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 1000)]
    change_ms: u64,
    /// Folder for chaos.md and chaos.json.
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Make a fault on purpose, which has to be reported: a changed byte, a held request, a dead Envoy.
    #[arg(long, value_name = "FAULT")]
    seeded_fault: Option<Fault>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Fault {
    Byte,
    Stall,
    Crash,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let clock = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs())
    };
    let options = ChaosOptions {
        outrider: arguments.outrider,
        duration: Duration::from_secs(arguments.seconds),
        seed: arguments.seed.unwrap_or_else(clock),
        change_ms: arguments.change_ms,
        output: arguments.output,
        fault: arguments.seeded_fault.map(|fault| match fault {
            Fault::Byte => SeededFault::Byte,
            Fault::Stall => SeededFault::Stall,
            Fault::Crash => SeededFault::Crash,
        }),
    };
    let run = chaos::run(&options, &mut std::io::stdout()).await;
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
