//! Permissions, log budgets and memory accounts of the process, by plugin name. Code that several generations share has those of
//! the newest configuration, and an update leaves a log budget as far used as it is.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use outrider_plugin_api::{
    CalloutClusters, LogAdmission, LogBudget, LogLevel, MetricId, MetricKind, Metrics,
    PluginLimits, log_line,
};
use outrider_plugin_formats::PluginEntry;

use crate::metrics::{Definer, NAMES};
use crate::plugin::permissions;

/// How many plugins' limits are kept; plugins beyond it get limits that no other generation sees.
const CAPACITY: usize = 4096;

static KNOWN: Mutex<BTreeMap<String, Arc<PluginLimits>>> = Mutex::new(BTreeMap::new());

/// Returns a plugin's limits. Only the main thread calls this.
pub(crate) fn of(plugin: &str) -> Arc<PluginLimits> {
    // A map is valid between any two statements that change it.
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(limits) = known.get(plugin) {
        return Arc::clone(limits);
    }
    let limits = Arc::new(PluginLimits::default());
    if known.len() < CAPACITY {
        known.insert(plugin.to_owned(), Arc::clone(&limits));
    }
    limits
}

/// Sets a plugin's limits to those of a configuration that is being loaded: the plugin's code may call upstreams
/// as soon as it starts.
pub(crate) fn set(entry: &PluginEntry, clusters: &CalloutClusters) {
    let limits = of(&entry.name);
    limits.set_permissions(Arc::new(permissions(&entry.allow, clusters)));
    limits
        .logs()
        .set_rate(entry.log_rate.unwrap_or(LogBudget::DEFAULT_RATE));
    limits
        .memory()
        .set_limit(entry.budgets.memory_mib as usize * 1024 * 1024);
}

/// Metrics and log of one plugin while it loads, within its share and its log budget.
pub(crate) struct PluginDefiner<'a> {
    plugin: &'a str,
    limits: &'a PluginLimits,
}

impl<'a> PluginDefiner<'a> {
    pub(crate) fn new(plugin: &'a str, limits: &'a PluginLimits) -> Self {
        Self { plugin, limits }
    }

    /// Defines a metric while the plugin loads, or later. A refusal is logged.
    pub(crate) fn define_at(
        &mut self,
        kind: MetricKind,
        name: &str,
        is_late: bool,
    ) -> Option<MetricId> {
        match NAMES.define_for(self.plugin, kind, name, is_late) {
            Ok(metric) => Some(metric),
            Err(refusal) => {
                self.log(LogLevel::Warn, self.plugin, &refusal);
                None
            }
        }
    }
}

impl Metrics for PluginDefiner<'_> {
    fn define(&mut self, kind: MetricKind, name: &str) -> Option<MetricId> {
        self.define_at(kind, name, false)
    }

    fn log_enabled(&self, level: LogLevel) -> bool {
        Definer.log_enabled(level)
    }

    fn log(&mut self, level: LogLevel, plugin: &str, message: &str) {
        if !self.log_enabled(level) {
            return;
        }
        let line = log_line(message);
        match self.limits.logs().admit(line.len()) {
            LogAdmission::Written => Definer.log(level, plugin, &line),
            LogAdmission::Dropped => {}
            LogAdmission::Reported(report) => Definer.log(LogLevel::Warn, plugin, &report),
        }
    }
}
