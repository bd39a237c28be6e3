//! A stream for tests, and access logs of it.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test program uses a part of it, and fails by panicking"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outrider_plugin_formats::{AccessLog, AccessLogFormat, DEFAULT_STARVATION, Scheduling, Sink};
use outrider_telemetry::registry::register;
use outrider_telemetry::worker::StreamLogs;
use outrider_telemetry::{Address, HeaderMap, LogEvent, MetadataValue, Number, Text, exporter};

/// A stream that has ended.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) headers: BTreeMap<(HeaderMap, Vec<u8>), Vec<u8>>,
    pub(crate) texts: BTreeMap<Text, Vec<u8>>,
    pub(crate) numbers: BTreeMap<Number, i64>,
    pub(crate) address: (Vec<u8>, u32),
}

/// 2024-02-29T12:34:56.007Z
pub(crate) const START: i64 = 1_709_210_096_007_000_000;

impl Default for Event {
    fn default() -> Self {
        let request = |name: &str, value: &str| {
            ((HeaderMap::Request, name.as_bytes().to_vec()), value.into())
        };
        Self {
            headers: BTreeMap::from([
                request(":method", "GET"),
                request(":path", "/cart?item=17"),
                request(":authority", "shop.example.com"),
                request("user-agent", "curl/8.5.0"),
                request("x-request-id", "7c9e6679-7425-40de-944b-e07fc1f90ae7"),
                request("x-forwarded-for", "203.0.113.7"),
            ]),
            texts: BTreeMap::from([
                (Text::Protocol, b"HTTP/1.1".to_vec()),
                (Text::ResponseCodeDetails, b"via_upstream".to_vec()),
                (Text::RouteName, b"cart".to_vec()),
                (Text::UpstreamCluster, b"shop".to_vec()),
                (Text::UpstreamHost, b"10.0.0.7:8080".to_vec()),
            ]),
            numbers: BTreeMap::from([
                (Number::Start, START),
                (Number::Complete, 12_999_999),
                (Number::FirstUpstreamReceived, 3_500_000),
                (Number::LastDownstreamSent, 11_400_000),
                (Number::ResponseCode, 200),
                (Number::BytesReceived, 0),
                (Number::BytesSent, 512),
                (Number::ResponseFlags, 0),
            ]),
            address: (b"203.0.113.7".to_vec(), 41_234),
        }
    }
}

impl Event {
    pub(crate) fn with_header(mut self, name: &str, value: &[u8]) -> Self {
        let key = (HeaderMap::Request, name.as_bytes().to_vec());
        self.headers.insert(key, value.to_vec());
        self
    }

    pub(crate) fn with_number(mut self, number: Number, value: i64) -> Self {
        self.numbers.insert(number, value);
        self
    }
}

impl LogEvent for Event {
    fn header(&mut self, map: HeaderMap, name: &[u8]) -> Option<&[u8]> {
        self.headers.get(&(map, name.to_vec())).map(Vec::as_slice)
    }
    fn text(&mut self, text: Text) -> Option<&[u8]> {
        self.texts.get(&text).map(Vec::as_slice)
    }
    fn address(&mut self, _address: Address) -> Option<(&[u8], u32)> {
        Some((&self.address.0, self.address.1))
    }
    fn number(&mut self, number: Number) -> Option<i64> {
        self.numbers.get(&number).copied()
    }
    fn metadata(&mut self, namespace: &[u8], path: &[u8]) -> Option<MetadataValue<'_>> {
        match (namespace, path) {
            (b"shop", b"tier.name") => Some(MetadataValue::Text(b"gold")),
            (b"shop", b"items") => Some(MetadataValue::Number(3.0)),
            (b"shop", b"ratio") => Some(MetadataValue::Number(0.25)),
            (b"shop", b"guest") => Some(MetadataValue::Bool(false)),
            _ => None,
        }
    }
}

/// An access log with a format in JSON.
pub(crate) fn json_log(name: &str, json: serde_json::Value) -> AccessLog {
    AccessLog {
        name: name.to_owned(),
        sink: "sink".to_owned(),
        format: AccessLogFormat::Json(json),
        only: None,
        sample: None,
        value_limit: None,
    }
}

/// An access log with a format of text.
pub(crate) fn text_log(name: &str, text: &str) -> AccessLog {
    AccessLog {
        format: AccessLogFormat::Text(text.to_owned()),
        ..json_log(name, serde_json::Value::Null)
    }
}

/// Starts the exporter, and returns a scope with one access log.
pub(crate) fn scope(log: &AccessLog, sink: &Sink) -> StreamLogs {
    let starvation = Duration::from_millis(DEFAULT_STARVATION.into());
    exporter::start(Scheduling::Idle, starvation).unwrap();
    StreamLogs::new(1 << 20, vec![register(log, sink).unwrap()])
}

/// Waits until `found` says so.
pub(crate) fn wait_until(what: &str, mut found: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !found() {
        assert!(Instant::now() < until, "{what} did not happen in 30 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Shared access to a scope, for threads.
pub(crate) fn shared(log: &AccessLog, sink: &Sink) -> Arc<StreamLogs> {
    Arc::new(scope(log, sink))
}
