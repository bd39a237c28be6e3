//! The only module that prints. Colour appears on a terminal that has not said NO_COLOR.
//!
//! Results go to standard output; faults, and what runs say while they go, to standard error.
//! Writing errors are ignored: whoever closed the pipe has seen enough.

use std::fmt::Display;
use std::io::Write as _;

use anstyle::{AnsiColor, Style};
use outrider_plugin_api::escaped;
use outrider_plugin_formats::Problem;
use serde_json::Value;

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const WARN: Style = AnsiColor::Yellow.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();

/// Text in a style.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Styled<T>(pub(crate) Style, pub(crate) T);

impl<T: Display> Display for Styled<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}{}", self.0, self.1, self.0.render_reset())
    }
}

/// One line of a result.
pub(crate) fn line(text: impl Display) {
    let _ = writeln!(anstream::stdout().lock(), "{text}");
}

/// A result that brings its own line breaks.
pub(crate) fn raw(bytes: &[u8]) {
    let mut output = std::io::stdout().lock();
    let _ = output.write_all(bytes);
    let _ = output.flush();
}

/// A result for scripts.
pub(crate) fn json(value: &Value) {
    line(format_args!("{value:#}"));
}

/// One line beside the result.
pub(crate) fn note(text: impl Display) {
    let _ = writeln!(anstream::stderr().lock(), "{text}");
}

/// A fault around the command.
pub(crate) fn error(error: &anyhow::Error) {
    note(format_args!("{} {error:#}", Styled(BAD, "error:")));
}

/// What may be wrong.
pub(crate) fn warning(text: impl Display) {
    note(format_args!("{} {text}", Styled(WARN, "warning:")));
}

/// Text of several lines, without other control characters.
fn lines(text: &str) -> String {
    text.split('\n').map(escaped).collect::<Vec<_>>().join("\n")
}

/// Warnings with their places.
pub(crate) fn warnings(warnings: &[Problem]) {
    for one in warnings {
        warning(problem(one));
    }
}

/// One problem, for people: its place, what is wrong, and below it how to mend it.
pub(crate) fn problem(problem: &Problem) -> String {
    let mut place = problem.file.clone();
    for number in [problem.line, problem.column] {
        if number == 0 {
            break;
        }
        place = format!("{place}:{number}");
    }
    let place = escaped(&place);
    let mut text = format!("{}: {}", Styled(BOLD, place), lines(&problem.message));
    if let Some(mend) = &problem.mend {
        text = format!("{text}\n    {}", Styled(GOOD, lines(mend)));
    }
    text
}

/// Problems beside a result that there is none of.
pub(crate) fn problems(problems: &[Problem]) {
    for one in problems {
        note(problem(one));
    }
    note(counted(problems.len(), "problem"));
}

/// `3 problems`, `1 problem`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    if count == 1 {
        format!("1 {noun}")
    } else {
        format!("{count} {noun}s")
    }
}
