//! `outrider schema`: what may be written in a gateway's file, for editors and for people.

use clap::{Args, ValueEnum};

use crate::exit::Exit;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  outrider schema > outrider.schema.json
  outrider schema --format markdown | less

Editors with the YAML language server complete and check a file that begins with this line:
  # yaml-language-server: $schema=outrider.schema.json";

/// Print the JSON Schema of a gateway's file
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Json)]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// JSON Schema, for editors
    Json,
    /// The reference, for people
    Markdown,
}

pub(crate) fn run(arguments: &Arguments) -> Exit {
    match arguments.format {
        Format::Json => output::json(&outrider_gateway::schema()),
        Format::Markdown => output::raw(outrider_gateway::reference().as_bytes()),
    }
    Exit::Good
}
