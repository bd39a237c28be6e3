//! Envoy's own log, line by line: level, component, message.
//!
//! Envoy is started with [`FORMAT`] and `--log-format-escaped`, so that one message is one line
//! whatever it holds; [`LogLine::parse`] undoes the escapes.

use std::collections::VecDeque;
use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Mutex, PoisonError};

/// What Envoy is told to write before each message.
pub(crate) const FORMAT: &str = "[%Y-%m-%d %T.%e][%l][%n] %v";
/// How many lines are kept.
const KEPT: usize = 200;

/// How grave a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Each step.
    Trace,
    /// For those who look for a fault.
    Debug,
    /// What happens.
    Info,
    /// What may be wrong.
    Warning,
    /// What is wrong.
    Error,
    /// What ends Envoy.
    Critical,
}

impl Level {
    fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "trace" => Self::Trace,
            "debug" => Self::Debug,
            "info" => Self::Info,
            "warning" => Self::Warning,
            "error" => Self::Error,
            "critical" => Self::Critical,
            _ => return None,
        })
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Trace => "trace",
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
        })
    }
}

/// One message of Envoy's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// How grave it is.
    pub level: Level,
    /// Envoy's name for the part that speaks: `config`, `upstream`, `dynamic_modules`. `stderr` for a
    /// line that is not a log message: a panic, a message of the dynamic linker.
    pub component: String,
    /// `2026-01-31 12:00:00.123`; empty for `stderr`.
    pub time: String,
    /// What it says; may hold line breaks.
    pub message: String,
}

impl LogLine {
    /// Reads one line of Envoy's standard error.
    pub fn parse(line: &str) -> Self {
        Self::parse_message(line).unwrap_or_else(|| Self {
            level: Level::Warning,
            component: "stderr".to_owned(),
            time: String::new(),
            message: line.to_owned(),
        })
    }

    fn parse_message(line: &str) -> Option<Self> {
        let (time, rest) = line.strip_prefix('[')?.split_once("][")?;
        let (level, rest) = rest.split_once("][")?;
        let (component, message) = rest.split_once("] ")?;
        Some(Self {
            level: Level::parse(level)?,
            component: component.to_owned(),
            time: time.to_owned(),
            message: unescape(message),
        })
    }
}

impl fmt::Display for LogLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.time.is_empty() {
            return f.write_str(&self.message);
        }
        write!(
            f,
            "{} {} {}: {}",
            self.time, self.level, self.component, self.message
        )
    }
}

/// Called on the reading thread with each line.
pub type LogSink = Box<dyn FnMut(&LogLine) + Send>;

/// The last lines, shared between the reading thread and the owner.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ring(Arc<Mutex<VecDeque<LogLine>>>);

impl Ring {
    pub(crate) fn lines(&self) -> Vec<LogLine> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().cloned().collect()
    }

    fn push(&self, line: LogLine) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == KEPT {
            lines.pop_front();
        }
        lines.push_back(line);
    }
}

/// Reads until the end of the stream.
pub(crate) fn read(stream: impl Read, ring: &Ring, mut sink: Option<LogSink>) {
    let mut reader = BufReader::new(stream);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        match reader.read_until(b'\n', &mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_end();
        if text.is_empty() {
            continue;
        }
        let line = LogLine::parse(text);
        if let Some(sink) = &mut sink {
            sink(&line);
        }
        ring.push(line);
    }
}

/// Undoes C escapes, octal bytes included. What is not a known escape stays as it is.
fn unescape(text: &str) -> String {
    if !text.contains('\\') {
        return text.to_owned();
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes().peekable();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        match rest.next() {
            Some(b'n') => bytes.push(b'\n'),
            Some(b'r') => bytes.push(b'\r'),
            Some(b't') => bytes.push(b'\t'),
            Some(quoted @ (b'\\' | b'\'' | b'"')) => bytes.push(quoted),
            Some(digit @ b'0'..=b'3') => {
                let mut value = digit - b'0';
                for _ in 0..2 {
                    if let Some(next) = rest.next_if(|next| (b'0'..=b'7').contains(next)) {
                        value = value.wrapping_mul(8).wrapping_add(next - b'0');
                    }
                }
                bytes.push(value);
            }
            Some(other) => bytes.extend([b'\\', other]),
            None => bytes.push(b'\\'),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_message() {
        let line = LogLine::parse(
            r"[2026-11-21 05:21:17.253][warning][config] update rejected: \'a\'\n\tat \303\244.lua",
        );
        assert_eq!(line.level, Level::Warning);
        assert_eq!(line.component, "config");
        assert_eq!(line.message, "update rejected: 'a'\n\tat ä.lua");
    }

    #[test]
    fn what_is_not_a_message_is_kept_as_it_is() {
        for raw in ["thread panicked", "[x", "[a][b][c] d", r"a\nb"] {
            let line = LogLine::parse(raw);
            assert_eq!(
                (line.component.as_str(), line.message.as_str()),
                ("stderr", raw)
            );
        }
    }

    #[test]
    fn keeps_the_last_lines() {
        let ring = Ring::default();
        let text = (0..500)
            .map(|number| format!("line {number}"))
            .collect::<Vec<_>>()
            .join("\n");
        read(text.as_bytes(), &ring, None);
        let lines = ring.lines();
        assert_eq!(lines.len(), KEPT);
        assert_eq!(lines.last().unwrap().message, "line 499");
    }
}
