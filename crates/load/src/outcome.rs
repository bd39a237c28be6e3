//! Results of a run: histograms, statuses, errors, and how well the schedule was kept.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2Serializer};
use serde::{Deserialize, Serialize};

use crate::limit::Limit;

/// A request is late if it was sent this long after its intended time: 1 ms, in nanoseconds.
pub const LATE: u64 = 1_000_000;

/// Longest latency that a histogram holds: ten minutes, in nanoseconds. Longer ones count as this.
const LONGEST: u64 = 600_000_000_000;

/// Returns an empty histogram of nanoseconds with three significant digits: each value is exact to 0.1 %.
pub fn new_histogram() -> Histogram<u64> {
    #[expect(clippy::expect_used, reason = "the bounds are constants, and valid")]
    Histogram::new_with_bounds(1, LONGEST, 3).expect("valid bounds")
}

/// Returns a histogram as text: HdrHistogram's V2 format in base64.
pub fn histogram_text(histogram: &Histogram<u64>) -> String {
    let mut bytes = Vec::new();
    // A vector takes any number of bytes.
    let _ = V2Serializer::new().serialize(histogram, &mut bytes);
    BASE64_STANDARD.encode(bytes)
}

/// Reads what [`histogram_text`] returned. `None` if the text is no histogram.
pub fn read_histogram(text: &str) -> Option<Histogram<u64>> {
    let bytes = BASE64_STANDARD.decode(text).ok()?;
    Deserializer::new().deserialize(&mut bytes.as_slice()).ok()
}

/// Kinds of failed requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// A connection could not be opened again.
    Connect,
    /// The connection ended before the response did.
    Closed,
    /// No whole response within the time limit.
    Timeout,
    /// The bytes were no HTTP response.
    Malformed,
    /// HTTP/2 reset the stream.
    Reset,
    /// The status was not an expected one.
    Status,
    /// `grpc-status` was not 0, or missing.
    GrpcStatus,
}

impl ErrorKind {
    /// A description for people.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Connect => "connection not opened",
            Self::Closed => "connection closed before the response ended",
            Self::Timeout => "no whole response within the time limit",
            Self::Malformed => "not an HTTP response",
            Self::Reset => "stream reset",
            Self::Status => "unexpected status",
            Self::GrpcStatus => "grpc-status not 0",
        }
    }
}

/// Counts and histograms of one phase.
#[derive(Clone)]
pub struct Tally {
    /// Requests that were due (open loop) or sent (closed loop).
    pub due: u64,
    /// Requests that were sent.
    pub sent: u64,
    /// Whole responses with an expected status.
    pub succeeded: u64,
    /// Nanoseconds from the intended send time to the end of the response, of successes, timeouts, and unsent requests
    /// (at the time of giving up, a lower bound: a request that is left out would make the target look better).
    pub latency: Histogram<u64>,
    /// Nanoseconds from the actual send to the end of the response, of successes.
    pub service: Histogram<u64>,
    /// Nanoseconds by which the generator itself was late: from the intended time, or from the time at which a
    /// connection became free, to the send.
    pub schedule_error: Histogram<u64>,
    /// Requests sent more than [`LATE`] after their intended time, for whatever reason.
    pub late: u64,
    /// Requests that were never sent.
    pub unsent: u64,
    /// Responses by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Failures by kind.
    pub errors: BTreeMap<ErrorKind, u64>,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            due: 0,
            sent: 0,
            succeeded: 0,
            latency: new_histogram(),
            service: new_histogram(),
            schedule_error: new_histogram(),
            late: 0,
            unsent: 0,
            statuses: BTreeMap::new(),
            errors: BTreeMap::new(),
        }
    }
}

impl fmt::Debug for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A histogram prints tens of thousands of buckets.
        formatter
            .debug_struct("Tally")
            .field("due", &self.due)
            .field("sent", &self.sent)
            .field("succeeded", &self.succeeded)
            .field("late", &self.late)
            .field("unsent", &self.unsent)
            .field("statuses", &self.statuses)
            .field("errors", &self.errors)
            .finish_non_exhaustive()
    }
}

impl Tally {
    /// Number of failures of all kinds.
    pub fn failed(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Adds another tally.
    pub fn add(&mut self, other: &Self) {
        self.due += other.due;
        self.sent += other.sent;
        self.succeeded += other.succeeded;
        self.late += other.late;
        self.unsent += other.unsent;
        for (sum, part) in [
            (&mut self.latency, &other.latency),
            (&mut self.service, &other.service),
            (&mut self.schedule_error, &other.schedule_error),
        ] {
            // All have the same bounds.
            let _ = sum.add(part);
        }
        for (status, count) in &other.statuses {
            *self.statuses.entry(*status).or_default() += count;
        }
        for (kind, count) in &other.errors {
            *self.errors.entry(*kind).or_default() += count;
        }
    }

    /// Records the send of a request. `ready` is the time from which only the generator kept it from being sent.
    pub(crate) fn record_send(&mut self, intended: u64, ready: u64, now: u64) {
        self.sent += 1;
        self.schedule_error
            .saturating_record(now.saturating_sub(ready.max(intended)).max(1));
        if now.saturating_sub(intended) > LATE {
            self.late += 1;
        }
    }

    /// Records a response. Its latencies count if the status was expected.
    pub(crate) fn record_response(
        &mut self,
        status: u16,
        is_expected: bool,
        latency: u64,
        service: u64,
    ) {
        *self.statuses.entry(status).or_default() += 1;
        if is_expected {
            self.succeeded += 1;
            self.latency.saturating_record(latency.max(1));
            self.service.saturating_record(service.max(1));
        } else {
            self.record_error(ErrorKind::Status);
        }
    }

    /// Records a failure.
    pub(crate) fn record_error(&mut self, kind: ErrorKind) {
        *self.errors.entry(kind).or_default() += 1;
    }

    /// Records a timeout after so many nanoseconds.
    pub(crate) fn record_timeout(&mut self, latency: u64) {
        self.record_error(ErrorKind::Timeout);
        self.latency.saturating_record(latency.max(1));
    }

    /// Records a request that was given up before it was sent.
    pub(crate) fn record_unsent(&mut self, latency: u64) {
        self.unsent += 1;
        self.latency.saturating_record(latency.max(1));
    }
}

/// Result of a run.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// A tally for each phase of the schedule; one for a closed loop. Those of a warm-up are empty.
    pub phases: Vec<Tally>,
    /// Seconds from the first send of a measured phase to its last response.
    pub seconds: f64,
    /// CPU time of the generator's threads in nanoseconds, without waiting by spinning.
    pub generator_busy: u64,
    /// CPU time of the generator's threads in nanoseconds.
    pub generator_cpu: u64,
    /// Nanoseconds that the busiest thread was busy for.
    pub busiest_thread: u64,
    /// Length of the whole run in nanoseconds.
    pub elapsed: u64,
    /// Bytes that were sent.
    pub bytes_sent: u64,
    /// Bytes that were received.
    pub bytes_received: u64,
    /// Connections that were opened again.
    pub reconnects: u64,
}

impl Outcome {
    /// All phases together.
    pub fn total(&self) -> Tally {
        let mut total = Tally::default();
        for phase in &self.phases {
            total.add(phase);
        }
        total
    }

    /// Adds the result of another thread of the same run.
    pub(crate) fn add(&mut self, other: &Self) {
        while self.phases.len() < other.phases.len() {
            self.phases.push(Tally::default());
        }
        for (sum, part) in self.phases.iter_mut().zip(&other.phases) {
            sum.add(part);
        }
        self.seconds = self.seconds.max(other.seconds);
        self.generator_busy += other.generator_busy;
        self.generator_cpu += other.generator_cpu;
        self.busiest_thread = self.busiest_thread.max(other.busiest_thread);
        self.elapsed = self.elapsed.max(other.elapsed);
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        self.reconnects += other.reconnects;
    }

    /// What the run was limited by.
    pub fn limit(&self) -> Limit {
        Limit::of(self)
    }
}
