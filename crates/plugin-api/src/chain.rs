//! The ordered plugins that one stream passes.

use std::sync::Arc;

use crate::call_times::CallTimes;
use crate::circuit::Circuit;
use crate::failure::{CAUSES, Cause, FailureLogHandle, FailurePolicy};
use crate::metric::{MetricId, MetricKind, Metrics};
use crate::plugin::{ConfiguredPlugin, Interest};

/// A plugin's own counters.
#[derive(Debug, Clone, Copy)]
pub struct LinkMetrics {
    /// Calls of handlers.
    pub calls: Option<MetricId>,
    /// Local replies that the plugin made.
    pub replies: Option<MetricId>,
    /// Failures, by cause.
    pub errors: [Option<MetricId>; CAUSES],
    /// Circuits that are open now.
    pub circuit_open: Option<MetricId>,
    /// How often a circuit opened.
    pub circuit_opened: Option<MetricId>,
}

impl LinkMetrics {
    /// Defines the metrics of a plugin: `outrider.plugin.<name>.calls`, `.replies`,
    /// `.errors.<cause>`, `.circuit_open` (a gauge) and `.circuit_opened`.
    pub fn define(plugin: &str, metrics: &mut dyn Metrics) -> Self {
        let mut define =
            |kind, what: &str| metrics.define(kind, &format!("outrider.plugin.{plugin}.{what}"));
        let circuit_open = define(MetricKind::Gauge, "circuit_open");
        let mut counter = |what: &str| define(MetricKind::Counter, what);
        Self {
            calls: counter("calls"),
            replies: counter("replies"),
            errors: Cause::ALL.map(|cause| counter(&format!("errors.{cause}"))),
            circuit_open,
            circuit_opened: counter("circuit_opened"),
        }
    }
}

/// One plugin's place in a chain.
#[derive(Debug, Clone)]
pub struct Link {
    /// The plugin's name.
    pub name: Arc<str>,
    /// The plugin with the configuration of the chain's scope; absent when it could not be had, and
    /// then every stream gets the failure policy for [`Cause::Unavailable`].
    pub plugin: Option<Arc<dyn ConfiguredPlugin>>,
    /// Which phases it handles.
    pub interest: Interest,
    /// What a stream gets when it fails.
    pub failure_policy: FailurePolicy,
    /// Its counters.
    pub metrics: LinkMetrics,
    /// Which of its faults are logged; shared by all chains that it stands in.
    pub faults: FailureLogHandle,
    /// Where the time of its calls is recorded; none: it is not measured.
    pub times: Option<Arc<CallTimes>>,
    /// Whether it is called at all.
    pub circuit: Arc<Circuit>,
}

/// The ordered plugins that the streams of one scope pass: requests from first to last, responses
/// from last to first.
#[derive(Debug, Default)]
pub struct Chain {
    links: Box<[Link]>,
}

impl Chain {
    /// A chain of plugins in the order of requests.
    pub fn new(links: Vec<Link>) -> Self {
        Self {
            links: links.into_boxed_slice(),
        }
    }

    /// Its plugins, in the order of requests.
    pub fn links(&self) -> &[Link] {
        &self.links
    }
}
