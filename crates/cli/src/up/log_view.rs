//! Envoy's log on the way to the user: what is shown, and what is kept for the command itself.

use std::sync::{Arc, Mutex, PoisonError};

use outrider_envoy_process::{Level, LogLine, LogSink, reason};
use outrider_plugin_api::escaped;

use crate::output::{self, BAD, DIM, Styled, WARN};

/// How Envoy begins the message that a file was refused.
const REFUSED: &str = "Filesystem config update rejected: ";
/// The component that a dynamic module's log lines carry: plugins speak through it.
const PLUGINS: &str = "dynamic_modules";

/// How the module's reason for a refusal follows upon what is refused. Envoy's own message, which comes
/// next, names none.
const OF_MODULE: &str = " is refused: ";

/// Messages that say nothing a user of this command can act on, or that the command says better.
const KNOWN: [&str; 7] = [
    "There is no configured limit to the number of allowed active downstream connections",
    "caught ENVOY_SIGTERM",
    "lds: listener '",
    "listener '",
    "cds: cluster '",
    "Dynamic module ABI version",
    "Unable to load dynamic module",
];

/// How much is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verbosity {
    /// Warnings, errors, and what plugins log.
    Tidy,
    /// Everything.
    Whole,
}

/// Who tells of a refusal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Teller {
    /// The log view: the file came from someone else.
    #[default]
    Log,
    /// The command, which handed the file over and waits for the verdict.
    Command,
}

/// Why files were refused, one sentence (or one line for each fault of a plugin) for each refusal.
#[derive(Debug, Clone, Default)]
pub(crate) struct Refusals(Arc<Mutex<Collected>>);

#[derive(Debug, Default)]
struct Collected {
    reasons: Vec<String>,
    /// What the module said since Envoy's last refusal.
    of_module: Vec<String>,
    teller: Teller,
}

impl Refusals {
    /// From now on, refusals are told by `teller`.
    pub(crate) fn expect(&self, teller: Teller) {
        let mut collected = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        collected.teller = teller;
    }

    /// Takes what has been collected.
    pub(crate) fn take(&self) -> Vec<String> {
        let mut collected = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        collected.of_module.clear();
        std::mem::take(&mut collected.reasons)
    }

    /// Collects from one line; true where it is a reason that the command itself tells.
    fn collect(&self, line: &LogLine) -> bool {
        let mut collected = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if collected.teller == Teller::Log {
            return false;
        }
        if let Some(message) = line.message.strip_prefix(REFUSED) {
            let of_module = std::mem::take(&mut collected.of_module);
            collected.reasons.push(if of_module.is_empty() {
                reason(message)
            } else {
                of_module.join("\n")
            });
            return true;
        }
        if line.component == PLUGINS
            && line.message.starts_with("filter ")
            && let Some((_, why)) = line.message.split_once(OF_MODULE)
        {
            collected.of_module.push(why.to_owned());
            return true;
        }
        false
    }
}

/// A sink that shows lines and collects refusals.
pub(crate) fn sink(verbosity: Verbosity, refusals: Refusals) -> LogSink {
    Box::new(move |line| {
        let is_reason = refusals.collect(line);
        match verbosity {
            Verbosity::Whole => output::note(Styled(DIM, escaped(&line.to_string()))),
            Verbosity::Tidy if is_reason => {}
            Verbosity::Tidy => {
                if let Some(text) = tidy(line) {
                    output::note(text);
                }
            }
        }
    })
}

/// A line as people want it, or nothing where they do not.
fn tidy(line: &LogLine) -> Option<String> {
    let of_plugin = line.component == PLUGINS;
    let shown = line.level
        >= if of_plugin {
            Level::Info
        } else {
            Level::Warning
        };
    if !shown || KNOWN.iter().any(|known| line.message.starts_with(known)) {
        return None;
    }
    let style = match line.level {
        Level::Trace | Level::Debug | Level::Info => DIM,
        Level::Warning => WARN,
        Level::Error | Level::Critical => BAD,
    };
    // A plugin's line begins with its name.
    let source = if of_plugin { "" } else { "envoy " };
    let label = format!("{source}{}:", line.level);
    let message = escaped(&line.message);
    Some(format!("{} {message}", Styled(style, label)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &str) -> Option<String> {
        tidy(&LogLine::parse(line)).map(|text| anstream::adapter::strip_str(&text).to_string())
    }

    #[test]
    fn shows_what_matters() {
        assert_eq!(shown("[t][info][main] starting"), None);
        assert_eq!(shown("[t][warning][main] caught ENVOY_SIGTERM"), None);
        assert_eq!(
            shown("[t][info][dynamic_modules] plugin headers: hello").unwrap(),
            "info: plugin headers: hello"
        );
        assert_eq!(shown("[t][error][http] no").unwrap(), "envoy error: no");
        assert_eq!(shown("panicked").unwrap(), "envoy warning: panicked");
    }

    #[test]
    fn refusals_are_kept() {
        let refusals = Refusals::default();
        refusals.expect(Teller::Command);
        let mut sink = sink(Verbosity::Tidy, refusals.clone());
        let mut write = |line: &str| sink(&LogLine::parse(line));
        write("[t][warning][config] Filesystem config update rejected: no such cluster");
        assert_eq!(refusals.take(), ["no such cluster"]);
        assert_eq!(refusals.take(), [] as [&str; 0]);
        write(
            "[t][error][dynamic_modules] filter outrider: the plugins' configuration is refused: a.lua:1: no",
        );
        write(
            "[t][error][dynamic_modules] filter outrider: the plugins' configuration is refused: b.lua:2: nor",
        );
        write(
            "[t][warning][config] Filesystem config update rejected: Failed to initialize dynamic module",
        );
        assert_eq!(refusals.take(), ["a.lua:1: no\nb.lua:2: nor"]);
    }
}
