//! What a soak saw, as data and as a page, and what has to hold of memory.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

/// The part of a soak at its beginning in which memory may grow: caches fill, pools reach their size.
const WARM_UP: f64 = 0.3;
/// How much the middle of the last quarter's samples may lie above that of the first quarter's after
/// the warm-up: so much of it,
const GROWTH: f64 = 0.03;
/// and so many bytes, which one generation of plugins more or less makes.
const SLACK: f64 = 4.0 * 1024.0 * 1024.0;

/// Memory of Envoy at one moment.
#[derive(Debug, Clone, Serialize)]
pub(super) struct MemorySample {
    /// Since the load began.
    pub(super) second: f64,
    /// Bytes in RAM.
    pub(super) resident: u64,
    /// Bytes in RAM, with shared ones counted in parts.
    pub(super) proportional: Option<u64>,
}

/// What was seen on one route.
#[derive(Debug, Clone, Serialize)]
pub(super) struct RouteReport {
    pub(super) name: String,
    pub(super) what: String,
    pub(super) requests: u64,
    /// Answers that had been through the plugin.
    pub(super) good: u64,
    /// Answers that went on without the plugin, by its policy.
    pub(super) without: u64,
    /// Answers of the failure policy.
    pub(super) policy: u64,
    /// Answers that should not have been.
    pub(super) failed: u64,
    pub(super) closed_connections: u64,
    pub(super) details: Vec<String>,
    pub(super) circuit_opened: u64,
    /// Envoy's statistics, by cause.
    pub(super) errors: BTreeMap<String, u64>,
}

/// How memory went after the warm-up.
#[derive(Debug, Clone, Serialize)]
pub(super) struct MemoryReport {
    /// The middle of the first quarter's samples, in bytes.
    pub(super) first: f64,
    /// The middle of the last quarter's.
    pub(super) last: f64,
    /// What `last` may be at most.
    pub(super) bound: f64,
    /// The slope of the line through all of them, in bytes a minute.
    pub(super) slope: f64,
}

/// See the module.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Report {
    pub(super) outrider: &'static str,
    pub(super) seconds: u64,
    pub(super) cores: usize,
    pub(super) updates: u64,
    pub(super) problems: Vec<String>,
    pub(super) routes: Vec<RouteReport>,
    pub(super) memory: Option<MemoryReport>,
    pub(super) samples: Vec<MemorySample>,
}

impl Report {
    pub(super) fn new(duration: Duration, updates: u64, samples: Vec<MemorySample>) -> Self {
        Self {
            outrider: env!("CARGO_PKG_VERSION"),
            seconds: duration.as_secs(),
            cores: std::thread::available_parallelism().map_or(0, Into::into),
            updates,
            problems: Vec::new(),
            routes: Vec::new(),
            memory: None,
            samples,
        }
    }

    pub(super) fn wrong(&mut self, problem: String) {
        self.problems.push(problem);
    }

    pub(super) fn add(&mut self, route: RouteReport) {
        self.routes.push(route);
    }

    /// Memory has to be flat after the warm-up.
    pub(super) fn judge_memory(&mut self) {
        let all: Vec<(f64, f64)> = self
            .samples
            .iter()
            .map(|sample| {
                let bytes = sample.proportional.unwrap_or(sample.resident);
                (sample.second, bytes as f64)
            })
            .collect();
        let end = all.last().map_or(0.0, |(second, _)| *second);
        let warm: Vec<(f64, f64)> = all
            .into_iter()
            .filter(|(second, _)| *second >= end * WARM_UP)
            .collect();
        let quarter = warm.len() / 4;
        let (Some(first), Some(last)) = (
            warm.get(..quarter).and_then(middle),
            warm.get(warm.len() - quarter..).and_then(middle),
        ) else {
            self.wrong("the soak was too short to say anything of memory".to_owned());
            return;
        };
        let bound = first * (1.0 + GROWTH) + SLACK;
        if last > bound {
            self.wrong(format!(
                "memory grew from {:.1} to {:.1} MiB after the warm-up; {:.1} were allowed",
                mib(first),
                mib(last),
                mib(bound)
            ));
        }
        self.memory = Some(MemoryReport {
            first,
            last,
            bound,
            slope: slope(&warm) * 60.0,
        });
    }

    pub(super) fn json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// The page.
    pub(super) fn page(&self) -> String {
        let requests: u64 = self.routes.iter().map(|route| route.requests).sum();
        let held = if self.problems.is_empty() {
            "held"
        } else {
            "**did not hold**"
        };
        let mut page = format!(
            "# Soak: mixed faults at full load\n\nMade by `make soak`; the raw data is [soak.json](soak.json).\n\n\
             Outrider {}, {} s, two workers on a machine of {} cores that the client and the upstream share, \
             {} requests, {} updates of `outrider.yaml`\nmeanwhile, every 5th with another version of a \
             plugin's code. It {held}.\n\n",
            self.outrider, self.seconds, self.cores, requests, self.updates
        );
        for problem in &self.problems {
            let _ = writeln!(page, "- {problem}");
        }
        page.push_str(
            "\n| route | what its plugin does | requests | good | policy's answer | without the plugin | wrong | \
             statistics: failures by cause | circuit opened |\n|---|---|--:|--:|--:|--:|--:|---|--:|\n",
        );
        for route in &self.routes {
            let causes: Vec<String> = route
                .errors
                .iter()
                .filter(|(_, count)| **count > 0)
                .map(|(cause, count)| format!("{cause} {count}"))
                .collect();
            let _ = writeln!(
                page,
                "| `{}` | {} | {} | {} | {} | {} | {} | {} | {} |",
                route.name,
                route.what,
                route.requests,
                route.good,
                route.policy,
                route.without,
                route.failed + route.closed_connections,
                if causes.is_empty() {
                    "none".to_owned()
                } else {
                    causes.join(", ")
                },
                route.circuit_opened,
            );
        }
        page.push_str(
            "\nEach answer is judged: on `healthy`, `large` and `callout` every one has to be good; on routes \
             whose requests\nask for a fault (every 10th, 50th or 200th), exactly those get what the failure \
             policy says; on `leak` and `flapping`,\nwhere nobody can know beforehand which, the policy's \
             answers have to be as many as the statistics say. On every\nroute the sum of failures in Envoy's \
             statistics is the number of streams that the client saw affected.\n\n",
        );
        if let Some(memory) = &self.memory {
            let _ = writeln!(
                page,
                "Envoy's memory (PSS) after a warm-up of {:.0} % of the time: {:.1} MiB in the middle of the first \
                 quarter, {:.1} MiB in that of the last,\n{:+.2} MiB a minute by least squares over all \
                 samples. Allowed were {:.1} MiB: {:.0} % and {:.0} MiB more than in the first quarter.",
                WARM_UP * 100.0,
                mib(memory.first),
                mib(memory.last),
                mib(memory.slope),
                mib(memory.bound),
                GROWTH * 100.0,
                mib(SLACK),
            );
        }
        page
    }
}

fn mib(bytes: f64) -> f64 {
    bytes / (1024.0 * 1024.0)
}

fn middle(samples: &[(f64, f64)]) -> Option<f64> {
    let mut values: Vec<f64> = samples.iter().map(|(_, bytes)| *bytes).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Of the line through the points, by least squares.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let (mut x, mut y) = (0.0, 0.0);
    for (second, bytes) in points {
        x += second / count;
        y += bytes / count;
    }
    let (mut above, mut below) = (0.0, 0.0);
    for (second, bytes) in points {
        above += (second - x) * (bytes - y);
        below += (second - x) * (second - x);
    }
    if below > 0.0 { above / below } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(bytes: impl Fn(f64) -> f64) -> Report {
        let samples = (0..300)
            .map(|number| MemorySample {
                second: f64::from(number) * 2.0,
                resident: bytes(f64::from(number) * 2.0) as u64,
                proportional: None,
            })
            .collect();
        let mut report = Report::new(Duration::from_mins(10), 0, samples);
        report.judge_memory();
        report
    }

    #[test]
    fn memory_that_grows_in_the_warm_up_alone_is_flat() {
        let flat = report(|second| 100e6 + 50e6 * (second / 150.0).min(1.0));
        assert_eq!(flat.problems, [""; 0]);
        assert!(flat.memory.unwrap().slope.abs() < 1.0);
    }

    #[test]
    fn memory_that_goes_on_growing_is_told() {
        let growing = report(|second| 100e6 + 0.1e6 * second);
        assert_eq!(growing.problems.len(), 1, "{:?}", growing.problems);
        assert!((growing.memory.unwrap().slope - 6e6).abs() < 1e3);
    }
}
