//! One version of a Proxy-Wasm plugin: its VMs, one a worker, and one on which configurations are checked.
//!
//! A VM whose guest failed is of no use any more: another takes its place at once, and streams that had begun
//! in it end by the failure policy. Where making one takes long, it was made ahead. When a guest fails again and again without serving a stream, that happens
//! at growing distances. A VM whose memory has grown beyond its mark gives way as well, but serves the
//! streams that it has until their end.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outrider_plugin_api::{
    ConfiguredPlugin, Interest, LoadError, MetricKind, Metrics, Plugin, PluginStatus, ScopedConfig,
};
use outrider_vm_pool::{ShareAccount, drop_later, start_drop_queue, start_makers};
use serde_json::{Map, Value};

use crate::code::Code;
use crate::configured::WasmConfigured;
use crate::memory::{Loan, lower_thread_priority};
use crate::shared::Shared;
use crate::shared_data::{self, Owner};
use crate::source::WasmSource;
use crate::vm::{Configuration, Refusal, Vm, slot_of};
use crate::workers::{Core, Counters, taking};

/// See the module.
#[derive(Debug)]
pub(crate) struct WasmPlugin {
    core: Arc<Core>,
    /// How long it takes to make a VM.
    start: Duration,
    check: Mutex<Option<Vm>>,
}

/// How much longer than a call may loading take.
const LOAD_FACTOR: u32 = 100;
/// At least this, and at most that: large guests compile tables and rules of their own, for seconds. Tests of
/// what never ends do not wait for as long.
const LOAD_BUDGETS: (Duration, Duration) = (
    Duration::from_secs(if cfg!(test) { 2 } else { 30 }),
    Duration::from_mins(1),
);

impl WasmPlugin {
    pub(crate) fn load(
        source: WasmSource,
        workers: usize,
        metrics: &mut dyn Metrics,
    ) -> Result<Self, LoadError> {
        start_drop_queue();
        start_makers(lower_thread_priority);
        let code = Code::load(&source, metrics).map_err(|message| LoadError {
            plugin: source.name.clone(),
            message: format!("{} {message}", source.file),
        })?;
        let WasmSource {
            name,
            file,
            memory_budget,
            time_budget,
            options,
            clock,
            background,
            late_metrics,
            share,
            cpu_clock,
            ..
        } = source;
        let account = ShareAccount::of(&name, share, workers);
        let environment = options
            .environment
            .iter()
            .map(|(name, value)| format!("{name}={value}\0").into_bytes())
            .collect();
        let mut define = |what: &str| {
            metrics.define(
                MetricKind::Counter,
                &format!("outrider.plugin.{name}.{what}"),
            )
        };
        let owner = if options.shared.is_empty() {
            Owner::Plugin(name.clone())
        } else {
            Owner::Joined(options.shared.clone())
        };
        let counters = Counters {
            replaced: define("vm_replaced"),
            retired: define("vm_retired"),
        };
        let shared = Arc::new(Shared {
            namespace: shared_data::namespace(owner, memory_budget),
            plugin: name,
            file,
            options,
            clock,
            background,
            late_metrics,
            environment,
            memory_budget,
            time_budget,
            load_budget: (time_budget * LOAD_FACTOR).clamp(LOAD_BUDGETS.0, LOAD_BUDGETS.1),
            metrics: Mutex::default(),
            tick_failures: Mutex::default(),
            cpu_clock,
            account,
        });
        let mut core = Core::new(code, shared, counters);
        let refused = |core: &Core, refusal: &Refusal| LoadError {
            plugin: core.shared.plugin.clone(),
            message: core.describe(refusal),
        };
        let budget = core.shared.load_budget;
        let (check, start) = taking(&core.shared, || {
            Vm::new(&core.code, &core.shared, 1, budget, Loan::Metrics(metrics))
        });
        let check = check.map_err(|refusal| refused(&core, &refusal))?;
        core.note_cost(start, Duration::ZERO);
        for _ in 0..workers {
            let vm = Vm::new(&core.code, &core.shared, 1, budget, Loan::Nothing)
                .map_err(|refusal| refused(&core, &refusal))?;
            core.add_worker(vm);
        }
        Ok(Self {
            core: core.shared(),
            start,
            check: Mutex::new(Some(check)),
        })
    }

    fn check(
        &self,
        configuration: &Configuration,
        metrics: &mut dyn Metrics,
    ) -> Result<Duration, Refusal> {
        let core = &self.core;
        core.shared.metrics().make_up_for(&mut *metrics);
        let mut check = self.check.lock().unwrap_or_else(PoisonError::into_inner);
        let mut vm = if let Some(vm) = check.take() {
            vm
        } else {
            // An earlier configuration was its end.
            let (budget, loan) = (core.shared.load_budget, Loan::Metrics(&mut *metrics));
            Vm::new(&core.code, &core.shared, 1, budget, loan)?
        };
        let (configured, cost) = taking(&core.shared, || {
            vm.configure(configuration, Loan::Metrics(&mut *metrics))
        });
        match configured {
            Ok(_) => {
                if vm.release(configuration.id, Loan::Metrics(metrics)).is_ok() {
                    *check = Some(vm);
                }
                Ok(cost)
            }
            Err(Refusal::Refused(reason)) => {
                *check = Some(vm);
                Err(Refusal::Refused(reason))
            }
            Err(failed) => Err(failed),
        }
    }

    /// VMs that no stream has come to yet take a configuration in now, so that no stream waits for it. Where one may come
    /// meanwhile, it would wait for the guest: there, that has the budget of a call, and a configuration that takes
    /// longer comes with a VM that is made for it.
    fn prepare(&self, configuration: &Configuration, cost: Duration) {
        let is_first = self.core.configurations_in_use() == 1;
        if !is_first && Core::is_long(cost) {
            return;
        }
        for own in &self.core.workers {
            if own.slot.is_used() {
                continue;
            }
            // Where a worker has it, it has just been used.
            let Some(mut held) = own.slot.borrow() else {
                continue;
            };
            if own.slot.is_used() {
                continue;
            }
            let Some(vm) = &mut held.current else {
                continue;
            };
            let configured = if is_first {
                vm.configure(configuration, Loan::Nothing).map(|_root| ())
            } else {
                vm.configure_quickly(configuration)
            };
            // It went well where it was checked. Should it fail here, the first stream finds out.
            match configured {
                Ok(()) => own.prepared.store(configuration.id, Ordering::Relaxed),
                Err(Refusal::Failed(trouble)) => {
                    let slot = slot_of(vm.generation);
                    self.core.failed_loading(&mut held, slot, &trouble);
                }
                Err(Refusal::Refused(_)) => {}
            }
        }
    }
}

impl Drop for WasmPlugin {
    fn drop(&mut self) {
        let check = self.check.get_mut();
        if let Some(vm) = check.unwrap_or_else(PoisonError::into_inner).take() {
            drop_later(vm);
        }
    }
}

/// The bytes of the plugin configuration that the guest reads: the JSON document; of a JSON string, its text;
/// none at all for an empty mapping, which is what a plugin without `config` has. Envoy's Wasm filter passes a
/// configuration of size 0 where it has no `configuration`, and guests tell that from `{}`.
fn text_of(effective: &str) -> Arc<[u8]> {
    if serde_json::from_str::<Map<String, Value>>(effective).is_ok_and(|map| map.is_empty()) {
        return Arc::default();
    }
    match serde_json::from_str::<String>(effective) {
        Ok(text) => text.into_bytes().into(),
        Err(_) => effective.as_bytes().into(),
    }
}

impl Plugin for WasmPlugin {
    fn interest(&self) -> Interest {
        self.core.code.interest
    }

    fn configure(
        &self,
        config: &ScopedConfig,
        metrics: &mut dyn Metrics,
    ) -> Result<Arc<dyn ConfiguredPlugin>, LoadError> {
        let configuration = Configuration {
            id: self.core.next_configuration(),
            text: text_of(&config.effective),
        };
        let checked = self.check(&configuration, metrics);
        let cost = checked.map_err(|refusal| {
            let scope = if config.scope.is_empty() {
                "gateway"
            } else {
                &config.scope
            };
            LoadError {
                plugin: self.core.shared.plugin.clone(),
                message: format!(
                    "{} (configuration of {scope})",
                    self.core.describe(&refusal)
                ),
            }
        })?;
        self.core.add(&configuration, cost, config.place.as_ref());
        self.core.note_cost(self.start, cost);
        self.prepare(&configuration, cost);
        self.core.spread(&configuration);
        Ok(Arc::new(WasmConfigured::new(
            Arc::clone(&self.core),
            configuration,
        )))
    }

    fn background(&self, worker: usize) {
        self.core.background(worker);
    }

    fn status(&self) -> PluginStatus {
        PluginStatus {
            workers: self.core.statuses(),
            spares: self.core.spares(),
            memory_budget: self.core.shared.memory_budget,
            log_lines_dropped: None,
            share_waits: self.core.share_waits(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_handed_over_as_it_is() {
        assert_eq!(&*text_of(r#""a\nb""#), b"a\nb");
        assert_eq!(&*text_of(r#"{"a":1}"#), br#"{"a":1}"#);
    }
}
