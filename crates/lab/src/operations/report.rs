//! What a run saw, as data and as a page.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

/// How often something was done, and how long it took at most until it was served.
#[derive(Debug, Serialize)]
struct Done {
    what: &'static str,
    times: u64,
    longest: Duration,
}

/// See the module.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    outrider: &'static str,
    is_debug: bool,
    cores: usize,
    seed: u64,
    /// Time that was asked for.
    wanted: Duration,
    pub(super) seconds: f64,
    pub(super) problems: Vec<String>,
    /// HTTP/1.1, HTTP/2, and both with TLS.
    pub(super) clients: (usize, usize, usize),
    pub(super) answered: u64,
    pub(super) connections: u64,
    /// Connections that were refused while the gateway was stopped.
    pub(super) refused: u64,
    pub(super) lost: u64,
    /// The slowest answer.
    pub(super) slowest: Duration,
    done: Vec<Done>,
}

impl Report {
    pub(super) fn new(seed: u64, wanted: Duration) -> Self {
        Self {
            outrider: env!("CARGO_PKG_VERSION"),
            is_debug: cfg!(debug_assertions),
            cores: std::thread::available_parallelism().map_or(0, Into::into),
            seed,
            wanted,
            seconds: 0.0,
            problems: Vec::new(),
            clients: (0, 0, 0),
            answered: 0,
            connections: 0,
            refused: 0,
            lost: 0,
            slowest: Duration::ZERO,
            done: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, what: &'static str, took: Duration) {
        match self.done.iter_mut().find(|done| done.what == what) {
            Some(done) => {
                done.times += 1;
                done.longest = done.longest.max(took);
            }
            None => self.done.push(Done {
                what,
                times: 1,
                longest: took,
            }),
        }
    }

    pub(super) fn operations(&self) -> u64 {
        self.done.iter().map(|done| done.times).sum()
    }

    pub(super) fn json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// The page.
    pub(super) fn page(&self) -> String {
        let held = if self.problems.is_empty() {
            "No request was lost."
        } else {
            "**It did not hold:**"
        };
        let build = if self.is_debug { ", a debug build" } else { "" };
        let mut page = format!(
            "# Operations: storms, stops, take-overs and faults under load\n\nMade by `make soak-operations`; the raw data is \
             [operations.json](operations.json).\n\nOutrider {}{build}, seed {}, {:.0} s, two workers on a machine of {} cores \
             that clients and upstream share. {held}\n\n",
            self.outrider, self.seed, self.seconds, self.cores
        );
        for problem in &self.problems {
            let _ = writeln!(page, "- {problem}");
        }
        let _ = write!(
            page,
            "
| | |
|---|--:|
| clients with HTTP/1.1 keep-alive, with HTTP/2, and with either and TLS | {}, {} and {} |
| POST requests answered with 200 | {} |
| requests without an answer, or with another one | {} |
| connections | {} |
| connections refused while the gateway was stopped, before anything was sent | {} |
| slowest answer, ms | {} |

What was done, each in a random order, and how long it took at most until the change was served (a take-over: until the
gateway before had ended):

| operation | times | longest, ms |
|---|--:|--:|
",
            self.clients.0,
            self.clients.1,
            self.clients.2,
            self.answered,
            self.lost,
            self.connections,
            self.refused,
            self.slowest.as_millis()
        );
        for done in &self.done {
            let _ = writeln!(
                page,
                "| {} | {} | {} |",
                done.what,
                done.times,
                done.longest.as_millis()
            );
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_tells_operations_and_problems() {
        let mut report = Report::new(7, Duration::from_mins(1));
        report.add("SIGHUP", Duration::from_millis(20));
        report.add("SIGHUP", Duration::from_millis(30));
        report.answered = 12;
        let page = report.page();
        assert!(page.contains("No request was lost."), "{page}");
        assert!(page.contains("| SIGHUP | 2 | 30 |"), "{page}");
        report.problems.push("one was".to_owned());
        assert!(
            report.page().contains("It did not hold"),
            "{}",
            report.page()
        );
        assert!(report.json().unwrap().contains("\"answered\": 12"));
    }
}
