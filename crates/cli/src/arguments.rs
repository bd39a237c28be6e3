//! The command line as clap sees it. Each command's own arguments are in its file.

use clap::{Parser, Subcommand};

use crate::commands::{check, completions, envoy, explain, lab, lanes, plugin, render, schema, up};
use crate::exit;

const ABOUT: &str = "A gateway of stock Envoy with plugins in Lua, from one small file";

const EXAMPLES: &str = "\
Examples:
  outrider envoy install              install the stock Envoy into ./.envoy
  outrider check gateway.yaml         list every problem of a gateway's file
  outrider up gateway.yaml            serve it, and follow each change of the file
  outrider plugin new lua hello       begin a plugin of your own
";

#[derive(Debug, Parser)]
#[command(name = "outrider", version, about = ABOUT, after_help = format!("{EXAMPLES}\n{}", exit::HELP))]
#[command(disable_help_subcommand = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Up(up::Arguments),
    Check(check::Arguments),
    Explain(explain::Arguments),
    Render(render::Arguments),
    Lab(lab::Arguments),
    Lanes(lanes::Arguments),
    Plugin(plugin::Arguments),
    Envoy(envoy::Arguments),
    Schema(schema::Arguments),
    Completions(completions::Arguments),
}
