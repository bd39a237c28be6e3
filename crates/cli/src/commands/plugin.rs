//! `outrider plugin`: the catalog, and the tools of those who write and distribute plugins.

mod build;
mod info;
mod list;
mod new;
mod registry;
mod test;
mod types;
mod update;

use clap::{Args, Subcommand};

use crate::exit::Exit;

const EXAMPLES: &str = "\
Examples:
  outrider plugin list               the plugins that are inside this command
  outrider plugin info cors          its configuration, an example, its README
  outrider plugin new lua hello      make the plugin ./hello, which works
  outrider plugin test hello         run its cases, without Envoy
  outrider plugin test hello --envoy and again on the real Envoy
  outrider plugin types              have editors complete and check plugins
  outrider plugin update             pin the digests of a gateway's plugins
  outrider plugin push hello oci://registry.example.com/team/hello:1.0";

/// Built-in plugins; begin, test and distribute plugins of your own
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, disable_help_subcommand = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    List(list::Arguments),
    Info(info::Arguments),
    New(new::Arguments),
    Test(test::Arguments),
    Types(types::Arguments),
    Update(update::Arguments),
    Build(build::Build),
    Strip(build::Strip),
    Push(registry::Push),
    Pull(registry::Pull),
    Inspect(registry::Inspect),
    Sign(registry::Sign),
    Verify(registry::Verify),
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    match &arguments.command {
        Command::List(arguments) => list::run(arguments),
        Command::Info(arguments) => info::run(arguments),
        Command::New(arguments) => new::run(arguments),
        Command::Test(arguments) => test::run(arguments),
        Command::Types(arguments) => types::run(arguments),
        Command::Update(arguments) => update::run(arguments),
        Command::Build(arguments) => build::build(arguments),
        Command::Strip(arguments) => build::strip(arguments),
        Command::Push(arguments) => Ok(registry::push(arguments)),
        Command::Pull(arguments) => registry::pull(arguments),
        Command::Inspect(arguments) => registry::inspect(arguments),
        Command::Sign(arguments) => Ok(registry::sign(arguments)),
        Command::Verify(arguments) => Ok(registry::verify(arguments)),
    }
}
