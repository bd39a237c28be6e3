//! What a run saw, as data and as a page, and the bounds that have to hold.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::attackers::Attacker;
use crate::open_loop::{Sample, Seen, percentile};

/// The median under attack is at most so many times that of the baseline.
const MEDIAN_FACTOR: f64 = 3.0;
/// Medians below this are not compared: timers of clients are exact to a millisecond.
const MEDIAN_FLOOR_MS: f64 = 2.0;
/// The 99th percentile under attack lies at most so far above that of the baseline.
const TAIL_MS: f64 = 60.0;
/// After this time without the attackers everything is as before.
pub(super) const RECOVERY: Duration = Duration::from_secs(2);
/// Resident memory, after the attackers have left, is at most so much above the baseline.
const MEMORY_LEFT: u64 = 96 * 1024 * 1024;
/// Resident memory under attack is at most that of the baseline, this,
const MEMORY_FIXED: u64 = 128 * 1024 * 1024;
/// and for each attacker so many times its memory budget: a VM on each of two workers, and one that is made or
/// dropped meanwhile.
const MEMORY_VMS: u64 = 3;
/// A hostile plugin's share of a log, in bytes a second, with a burst of one second.
const LOG_RATE: u64 = 128 * 1024;
/// The run ends when the logs have grown to so many bytes.
pub(super) const MOST_LOG: u64 = 2 * 1024 * 1024 * 1024;
/// The lane that does not pass the gateway.
pub(super) const CONTROL: &str = "control: the upstream, without the gateway";

/// A part of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) enum Phase {
    /// No attackers.
    Baseline,
    /// The update that adds the attackers is applied.
    Loading,
    /// The attackers are there.
    Attack,
    /// The attackers have left less than [`RECOVERY`] ago.
    Recovery,
    /// The attackers have left.
    After,
}

/// What the gateway used at one moment.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ResourceSample {
    /// Since the run began.
    pub(super) second: f64,
    /// Bytes of Envoy in RAM.
    pub(super) resident: u64,
    /// CPU time of Envoy's threads that live.
    pub(super) cpu_seconds: f64,
    /// Bytes that the command and Envoy have written.
    pub(super) log_bytes: u64,
    /// Bytes in the plugins' own log files.
    pub(super) plugin_log_bytes: u64,
}

/// One attacker.
#[derive(Debug, Clone, Serialize)]
pub(super) struct AttackerReport {
    pub(super) name: String,
    pub(super) about: String,
    pub(super) runtime: &'static str,
    pub(super) clients: usize,
    pub(super) requests: u64,
    /// Answers by status; 0: none.
    pub(super) statuses: BTreeMap<u16, u64>,
    /// Envoy's statistics, by cause.
    pub(super) failures: BTreeMap<String, u64>,
}

/// Latency of one lane in one phase, in milliseconds.
#[derive(Debug, Clone, Serialize)]
pub(super) struct LaneReport {
    pub(super) lane: String,
    pub(super) phase: Phase,
    pub(super) requests: usize,
    pub(super) failed: usize,
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) longest: f64,
}

/// One request under attack whose latency lies further above the baseline than the 99th percentile may.
#[derive(Debug, Clone, Serialize)]
struct SlowRequest {
    lane: String,
    /// When it was meant to be sent, since the run began.
    second: f64,
    milliseconds: f64,
}

/// See the module.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Report {
    outrider: &'static str,
    seconds: u64,
    cores: usize,
    is_debug: bool,
    pub(super) problems: Vec<String>,
    pub(super) attackers: Vec<AttackerReport>,
    lanes: Vec<LaneReport>,
    slow: Vec<SlowRequest>,
    /// Ends of phases, in seconds since the run began.
    phases: Vec<(Phase, f64)>,
    budgets: u64,
    count: u64,
    pub(super) samples: Vec<ResourceSample>,
    details: Vec<String>,
    closed: u64,
}

impl Report {
    pub(super) fn new(duration: Duration, attackers: &[Attacker]) -> Self {
        Self {
            outrider: env!("CARGO_PKG_VERSION"),
            seconds: duration.as_secs(),
            cores: std::thread::available_parallelism().map_or(0, Into::into),
            is_debug: cfg!(debug_assertions),
            problems: Vec::new(),
            attackers: Vec::new(),
            lanes: Vec::new(),
            slow: Vec::new(),
            phases: Vec::new(),
            budgets: attackers
                .iter()
                .map(|attacker| attacker.memory_mib * 1024 * 1024)
                .sum(),
            count: attackers.len() as u64,
            samples: Vec::new(),
            details: Vec::new(),
            closed: 0,
        }
    }

    pub(super) fn wrong(&mut self, problem: String) {
        self.problems.push(problem);
    }

    pub(super) fn end_phase(&mut self, phase: Phase, began: Instant, end: Instant) {
        let end = end.saturating_duration_since(began).as_secs_f64();
        self.phases.push((phase, end));
    }

    /// Sorts a lane's samples into the phases. A sample from before the first phase does not count.
    pub(super) fn add_lane(&mut self, began: Instant, seen: Seen) {
        let mut from = 0.0;
        for (phase, to) in self.phases.clone() {
            let samples: Vec<&Sample> = seen
                .samples
                .iter()
                .filter(|sample| {
                    sample
                        .intended
                        .checked_duration_since(began)
                        .is_some_and(|since| (from..to).contains(&since.as_secs_f64()))
                })
                .collect();
            let mut latencies: Vec<Duration> =
                samples.iter().map(|sample| sample.latency).collect();
            latencies.sort_unstable();
            if phase == Phase::Attack {
                self.add_slow(began, &seen, &samples);
            }
            self.lanes.push(LaneReport {
                lane: seen.name.to_owned(),
                phase,
                requests: samples.len(),
                failed: samples.iter().filter(|sample| !sample.answered).count(),
                p50: percentile(&latencies, 50.0),
                p90: percentile(&latencies, 90.0),
                p99: percentile(&latencies, 99.0),
                longest: percentile(&latencies, 100.0),
            });
            from = to;
        }
        if seen.name != CONTROL {
            self.closed += seen.closed;
        }
        for detail in seen.details {
            self.details.push(format!("{}: {detail}", seen.name));
        }
    }

    /// Keeps the requests of a lane under attack that are slower than [`TAIL_MS`] above its baseline.
    fn add_slow(&mut self, began: Instant, seen: &Seen, samples: &[&Sample]) {
        let baseline = (self.lanes.iter())
            .find(|lane| lane.lane == seen.name && lane.phase == Phase::Baseline)
            .map_or(0.0, |lane| lane.p99);
        for sample in samples {
            let milliseconds = sample.latency.as_secs_f64() * 1e3;
            if milliseconds > baseline + TAIL_MS {
                let since = sample.intended.saturating_duration_since(began);
                self.slow.push(SlowRequest {
                    lane: seen.name.to_owned(),
                    second: since.as_secs_f64(),
                    milliseconds,
                });
            }
        }
    }

    fn end_of(&self, phase: Phase) -> f64 {
        self.phases
            .iter()
            .find(|(candidate, _)| *candidate == phase)
            .map_or(0.0, |(_, end)| *end)
    }

    fn samples_between(&self, from: f64, to: f64) -> impl Iterator<Item = &ResourceSample> {
        self.samples
            .iter()
            .filter(move |sample| sample.second > from && sample.second <= to)
    }

    /// Resident memory: at the end of the baseline, the most under attack, at the end.
    fn memory(&self) -> (u64, u64, u64) {
        let (baseline, attack) = (self.end_of(Phase::Baseline), self.end_of(Phase::Attack));
        let last = |from: f64, to: f64| {
            self.samples_between(from, to)
                .last()
                .map_or(0, |sample| sample.resident)
        };
        let most = self
            .samples_between(baseline, attack)
            .map(|sample| sample.resident)
            .max()
            .unwrap_or(0);
        (last(0.0, baseline), most, last(attack, f64::INFINITY))
    }

    /// Bytes a second written to both logs while the attackers were there.
    fn log_rates(&self) -> (f64, f64) {
        let (from, to) = (self.end_of(Phase::Baseline), self.end_of(Phase::Attack));
        let mut samples = self.samples_between(from, to);
        let Some(first) = samples.next() else {
            return (0.0, 0.0);
        };
        let last = samples.last().unwrap_or(first);
        let seconds = (last.second - first.second).max(1.0);
        let rate = |first: u64, last: u64| last.saturating_sub(first) as f64 / seconds;
        (
            rate(first.log_bytes, last.log_bytes),
            rate(first.plugin_log_bytes, last.plugin_log_bytes),
        )
    }

    fn most_memory(&self) -> u64 {
        self.memory().0 + MEMORY_FIXED + MEMORY_VMS * self.budgets
    }

    /// Returns the same lane's report of the baseline, or `None` if it had no such phase.
    fn baseline_of(&self, lane: &LaneReport) -> Option<&LaneReport> {
        self.lanes
            .iter()
            .find(|other| other.lane == lane.lane && other.phase == Phase::Baseline)
    }

    pub(super) fn judge(&mut self) {
        let mut problems = Vec::new();
        for lane in &self.lanes {
            let place = format!("{}, {:?}", lane.lane, lane.phase);
            if lane.lane == CONTROL {
                continue;
            }
            if lane.requests == 0 && lane.phase != Phase::Loading {
                problems.push(format!("{place}: no requests, so nothing was shown"));
            }
            if lane.failed > 0 {
                problems.push(format!(
                    "{place}: {} of {} requests were not answered right",
                    lane.failed, lane.requests
                ));
            }
            let Some(baseline) = self.baseline_of(lane) else {
                problems.push(format!("{place}: no baseline"));
                continue;
            };
            if !matches!(lane.phase, Phase::Attack | Phase::After) {
                continue;
            }
            let most = MEDIAN_FACTOR * baseline.p50.max(MEDIAN_FLOOR_MS);
            if lane.p50 > most {
                problems.push(format!(
                    "{place}: p50 is {:.1} ms; at most {most:.1} are allowed, {MEDIAN_FACTOR} times the baseline's",
                    lane.p50
                ));
            }
            let most = baseline.p99 + TAIL_MS;
            if lane.p99 > most {
                problems.push(format!(
                    "{place}: p99 is {:.1} ms; at most {most:.1} are allowed, {TAIL_MS} ms above the baseline's",
                    lane.p99
                ));
            }
        }
        if self.closed > 0 {
            problems.push(format!(
                "{} of the other tenants' connections were closed",
                self.closed
            ));
        }
        let (baseline, most, last) = self.memory();
        let bound = self.most_memory();
        if most > bound {
            problems.push(format!(
                "memory rose to {} MiB under attack; at most {} are allowed",
                mib(most),
                mib(bound)
            ));
        }
        if last > baseline + MEMORY_LEFT {
            problems.push(format!(
                "memory is {} MiB after the attackers left, {} before they came; {} more are allowed",
                mib(last),
                mib(baseline),
                mib(MEMORY_LEFT)
            ));
        }
        let (log, plugin_log) = self.log_rates();
        let bound = (LOG_RATE * self.count.max(1)) as f64;
        for (name, rate) in [("Envoy's log", log), ("the plugins' own logs", plugin_log)] {
            if rate > bound {
                problems.push(format!(
                    "{name} grew by {:.0} KiB a second; at most {:.0} are allowed for {} attackers",
                    rate / 1024.0,
                    bound / 1024.0,
                    self.count
                ));
            }
        }
        let idle: Vec<&str> = self
            .attackers
            .iter()
            .filter(|attacker| {
                let is_answered = attacker.statuses.keys().any(|status| *status != 0);
                attacker.clients > 0 && !is_answered && attacker.failures.is_empty()
            })
            .map(|attacker| attacker.name.as_str())
            .collect();
        if !idle.is_empty() {
            problems.push(format!(
                "these attackers' clients got no answer, and no failure was counted, so they showed nothing: {}",
                idle.join(", ")
            ));
        }
        self.problems.append(&mut problems);
    }

    pub(super) fn json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// CPU time of Envoy in a phase, in cores.
    fn cores_used(&self, from: Phase, to: Phase) -> f64 {
        let samples: Vec<&ResourceSample> = self
            .samples_between(
                if from == to { 0.0 } else { self.end_of(from) },
                self.end_of(to),
            )
            .collect();
        let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
            return 0.0;
        };
        let seconds = last.second - first.second;
        if seconds > 0.0 {
            (last.cpu_seconds - first.cpu_seconds).max(0.0) / seconds
        } else {
            0.0
        }
    }

    /// The page.
    pub(super) fn page(&self) -> String {
        let held = if self.problems.is_empty() {
            "All bounds held."
        } else {
            "**Bounds were missed:**"
        };
        let build = if self.is_debug { ", a debug build" } else { "" };
        let mut page = format!(
            "# Soak: hostile plugins beside other tenants\n\nMade by `make soak-hostile`; the raw data is \
             [hostile.json](hostile.json).\n\nOutrider {}{build}, {} s, two workers on a machine of {} cores that \
             clients and upstreams share, {} hostile plugins at\nonce. {held}\n\n",
            self.outrider, self.seconds, self.cores, self.count
        );
        for problem in &self.problems {
            let _ = writeln!(page, "- {problem}");
        }
        for detail in &self.details {
            let _ = writeln!(page, "  - {detail}");
        }
        let _ = write!(
            page,
            "\n## Other tenants' requests\n\nLatency in milliseconds, from the moment at which a request was meant \
             to be sent. Bounds, by lane: every request answered right\nin every phase; under attack, and from {} s \
             after it, p50 at most {MEDIAN_FACTOR} times that of the baseline (or of {MEDIAN_FLOOR_MS} ms, \
             the\nclient's own resolution), and p99 at most {TAIL_MS} ms above that of the baseline.\n\n\
             | lane | phase | requests | failed | p50 | p90 | p99 | longest | p50 / baseline | p99 - baseline \
             |\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|\n",
            RECOVERY.as_secs()
        );
        for lane in &self.lanes {
            let phase = match lane.phase {
                Phase::Baseline => "baseline",
                Phase::Loading => "attackers are loaded",
                Phase::Attack => "attack",
                Phase::Recovery => "first 2 s without",
                Phase::After => "after",
            };
            let (ratio, rise) = self.baseline_of(lane).map_or((1.0, 0.0), |baseline| {
                (lane.p50 / baseline.p50.max(0.001), lane.p99 - baseline.p99)
            });
            let _ = writeln!(
                page,
                "| {} | {phase} | {} | {} | {:.1} | {:.1} | {:.1} | {:.1} | {ratio:.1} | {rise:+.1} |",
                lane.lane, lane.requests, lane.failed, lane.p50, lane.p90, lane.p99, lane.longest
            );
        }
        let (baseline, most, last) = self.memory();
        let (log, plugin_log) = self.log_rates();
        let _ = write!(
            page,
            "\n## What the gateway used\n\n| | baseline | attack | after | bound |\n|---|--:|--:|--:|---|\n\
             | resident memory, MiB | {} | {} at most | {} | {} under attack (three VMs of each attacker); {} more \
             than the baseline after |\n| CPU, cores | {:.2} | {:.2} | {:.2} | |\n\
             | Envoy's log, KiB a second | | {:.0} | | {} for each attacker |\n\
             | plugins' own logs, KiB a second | | {:.0} | | {} for each attacker |\n",
            mib(baseline),
            mib(most),
            mib(last),
            mib(self.most_memory()),
            mib(MEMORY_LEFT),
            self.cores_used(Phase::Baseline, Phase::Baseline),
            self.cores_used(Phase::Loading, Phase::Attack),
            self.cores_used(Phase::Recovery, Phase::After),
            log / 1024.0,
            LOG_RATE / 1024,
            plugin_log / 1024.0,
            LOG_RATE / 1024,
        );
        page.push_str(
            "\n## The attackers\n\nEach has its circuit off. Status 0 is a request that was not answered within 5 \
             s.\n\n| plugin | runtime | does | clients | requests | answers by status | failures by cause \
             |\n|---|---|---|--:|--:|---|---|\n",
        );
        for attacker in &self.attackers {
            let _ = writeln!(
                page,
                "| `{}` | {} | {} | {} | {} | {} | {} |",
                attacker.name,
                attacker.runtime,
                attacker.about,
                attacker.clients,
                attacker.requests,
                list(attacker.statuses.iter()),
                list(attacker.failures.iter()),
            );
        }
        page
    }
}

fn list<Key: std::fmt::Display>(
    counts: impl Iterator<Item = (Key, impl std::fmt::Display)>,
) -> String {
    let all: Vec<String> = counts
        .map(|(key, count)| format!("{key}: {count}"))
        .collect();
    if all.is_empty() {
        "none".to_owned()
    } else {
        all.join(", ")
    }
}

fn mib(bytes: u64) -> u64 {
    bytes / (1024 * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(began: Instant, latency: impl Fn(u64) -> u64, fails: bool) -> Seen {
        Seen {
            name: "lane",
            samples: (0..5000)
                .map(|number| Sample {
                    intended: began + Duration::from_millis(number * 10),
                    latency: Duration::from_millis(latency(number)),
                    answered: !(fails && number == 2000),
                })
                .collect(),
            closed: 0,
            details: Vec::new(),
        }
    }

    fn judged(latency: impl Fn(u64) -> u64, fails: bool, last: u64) -> Report {
        let began = Instant::now();
        let mut report = Report::new(Duration::from_secs(50), &[]);
        for (phase, end) in [
            (Phase::Baseline, 10),
            (Phase::Loading, 11),
            (Phase::Attack, 40),
            (Phase::Recovery, 42),
            (Phase::After, 50),
        ] {
            report.end_phase(phase, began, began + Duration::from_secs(end));
        }
        report.add_lane(began, lane(began, latency, fails));
        report.samples = (0..50)
            .map(|second| ResourceSample {
                second: f64::from(second),
                resident: if second > 40 { last } else { 100 << 20 },
                cpu_seconds: 0.0,
                log_bytes: 0,
                plugin_log_bytes: 0,
            })
            .collect();
        report.judge();
        report
    }

    #[test]
    fn run_within_the_bounds_has_no_problem() {
        // Slower under attack and shortly afterwards, but not by more than is allowed.
        let report = judged(
            |number| match number {
                1100..4000 if number % 50 == 0 => 60,
                1100..4000 => 6,
                4000..4200 => 500,
                _ => 2,
            },
            false,
            150 << 20,
        );
        assert_eq!(report.problems, [""; 0]);
        assert!(report.page().contains("All bounds held."));
    }

    #[test]
    fn each_bound_that_is_missed_is_named() {
        let has = |report: &Report, text: &str| {
            assert!(
                report.problems.iter().any(|problem| problem.contains(text)),
                "{:?}",
                report.problems
            );
        };
        let slow = judged(|number| if number > 2000 { 7 } else { 2 }, false, 100 << 20);
        has(&slow, "lane, Attack: p50 is 7.0 ms");
        has(&slow, "lane, After: p50 is 7.0 ms");
        let tail = judged(
            |number| {
                if number > 1100 && number % 50 == 0 {
                    90
                } else {
                    2
                }
            },
            false,
            100 << 20,
        );
        has(&tail, "lane, Attack: p99 is 90.0 ms");
        has(&judged(|_| 2, true, 100 << 20), "1 of 2900 requests");
        has(&judged(|_| 2, false, 250 << 20), "memory is 250 MiB");
    }
}
