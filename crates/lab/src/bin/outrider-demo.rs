//! Shows what Outrider does, on the quickstart example, and checks each claim on the way.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use outrider_lab::demo::{self, DemoOptions};
use outrider_lab::exit_code;

/// Starts the quickstart gateway on ports of its own, shows plugins at work and changes made live,
/// and checks every claim that it prints.
#[derive(Debug, Parser)]
#[command(
    name = "outrider-demo",
    version,
    after_help = "\
Example, from the repository's root:
  target/release/outrider-demo --outrider target/release/outrider

Exit code 0 when every claim held, 1 when one did not."
)]
struct Arguments {
    /// The outrider command.
    #[arg(long, value_name = "FILE", default_value = "target/release/outrider")]
    outrider: PathBuf,
    /// The folder of the quickstart example.
    #[arg(long, value_name = "FOLDER", default_value = "examples/quickstart")]
    example: PathBuf,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let options = DemoOptions {
        outrider: arguments.outrider,
        example: arguments.example,
    };
    let run = demo::run(&options, &mut std::io::stdout()).await;
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
