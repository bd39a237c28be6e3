//! The `outrider` command: one small file becomes a running gateway.
//!
//! Each command is a file in `commands/`, holding its arguments, its help and what it does. Only
//! `output` prints. An `anyhow` error that reaches this file is a fault of the environment; problems
//! of what the user wrote are printed by the command and are an [`Exit`].

mod arguments;
mod commands;
mod compiled;
mod exit;
mod fetching;
mod loader;
mod output;
mod trial;
mod up;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;

use crate::arguments::Arguments;
use crate::exit::Exit;

/// How long an output that is not read holds up the end of a command.
const LAST_LINES: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    if std::env::args_os()
        .nth(1)
        .is_some_and(|first| first == trial::ARGUMENT)
    {
        return trial::serve().into();
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version arrive here too, with code 0. A closed terminal is nobody's fault.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let exit = commands::run(arguments.command).unwrap_or_else(|error| {
        output::error(&error);
        Exit::Environment
    });
    output::flush(LAST_LINES);
    exit.into()
}
