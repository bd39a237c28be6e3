//! `outrider completions`: prints a shell's completion script.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::exit::Exit;
use crate::{arguments, output};

const EXAMPLES: &str = "\
Examples:
  outrider completions bash > ~/.local/share/bash-completion/completions/outrider
  outrider completions zsh > ~/.zfunc/_outrider
  outrider completions fish > ~/.config/fish/completions/outrider.fish";

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(arguments: &Arguments) -> Exit {
    let mut script = Vec::new();
    clap_complete::generate(
        arguments.shell,
        &mut arguments::Arguments::command(),
        "outrider",
        &mut script,
    );
    output::raw(&script);
    Exit::Good
}
