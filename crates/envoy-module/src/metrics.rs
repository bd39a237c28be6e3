//! Metrics of plugins: one table for the process gives each name an id and keeps its value; each
//! filter configuration defines them all in Envoy, because Envoy lets streams write only to metrics
//! of their own filter configuration.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use outrider_envoy_abi::{ConfigContext, EnvoyMetric, MetricTable, log, log_enabled};
use outrider_plugin_api::{LogLevel, MetricId, MetricKind, Metrics};

/// How many metrics a process may have; more are refused.
const CAPACITY: usize = 4096;

/// The process's metrics: names only grow, so ids stay true for good.
#[derive(Debug)]
pub(crate) struct Names {
    known: Mutex<Vec<(MetricKind, String)>>,
    values: OnceLock<Box<[AtomicU64]>>,
}

pub(crate) static NAMES: Names = Names {
    known: Mutex::new(Vec::new()),
    values: OnceLock::new(),
};

impl Names {
    fn define(&self, kind: MetricKind, name: &str) -> Option<MetricId> {
        // A vector of names is valid whatever panicked while it was locked.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let index = if let Some(index) = known.iter().position(|(_, old)| old == name) {
            if known.get(index).is_none_or(|(old, _)| *old != kind) {
                return None;
            }
            index
        } else {
            if known.len() == CAPACITY {
                return None;
            }
            known.push((kind, name.to_owned()));
            known.len() - 1
        };
        u32::try_from(index).ok().map(MetricId)
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
            .map(|(kind, name)| context.define_metric(*kind, name))
            .collect()
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
}

impl Table {
    /// Defines in Envoy all metrics known by now.
    pub(crate) fn define(context: &ConfigContext<'_>) -> Self {
        Self {
            envoy: NAMES.define_in(context),
        }
    }
}

impl MetricTable for Table {
    fn envoy(&self, metric: MetricId) -> Option<EnvoyMetric> {
        self.envoy.get(metric.0 as usize).copied().flatten()
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
