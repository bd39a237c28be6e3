//! Access logs of scopes: what a generation's document says of them, resolved for the gateway and for each route.
//!
//! A scope's access logs are attached to its chain, so that a stream finds them with the chain. Those of the newest
//! generation's gateway hold for streams that never reached a filter.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use outrider_plugin_formats::{
    AccessLog, DEFAULT_FLUSH, DEFAULT_RING, DEFAULT_STARVATION, Telemetry as Document,
};
use outrider_telemetry::exporter;
use outrider_telemetry::registry::register;
use outrider_telemetry::stats::{self, Counter};
use outrider_telemetry::worker::{self, StreamLogs};

use serde_json::{Value, json};

use crate::document::Refusal;

/// Telemetry of one generation.
#[derive(Debug, Default)]
pub(crate) struct Telemetry {
    document: Option<Document>,
    gateway: Option<Arc<StreamLogs>>,
}

static UNROUTED: RwLock<Option<Arc<StreamLogs>>> = RwLock::new(None);

/// The access logs of streams that never reached a filter.
pub(crate) fn unrouted() -> Option<Arc<StreamLogs>> {
    let unrouted = UNROUTED.read().unwrap_or_else(PoisonError::into_inner);
    unrouted.as_ref().map(Arc::clone)
}

/// Counters, and the sinks that are open with what waits in them and their last failure.
pub(crate) fn page() -> String {
    let counters: serde_json::Map<String, Value> = Counter::ALL
        .iter()
        .map(|counter| (counter.name().to_owned(), stats::value(*counter).into()))
        .collect();
    let sinks: Vec<Value> = stats::sinks()
        .into_iter()
        .map(|sink| {
            json!({ "place": sink.place, "waiting_bytes": sink.waiting, "failure": sink.failure })
        })
        .collect();
    let page = json!({ "counters": counters, "sinks": sinks });
    format!("{page:#}\n")
}

impl Telemetry {
    /// Resolves the gateway's access logs; `workers` is how many rings there will be.
    pub(crate) fn load(document: Option<Document>, workers: usize) -> Result<Self, Vec<Refusal>> {
        let Some(document) = document else {
            return Ok(Self::default());
        };
        let milliseconds = |given: Option<u32>, otherwise: u32| {
            Duration::from_millis(given.unwrap_or(otherwise).into())
        };
        let starvation = milliseconds(document.starvation_ms, DEFAULT_STARVATION);
        exporter::start(document.scheduling, starvation).map_err(|error| {
            vec![Refusal::new(format!(
                "telemetry has no thread to export on: {error}"
            ))]
        })?;
        exporter::set_flush_limit(milliseconds(document.flush_ms, DEFAULT_FLUSH));
        worker::prepare(workers, ring(&document));
        let gateway = resolve(&document, "gateway", &document.access_logs)?;
        Ok(Self {
            gateway: Some(Arc::new(gateway)),
            document: Some(document),
        })
    }

    /// The gateway's access logs.
    pub(crate) fn gateway(&self) -> Option<Arc<StreamLogs>> {
        self.gateway.as_ref().map(Arc::clone)
    }

    /// The access logs of a route: its own, or the gateway's.
    pub(crate) fn of_route(
        &self,
        scope: &str,
        own: Option<&[AccessLog]>,
    ) -> Result<Option<Arc<StreamLogs>>, Vec<Refusal>> {
        match (&self.document, own) {
            (Some(document), Some(own)) => Ok(Some(Arc::new(resolve(document, scope, own)?))),
            (None, Some([_, ..])) => Err(vec![Refusal::new(format!(
                "{scope} has access logs, and the gateway's configuration has no `telemetry`"
            ))]),
            _ => Ok(self.gateway()),
        }
    }

    /// Has streams that never reach a filter logged by this generation.
    pub(crate) fn begin(&self) {
        let mut unrouted = UNROUTED.write().unwrap_or_else(PoisonError::into_inner);
        *unrouted = self.gateway();
    }
}

fn ring(document: &Document) -> usize {
    document.ring.unwrap_or(DEFAULT_RING) as usize
}

fn resolve(
    document: &Document,
    scope: &str,
    logs: &[AccessLog],
) -> Result<StreamLogs, Vec<Refusal>> {
    let mut handles = Vec::new();
    let mut refusals = Vec::new();
    for log in logs {
        let Some(sink) = document.sinks.get(&log.sink) else {
            refusals.push(Refusal::new(format!(
                "{scope}: the access log {} has the sink {}, which telemetry does not have",
                log.name, log.sink
            )));
            continue;
        };
        match register(log, sink) {
            Ok(handle) => handles.push(handle),
            Err(problem) => refusals.push(Refusal::new(format!(
                "{scope}: the access log {}: {problem}",
                log.name
            ))),
        }
    }
    if refusals.is_empty() {
        Ok(StreamLogs::new(ring(document), handles))
    } else {
        Err(refusals)
    }
}
