//! What the VMs of one plugin version have in common.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use outrider_plugin_api::{MetricId, MetricKind, Metrics};
use outrider_vm_pool::ShareAccount;

use crate::file_log::FileLog;
use crate::store::Store;

/// See the module.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) plugin: String,
    pub(crate) folder: String,
    pub(crate) entry: String,
    pub(crate) files: BTreeMap<String, String>,
    pub(crate) file_log: Option<FileLog>,
    /// Counts the lines that the file lost.
    pub(crate) filelog_dropped: OnceLock<MetricId>,
    pub(crate) store: Store,
    /// The plugin's CPU share; none: it is not limited.
    pub(crate) account: Option<Arc<ShareAccount>>,
    // Written while the plugin loads and a configuration is checked; read when a name is looked up,
    // which plugins do once.
    metrics: RwLock<BTreeMap<(MetricKind, String), MetricId>>,
}

impl Shared {
    pub(crate) fn new(
        plugin: String,
        folder: String,
        entry: String,
        files: BTreeMap<String, String>,
        file_log: Option<FileLog>,
        account: Option<Arc<ShareAccount>>,
    ) -> Self {
        Self {
            plugin,
            folder,
            entry,
            files,
            file_log,
            filelog_dropped: OnceLock::new(),
            store: Store::new(),
            account,
            metrics: RwLock::default(),
        }
    }

    /// Defines a metric of the plugin; its name in the proxy is
    /// `outrider.plugin.<plugin>.metric.<name>`.
    pub(crate) fn define_metric(
        &self,
        metrics: &mut dyn Metrics,
        kind: MetricKind,
        name: &str,
    ) -> Option<MetricId> {
        let full = format!("outrider.plugin.{}.metric.{name}", self.plugin);
        let id = metrics.define(kind, &full)?;
        self.metrics
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert((kind, name.to_owned()), id);
        Some(id)
    }

    /// A metric that has been defined.
    pub(crate) fn find_metric(&self, kind: MetricKind, name: &str) -> Option<MetricId> {
        self.metrics
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&(kind, name.to_owned()))
            .copied()
    }
}
