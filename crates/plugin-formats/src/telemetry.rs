//! Telemetry as the module reads it: sinks and access logs in the filter's document, and the access logs in force in a
//! route's.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Size of a worker's ring where the document has none, in bytes.
pub const DEFAULT_RING: u32 = 1024 * 1024;
/// Longest value of one field where the document has none, in bytes.
pub const DEFAULT_VALUE_LIMIT: u32 = 4096;
/// How long records are written out at a stop where the document says nothing, in milliseconds.
pub const DEFAULT_FLUSH: u32 = 2_000;
/// How long a ring may be over half full before the exporter leaves `SCHED_IDLE`, in milliseconds.
pub const DEFAULT_STARVATION: u32 = 1_000;

/// Telemetry of the gateway: where records go, and the access logs of its own scope.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Telemetry {
    /// Bytes of the ring that each worker has for its records; absent: 1 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ring: Option<u32>,
    /// How the exporter's thread is scheduled.
    #[serde(default, skip_serializing_if = "Scheduling::is_default")]
    pub scheduling: Scheduling,
    /// With `idle`: how long a ring may be over half full, in milliseconds, before a thread of normal priority takes the
    /// work over; absent: 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starvation_ms: Option<u32>,
    /// How long a stop may wait for records to be written out, in milliseconds; absent: 2000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flush_ms: Option<u32>,
    /// Where records go, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sinks: BTreeMap<String, Sink>,
    /// The access logs of the gateway's scope.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub access_logs: Vec<AccessLog>,
}

/// How the exporter's thread is scheduled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scheduling {
    /// `SCHED_IDLE`: it runs where no other thread wants the CPU, and a thread of normal priority takes over when it gets
    /// none for too long.
    #[default]
    Idle,
    /// `SCHED_IDLE`, whatever comes of it: records are dropped when the machine has no time for them.
    IdleOnly,
    /// As other threads of the process.
    Normal,
}

impl Scheduling {
    /// Whether it is [`Scheduling::Idle`].
    pub fn is_default(&self) -> bool {
        *self == Self::Idle
    }
}

/// Telemetry in force on a route, or on a whole virtual host, in place of the gateway's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RouteTelemetry {
    /// All access logs in force there; empty: none.
    #[serde(default)]
    pub access_logs: Vec<AccessLog>,
}

/// An access log: which streams it records, and how a record is written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccessLog {
    /// Its name, for counters and messages.
    pub name: String,
    /// The name of its sink.
    pub sink: String,
    /// How a record is written.
    #[serde(default, skip_serializing_if = "AccessLogFormat::is_default")]
    pub format: AccessLogFormat,
    /// Which streams it records; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<AccessLogFilter>,
    /// How many of a million streams are recorded, of those that `only` leaves; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<u32>,
    /// Longest value of one field, in bytes; absent: 4096.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_limit: Option<u32>,
}

/// How a record is written; the texts have Envoy's command operators.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AccessLogFormat {
    /// One object of JSON on a line, with 19 fields.
    #[default]
    Default,
    /// One line, its line break included.
    Text(String),
    /// One object of JSON on a line.
    Json(Value),
}

impl AccessLogFormat {
    /// Whether it is [`AccessLogFormat::Default`].
    pub fn is_default(&self) -> bool {
        *self == Self::Default
    }
}

/// Which streams an access log records: those for which any condition holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccessLogFilter {
    /// Streams that failed: without a status, with a status of 500 and above, or with a response flag.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub errors: bool,
    /// Streams that took at least this long, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slower_than_ms: Option<u32>,
    /// Streams whose status is in one of these ranges, both ends included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub status: Vec<StatusRange>,
}

/// A range of status codes, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StatusRange {
    /// The first.
    pub from: u16,
    /// The last.
    pub to: u16,
}

/// Where records go.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sink {
    /// A file that lines are appended to.
    File(FileSink),
    /// Envoy's standard output.
    Stdout,
    /// A receiver of the OpenTelemetry protocol.
    Otlp(OtlpSink),
}

/// A file that lines are appended to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileSink {
    /// An absolute path on Envoy's machine.
    pub path: String,
    /// Size at which the file is renamed and begun anew, in bytes; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotate_at: Option<u64>,
    /// How many renamed files are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<u32>,
}

/// A receiver of the OpenTelemetry protocol.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OtlpSink {
    /// `http://` or `https://`, host, port, and for `http` a path.
    pub endpoint: String,
    /// How it is spoken to.
    #[serde(default)]
    pub protocol: OtlpProtocol,
    /// Headers of each request.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Whether bodies are compressed with gzip.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gzip: bool,
    /// A file with the authorities that the receiver's certificate is verified with; absent: the machine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// How long one request may take, in milliseconds; absent: 10000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u32>,
    /// Bytes that may wait for the receiver; absent: 8 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<u32>,
    /// Attributes of the resource.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resource: BTreeMap<String, String>,
}

/// How an OpenTelemetry receiver is spoken to.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum OtlpProtocol {
    /// Protobuf in the body of a `POST`.
    #[default]
    Http,
    /// gRPC.
    Grpc,
}
