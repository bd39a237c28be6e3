//! Envoy's log on the way to the user: what is shown.

use outrider_envoy_process::{Level, LogLine};
use outrider_plugin_api::escaped;
use outrider_supervisor::LogSink;

use crate::output::{self, BAD, DIM, Styled, WARN};

/// The component that a dynamic module's log lines carry: plugins speak through it.
const PLUGINS: &str = "dynamic_modules";

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

/// Shows lines, but for those that the supervisor tells of.
pub(crate) fn show(verbosity: Verbosity) -> LogSink {
    Box::new(move |line, is_told| match verbosity {
        Verbosity::Whole => output::note(Styled(DIM, escaped(&line.to_string()))),
        Verbosity::Tidy if is_told => {}
        Verbosity::Tidy => {
            if let Some(text) = tidy(line) {
                output::note(text);
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
}
