//! What all VMs of one plugin version have in common: who it is, and how it is to be run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outrider_plugin_api::{Background, LateMetrics, MetricId, MetricKind, Metrics};
use outrider_vm_pool::{ShareAccount, ThreadClock};

use crate::shared_data::Namespace;
use crate::source::{Clock, WasmOptions};
use crate::state::MetricChange;
use crate::ticks::TickFailures;

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
    /// What the proxy does where there is no stream.
    pub(crate) background: Option<Arc<dyn Background>>,
    /// Where metrics are defined while streams are served.
    pub(crate) late_metrics: Option<Arc<dyn LateMetrics>>,
    /// Reads the CPU time of threads.
    pub(crate) cpu_clock: &'static dyn ThreadClock,
    /// The plugin's CPU share; none: it is not limited.
    pub(crate) account: Option<Arc<ShareAccount>>,
    /// Its shared data and queues.
    pub(crate) namespace: Arc<Namespace>,
    /// Metrics that the plugin's VMs have defined.
    pub(crate) metrics: Mutex<MetricNames>,
    /// Failed ticks of the plugin's VMs on all workers.
    pub(crate) tick_failures: Mutex<TickFailures>,
}

/// The metrics that the VMs of a plugin have defined, for each kind.
#[derive(Debug, Default)]
pub(crate) struct MetricNames {
    kinds: [Vec<Arc<Metric>>; 3],
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Metric {
    pub(crate) kind: MetricKind,
    name: String,
    /// The proxy's number and 1; 0: defined when the proxy takes no more, and counted by the plugin's VMs
    /// alone.
    id: AtomicU64,
    /// The value that is counted here.
    pub(crate) own: AtomicU64,
}

impl Metric {
    /// The proxy's, if it has it.
    pub(crate) fn id(&self) -> Option<MetricId> {
        let number = self.id.load(Ordering::Relaxed).checked_sub(1)?;
        u32::try_from(number).ok().map(MetricId)
    }

    fn becomes(&self, id: Option<MetricId>) {
        if let Some(id) = id {
            self.id.store(u64::from(id.0) + 1, Ordering::Relaxed);
        }
    }
}

/// Metrics of all kinds that a plugin may define: Envoy has room for 4096, of all plugins.
const MOST_METRICS: usize = 512;

fn kind_index(kind: MetricKind) -> usize {
    match kind {
        MetricKind::Counter => 0,
        MetricKind::Gauge => 1,
        MetricKind::Histogram => 2,
    }
}

impl MetricNames {
    /// Defines a metric, or finds it. The proxy's metric is defined by `metrics` while a configuration loads, and by `late`
    /// otherwise. Returns `None` if there are too many.
    pub(crate) fn define(
        &mut self,
        kind: MetricKind,
        name: &str,
        metrics: Option<&mut (dyn Metrics + 'static)>,
        late: Option<&dyn LateMetrics>,
    ) -> Option<Arc<Metric>> {
        let count: usize = self.kinds.iter().map(Vec::len).sum();
        let list = self.kinds.get_mut(kind_index(kind))?;
        let metric = match list.iter().find(|known| known.name == name) {
            Some(known) => Arc::clone(known),
            None if count >= MOST_METRICS => return None,
            None => {
                let metric = Arc::new(Metric {
                    kind,
                    name: name.to_owned(),
                    id: AtomicU64::new(0),
                    own: AtomicU64::new(0),
                });
                list.push(Arc::clone(&metric));
                metric
            }
        };
        match (metrics, late) {
            (Some(metrics), _) => metric.becomes(metrics.define(kind, &full_name(name))),
            // Once for each name, as this takes a lock of the whole process.
            (None, Some(late)) if metric.id().is_none() => {
                metric.becomes(late.define_late(kind, &full_name(name)));
            }
            (None, _) => {}
        }
        Some(metric)
    }

    /// The proxy takes metrics now: what was defined when it took none becomes the proxy's.
    pub(crate) fn make_up_for(&mut self, metrics: &mut dyn Metrics) {
        for metric in self.kinds.iter().flatten() {
            if metric.id().is_none() {
                metric.becomes(metrics.define(metric.kind, &full_name(&metric.name)));
            }
        }
    }
}

/// A guest's name for a metric, as Envoy's host has it.
fn full_name(name: &str) -> String {
    format!("wasmcustom.{name}")
}

/// The numbers that a VM's guest has for metrics. As in Envoy, each definition gives a new one, also of a name
/// that is known: four times its position, from 1, and its kind.
#[derive(Debug, Default)]
pub(crate) struct MetricNumbers {
    kinds: [Vec<Arc<Metric>>; 3],
}

/// More numbers of one kind than this a VM does not have: then a name has the one that it had.
const MOST_NUMBERS: usize = 4 * MOST_METRICS;

impl MetricNumbers {
    /// A number for a metric.
    pub(crate) fn add(&mut self, metric: Arc<Metric>) -> Option<u32> {
        let index = kind_index(metric.kind);
        let list = self.kinds.get_mut(index)?;
        let position = if list.len() < MOST_NUMBERS {
            list.push(metric);
            list.len() - 1
        } else {
            list.iter().position(|known| Arc::ptr_eq(known, &metric))?
        };
        u32::try_from((position + 1) * 4 + index).ok()
    }

    /// The metric of a number.
    pub(crate) fn get(&self, number: u32) -> Option<&Metric> {
        let number = usize::try_from(number).ok()?;
        let list = self.kinds.get(number & 3)?;
        list.get((number / 4).checked_sub(1)?)
            .map(|metric| &**metric)
    }
}

impl Shared {
    /// Whether VMs are called beside streams.
    pub(crate) fn runs_beside_streams(&self) -> bool {
        let background = self.background.as_ref();
        background.is_some_and(|background| background.is_there())
    }

    /// Has VMs called beside streams when so much time has passed.
    pub(crate) fn ring_in(&self, delay: Duration) {
        if let Some(background) = &self.background {
            background.ring_in(delay);
        }
    }

    /// Returns the CPU time that the calling thread has used, or `None` if the system does not say.
    pub(crate) fn thread_cpu_time(&self) -> Option<Duration> {
        self.cpu_clock.this_thread_time()
    }

    /// Changes a metric where there is no stream. `false`: it has to wait.
    pub(crate) fn count(&self, change: MetricChange) -> bool {
        let Some(background) = &self.background else {
            return false;
        };
        match change {
            MetricChange::Add(metric, amount) => background.add_metric(metric, amount),
            MetricChange::Record(metric, value) => background.record_metric(metric, value),
        }
    }

    /// Failed ticks, by configuration.
    pub(crate) fn tick_failures(&self) -> std::sync::MutexGuard<'_, TickFailures> {
        let failures = self.tick_failures.lock();
        failures.unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn metrics(&self) -> std::sync::MutexGuard<'_, MetricNames> {
        self.metrics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
