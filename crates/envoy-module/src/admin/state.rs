//! What the pages show, gathered. The fields' names are the JSON's: they stay.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outrider_plugin_api::{Cause, CircuitStatus, LastFault, VmStatus};
use outrider_plugin_formats::{PluginTime, Runtime};
use outrider_vm_pool::drop_later;
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::file::{self, File};
use crate::generation::Core;
use crate::metrics::NAMES;
use crate::plugin::GenerationPlugin;
use crate::registry::{Living, Registry};
use crate::{circuits, last_faults};

/// Everything.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct State {
    /// The module's version.
    pub(super) version: &'static str,
    /// The version of Envoy's dynamic-module ABI that it speaks.
    pub(super) abi: String,
    pub(super) metrics: Metrics,
    /// The gateway's file, as the supervisor tells; none: there is no supervisor.
    pub(super) file: Option<File>,
    pub(super) generations: Vec<Generation>,
    pub(super) plugins: Vec<Plugin>,
}

/// The process's table of metrics.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Metrics {
    pub(super) used: usize,
    pub(super) capacity: usize,
}

/// Which of a filter's generations one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Age {
    /// It serves new streams.
    Newest,
    /// It lives because streams that began with it do, or another listener has it.
    Older,
}

/// A loaded configuration of a filter.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Generation {
    pub(super) id: u64,
    pub(super) filter: String,
    pub(super) since: String,
    pub(super) age: Age,
    pub(super) plugins: Vec<String>,
    /// Configurations of routes and virtual hosts.
    pub(super) routes: usize,
    pub(super) plugin_time: PluginTime,
}

/// A plugin of a generation.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Plugin {
    pub(super) name: String,
    pub(super) filter: String,
    pub(super) generation: u64,
    pub(super) version: Option<String>,
    pub(super) digest: String,
    pub(super) runtime: Runtime,
    /// Whether streams pass it where project and route say nothing.
    pub(super) enabled: bool,
    /// How many different configurations of it scopes use.
    pub(super) configurations: usize,
    /// Of all its versions, since Envoy started; so are the next three.
    pub(super) calls: u64,
    pub(super) replies: u64,
    /// By cause.
    pub(super) failures: BTreeMap<&'static str, u64>,
    pub(super) last_failure: Option<LastFailure>,
    pub(super) circuits: Vec<Circuit>,
    pub(super) time_budget_ms: u32,
    pub(super) memory_budget_bytes: usize,
    /// Per cent of one worker's CPU time that it may use.
    pub(super) share: u32,
    pub(super) vms: Vec<Vm>,
    /// Of each VM that is kept ready for a worker whose own fails.
    pub(super) spare_vms_memory_bytes: Vec<usize>,
    /// Of its log file; none: it has none.
    pub(super) log_lines_dropped: Option<u64>,
    /// How often its streams, timers and ticks had to wait for its share of CPU.
    pub(super) share_waits: u64,
}

/// What a plugin failed of.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct LastFailure {
    pub(super) at: String,
    pub(super) phase: String,
    pub(super) cause: &'static str,
    pub(super) message: String,
}

/// A circuit that is not closed, or has been open, or whose last stream failed.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Circuit {
    pub(super) scope: String,
    pub(super) state: &'static str,
    pub(super) failures_in_window: u32,
    pub(super) openings: u64,
    pub(super) retry_at: Option<String>,
    pub(super) last_failure: Option<String>,
}

/// One worker's VM.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Vm {
    pub(super) worker: usize,
    /// Absent: it is gone, and its replacement could not be made yet.
    pub(super) memory_bytes: Option<usize>,
    pub(super) replacements: u64,
    pub(super) trouble: Option<String>,
}

impl State {
    /// What there is now.
    pub(super) fn of(registry: &Registry) -> Self {
        let (used, capacity) = NAMES.usage();
        let mut state = Self {
            version: env!("CARGO_PKG_VERSION"),
            abi: outrider_envoy_abi::ABI_VERSION
                .to_string_lossy()
                .into_owned(),
            metrics: Metrics { used, capacity },
            file: file::told(),
            generations: Vec::new(),
            plugins: Vec::new(),
        };
        for living in registry.living() {
            state.add(living);
        }
        state
    }

    fn add(&mut self, living: Living) {
        let Living {
            filter,
            cores,
            routes,
        } = living;
        let count = cores.len();
        // The newest first.
        for (index, core) in cores.into_iter().enumerate().rev() {
            self.generations.push(Generation {
                id: core.id,
                filter: filter.clone(),
                since: moment(core.since),
                age: if index + 1 == count {
                    Age::Newest
                } else {
                    Age::Older
                },
                plugins: core
                    .plugins()
                    .map(|plugin| plugin.entry.name.clone())
                    .collect(),
                routes,
                plugin_time: core.plugin_time,
            });
            let plugins = core.plugins().map(|plugin| of(&filter, &core, plugin));
            self.plugins.extend(plugins);
            drop_later(core);
        }
    }
}

fn of(filter: &str, core: &Core, plugin: &GenerationPlugin) -> Plugin {
    let entry = &plugin.entry;
    let status = plugin.status();
    let counters = plugin.metrics();
    let failures = Cause::ALL.map(|cause| {
        let counter = counters.errors.get(cause.index()).copied().flatten();
        (cause.word(), NAMES.read(counter))
    });
    Plugin {
        name: entry.name.clone(),
        filter: filter.to_owned(),
        generation: core.id,
        version: entry.version.clone(),
        digest: entry.digest.clone(),
        runtime: entry.runtime,
        enabled: entry.enabled,
        configurations: plugin.configurations(),
        calls: NAMES.read(counters.calls),
        replies: NAMES.read(counters.replies),
        failures: failures.into_iter().collect(),
        last_failure: last_faults::of(&entry.name)
            .last()
            .map(|fault| last_failure(&fault)),
        circuits: circuits::statuses(&entry.name)
            .into_iter()
            .map(circuit)
            .collect(),
        time_budget_ms: entry.budgets.time_ms,
        memory_budget_bytes: status.memory_budget,
        share: entry.budgets.share,
        vms: status.workers.into_iter().enumerate().map(vm).collect(),
        spare_vms_memory_bytes: status.spares,
        log_lines_dropped: status.log_lines_dropped,
        share_waits: status.share_waits,
    }
}

fn last_failure(fault: &LastFault) -> LastFailure {
    LastFailure {
        at: unix_moment(fault.unix_ms),
        phase: fault.phase.to_string(),
        cause: fault.cause.word(),
        message: fault.message.clone(),
    }
}

fn circuit(status: CircuitStatus) -> Circuit {
    Circuit {
        scope: status.scope,
        state: status.state.word(),
        failures_in_window: status.failures,
        openings: status.openings,
        retry_at: status.retry_at.map(unix_moment),
        last_failure: status.last_failure,
    }
}

fn vm((worker, status): (usize, VmStatus)) -> Vm {
    Vm {
        worker,
        memory_bytes: status.memory,
        replacements: status.replacements,
        trouble: status.trouble,
    }
}

fn unix_moment(millis: u64) -> String {
    moment(UNIX_EPOCH + Duration::from_millis(millis))
}

/// A moment to the second, in the form of RFC 3339.
pub(super) fn moment(time: SystemTime) -> String {
    let whole = OffsetDateTime::from(time)
        .replace_nanosecond(0)
        .unwrap_or(OffsetDateTime::UNIX_EPOCH);
    // Only years beyond 9999 have no such form.
    whole.format(&Rfc3339).unwrap_or_default()
}
