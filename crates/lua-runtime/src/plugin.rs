//! One version of a Lua plugin: its VMs, one for each worker, a spare one, and one on which configurations are
//! checked.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use outrider_plugin_api::{
    BodyMode, ConfiguredPlugin, Interest, LoadError, MetricKind, Metrics, Plugin, PluginStatus,
    ScopedConfig,
};
use outrider_vm_pool::{ShareAccount, start_drop_queue, start_makers};

use crate::configured::LuaConfigured;
use crate::ffi::{LuaErrorKind, lower_maker_priority};
use crate::file_log::FileLog;
use crate::schema::Schemas;
use crate::shared::Shared;
use crate::source::LuaSource;
use crate::vm::{Documents, Intake, Vm};
use crate::workers::{Core, Settings, load_message};

/// See the module.
#[derive(Debug)]
pub(crate) struct LuaPlugin {
    core: Arc<Core>,
    interest: Interest,
    schemas: Schemas,
    check: Mutex<Option<Vm>>,
}

impl LuaPlugin {
    pub(crate) fn load(
        source: LuaSource,
        workers: usize,
        metrics: &mut dyn Metrics,
    ) -> Result<Self, LoadError> {
        let LuaSource {
            plugin,
            folder,
            files,
            entry,
            request_body,
            response_body,
            time_budget,
            memory_budget,
            share,
            off_worker,
            log_folder,
        } = source;
        start_drop_queue();
        start_makers(lower_maker_priority);
        let file_log = log_folder.map(|log| FileLog::new(&log, &plugin));
        let account = ShareAccount::of(&plugin, share, workers);
        let shared = Arc::new(Shared::new(plugin, folder, entry, files, file_log, account));
        if shared.file_log.is_some()
            && let Some(dropped) = metrics.define(
                MetricKind::Counter,
                &format!("outrider.plugin.{}.filelog_dropped", shared.plugin),
            )
        {
            // Nobody else sets it.
            let _ = shared.filelog_dropped.set(dropped);
        }
        let refused = |message| LoadError {
            plugin: shared.plugin.clone(),
            message,
        };
        let (check, results) = Vm::new(&shared, memory_budget, 0, Some(metrics))
            .map_err(|error| refused(load_message(&error)))?;
        let schemas = Schemas::from_results(&results).map_err(refused)?;
        let interest = interest(&results, request_body, response_body);
        let has = |kind| results.iter().any(|(known, _)| *known == kind);
        let settings = Settings {
            time_budget,
            memory_budget,
            streams_on: streams_on(&results),
            configures: has(CONFIGURES),
            off_worker,
        };
        let core = Core::new(
            Arc::clone(&shared),
            settings,
            handler_places(results),
            workers,
        )
        .map_err(|error| refused(load_message(&error)))?;
        Ok(Self {
            core,
            interest,
            schemas,
            check: Mutex::new(Some(check)),
        })
    }

    fn refused(&self, scope: &str, reason: &str) -> LoadError {
        let scope = if scope.is_empty() { "gateway" } else { scope };
        LoadError {
            plugin: self.core.shared.plugin.clone(),
            message: format!("{reason} (configuration of {scope})"),
        }
    }
}

impl Plugin for LuaPlugin {
    fn status(&self) -> PluginStatus {
        PluginStatus {
            workers: (self.core.workers.iter())
                .map(|own| own.slot.status())
                .collect(),
            spares: self.core.spares.memory(),
            memory_budget: self.core.memory_budget,
            log_lines_dropped: self.core.shared.file_log.as_ref().map(FileLog::lost),
            share_waits: self
                .core
                .shared
                .account
                .as_ref()
                .map_or(0, |account| account.waits()),
        }
    }

    fn interest(&self) -> Interest {
        self.interest
    }

    fn configure(
        &self,
        config: &ScopedConfig,
        metrics: &mut dyn Metrics,
    ) -> Result<Arc<dyn ConfiguredPlugin>, LoadError> {
        let refused = |reason: &str| self.refused(&config.scope, reason);
        self.schemas
            .check(config.base.as_deref(), config.route.as_deref())
            .map_err(|reason| refused(&reason))?;
        let documents = Documents {
            id: self.core.next_configuration.fetch_add(1, Ordering::Relaxed),
            effective: Arc::clone(&config.effective),
            base: config.base.clone(),
            route: config.route.clone(),
        };
        let mut check = self.check.lock().unwrap_or_else(PoisonError::into_inner);
        if check.is_none() {
            // An earlier configuration used up the memory of the one that was there.
            let core = &self.core;
            let made = Vm::new(&core.shared, core.memory_budget, 0, Some(&mut *metrics));
            let (vm, _) = made.map_err(|error| refused(&load_message(&error)))?;
            *check = Some(vm);
        }
        let Some(vm) = &mut *check else {
            return Err(refused("the plugin's Lua VM could not be made again"));
        };
        let began = Instant::now();
        if let Err(error) = vm.configure(&documents, Intake::Check, Some(metrics)) {
            if error.kind == LuaErrorKind::Memory || vm.state.unusable().is_some() {
                *check = None;
            }
            return Err(refused(&load_message(&error)));
        }
        let took = began.elapsed();
        vm.release_configuration(documents.id);
        vm.state.tidy();
        drop(check);
        self.core.add(&documents, took);
        Ok(Arc::new(LuaConfigured::new(
            Arc::clone(&self.core),
            documents,
        )))
    }
}

/// The SDK reports this kind of a plugin that has `on_configure`.
const CONFIGURES: i32 = 7;

/// The places that the SDK reported, from kind 11 on.
fn handler_places(results: Vec<(i32, String)>) -> BTreeMap<usize, String> {
    results
        .into_iter()
        .filter_map(|(kind, place)| Some((usize::try_from(kind - 10).ok()?, place)))
        .filter(|(number, _)| *number > 0)
        .collect()
}

/// Whether the SDK found a script for Envoy's Lua filter that asks for chunks or trailers.
fn streams_on(results: &[(i32, String)]) -> bool {
    results.iter().any(|(kind, _)| *kind == 6)
}

/// What the SDK found: a digit for each handler, in the order of `NAMES` in `plugin.lua`.
fn interest(
    results: &[(i32, String)],
    request_body: BodyMode,
    response_body: BodyMode,
) -> Interest {
    let mask = results
        .iter()
        .find(|(kind, _)| *kind == 1)
        .map_or("", |(_, mask)| mask);
    let has = |index: usize| mask.as_bytes().get(index) == Some(&b'1');
    let body = |index, mode| match mode {
        _ if !has(index) => BodyMode::None,
        _ if streams_on(results) => BodyMode::Stream,
        BodyMode::Stream => BodyMode::Stream,
        BodyMode::Whole | BodyMode::None => BodyMode::Whole,
    };
    Interest {
        request_headers: has(0),
        request_body: body(1, request_body),
        request_trailers: has(2),
        response_headers: has(3),
        response_body: body(4, response_body),
        response_trailers: has(5),
        log: has(6),
    }
}
