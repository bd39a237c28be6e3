//! A check of other load generators' output: names what cannot be trusted in it.
//!
//! It reads the text of wrk, hey, fortio and oha, the JSON of fortio and oha, and tables in Markdown as articles print
//! them. The rules know only what the text says: they never call a number wrong that may be right, and each says how to
//! measure it better.

mod json;
mod rules;
mod table;
mod text;

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// Load generators whose output is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tool {
    /// <https://github.com/wg/wrk>
    Wrk,
    /// <https://github.com/rakyll/hey>
    Hey,
    /// <https://github.com/fortio/fortio>
    Fortio,
    /// <https://github.com/hatoo/oha>
    Oha,
    /// A table of results; the generator is not known.
    Table,
}

/// One run as its output describes it. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolRun {
    /// The generator.
    pub tool: Tool,
    /// Name: the row of a table, or the number of the run.
    pub name: String,
    /// Connections or workers.
    pub connections: Option<f64>,
    /// Length that was asked for.
    pub asked_seconds: Option<f64>,
    /// Length that it took.
    pub seconds: Option<f64>,
    /// Requests a second that were asked for; `None`: as many as possible.
    pub asked_rate: Option<f64>,
    /// Requests a second.
    pub rate: Option<f64>,
    /// Requests.
    pub requests: Option<f64>,
    /// Shortest latency.
    pub min: Option<f64>,
    /// Mean latency.
    pub mean: Option<f64>,
    /// Longest latency.
    pub max: Option<f64>,
    /// Percentiles with their latencies, ascending.
    pub percentiles: Vec<(f64, f64)>,
    /// Width of the histogram's first bucket, where the tool interpolates within it.
    pub resolution: Option<f64>,
    /// Requests that failed: connections, reads, writes.
    pub failed: f64,
    /// Requests that timed out.
    pub timeouts: f64,
    /// Responses that were no success.
    pub unsuccessful: f64,
    /// Responses by status.
    pub statuses: BTreeMap<String, f64>,
    /// Whether latencies count from the intended send time; `None`: not said.
    pub is_corrected: Option<bool>,
}

/// Rules of the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Percentiles below the resolution are interpolated, not measured.
    ResolutionArtefact,
    /// Mean and percentiles cannot both be true.
    MeanAgainstPercentiles,
    /// Rate, connections and mean latency are one number printed twice.
    LittlesLaw,
    /// Rate, connections and mean latency contradict each other.
    LittlesLawContradiction,
    /// The generator may have been the limit.
    ToolBound,
    /// Latencies end at the tool's time limit.
    TruncatedTimeouts,
    /// Latencies count from the actual send: stalls are left out.
    CoordinatedOmission,
    /// Failed requests are among the numbers.
    Errors,
    /// A single run has no interval.
    SingleRun,
    /// The run took longer than asked for.
    Overrun,
    /// The run was too short.
    TooShort,
    /// The rate that was asked for was not reached.
    RateNotReached,
    /// Only a mean is given.
    MeanOnly,
}

impl Rule {
    /// The name of the rule, as JSON has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::ResolutionArtefact => "resolution-artefact",
            Self::MeanAgainstPercentiles => "mean-against-percentiles",
            Self::LittlesLaw => "littles-law",
            Self::LittlesLawContradiction => "littles-law-contradiction",
            Self::ToolBound => "tool-bound",
            Self::TruncatedTimeouts => "truncated-timeouts",
            Self::CoordinatedOmission => "coordinated-omission",
            Self::Errors => "errors",
            Self::SingleRun => "single-run",
            Self::Overrun => "overrun",
            Self::TooShort => "too-short",
            Self::RateNotReached => "rate-not-reached",
            Self::MeanOnly => "mean-only",
        }
    }
}

/// How far a finding reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// The numbers that it names must not be used.
    Void,
    /// They say less than they seem to.
    Doubtful,
    /// Something to know when reading them.
    Note,
}

/// Something that cannot be trusted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Rule.
    pub rule: Rule,
    /// How far it reaches.
    pub severity: Severity,
    /// Names of the runs that it is about.
    pub runs: Vec<String>,
    /// What is wrong, with the numbers.
    pub problem: String,
    /// How to measure it right.
    pub advice: String,
}

/// The text is no output that is known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "no output of wrk, hey, fortio or oha is in it, and no Markdown table with a latency column; \
     give the text that the tool printed, or the JSON of fortio or oha"
)]
pub struct UnknownOutput;

impl ToolRun {
    fn new(tool: Tool, name: String) -> Self {
        Self {
            tool,
            name,
            connections: None,
            asked_seconds: None,
            seconds: None,
            asked_rate: None,
            rate: None,
            requests: None,
            min: None,
            mean: None,
            max: None,
            percentiles: Vec::new(),
            resolution: None,
            failed: 0.0,
            timeouts: 0.0,
            unsuccessful: 0.0,
            statuses: BTreeMap::new(),
            is_corrected: None,
        }
    }

    fn sort(mut self) -> Self {
        self.percentiles
            .sort_by(|one, other| one.0.total_cmp(&other.0));
        self
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Void => "void",
            Self::Doubtful => "doubtful",
            Self::Note => "note",
        })
    }
}

/// Reads the runs of an output.
///
/// # Errors
///
/// No run is found in it.
pub fn read_output(text: &str) -> Result<Vec<ToolRun>, UnknownOutput> {
    let mut runs = json::read(text);
    if runs.is_empty() {
        runs = text::read(text);
        runs.extend(table::read(text));
    }
    let runs: Vec<ToolRun> = runs.into_iter().map(ToolRun::sort).collect();
    if runs.is_empty() {
        Err(UnknownOutput)
    } else {
        Ok(runs)
    }
}

/// Checks runs. The findings that void numbers come first.
pub fn lint(runs: &[ToolRun]) -> Vec<Finding> {
    let mut findings = rules::check(runs);
    findings.sort_by_key(|finding| (finding.severity, finding.rule));
    findings
}
