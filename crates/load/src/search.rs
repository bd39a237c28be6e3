//! Search of the highest rate that keeps a latency bound: doubled until it breaks, then bisected.
//!
//! A rate holds if two of at most three slices hold: one slice may be disturbed by something else. The rate that was
//! found is confirmed by a longer run, and lowered while it fails.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::error::LoadError;
use crate::outcome::Outcome;

/// Share of the due requests that have to be sent within 1 ms of their time, or the latency bound if that is longer.
const SENT: f64 = 0.99;
/// Attempts to confirm a rate, each 5 % lower.
const CONFIRMATIONS: usize = 5;

/// What is searched, and how.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SearchSettings {
    /// First rate, in requests a second.
    pub start: f64,
    /// Highest rate that is tried.
    pub highest: f64,
    /// Percentile that the bound is for, for example 99.
    pub percentile: f64,
    /// Longest latency of that percentile, from the intended send time.
    pub bound: Duration,
    /// Length of a slice.
    pub slice: Duration,
    /// Length of the run that confirms the result.
    pub confirm: Duration,
    /// Precision as a share of the rate: 0.02 ends the search at 2 %.
    pub precision: f64,
}

/// Result of one slice.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "result", content = "reason")]
pub enum Trial {
    /// The bound was kept.
    Holds,
    /// It was not, for this reason.
    Breaks(String),
    /// The generator was the limit, so nothing is known of the target.
    GeneratorBound(String),
}

/// One rate that was tried.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SearchStep {
    /// Requests a second.
    pub rate: f64,
    /// Results of its slices.
    pub trials: Vec<Trial>,
    /// Whether the rate holds.
    pub holds: bool,
}

/// Why a search ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SearchEnd {
    /// The highest rate was found, and a longer run confirmed it.
    Found,
    /// The first rate breaks already.
    StartBreaks,
    /// The highest rate that is tried still holds.
    HighestHolds,
    /// The generator was the limit at the next rate; the target may do more.
    GeneratorBound,
    /// Longer runs did not confirm any rate that slices held.
    NotConfirmed,
}

/// Result of a search.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SearchResult {
    /// The rate. `None` if no rate holds.
    pub rate: Option<f64>,
    /// Why the search ended.
    pub end: SearchEnd,
    /// Every rate that was tried, in order.
    pub steps: Vec<SearchStep>,
}

impl fmt::Display for SearchEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Found => "confirmed by a longer run",
            Self::StartBreaks => {
                "the first rate breaks the bound already: lower --start, or raise the bound"
            }
            Self::HighestHolds => "the highest rate that is tried still holds: raise --highest",
            Self::GeneratorBound => {
                "the generator was the limit at the next rate: the target may do more"
            }
            Self::NotConfirmed => {
                "longer runs did not confirm it: the target, or the machine, is not steady"
            }
        })
    }
}

impl SearchSettings {
    /// Judges a run at a rate.
    pub fn judge(&self, outcome: &Outcome) -> Trial {
        let total = outcome.total();
        let limit = outcome.limit();
        if limit.is_generator() {
            return Trial::GeneratorBound(limit.to_string());
        }
        if total.failed() > 0 {
            return Trial::Breaks(format!(
                "{} of {} requests failed",
                total.failed(),
                total.due
            ));
        }
        let latency =
            Duration::from_nanos(total.latency.value_at_quantile(self.percentile / 100.0));
        if latency > self.bound {
            return Trial::Breaks(format!(
                "p{} was {:.2} ms",
                self.percentile,
                latency.as_secs_f64() * 1e3
            ));
        }
        let sent = total.sent as f64 / total.due.max(1) as f64;
        if sent < SENT {
            return Trial::Breaks(format!(
                "{:.1} % of the due requests were sent",
                sent * 100.0
            ));
        }
        Trial::Holds
    }
}

/// Searches the highest rate. `run` loads the target at a rate for a time; `report` is told each rate that was tried.
///
/// # Errors
///
/// The load cannot be run.
pub fn search(
    settings: &SearchSettings,
    run: &mut dyn FnMut(f64, Duration) -> Result<Trial, LoadError>,
    report: &mut dyn FnMut(&SearchStep),
) -> Result<SearchResult, LoadError> {
    let mut search = Search {
        settings,
        run,
        report,
        steps: Vec::new(),
    };
    let (rate, end) = search.find()?;
    Ok(SearchResult {
        rate,
        end,
        steps: search.steps,
    })
}

struct Search<'search> {
    settings: &'search SearchSettings,
    run: &'search mut dyn FnMut(f64, Duration) -> Result<Trial, LoadError>,
    report: &'search mut dyn FnMut(&SearchStep),
    steps: Vec<SearchStep>,
}

/// What is known of a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Holds,
    Breaks,
    GeneratorBound,
}

impl Search<'_> {
    fn find(&mut self) -> Result<(Option<f64>, SearchEnd), LoadError> {
        let SearchSettings {
            start,
            highest,
            precision,
            ..
        } = *self.settings;
        let mut good = None;
        let mut rate = start.min(highest);
        let mut is_generator = false;
        let mut bad = loop {
            match self.try_rate(rate)? {
                Known::Holds => good = Some(rate),
                Known::Breaks => break rate,
                Known::GeneratorBound => {
                    is_generator = true;
                    break rate;
                }
            }
            if rate >= highest {
                return self.confirm(rate, SearchEnd::HighestHolds);
            }
            rate = (rate * 2.0).min(highest);
        };
        let Some(mut good) = good else {
            let end = if is_generator {
                SearchEnd::GeneratorBound
            } else {
                SearchEnd::StartBreaks
            };
            return Ok((None, end));
        };
        while bad - good > good * precision {
            // A rounded rate is one that people can ask for again.
            let middle = f64::midpoint(good, bad).round();
            if middle <= good || middle >= bad {
                break;
            }
            match self.try_rate(middle)? {
                Known::Holds => good = middle,
                known => {
                    bad = middle;
                    is_generator = known == Known::GeneratorBound;
                }
            }
        }
        let end = if is_generator {
            SearchEnd::GeneratorBound
        } else {
            SearchEnd::Found
        };
        self.confirm(good, end)
    }

    /// Tries a rate: two slices of at most three decide.
    fn try_rate(&mut self, rate: f64) -> Result<Known, LoadError> {
        let mut trials = Vec::new();
        let known = loop {
            trials.push((self.run)(rate, self.settings.slice)?);
            let count =
                |wanted: fn(&Trial) -> bool| trials.iter().filter(|trial| wanted(trial)).count();
            if count(|trial| matches!(trial, Trial::Holds)) >= 2 {
                break Known::Holds;
            }
            if count(|trial| matches!(trial, Trial::Breaks(_))) >= 2 {
                break Known::Breaks;
            }
            if count(|trial| matches!(trial, Trial::GeneratorBound(_))) >= 2 || trials.len() >= 3 {
                break Known::GeneratorBound;
            }
        };
        self.note(rate, trials, known == Known::Holds);
        Ok(known)
    }

    /// Confirms a rate by a longer run, and lowers it while that fails.
    fn confirm(
        &mut self,
        rate: f64,
        end: SearchEnd,
    ) -> Result<(Option<f64>, SearchEnd), LoadError> {
        let mut rate = rate;
        for _ in 0..CONFIRMATIONS {
            let trial = (self.run)(rate, self.settings.confirm)?;
            let holds = trial == Trial::Holds;
            self.note(rate, vec![trial], holds);
            if holds {
                return Ok((Some(rate), end));
            }
            rate = (rate * 0.95).round();
        }
        Ok((None, SearchEnd::NotConfirmed))
    }

    fn note(&mut self, rate: f64, trials: Vec<Trial>, holds: bool) {
        let step = SearchStep {
            rate,
            trials,
            holds,
        };
        (self.report)(&step);
        self.steps.push(step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: SearchSettings = SearchSettings {
        start: 1000.0,
        highest: 1_000_000.0,
        percentile: 99.0,
        bound: Duration::from_millis(10),
        slice: Duration::from_secs(1),
        confirm: Duration::from_secs(5),
        precision: 0.01,
    };

    fn breaks() -> Trial {
        Trial::Breaks("p99 was 20 ms".to_owned())
    }

    fn find(
        settings: &SearchSettings,
        mut trial: impl FnMut(f64, Duration) -> Trial,
    ) -> SearchResult {
        search(
            settings,
            &mut |rate, length| Ok(trial(rate, length)),
            &mut |_| {},
        )
        .unwrap()
    }

    #[test]
    fn knee_is_found_to_the_precision() {
        for knee in [1003.0, 7_777.0, 64_000.0, 123_456.0] {
            let result = find(&SETTINGS, |rate, _| {
                if rate <= knee { Trial::Holds } else { breaks() }
            });
            let rate = result.rate.unwrap();
            assert!(rate <= knee && rate >= knee * 0.98, "{knee}: {rate}");
            assert_eq!(result.end, SearchEnd::Found);
            assert!(result.steps.len() < 25, "{}", result.steps.len());
        }
    }

    #[test]
    fn single_disturbed_slice_changes_nothing() {
        let mut number = 0;
        let result = find(&SETTINGS, |rate, length| {
            number += 1;
            let is_disturbed = number % 3 == 1 && length == SETTINGS.slice;
            if rate <= 10_000.0 && !is_disturbed {
                Trial::Holds
            } else {
                breaks()
            }
        });
        let rate = result.rate.unwrap();
        assert!((9_800.0..=10_000.0).contains(&rate), "{rate}");
    }

    #[test]
    fn ends_are_told_apart() {
        let end = |trial: fn(f64, Duration) -> Trial| {
            let result = find(&SETTINGS, trial);
            (result.end, result.rate)
        };
        assert_eq!(end(|_, _| breaks()), (SearchEnd::StartBreaks, None));
        assert_eq!(
            end(|_, _| Trial::Holds),
            (SearchEnd::HighestHolds, Some(1_000_000.0))
        );
        let limited = |rate: f64, _| {
            if rate < 5000.0 {
                Trial::Holds
            } else {
                Trial::GeneratorBound("busy".to_owned())
            }
        };
        let (ended, rate) = end(limited);
        assert_eq!(ended, SearchEnd::GeneratorBound);
        assert!((4900.0..5000.0).contains(&rate.unwrap()));
        // Slices hold what longer runs do not.
        let unsteady = |rate: f64, length: Duration| {
            if rate < 5000.0 && length < Duration::from_secs(5) {
                Trial::Holds
            } else {
                breaks()
            }
        };
        assert_eq!(end(unsteady), (SearchEnd::NotConfirmed, None));
    }

    #[test]
    fn outcome_is_judged_by_bound_errors_and_generator() {
        let outcome = |latency: u64, error: bool, busy: u64| {
            let mut tally = crate::outcome::Tally::default();
            for _ in 0..1000 {
                tally.due += 1;
                tally.record_send(0, 0, 1);
                tally.record_response(200, true, latency, latency);
            }
            if error {
                tally.record_error(crate::outcome::ErrorKind::Closed);
            }
            Outcome {
                phases: vec![tally],
                elapsed: 1000,
                busiest_thread: busy,
                ..Outcome::default()
            }
        };
        assert_eq!(
            SETTINGS.judge(&outcome(9_000_000, false, 100)),
            Trial::Holds
        );
        assert!(
            matches!(SETTINGS.judge(&outcome(11_000_000, false, 100)), Trial::Breaks(reason) if reason.starts_with("p99 was 11"))
        );
        assert!(matches!(
            SETTINGS.judge(&outcome(1, true, 100)),
            Trial::Breaks(_)
        ));
        assert!(matches!(
            SETTINGS.judge(&outcome(1, false, 990)),
            Trial::GeneratorBound(_)
        ));
    }
}
