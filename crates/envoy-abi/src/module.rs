//! What the loaded module has to be, for the hooks to call it.

use std::any::Any;
use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, OnceLock};

use outrider_plugin_api::{Chain, LogLevel, MetricId, MetricKind};
use outrider_telemetry::worker::StreamLogs;

use crate::bootstrap::AdminPages;
use crate::callbacks::{Callbacks, callbacks, resolve};
use crate::raw::{ConfigPtr, METRICS_SUCCESS, ModuleBuffer};

/// A route's configuration, as the module made it.
pub type RouteConfig = Arc<dyn Any + Send + Sync>;

/// What Envoy loads.
pub trait Module: Send + Sync {
    /// A filter configuration has come (main thread). `None`: refused; the reason has been logged.
    fn filter_config(
        &self,
        context: &ConfigContext<'_>,
        name: &str,
        config: &[u8],
    ) -> Option<Arc<dyn FilterConfig>>;

    /// A route's, or virtual host's, configuration has come (main thread). `None`: refused; the
    /// reason has been logged.
    fn route_config(&self, name: &str, config: &[u8]) -> Option<RouteConfig>;

    /// Has a plugin, by its place among all, do what is due on this worker beside all streams. Returns whether there
    /// are plugins behind it.
    fn background(&self, worker: usize, plugin: usize) -> bool;

    /// The access logs of streams that never reached a filter: the gateway's.
    fn unrouted_logs(&self) -> Option<Arc<StreamLogs>>;

    /// Its pages on Envoy's admin port.
    fn admin(&self) -> &dyn AdminPages;
}

/// A filter configuration that streams are served by.
pub trait FilterConfig: Send + Sync {
    /// The chain of streams whose most specific route configuration is `route`.
    fn chain(&self, route: Option<&RouteConfig>) -> Arc<Chain>;

    /// Whether a route may have a configuration. `false`: Envoy need not be asked.
    fn may_have_routes(&self) -> bool;

    /// The metrics that plugins may write to.
    fn metrics(&self) -> &dyn MetricTable;

    /// How many bytes of one body its streams may hold back. None: as Envoy decides, which for HTTP/2
    /// is by the stream's flow-control window instead of the listener's limit.
    fn body_limit(&self) -> Option<u32>;
}

/// Metrics by their ids in this process.
pub trait MetricTable {
    /// The metric in Envoy, for filters of this configuration.
    fn envoy(&self, metric: MetricId) -> Option<EnvoyMetric>;
    /// The family of a metric that was defined after this configuration, and the value of the family's label.
    fn late(&self, metric: MetricId) -> Option<(EnvoyMetric, &str)>;
    /// Notes a change, for [`MetricTable::value`]: an amount added, or for `set` the new value.
    fn note(&self, metric: MetricId, amount: i64, set: bool);
    /// The value of a counter or gauge as noted.
    fn value(&self, metric: MetricId) -> Option<u64>;
}

/// A metric that a filter configuration defined in Envoy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EnvoyMetric {
    /// What it measures.
    pub kind: MetricKind,
    id: usize,
}

impl EnvoyMetric {
    pub(crate) fn id(self) -> usize {
        self.id
    }
}

/// What a filter configuration may ask of Envoy while it is being made.
pub struct ConfigContext<'a> {
    config: ConfigPtr,
    callbacks: &'a Callbacks,
}

impl std::fmt::Debug for ConfigContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ConfigContext")
    }
}

impl<'a> ConfigContext<'a> {
    pub(crate) fn new(config: ConfigPtr, callbacks: &'a Callbacks) -> Self {
        Self { config, callbacks }
    }

    /// How many workers this Envoy has.
    pub fn workers(&self) -> usize {
        // SAFETY: a question without arguments, asked on the main thread.
        unsafe { (self.callbacks.get_concurrency)() as usize }
    }

    /// Defines a metric of this filter configuration. `None`: Envoy refuses, because of the name or
    /// because its statistics are frozen.
    pub fn define_metric(&self, kind: MetricKind, name: &str) -> Option<EnvoyMetric> {
        self.define(kind, name, None)
    }

    /// Defines a family of metrics that differ by the value of one label. As [`Self::define_metric`].
    pub fn define_family(&self, kind: MetricKind, name: &str, label: &str) -> Option<EnvoyMetric> {
        self.define(kind, name, Some(label))
    }

    /// Keeps the value of a counter or a gauge of a family for this filter configuration. Envoy frees a metric with
    /// the last filter configuration that has written to it. Histograms have no such values.
    pub fn keep_of_family(&self, family: EnvoyMetric, label: &str) {
        let add = match family.kind {
            MetricKind::Counter => self.callbacks.http_filter_config_increment_counter,
            MetricKind::Gauge => self.callbacks.http_filter_config_increment_gauge,
            MetricKind::Histogram => return,
        };
        let label = ModuleBuffer::new(label.as_bytes());
        // SAFETY: the configuration is alive during its own hook, and has defined the family with one label, which outlives
        // the call.
        unsafe { add(self.config, family.id, &raw const label, 1, 0) };
    }

    fn define(&self, kind: MetricKind, name: &str, label: Option<&str>) -> Option<EnvoyMetric> {
        let define = match kind {
            MetricKind::Counter => self.callbacks.http_filter_config_define_counter,
            MetricKind::Gauge => self.callbacks.http_filter_config_define_gauge,
            MetricKind::Histogram => self.callbacks.http_filter_config_define_histogram,
        };
        let labels: Vec<ModuleBuffer> = label
            .map(|label| ModuleBuffer::new(label.as_bytes()))
            .into_iter()
            .collect();
        let mut id = 0;
        // SAFETY: the configuration is alive during its own hook; the name and the label outlive the call; `id` is where the
        // answer goes.
        let result = unsafe {
            define(
                self.config,
                ModuleBuffer::new(name.as_bytes()),
                labels.as_ptr(),
                labels.len(),
                &raw mut id,
            )
        };
        (result == METRICS_SUCCESS).then_some(EnvoyMetric { kind, id })
    }
}

static MODULE: OnceLock<&'static dyn Module> = OnceLock::new();

/// The module, once Envoy has loaded it.
pub(crate) fn module() -> Option<&'static dyn Module> {
    MODULE.get().copied()
}

/// Finds Envoy's functions and registers the module; see [`crate::module!`]. Returns the ABI version
/// that Envoy asks for, or null when this Envoy cannot be served.
pub fn install(module: &'static dyn Module) -> *const c_char {
    let installed = catch_unwind(AssertUnwindSafe(|| {
        if let Err(missing) = resolve() {
            if callbacks().is_none() {
                // Without Envoy's functions there is no log either.
                use std::io::Write as _;
                let _unheard = writeln!(std::io::stderr(), "outrider: {missing}");
            }
            return false;
        }
        // Envoy may load the library again: the module is the same.
        let _same = MODULE.set(module);
        crate::log::log(
            LogLevel::Debug,
            concat!("outrider ", env!("CARGO_PKG_VERSION"), " is loaded"),
        );
        true
    }));
    if matches!(installed, Ok(true)) {
        crate::ABI_VERSION.as_ptr()
    } else {
        ptr::null()
    }
}
