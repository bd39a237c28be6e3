//! Budget of one plugin for log lines: bytes a second, the length of a line, and the characters in it.
//!
//! Envoy's log and the plugin's log file are read by people and programs that take a line break for a new line.
//! So a line that a plugin writes holds no control character, and cannot look like two lines.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Instant;

/// Longest line, in bytes, with what is escaped in it; what says how much was cut comes on top.
pub const LINE_LIMIT: usize = 8 * 1024;

/// What a line costs beside its text: time stamp, level and name.
const LINE_COST: u64 = 128;

/// Bytes that one plugin writes to the proxy's log and to its own log file. The bucket holds one second's worth, and is full at first.
#[derive(Debug)]
pub struct LogBudget {
    bytes_per_second: AtomicU64,
    state: Mutex<State>,
    /// Dropped lines that no statistic counts yet.
    uncounted: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Thousandths of a byte that have been used and not come back.
    used: u64,
    /// Of the last line, in milliseconds.
    at: u64,
    dropped: u64,
    reported_at: Option<u64>,
}

/// Outcome for a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogAdmission {
    /// The line is written.
    Written,
    /// The line is dropped.
    Dropped,
    /// The line is dropped, and this is written in its place: how many were dropped since the last report.
    Reported(String),
}

impl LogBudget {
    /// Bytes a second where the configuration says nothing.
    pub const DEFAULT_RATE: u32 = 64 * 1024;

    /// Least time between two reports of dropped lines, in milliseconds.
    const REPORT_INTERVAL_MS: u64 = 10_000;

    /// A budget of so many bytes a second.
    pub fn new(bytes_per_second: u32) -> Self {
        Self {
            bytes_per_second: AtomicU64::new(u64::from(bytes_per_second)),
            state: Mutex::default(),
            uncounted: AtomicU64::new(0),
        }
    }

    /// Changes the rate, for what follows.
    pub fn set_rate(&self, bytes_per_second: u32) {
        self.bytes_per_second
            .store(u64::from(bytes_per_second), Ordering::Relaxed);
    }

    /// Charges a line of `length` bytes, as it would be written. A line is written as long as the bucket is not empty, and may
    /// overdraw it.
    pub fn admit(&self, length: usize) -> LogAdmission {
        self.admit_at(length, now_ms())
    }

    /// Returns how many lines were dropped since the last call.
    pub fn take_dropped(&self) -> u64 {
        if self.uncounted.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.uncounted.swap(0, Ordering::Relaxed)
    }

    /// Charges a line of another log than the proxy's, such as the plugin's own file. Returns whether it is written;
    /// one that is dropped is in the next report.
    pub fn charge(&self, length: usize) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.charge_at(&mut state, length, now_ms())
    }

    fn charge_at(&self, state: &mut State, length: usize, now_ms: u64) -> bool {
        let rate = self.bytes_per_second.load(Ordering::Relaxed);
        let passed = now_ms.saturating_sub(state.at);
        state.at = state.at.max(now_ms);
        state.used = state.used.saturating_sub(passed.saturating_mul(rate));
        if state.used < rate * 1000 {
            let cost = u64::try_from(length)
                .unwrap_or(u64::MAX)
                .saturating_add(LINE_COST);
            state.used = state.used.saturating_add(cost.saturating_mul(1000));
            return true;
        }
        state.dropped += 1;
        self.uncounted.fetch_add(1, Ordering::Relaxed);
        false
    }

    fn admit_at(&self, length: usize, now_ms: u64) -> LogAdmission {
        // Every statement leaves a state that is valid.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if self.charge_at(&mut state, length, now_ms) {
            return LogAdmission::Written;
        }
        let quiet = state
            .reported_at
            .is_some_and(|last| now_ms.saturating_sub(last) < Self::REPORT_INTERVAL_MS);
        if quiet {
            return LogAdmission::Dropped;
        }
        state.reported_at = Some(now_ms);
        let dropped = std::mem::take(&mut state.dropped);
        let rate = self.bytes_per_second.load(Ordering::Relaxed);
        LogAdmission::Reported(format!(
            "log lines are dropped, {dropped} since the last such line: the plugin writes more than {rate} bytes a \
             second; raise the plugin's `log_rate` in outrider.yaml, or log less"
        ))
    }
}

/// Milliseconds since the first line of any plugin.
fn now_ms() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl Default for LogBudget {
    fn default() -> Self {
        Self::new(Self::DEFAULT_RATE)
    }
}

/// Returns a text as one line of a log: control characters and separators of lines escaped (`\n`, `\x1b`, `\u{2028}`),
/// tabs kept, and cut before it is longer than [`LINE_LIMIT`] bytes. Backslashes stay as they are.
pub fn log_line(text: &str) -> Cow<'_, str> {
    if text.len() <= LINE_LIMIT && !text.chars().any(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut line = String::with_capacity(text.len().min(LINE_LIMIT) + 64);
    for (at, character) in text.char_indices() {
        let length = line.len();
        push_escaped(&mut line, character);
        if line.len() > LINE_LIMIT {
            line.truncate(length);
            // Writing to a string cannot fail.
            let _written = write!(line, " ... ({} bytes more)", text.len() - at);
            break;
        }
    }
    Cow::Owned(line)
}

/// Returns a text of any length without what [`log_line`] escapes.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut line = String::with_capacity(text.len() + 64);
    for character in text.chars() {
        push_escaped(&mut line, character);
    }
    Cow::Owned(line)
}

fn push_escaped(line: &mut String, character: char) {
    match character {
        '\n' => line.push_str("\\n"),
        '\r' => line.push_str("\\r"),
        _ if is_escaped(character) && character.is_ascii() => {
            // Writing to a string cannot fail.
            let _written = write!(line, "\\x{:02x}", u32::from(character));
        }
        _ if is_escaped(character) => {
            let _written = write!(line, "\\u{{{:x}}}", u32::from(character));
        }
        _ => line.push(character),
    }
}

/// Control characters (C0, DEL, C1), Unicode's line and paragraph separators, and what changes the direction of
/// text.
fn is_escaped(character: char) -> bool {
    character != '\t'
        && (character.is_control()
            || matches!(
                character,
                '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_with_control_characters_is_escaped() {
        assert_eq!(
            log_line("a\nerror: b\r\x1b[31m\x7f\u{85}\u{2028}\u{2029}\u{202e}\0\tc"),
            "a\\nerror: b\\r\\x1b[31m\\x7f\\u{85}\\u{2028}\\u{2029}\\u{202e}\\x00\tc"
        );
        assert!(matches!(log_line("plain \\n, ünï"), Cow::Borrowed(_)));
    }

    #[test]
    fn line_over_limit_is_cut_at_a_character() {
        let text = "ü".repeat(LINE_LIMIT);
        let line = log_line(&text);
        assert!(line.ends_with(" ... (8192 bytes more)"), "{line}");
        assert_eq!(
            line.trim_end_matches(" ... (8192 bytes more)").len(),
            LINE_LIMIT
        );
        let odd = format!("a{}", "ü".repeat(LINE_LIMIT));
        assert!(log_line(&odd).starts_with("aü"));
    }

    #[test]
    fn line_is_cut_by_the_length_that_it_is_written_with() {
        for character in ["\0", "\n", "\u{202e}"] {
            let text = character.repeat(LINE_LIMIT);
            let line = log_line(&text);
            assert!(line.len() <= LINE_LIMIT + 32, "{}", line.len());
            assert!(line.ends_with(" bytes more)"));
        }
        let fits = "x".repeat(LINE_LIMIT - 1);
        assert_eq!(log_line(&fits), fits);
        let over = format!("{fits}\0");
        assert_eq!(log_line(&over), format!("{fits} ... (1 bytes more)"));
    }

    #[test]
    fn lines_over_rate_are_dropped_counted_and_reported_once() {
        let budget = LogBudget::new(10_000);
        let written = (0..1000)
            .filter(|_| budget.admit_at(872, 5) == LogAdmission::Written)
            .count();
        assert_eq!(written, 10);
        // One report for the first line that was dropped, and the others count for the next report.
        let LogAdmission::Reported(report) = budget_after(&budget, 20_000) else {
            panic!("no report");
        };
        assert_eq!(budget.take_dropped(), 991);
        assert_eq!(budget.take_dropped(), 0);
        assert!(report.contains(", 990 since"), "{report}");
    }

    /// Overdraws a budget at a later time, for its next report.
    fn budget_after(budget: &LogBudget, now_ms: u64) -> LogAdmission {
        for _ in 0..20 {
            match budget.admit_at(872, now_ms) {
                LogAdmission::Written => {}
                other => return other,
            }
        }
        LogAdmission::Dropped
    }

    #[test]
    fn rate_comes_back_with_time() {
        let budget = LogBudget::new(1000);
        assert_eq!(budget.admit_at(872, 0), LogAdmission::Written);
        assert!(matches!(budget.admit_at(0, 0), LogAdmission::Reported(_)));
        assert_eq!(budget.admit_at(0, 0), LogAdmission::Dropped);
        assert_eq!(budget.admit_at(0, 100), LogAdmission::Written);
    }

    #[test]
    fn empty_lines_cost_too() {
        let budget = LogBudget::new(12_800);
        let written = (0..1000)
            .filter(|_| budget.admit_at(0, 0) == LogAdmission::Written)
            .count();
        assert_eq!(written, 100);
    }

    #[test]
    fn lines_of_two_logs_share_a_rate_and_a_report() {
        let budget = LogBudget::new(10_000);
        let written = (0..1000).filter(|_| budget.charge(872)).count();
        assert!((10..=12).contains(&written), "{written}");
        let LogAdmission::Reported(report) = budget.admit(872) else {
            panic!("no report");
        };
        let dropped = 1001 - written;
        assert!(report.contains(&format!(" {dropped} since")), "{report}");
        assert_eq!(budget.take_dropped(), dropped as u64);
    }

    #[test]
    fn clock_that_goes_back_gives_nothing() {
        let budget = LogBudget::new(1000);
        assert_eq!(budget.admit_at(872, 10_000), LogAdmission::Written);
        assert!(matches!(
            budget.admit_at(0, 10_000),
            LogAdmission::Reported(_)
        ));
        assert_eq!(budget.admit_at(0, 0), LogAdmission::Dropped);
        assert_eq!(budget.admit_at(0, 9_000), LogAdmission::Dropped);
    }
}
