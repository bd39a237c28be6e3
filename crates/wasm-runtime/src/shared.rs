//! What all VMs of one plugin version have in common: who it is, and how it is to be run.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outrider_plugin_api::{MetricId, MetricKind, Metrics};

use crate::shared_data::Namespace;
use crate::source::{Clock, WasmOptions};

/// See the module.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The plugin's name.
    pub(crate) plugin: String,
    /// Its file, for messages.
    pub(crate) file: String,
    pub(crate) options: WasmOptions,
    pub(crate) clock: Clock,
    /// `K=V`, with a NUL at the end of each.
    pub(crate) environment: Vec<Vec<u8>>,
    /// In bytes, for each VM.
    pub(crate) memory_budget: usize,
    pub(crate) time_budget: Duration,
    /// How long loading, or taking a configuration in, may take: these are rare, and may do more.
    pub(crate) load_budget: Duration,
    /// The shared data and queues of its `vm_id`.
    pub(crate) namespace: Arc<Namespace>,
    /// Metrics that the plugin's VMs have defined.
    pub(crate) metrics: Mutex<MetricNames>,
}

/// The metrics that a plugin knows, for each kind. A guest's number for one is four times its position,
/// from 1, and its kind, as in Envoy.
#[derive(Debug, Default)]
pub(crate) struct MetricNames {
    kinds: [Vec<Metric>; 3],
}

/// One of them.
#[derive(Debug, Clone)]
pub(crate) struct Metric {
    pub(crate) kind: MetricKind,
    name: String,
    /// The proxy's; none: defined when the proxy takes no more, and counted by the plugin's VMs alone.
    pub(crate) id: Option<MetricId>,
    /// The value that is counted here.
    pub(crate) own: Arc<AtomicU64>,
}

/// More metrics of one kind than this a plugin cannot define.
const MOST_METRICS: usize = 1024;

fn kind_index(kind: MetricKind) -> usize {
    match kind {
        MetricKind::Counter => 0,
        MetricKind::Gauge => 1,
        MetricKind::Histogram => 2,
    }
}

impl MetricNames {
    /// Defines a metric, or finds it; answers the guest's number for it.
    pub(crate) fn define(
        &mut self,
        kind: MetricKind,
        name: &str,
        metrics: Option<&mut (dyn Metrics + 'static)>,
    ) -> Option<u32> {
        let id = metrics.and_then(|metrics| metrics.define(kind, &format!("wasmcustom.{name}")));
        let index = kind_index(kind);
        let list = self.kinds.get_mut(index)?;
        let position = if let Some(position) = list.iter().position(|known| known.name == name) {
            if let (Some(known), Some(id)) = (list.get_mut(position), id) {
                known.id = Some(id);
            }
            position
        } else {
            if list.len() >= MOST_METRICS {
                return None;
            }
            list.push(Metric {
                kind,
                name: name.to_owned(),
                id,
                own: Arc::default(),
            });
            list.len() - 1
        };
        u32::try_from((position + 1) * 4 + index).ok()
    }

    /// The metric of a guest's number.
    pub(crate) fn get(&self, number: u32) -> Option<&Metric> {
        let number = usize::try_from(number).ok()?;
        self.kinds
            .get(number & 3)?
            .get((number / 4).checked_sub(1)?)
    }
}

impl Shared {
    pub(crate) fn metrics(&self) -> std::sync::MutexGuard<'_, MetricNames> {
        self.metrics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
