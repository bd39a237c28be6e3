//! The only module that prints. Colour appears on a terminal that has not said NO_COLOR.
//!
//! Results go to standard output; faults, and what runs say while they go, to standard error.
//! Writing errors are ignored: whoever closed the pipe has seen enough.
//!
//! A command that serves writes through a queue ([`queue`]): a terminal, pipe or journal that does not read costs lines,
//! which are counted, and never time.

use std::fmt::Display;
use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

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

/// Lines that wait to be written, at most.
const QUEUED: usize = 4096;

/// Where a line goes.
#[derive(Debug, Clone, Copy)]
enum Stream {
    Output,
    Error,
}

#[derive(Debug)]
enum Item {
    Line(Stream, String),
    /// All lines before have been written.
    Written(SyncSender<()>),
}

static QUEUE: OnceLock<SyncSender<Item>> = OnceLock::new();
/// Lines that found the queue full since this was last said.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// From now on, lines are written by a thread of its own, and dropped while [`QUEUED`] of them wait.
pub(crate) fn queue() {
    let (sender, lines) = sync_channel(QUEUED);
    if QUEUE.set(sender).is_ok() {
        std::thread::spawn(move || write_queued(&lines));
    }
}

/// Waits until all lines are written, at most so long.
pub(crate) fn flush(patience: Duration) {
    let Some(queue) = QUEUE.get() else {
        return;
    };
    let (sender, written) = sync_channel(1);
    let began = Instant::now();
    let mut item = Item::Written(sender);
    while let Err(TrySendError::Full(back)) = queue.try_send(item) {
        if began.elapsed() > patience {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
        item = back;
    }
    let _ = written.recv_timeout(patience.saturating_sub(began.elapsed()));
}

fn write_queued(lines: &Receiver<Item>) {
    for item in lines {
        match item {
            Item::Line(stream, text) => write(stream, &text),
            // Nobody waits any more where the patience was over.
            Item::Written(sender) => drop(sender.try_send(())),
        }
        let dropped = DROPPED.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            let lines = counted(usize::try_from(dropped).unwrap_or(usize::MAX), "line");
            let text = format!(
                "{} {lines} dropped: nobody read this output",
                Styled(WARN, "warning:")
            );
            write(Stream::Error, &text);
        }
    }
}

fn write(stream: Stream, text: &str) {
    let _ = match stream {
        Stream::Output => writeln!(anstream::stdout().lock(), "{text}"),
        Stream::Error => writeln!(anstream::stderr().lock(), "{text}"),
    };
}

fn put(stream: Stream, text: impl Display) {
    let Some(queue) = QUEUE.get() else {
        return write(stream, &text.to_string());
    };
    if queue
        .try_send(Item::Line(stream, text.to_string()))
        .is_err()
    {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

/// One line of a result.
pub(crate) fn line(text: impl Display) {
    put(Stream::Output, text);
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
    put(Stream::Error, text);
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
