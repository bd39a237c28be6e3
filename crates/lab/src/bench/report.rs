//! What a run of the benchmark came to: the raw file that is kept, and what is computed from it.
//!
//! The page is made of this and of nothing else, so that whoever has the file has the page.

use serde::{Deserialize, Serialize};

use super::mechanism::{Family, Mechanism, Target};
use super::profile::PerRequest;
use super::variant::{BASELINE, TWIN};
use super::workload::Shape;

/// Everything.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Of this file; 1.
    pub format: u32,
    /// What was compared.
    #[serde(default)]
    pub family: Family,
    /// Where and with what.
    pub environment: Environment,
    /// How many comparisons showed, before, that the mechanisms do the same work.
    pub compared: usize,
    /// Counts of instructions.
    pub instructions: Instructions,
    /// CPU time, when it was asked for.
    pub time: Option<Times>,
    /// Memory, when it was asked for.
    pub memory: Option<Memory>,
    /// How long starts take, when it was asked for; of Wasm plugins only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Ready>,
}

/// How long Envoy takes from its start to its first answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ready {
    /// How large the plugin's module is.
    pub module_bytes: u64,
    /// With each mechanism.
    pub starts: Vec<Start>,
}

/// Starts of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// Who runs the plugin; nobody: there is none.
    pub mechanism: Option<Mechanism>,
    /// Of each round.
    pub milliseconds: Vec<f64>,
}

impl Ready {
    /// How long the quickest start takes, and how much of it is beyond the quickest without a plugin.
    pub(crate) fn least(&self, mechanism: Option<Mechanism>) -> Option<(f64, f64)> {
        let least = |mechanism| {
            let start = self.starts.iter().find(|one| one.mechanism == mechanism)?;
            start.milliseconds.iter().copied().reduce(f64::min)
        };
        let took = least(mechanism)?;
        Some((took, took - least(None)?))
    }
}

/// Where and with what it was run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// When, in UTC, to the minute.
    pub date: String,
    /// What Envoy says of its version.
    pub envoy: String,
    /// The commit that was checked out, and whether files differed from it.
    pub commit: String,
    /// SHA-256 of Outrider's module.
    pub module: String,
    /// SHA-256 of the native module.
    pub native_module: String,
    /// The processor.
    pub processor: String,
    /// How many of them the system shows.
    pub processors: usize,
    /// The kernel's release.
    pub kernel: String,
    /// What valgrind says of its version.
    pub valgrind: String,
}

/// The counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Instructions {
    /// How many requests the shorter and the longer runs had.
    pub requests: [u64; 2],
    /// Each variant.
    pub counted: Vec<Counted>,
}

/// One variant's counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// The workload's name, or the baseline's.
    pub workload: String,
    /// Who did it; nobody in a baseline.
    pub mechanism: Option<Mechanism>,
    /// Of the requests.
    pub shape: Shape,
    /// The totals, as callgrind says them, of the shorter and the longer run.
    pub totals: [u64; 2],
    /// Their difference, for each request.
    pub per_request: PerRequest,
}

impl Instructions {
    /// One variant's counts.
    pub(crate) fn find(&self, workload: &str, mechanism: Mechanism) -> Option<&Counted> {
        self.counted
            .iter()
            .find(|counted| counted.workload == workload && counted.mechanism == Some(mechanism))
    }

    fn baseline(&self, name: &str, shape: Shape) -> Option<f64> {
        self.baseline_counts(name, shape)
            .map(|counted| counted.per_request.instructions)
    }

    fn baseline_counts(&self, name: &str, shape: Shape) -> Option<&Counted> {
        self.counted.iter().find(|counted| {
            counted.workload == name && counted.mechanism.is_none() && counted.shape == shape
        })
    }

    /// What a request without any filter takes: the mean of the twins.
    pub(crate) fn base(&self, shape: Shape) -> Option<f64> {
        Some(
            self.baseline(BASELINE, shape)?
                .midpoint(self.baseline(TWIN, shape)?),
        )
    }

    /// By what the twins differ.
    pub(crate) fn noise(&self, shape: Shape) -> Option<f64> {
        Some((self.baseline(BASELINE, shape)? - self.baseline(TWIN, shape)?).abs())
    }

    /// What a variant adds to the baseline of its shape.
    pub(crate) fn added(&self, workload: &str, mechanism: Mechanism) -> Option<f64> {
        let counted = self.find(workload, mechanism)?;
        Some(counted.per_request.instructions - self.base(counted.shape)?)
    }

    /// What a variant adds, by whose code it is.
    pub(crate) fn added_part(&self, counted: &Counted, part: super::profile::Part) -> Option<f64> {
        let of = |counted: &Counted| counted.per_request.parts.get(&part).copied().unwrap_or(0.0);
        let base = of(self.baseline_counts(BASELINE, counted.shape)?)
            .midpoint(of(self.baseline_counts(TWIN, counted.shape)?));
        Some(of(counted) - base)
    }

    /// How many times as much one mechanism adds as another does.
    pub(crate) fn ratio(&self, workload: &str, of: Mechanism, to: Mechanism) -> Option<f64> {
        Some(self.added(workload, of)? / self.added(workload, to)?)
    }

    /// Each target, with what it came to.
    pub(crate) fn judged(&self, family: Family) -> Vec<Judged> {
        let targets = family.targets().into_iter();
        targets
            .filter_map(|target| {
                let ratio = self.ratio(target.workload, target.of, target.compared_with)?;
                Some(Judged { target, ratio })
            })
            .collect()
    }
}

/// A target and what it came to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Judged {
    pub(crate) target: Target,
    pub(crate) ratio: f64,
}

impl Judged {
    pub(crate) fn is_met(self) -> bool {
        self.ratio <= self.target.limit
    }
}

/// CPU time of Envoy for each request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// How many connections were busy at once.
    pub connections: usize,
    /// How long one variant was under load before the next one's turn, in milliseconds.
    pub slice_ms: u64,
    /// Each variant.
    pub timed: Vec<Timed>,
}

/// One variant's CPU time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    /// The workload's name, or the baseline's.
    pub workload: String,
    /// Who did it; nobody in a baseline.
    pub mechanism: Option<Mechanism>,
    /// Of the requests.
    pub shape: Shape,
    /// CPU microseconds for each request, by round.
    pub microseconds: Vec<f64>,
}

impl Times {
    /// The median of a variant, and the median of what it took more than the baseline in the same
    /// round.
    pub(crate) fn medians(&self, timed: &Timed) -> Option<(f64, f64)> {
        let base = self.timed.iter().find(|other| {
            other.workload == BASELINE && other.mechanism.is_none() && other.shape == timed.shape
        })?;
        let added: Vec<_> = timed
            .microseconds
            .iter()
            .zip(&base.microseconds)
            .map(|(with, without)| with - without)
            .collect();
        Some((median(&timed.microseconds)?, median(&added)?))
    }
}

/// The middle one; of an even number, between the two in the middle.
pub(crate) fn median(numbers: &[f64]) -> Option<f64> {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let above = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(above);
    }
    let below = *sorted.get(sorted.len() / 2 - 1)?;
    Some(above.midpoint(below))
}

/// Anonymous memory of Envoy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// How many plugins, or filters, the runs with many of them had beyond one.
    pub more_plugins: usize,
    /// How many routes the runs with routes had.
    pub routes: usize,
    /// Each run.
    pub measured: Vec<Measured>,
}

/// What an Envoy held in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Held {
    /// Nothing but the router, or one plugin.
    One,
    /// One plugin and many more.
    Many,
    /// As `One`, and many routes, with configuration of their own where there is a plugin.
    Routes,
    /// Coraza, with its core rule set.
    Firewall,
}

/// One run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// Whose plugins; nobody's in a baseline.
    pub mechanism: Option<Mechanism>,
    /// What was held.
    pub held: Held,
    /// Worker threads.
    pub workers: u32,
    /// What it had of anonymous memory under no load, after some, in KiB.
    pub kib: u64,
}

impl Memory {
    pub(crate) fn kib(
        &self,
        mechanism: Option<Mechanism>,
        held: Held,
        workers: u32,
    ) -> Option<f64> {
        self.measured
            .iter()
            .find(|run| run.mechanism == mechanism && run.held == held && run.workers == workers)
            .map(|run| run.kib as f64)
    }

    /// What one more plugin takes.
    pub(crate) fn plugin(&self, mechanism: Mechanism, workers: u32) -> Option<f64> {
        let mechanism = Some(mechanism);
        let more =
            self.kib(mechanism, Held::Many, workers)? - self.kib(mechanism, Held::One, workers)?;
        Some(more / self.more_plugins as f64)
    }

    /// What one more plugin takes on one more worker: its VM there.
    pub(crate) fn vm(&self, mechanism: Mechanism) -> Option<f64> {
        Some(self.plugin(mechanism, 2)? - self.plugin(mechanism, 1)?)
    }

    /// What one more worker takes, with one plugin, beyond what it takes with none.
    pub(crate) fn worker(&self, mechanism: Mechanism) -> Option<f64> {
        let more = |mechanism| {
            Some(self.kib(mechanism, Held::One, 2)? - self.kib(mechanism, Held::One, 1)?)
        };
        Some(more(Some(mechanism))? - more(None)?)
    }

    /// What routes with configuration take beyond the same routes without.
    pub(crate) fn thousand_routes(&self, mechanism: Mechanism, workers: u32) -> Option<f64> {
        let more = |mechanism| {
            Some(
                self.kib(mechanism, Held::Routes, workers)?
                    - self.kib(mechanism, Held::One, workers)?,
            )
        };
        Some((more(Some(mechanism))? - more(None)?) * 1000.0 / self.routes as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}
