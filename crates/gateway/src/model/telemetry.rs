//! `telemetry`, at the gateway, a project and a route.

use outrider_plugin_formats::{OtlpProtocol, Scheduling, StatusRange};
use outrider_yaml::{Entries, Field, Node, Shape};
use schemars::JsonSchema;
use serde::Deserialize;

use super::text::{Duration, HeaderName, Number, Percent, Size, Status, Text};

/// Records of requests that are written off Envoy's workers: where they go, and which there are (`docs/telemetry.md`).
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Telemetry {
    /// Size of the ring in which each worker keeps the records that are not written yet, rounded up to a power of two. A record
    /// that does not fit is dropped and counted. Default: `1MiB`.
    #[serde(default)]
    pub(crate) ring: Field<Size>,
    /// How the thread that writes records is scheduled: `idle` (the default: it runs where no other thread wants the CPU, and
    /// a thread of normal priority takes over when it gets none for too long), `idle_only` (records are dropped instead), or
    /// `normal`.
    #[serde(default)]
    pub(crate) scheduling: Field<Scheduling>,
    /// With `scheduling: idle`: how long a ring may be over half full before a thread of normal priority takes over. Default:
    /// `1s`.
    #[serde(default)]
    pub(crate) starvation: Field<Duration>,
    /// How long Envoy's end may be delayed for records that are not written yet. Default: `2s`.
    #[serde(default)]
    pub(crate) flush: Field<Duration>,
    /// Where records go, by name.
    #[serde(default)]
    pub(crate) sinks: Field<Entries<Field<Shape<Text, Sink>>>>,
    /// Access logs of all requests, by name; projects and routes change them, or add others.
    #[serde(default)]
    pub(crate) access_logs: Field<Entries<Field<Shape<Text, AccessLog>>>>,
}

/// What differs of telemetry in a project or a route.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScopeTelemetry {
    /// Access logs, by name. `off` turns one of a wider scope off; keys of a mapping replace those of the wider scope's; a name
    /// that no wider scope has is another access log.
    #[serde(default)]
    pub(crate) access_logs: Field<Entries<Field<Shape<Text, AccessLog>>>>,
}

/// Where records go: `stdout`, or a mapping with `file` or `otlp`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sink {
    /// A file's path, relative to this file. It is opened again when it was moved or removed. Lines are appended.
    #[serde(default)]
    pub(crate) file: Field<Text>,
    /// Size at which the file is renamed (`requests.log.1`, the one before `requests.log.2`, and so on) and begun anew. Default:
    /// never.
    #[serde(default)]
    pub(crate) rotate_at: Field<Size>,
    /// How many renamed files are kept. Default: 5.
    #[serde(default)]
    pub(crate) keep: Field<Number<0, 1000>>,
    /// Address of a receiver of the OpenTelemetry protocol: `http://127.0.0.1:4318/v1/logs`, or for gRPC
    /// `http://127.0.0.1:4317`. `https://` for TLS.
    #[serde(default)]
    pub(crate) otlp: Field<Text>,
    /// How the receiver is spoken to: `http` (protobuf; the default) or `grpc`.
    #[serde(default)]
    pub(crate) protocol: Field<OtlpProtocol>,
    /// Headers of each request to the receiver.
    #[serde(default)]
    pub(crate) headers: Field<Entries<Field<Text>>>,
    /// Whether requests to the receiver are compressed with gzip. Default: false.
    #[serde(default)]
    pub(crate) gzip: Field<bool>,
    /// A file with the authorities that the receiver's certificate is verified with, relative to this file. Default: the
    /// machine's.
    #[serde(default)]
    pub(crate) ca: Field<Text>,
    /// How long one request to the receiver may take. Default: `10s`.
    #[serde(default)]
    pub(crate) timeout: Field<Duration>,
    /// How much may wait for the receiver; what comes beyond is dropped and counted. Default: `8MiB`.
    #[serde(default)]
    pub(crate) queue: Field<Size>,
    /// Attributes of the resource, such as `service.name`.
    #[serde(default)]
    pub(crate) resource: Field<Entries<Field<Text>>>,
}

/// An access log: a record of each request that it takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AccessLog {
    /// The name of its sink. Required, but where a wider scope says it.
    #[serde(default)]
    pub(crate) sink: Field<Text>,
    /// One line, with Envoy's command operators such as `%REQ(:PATH)%`. A line break is added where it has none.
    #[serde(default)]
    pub(crate) text: Field<Text>,
    /// Keys and texts with Envoy's command operators, nested as you like: a line of JSON, or the attributes of a log record.
    /// Default: 19 fields, which `docs/telemetry.md` lists.
    #[serde(default)]
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    pub(crate) json: Field<Node>,
    /// Which requests it takes: those for which any of these holds. Default: all.
    #[serde(default)]
    pub(crate) only: Field<Only>,
    /// How many of them it takes: `10%`, `0.1%`. Default: all.
    #[serde(default)]
    pub(crate) sample: Field<Percent>,
    /// Longest value of one field; a longer one is cut, and says so. Default: `4KiB`.
    #[serde(default)]
    pub(crate) value_limit: Field<Size>,
}

/// Which requests an access log takes; at least one condition.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Only {
    /// `true`: requests that failed: without a status, with a status of 500 and above, or with a response flag.
    #[serde(default)]
    pub(crate) errors: Field<bool>,
    /// Requests that took at least this long.
    #[serde(default)]
    pub(crate) slower_than: Field<Duration>,
    /// Requests with such a status: `404`, `5xx`, `400-499`.
    #[serde(default)]
    pub(crate) status: Field<Vec<Field<StatusForm>>>,
}

/// A status: a number, `5xx` or `400-499`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename = "$shape", rename_all = "lowercase")]
#[schemars(untagged, inline)]
pub(crate) enum StatusForm {
    /// `5xx` or `400-499`.
    Text(Status),
    /// One status.
    Number(Number<100, 599>),
}

impl StatusForm {
    pub(crate) fn range(&self) -> StatusRange {
        match self {
            Self::Text(status) => status.0,
            Self::Number(Number(status)) => {
                let status = u16::try_from(*status).unwrap_or(599);
                StatusRange {
                    from: status,
                    to: status,
                }
            }
        }
    }
}

/// The name of a header, where a mapping has it as a key.
pub(crate) fn is_header_name(text: &str) -> bool {
    let json = serde_json::Value::from(text);
    serde_json::from_value::<HeaderName>(json).is_ok()
}
