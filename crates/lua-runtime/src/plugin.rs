//! One version of a Lua plugin: its VMs, one a worker, and one on which configurations are checked.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use outrider_plugin_api::{
    BodyMode, ConfiguredPlugin, Interest, LoadError, MetricKind, Metrics, Plugin, PluginStatus,
    ScopedConfig, VmStatus,
};
use outrider_vm_pool::{RestartBackoff, ShareAccount, drop_later, start_drop_queue};

use crate::configured::LuaConfigured;
use crate::ffi::{LuaError, LuaErrorKind};
use crate::file_log::FileLog;
use crate::schema::Schemas;
use crate::shared::Shared;
use crate::source::LuaSource;
use crate::vm::{Documents, Intake, Vm};

/// A worker's VM. The lock is the worker's own: others take it only to put something into `released`.
#[derive(Debug)]
pub(crate) struct WorkerVm {
    vm: Mutex<Held>,
    released: Mutex<Vec<i32>>,
    has_released: AtomicBool,
    seen: Arc<Seen>,
}

/// What other threads may see of a worker's VM; written when it is replaced.
#[derive(Debug, Default)]
struct Seen {
    replacements: AtomicU64,
    now: Mutex<SeenVm>,
}

#[derive(Debug, Default)]
struct SeenVm {
    memory: Option<Arc<AtomicUsize>>,
    trouble: Option<String>,
}

impl Seen {
    fn now(&self) -> MutexGuard<'_, SeenVm> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn status(&self) -> VmStatus {
        let now = self.now();
        VmStatus {
            memory: now.memory.as_ref().map(|used| used.load(Ordering::Relaxed)),
            replacements: self.replacements.load(Ordering::Relaxed),
            trouble: now.trouble.clone(),
        }
    }
}

impl WorkerVm {
    fn new(vm: Vm) -> Self {
        let seen = Arc::new(Seen::default());
        seen.now().memory = Some(vm.state.memory_gauge());
        Self {
            vm: Mutex::new(Held {
                vm: Some(vm),
                generation: 0,
                backoff: RestartBackoff::new(0, FIRST_PAUSE, LONGEST_PAUSE),
                seen: Arc::clone(&seen),
            }),
            released: Mutex::default(),
            has_released: AtomicBool::new(false),
            seen,
        }
    }
}

/// What a worker holds.
#[derive(Debug)]
pub(crate) struct Held {
    /// None when the one that was there is of no use any more and no other could be made yet.
    pub(crate) vm: Option<Vm>,
    generation: u32,
    backoff: RestartBackoff,
    seen: Arc<Seen>,
}

impl Held {
    /// Whether the VM that is there is not to be used again (see [`crate::ffi::State::unusable`]).
    pub(crate) fn is_unusable(&self) -> bool {
        self.vm
            .as_ref()
            .is_some_and(|vm| vm.state.unusable().is_some())
    }
}

/// After the first failure a replacement is tried again when this is over; each further failure doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What a plugin's configurations share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) shared: Arc<Shared>,
    pub(crate) time_budget: Duration,
    memory_budget: usize,
    /// Whether the coroutine of a headers handler goes on with the parts that follow.
    pub(crate) streams_on: bool,
    workers: Vec<WorkerVm>,
    /// `file:line: ` where each handler begins, by the handler's number.
    handler_places: BTreeMap<usize, String>,
    next_configuration: AtomicI32,
}

impl Core {
    /// A worker's VM, with the configurations that are over taken out. None: it is in use, which
    /// means that a call is made within a call, or there is no such worker.
    #[inline]
    pub(crate) fn worker(&self, worker: usize) -> Option<MutexGuard<'_, Held>> {
        let own = self.workers.get(worker)?;
        let mut held = match own.vm.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(poisoned)) => {
                // A panic left the VM in a state that nobody knows: another takes its place.
                own.vm.clear_poison();
                let mut held = poisoned.into_inner();
                if let Some(broken) = held.vm.take() {
                    drop_later(broken);
                }
                held
            }
            Err(TryLockError::WouldBlock) => return None,
        };
        if own.has_released.load(Ordering::Relaxed) {
            drain(own, &mut held);
        }
        Some(held)
    }

    /// A configuration is over: the VMs forget it at their next call.
    pub(crate) fn release(&self, id: i32) {
        for worker in &self.workers {
            worker
                .released
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(id);
            worker.has_released.store(true, Ordering::Release);
        }
    }

    /// Where a handler begins, for errors that name no place.
    pub(crate) fn handler_place(&self, number: usize) -> &str {
        self.handler_places.get(&number).map_or("", String::as_str)
    }

    /// Puts a new VM in the place of one that is of no use any more, unless that failed a short while
    /// ago. `now` is in milliseconds since the Unix epoch. If no VM is there afterwards, the answer
    /// says why.
    pub(crate) fn replace(&self, held: &mut Held, now: u64) -> Result<(), String> {
        if let Some(old) = held.vm.take() {
            drop_later(old);
        }
        let now = Duration::from_millis(now);
        if held.backoff.is_due(now) {
            held.generation = held.generation.wrapping_add(1);
            match Vm::new(&self.shared, self.memory_budget, held.generation, None) {
                Ok((vm, _)) => {
                    held.seen.replacements.fetch_add(1, Ordering::Relaxed);
                    *held.seen.now() = SeenVm {
                        memory: Some(vm.state.memory_gauge()),
                        trouble: None,
                    };
                    held.vm = Some(vm);
                    held.backoff.clear();
                    return Ok(());
                }
                Err(error) => {
                    held.backoff.note(now, load_message(&error));
                    *held.seen.now() = SeenVm {
                        memory: None,
                        trouble: Some(held.backoff.reason().to_owned()),
                    };
                }
            }
        }
        Err(held.backoff.reason().to_owned())
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        drop_later(std::mem::take(&mut self.workers));
    }
}

#[cold]
fn drain(own: &WorkerVm, held: &mut Held) {
    // Whoever holds this lock now is about to let go; if so, the next call drains.
    let Ok(mut released) = own.released.try_lock() else {
        return;
    };
    own.has_released.store(false, Ordering::Relaxed);
    for id in released.drain(..) {
        if let Some(vm) = &mut held.vm {
            vm.release_configuration(id);
        }
    }
}

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
            log_folder,
        } = source;
        start_drop_queue();
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
        let workers = (0..workers)
            .map(|_| {
                let (vm, _) = Vm::new(&shared, memory_budget, 0, None)?;
                Ok(WorkerVm::new(vm))
            })
            .collect::<Result<Vec<_>, LuaError>>()
            .map_err(|error| refused(load_message(&error)))?;
        Ok(Self {
            core: Arc::new(Core {
                shared,
                time_budget,
                memory_budget,
                streams_on: streams_on(&results),
                handler_places: handler_places(results),
                workers,
                // 0 is no configuration.
                next_configuration: AtomicI32::new(1),
            }),
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
            workers: self
                .core
                .workers
                .iter()
                .map(|own| own.seen.status())
                .collect(),
            spares: Vec::new(),
            memory_budget: self.core.memory_budget,
            log_lines_dropped: self.core.shared.file_log.as_ref().map(FileLog::lost),
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
        if let Err(error) = vm.configure(&documents, Intake::Check, Some(metrics)) {
            if error.kind == LuaErrorKind::Memory {
                *check = None;
            }
            return Err(refused(&load_message(&error)));
        }
        vm.release_configuration(documents.id);
        vm.state.tidy();
        drop(check);
        Ok(Arc::new(LuaConfigured::new(
            Arc::clone(&self.core),
            documents,
        )))
    }
}

fn load_message(error: &LuaError) -> String {
    match error.kind {
        LuaErrorKind::Time => format!("{} (it was loading)", error.message),
        LuaErrorKind::Error | LuaErrorKind::Memory => error.message.clone(),
    }
}

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
