//! Result of a run in numbers for people and scripts.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::outcome::{ErrorKind, Outcome, Tally, histogram_text};
use crate::schedule::Pacing;

/// Version of the JSON form.
pub const SCHEMA: u32 = 1;

/// Percentiles that are reported.
pub const PERCENTILES: [f64; 6] = [50.0, 75.0, 90.0, 99.0, 99.9, 99.99];

/// Result of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Version of this form: [`SCHEMA`].
    pub schema: u32,
    /// Pace of the requests.
    pub pacing: Pacing,
    /// All phases together.
    pub total: PhaseSummary,
    /// Each phase of a schedule with several.
    pub phases: Vec<PhaseSummary>,
    /// Seconds from the first send to the last response.
    pub seconds: f64,
    /// CPU microseconds of the generator for each request, without waiting by polling.
    pub generator_us_per_request: f64,
    /// Bytes that were sent.
    pub bytes_sent: u64,
    /// Bytes that were received.
    pub bytes_received: u64,
    /// Connections that were opened again.
    pub reconnects: u64,
    /// Whether the generator was the limit, so that the numbers are its own.
    pub generator_bound: bool,
    /// The limit in words.
    pub limit: String,
}

/// Result of one phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseSummary {
    /// Requests that were due.
    pub due: u64,
    /// Requests that were sent.
    pub sent: u64,
    /// Whole responses with an expected status.
    pub succeeded: u64,
    /// Requests that were sent more than 1 ms after their intended time.
    pub late: u64,
    /// Requests that were never sent.
    pub unsent: u64,
    /// Successes a second.
    pub rate: f64,
    /// Responses by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Failures by kind.
    pub errors: BTreeMap<ErrorKind, u64>,
    /// From the intended send time, in microseconds.
    pub latency_us: Distribution,
    /// From the actual send, in microseconds.
    pub service_us: Distribution,
    /// Lateness of the generator itself, in microseconds.
    pub schedule_error_us: Distribution,
}

/// Distribution of a time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// Number of values.
    pub count: u64,
    /// Smallest value.
    pub min: f64,
    /// Mean.
    pub mean: f64,
    /// Largest value.
    pub max: f64,
    /// Percentiles by name, for example `p99.9`.
    pub percentiles: BTreeMap<String, f64>,
    /// The histogram of nanoseconds, in HdrHistogram's V2 format and base64.
    pub histogram: String,
}

impl Distribution {
    /// The distribution of a histogram of nanoseconds.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        let microseconds = |nanoseconds: u64| nanoseconds as f64 / 1e3;
        Self {
            count: histogram.len(),
            min: microseconds(histogram.min()),
            mean: histogram.mean() / 1e3,
            max: microseconds(histogram.max()),
            percentiles: PERCENTILES
                .iter()
                .map(|percentile| {
                    let value = histogram.value_at_quantile(percentile / 100.0);
                    (format!("p{percentile}"), microseconds(value))
                })
                .collect(),
            histogram: histogram_text(histogram),
        }
    }

    /// A percentile in microseconds; 0 if it is not reported.
    pub fn percentile(&self, percentile: f64) -> f64 {
        self.percentiles
            .get(&format!("p{percentile}"))
            .copied()
            .unwrap_or_default()
    }
}

impl PhaseSummary {
    fn of(tally: &Tally, seconds: f64) -> Self {
        Self {
            due: tally.due,
            sent: tally.sent,
            succeeded: tally.succeeded,
            late: tally.late,
            unsent: tally.unsent,
            rate: if seconds > 0.0 {
                tally.succeeded as f64 / seconds
            } else {
                0.0
            },
            statuses: tally.statuses.clone(),
            errors: tally.errors.clone(),
            latency_us: Distribution::of(&tally.latency),
            service_us: Distribution::of(&tally.service),
            schedule_error_us: Distribution::of(&tally.schedule_error),
        }
    }
}

impl Summary {
    /// The result of a run that was paced so.
    pub fn of(outcome: &Outcome, pacing: &Pacing) -> Self {
        let total = outcome.total();
        let limit = outcome.limit();
        let phases = match pacing {
            Pacing::Open(schedule) if schedule.phases.len() > 1 => schedule
                .phases
                .iter()
                .zip(&outcome.phases)
                .filter(|(phase, _)| phase.is_measured)
                .map(|(phase, tally)| PhaseSummary::of(tally, phase.seconds))
                .collect(),
            _ => Vec::new(),
        };
        Self {
            schema: SCHEMA,
            pacing: pacing.clone(),
            seconds: outcome.seconds,
            generator_us_per_request: outcome.generator_busy as f64
                / 1e3
                / total.sent.max(1) as f64,
            bytes_sent: outcome.bytes_sent,
            bytes_received: outcome.bytes_received,
            reconnects: outcome.reconnects,
            generator_bound: limit.is_generator(),
            limit: limit.to_string(),
            total: PhaseSummary::of(&total, outcome.seconds),
            phases,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::outcome::read_histogram;

    #[test]
    fn summary_survives_json_with_its_histograms() {
        let mut tally = Tally::default();
        for microseconds in 1..=1000_u64 {
            tally.record_send(0, 0, 1);
            tally.record_response(200, true, microseconds * 1000, 1000);
        }
        let outcome = Outcome {
            phases: vec![tally],
            seconds: 2.0,
            ..Outcome::default()
        };
        let summary = Summary::of(&outcome, &Pacing::closed(Duration::from_secs(2)));
        let text = serde_json::to_string(&summary).unwrap();
        let read: Summary = serde_json::from_str(&text).unwrap();
        assert_eq!(read, summary);
        let latency = &read.total.latency_us;
        for (percentile, expected) in [(50.0, 500.0), (99.0, 990.0), (99.9, 999.0)] {
            let value = latency.percentile(percentile);
            assert!(
                (value / expected - 1.0).abs() < 0.002,
                "p{percentile}: {value}"
            );
        }
        let histogram = read_histogram(&latency.histogram).unwrap();
        assert_eq!((histogram.len(), histogram.min()), (1000, 1000));
        assert!((read.total.rate - 500.0).abs() < 1e-9);
        assert!(read_histogram("not base64!").is_none());
    }
}
