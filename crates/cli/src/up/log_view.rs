//! Envoy's log on the way to the user: what is shown, and what is kept for the command itself.

use std::sync::{Arc, Mutex, PoisonError};

use outrider_envoy_process::{Level, LogLine, LogSink};

use crate::output::{self, BAD, DIM, Styled, WARN};

/// How Envoy begins the message that a file was refused.
const REFUSED: &str = "Filesystem config update rejected: ";
/// The component that a dynamic module's log lines carry: plugins speak through it.
const PLUGINS: &str = "dynamic_modules";

/// Messages that say nothing a user of this command can act on, or that the command says better.
const KNOWN: [&str; 5] = [
    "There is no configured limit to the number of allowed active downstream connections",
    "caught ENVOY_SIGTERM",
    REFUSED,
    "lds: listener '",
    "cds: cluster '",
];

/// How much is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verbosity {
    /// Warnings, errors, and what plugins log.
    Tidy,
    /// Everything.
    Whole,
}

/// The reasons that Envoy gave for refusing files, in the order of the refusals.
#[derive(Debug, Clone, Default)]
pub(crate) struct Refusals(Arc<Mutex<Vec<String>>>);

impl Refusals {
    /// Takes what has been collected.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn push(&self, reason: &str) {
        let mut reasons = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reasons.push(reason.to_owned());
    }
}

/// A sink that shows lines and collects refusals.
pub(crate) fn sink(verbosity: Verbosity, refusals: Refusals) -> LogSink {
    Box::new(move |line| {
        if let Some(reason) = line.message.strip_prefix(REFUSED) {
            refusals.push(reason);
        }
        match verbosity {
            Verbosity::Whole => output::note(Styled(DIM, line)),
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
    let source = if of_plugin { "plugin" } else { "envoy" };
    let label = format!("{source} {}:", line.level);
    Some(format!("{} {}", Styled(style, label), line.message))
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
            shown("[t][info][dynamic_modules] headers: hello").unwrap(),
            "plugin info: headers: hello"
        );
        assert_eq!(shown("[t][error][http] no").unwrap(), "envoy error: no");
        assert_eq!(shown("panicked").unwrap(), "envoy warning: panicked");
    }

    #[test]
    fn refusals_are_kept() {
        let refusals = Refusals::default();
        let mut sink = sink(Verbosity::Tidy, refusals.clone());
        sink(&LogLine::parse(
            "[t][warning][config] Filesystem config update rejected: no such cluster",
        ));
        assert_eq!(refusals.take(), ["no such cluster"]);
        assert_eq!(refusals.take(), [] as [&str; 0]);
    }
}
