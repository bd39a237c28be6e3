//! Metrics of plugins: one table for the process gives each name an id and keeps its value; each
//! filter configuration defines them all in Envoy, because Envoy lets streams write only to metrics
//! of their own filter configuration.
//!
//! Envoy takes no definitions once a filter configuration is made, but new label values at any time. So each filter
//! configuration also defines a family for each kind, `outrider.late.counter` and so on, whose label `metric` is the name of a
//! metric that was defined while streams are served. Such a metric stays in its family: a name that changed with the next
//! configuration would break dashboards.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use outrider_envoy_abi::{ConfigContext, EnvoyMetric, MetricTable, log, log_enabled};
use outrider_plugin_api::{LateMetrics, LogLevel, MetricId, MetricKind, Metrics, PluginLimits};

use crate::limits::PluginDefiner;

/// How many metrics a process may have; more are refused.
const CAPACITY: usize = 4096;
/// How many of them plugins may define, all together: the others are left for Outrider's own.
const PLUGINS_CAPACITY: usize = 3072;
/// How many metrics one plugin may define.
const PLUGIN_CAPACITY: usize = 512;
/// Longest name of a plugin's metric, in bytes.
const NAME_LIMIT: usize = 256;

/// The process's metrics: names only grow, so ids stay true for good.
#[derive(Debug)]
pub(crate) struct Names {
    known: Mutex<Vec<Known>>,
    values: OnceLock<Box<[AtomicU64]>>,
    /// Metrics that were defined while streams are served, by their ids, for workers to read without a lock.
    late: OnceLock<Box<[OnceLock<LateMetric>]>>,
}

/// Kind and name of a metric that was defined while streams are served.
type LateMetric = (MetricKind, Box<str>);

/// One metric.
#[derive(Debug, Clone)]
struct Known {
    kind: MetricKind,
    name: String,
    /// The plugin that defined it first; `None` for Outrider's own.
    plugin: Option<String>,
    /// Whether it has only been defined while streams are served.
    is_late: bool,
}

pub(crate) static NAMES: Names = Names {
    known: Mutex::new(Vec::new()),
    values: OnceLock::new(),
    late: OnceLock::new(),
};

impl Names {
    fn define(&self, kind: MetricKind, name: &str) -> Option<MetricId> {
        self.find_or_add(None, kind, name, false).ok()
    }

    /// Defines a plugin's metric, within the plugin's share.
    ///
    /// # Errors
    /// The metric is refused, with the reason.
    pub(crate) fn define_for(
        &self,
        plugin: &str,
        kind: MetricKind,
        name: &str,
        is_late: bool,
    ) -> Result<MetricId, String> {
        if name.len() > NAME_LIMIT {
            return Err(format!(
                "a metric's name has {} bytes, and at most {NAME_LIMIT} are allowed; shorten it",
                name.len()
            ));
        }
        if name.is_empty() || name.chars().any(char::is_control) {
            return Err(
                "a metric's name is empty or has control characters; use a plain name".to_owned(),
            );
        }
        self.find_or_add(Some(plugin), kind, name, is_late)
    }

    fn find_or_add(
        &self,
        plugin: Option<&str>,
        kind: MetricKind,
        name: &str,
        is_late: bool,
    ) -> Result<MetricId, String> {
        // A vector of names is valid whatever panicked while it was locked.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let index = if let Some(index) = known.iter().position(|old| old.name == name) {
            if let Some(old) = known.get_mut(index) {
                if old.kind != kind {
                    return Err(format!(
                        "the metric `{name}` is defined already, with another kind"
                    ));
                }
                // From now on configurations define it.
                old.is_late &= is_late;
            }
            index
        } else {
            if known.len() >= CAPACITY {
                return Err(format!(
                    "this process has {CAPACITY} metrics, and no more are possible"
                ));
            }
            if let Some(plugin) = plugin {
                let of_plugins = known.iter().filter(|old| old.plugin.is_some()).count();
                let own = known
                    .iter()
                    .filter(|old| old.plugin.as_deref() == Some(plugin))
                    .count();
                if own >= PLUGIN_CAPACITY || of_plugins >= PLUGINS_CAPACITY {
                    return Err(format!(
                        "the metric `{name}` is refused: a plugin may define {PLUGIN_CAPACITY} metrics, and this \
                         one has {own}; all plugins together {PLUGINS_CAPACITY}, and they have {of_plugins}"
                    ));
                }
            }
            known.push(Known {
                kind,
                name: name.to_owned(),
                plugin: plugin.map(str::to_owned),
                is_late,
            });
            let index = known.len() - 1;
            if is_late && let Some(late) = self.late().get(index) {
                // Nobody has had this id before.
                let _ = late.set((kind, name.into()));
            }
            index
        };
        u32::try_from(index)
            .map(MetricId)
            .map_err(|error| error.to_string())
    }

    fn late(&self) -> &[OnceLock<LateMetric>] {
        self.late
            .get_or_init(|| (0..CAPACITY).map(|_| OnceLock::new()).collect())
    }

    fn value(&self, metric: MetricId) -> Option<&AtomicU64> {
        let values = self
            .values
            .get_or_init(|| (0..CAPACITY).map(|_| AtomicU64::new(0)).collect());
        values.get(metric.0 as usize)
    }

    /// How many there are, and how many there may be.
    pub(crate) fn usage(&self) -> (usize, usize) {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        (known.len(), CAPACITY)
    }

    /// A counter's or gauge's value; 0 for one that could not be defined.
    pub(crate) fn read(&self, metric: Option<MetricId>) -> u64 {
        metric
            .and_then(|metric| self.value(metric))
            .map_or(0, |value| value.load(Ordering::Relaxed))
    }

    fn define_in(&self, context: &ConfigContext<'_>) -> Box<[Option<EnvoyMetric>]> {
        let known = self
            .known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        known
            .iter()
            .map(|metric| {
                let define = || context.define_metric(metric.kind, &metric.name);
                (!metric.is_late).then(define).flatten()
            })
            .collect()
    }
}

/// Defines metrics of a plugin while streams are served.
#[derive(Debug)]
pub(crate) struct LateDefiner {
    pub(crate) plugin: String,
    pub(crate) limits: std::sync::Arc<PluginLimits>,
}

impl LateMetrics for LateDefiner {
    fn define_late(&self, kind: MetricKind, name: &str) -> Option<MetricId> {
        PluginDefiner::new(&self.plugin, &self.limits).define_at(kind, name, true)
    }
}

/// Defines metrics while plugins load.
pub(crate) struct Definer;

impl Metrics for Definer {
    fn define(&mut self, kind: MetricKind, name: &str) -> Option<MetricId> {
        NAMES.define(kind, name)
    }

    fn log_enabled(&self, level: LogLevel) -> bool {
        log_enabled(level)
    }

    fn log(&mut self, level: LogLevel, plugin: &str, message: &str) {
        log(level, &format!("plugin {plugin}: {message}"));
    }
}

/// The metrics as one filter configuration has them in Envoy.
#[derive(Debug)]
pub(crate) struct Table {
    envoy: Box<[Option<EnvoyMetric>]>,
    /// Families of metrics that are defined later.
    families: [Option<EnvoyMetric>; 3],
}

impl Table {
    /// Defines in Envoy all metrics known by now.
    pub(crate) fn define(context: &ConfigContext<'_>) -> Self {
        let families = [
            (MetricKind::Counter, "counter"),
            (MetricKind::Gauge, "gauge"),
            (MetricKind::Histogram, "histogram"),
        ]
        .map(|(kind, word)| {
            context.define_family(kind, &format!("outrider.late.{word}"), "metric")
        });
        for family in families.iter().flatten() {
            let late = NAMES.late().iter().filter_map(OnceLock::get);
            for (_, name) in late.filter(|(kind, _)| *kind == family.kind) {
                context.keep_of_family(*family, name);
            }
        }
        Self {
            envoy: NAMES.define_in(context),
            families,
        }
    }
}

impl MetricTable for Table {
    fn envoy(&self, metric: MetricId) -> Option<EnvoyMetric> {
        self.envoy.get(metric.0 as usize).copied().flatten()
    }

    fn late(&self, metric: MetricId) -> Option<(EnvoyMetric, &str)> {
        let (kind, name) = NAMES.late().get(metric.0 as usize)?.get()?;
        let mut families = self.families.iter().flatten();
        let family = families.find(|family| family.kind == *kind)?;
        Some((*family, name))
    }

    fn note(&self, metric: MetricId, amount: i64, set: bool) {
        let Some(value) = NAMES.value(metric) else {
            return;
        };
        if set {
            value.store(amount.unsigned_abs(), Ordering::Relaxed);
        } else if amount >= 0 {
            value.fetch_add(amount.unsigned_abs(), Ordering::Relaxed);
        } else {
            value.fetch_sub(amount.unsigned_abs(), Ordering::Relaxed);
        }
    }

    fn value(&self, metric: MetricId) -> Option<u64> {
        NAMES
            .value(metric)
            .map(|value| value.load(Ordering::Relaxed))
    }
}
