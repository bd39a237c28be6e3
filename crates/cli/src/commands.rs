//! One file for each command.

pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod envoy;
pub(crate) mod explain;
pub(crate) mod lab;
pub(crate) mod lanes;
pub(crate) mod plugin;
pub(crate) mod render;
pub(crate) mod schema;
pub(crate) mod up;

use crate::arguments::Command;
use crate::exit::Exit;

/// Runs one command.
pub(crate) fn run(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Up(arguments) => up::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Render(arguments) => render::run(&arguments),
        Command::Lab(arguments) => lab::run(&arguments),
        Command::Lanes(arguments) => lanes::run(&arguments),
        Command::Plugin(arguments) => plugin::run(&arguments),
        Command::Envoy(arguments) => envoy::run(&arguments),
        Command::Schema(arguments) => Ok(schema::run(&arguments)),
        Command::Completions(arguments) => Ok(completions::run(&arguments)),
    }
}
