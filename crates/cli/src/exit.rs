//! How the command ends, for scripts.

use std::process::ExitCode;

/// What the exit codes mean, as the help says it. 2 is clap's.
pub(crate) const HELP: &str = "\
Exit codes:
  0  done
  1  problems in what you wrote; each is listed with its place
  2  wrong use of the command line
  3  something around it is missing or in the way: Envoy, the module, a port";

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done.
    Good,
    /// What the user wrote has problems, and they have been printed.
    Problems,
    /// Something around the command is missing or in the way.
    Environment,
    /// As another command did that this one had started.
    Of(u8),
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Good => 0,
            Exit::Problems => 1,
            Exit::Environment => 3,
            Exit::Of(code) => code,
        })
    }
}
