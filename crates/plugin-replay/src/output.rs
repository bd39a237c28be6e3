//! What a child process or an Envoy says, line by line, and waiting for it to say something.

use std::io::{BufRead as _, BufReader, Read};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What a log holds only when something is broken.
const SIGNS_OF_BUGS: [&str; 5] = [
    "panicked",
    "assert failure",
    "envoy bug failure",
    "Caught ",
    "re-entered",
];

/// Lines said so far.
#[derive(Debug, Clone, Default)]
pub struct Output {
    shared: Arc<(Mutex<Vec<String>>, Condvar)>,
}

impl Output {
    /// Adds a line.
    pub fn push(&self, line: String) {
        let (lines, more) = &*self.shared;
        lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(line);
        more.notify_all();
    }

    /// Reads lines on a thread of its own until the source ends.
    pub fn read_from(&self, source: impl Read + Send + 'static) {
        let output = self.clone();
        thread::spawn(move || {
            for line in BufReader::new(source).lines() {
                let Ok(line) = line else { break };
                output.push(line);
            }
        });
    }

    /// All lines.
    pub fn lines(&self) -> Vec<String> {
        self.shared
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// All lines as one text.
    pub fn text(&self) -> String {
        self.lines().join("\n")
    }

    /// Fails if a line tells of a bug: a panic of the module's, a broken assertion of Envoy's, or a
    /// stream that was re-entered.
    ///
    /// # Errors
    /// See above; the error tells the lines.
    pub fn assert_no_bugs(&self) -> anyhow::Result<()> {
        let lines = self.lines();
        let bugs: Vec<&String> = lines
            .iter()
            .filter(|line| SIGNS_OF_BUGS.iter().any(|sign| line.contains(sign)))
            .collect();
        anyhow::ensure!(bugs.is_empty(), "bugs show in the log: {bugs:#?}");
        Ok(())
    }

    /// How many lines there are: a mark for [`Output::wait_after`].
    pub fn mark(&self) -> usize {
        self.lines().len()
    }

    /// Waits for a line that holds `part`, among all lines.
    ///
    /// # Errors
    /// It does not come in time; the error tells what was said instead.
    pub fn wait(&self, part: &str, within: Duration) -> anyhow::Result<String> {
        self.wait_after(0, part, within)
    }

    /// Waits for a line that holds `part`, among those after a mark.
    ///
    /// # Errors
    /// It does not come in time; the error tells what was said instead.
    pub fn wait_after(&self, mark: usize, part: &str, within: Duration) -> anyhow::Result<String> {
        let deadline = Instant::now() + within;
        let (lines, more) = &*self.shared;
        let mut said = lines.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(line) = said.iter().skip(mark).find(|line| line.contains(part)) {
                return Ok(line.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let after = said
                    .iter()
                    .skip(mark)
                    .cloned()
                    .collect::<Vec<_>>()
                    .join("\n");
                anyhow::bail!("nobody said {part:?} within {within:?}, but:\n{after}");
            }
            said = more
                .wait_timeout(said, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}
