//! One version of a Lua plugin: its VMs, one for each worker, a spare one, and one on which configurations are
//! checked.
//!
//! No VM is made, and no `on_configure` runs, on a worker. A worker whose VM is not to be used again takes the
//! spare one; maker threads ([`outrider_vm_pool::request_vms`]) make the next, and load configurations into the
//! VMs of workers that are between two calls. Meanwhile streams wait for a moment
//! ([`outrider_plugin_api::ConfiguredPlugin::wait_for_share`]) and then get the failure policy.
//!
//! A plugin without `on_configure` runs no code of its own for a configuration: its workers decode the
//! document when the first stream with it comes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use outrider_plugin_api::{
    BodyMode, ConfiguredPlugin, Interest, LoadError, MetricKind, Metrics, Plugin, PluginStatus,
    ScopedConfig, VmStatus,
};
use outrider_vm_pool::{
    MakeVm, Making, NO_WORKER, Progress, RestartBackoff, ShareAccount, drop_later, request_vms,
    start_drop_queue, start_makers,
};

use crate::configured::LuaConfigured;
use crate::ffi::{LuaError, LuaErrorKind, lower_maker_priority};
use crate::file_log::FileLog;
use crate::schema::Schemas;
use crate::shared::Shared;
use crate::source::LuaSource;
use crate::vm::{Documents, Intake, Vm};

/// A worker's VM. A worker locks it for a call; a maker thread, to load configurations.
#[derive(Debug)]
pub(crate) struct WorkerVm {
    vm: Mutex<Held>,
    released: Mutex<Vec<i32>>,
    has_released: AtomicBool,
    /// A stream has come.
    is_used: AtomicBool,
    readiness: Readiness,
    seen: Arc<Seen>,
}

/// Which configurations a worker's VM has, for streams that wait for theirs.
#[derive(Debug, Default)]
struct Readiness {
    /// All configurations up to this number are loaded; 0 while there is no VM, or a maker thread has it.
    up_to: AtomicI32,
    /// Since when one is missing, in milliseconds of the process.
    since: AtomicU64,
}

/// A stream waits so long for its VM, before it gets the failure policy.
const VM_PATIENCE: u64 = 750;
/// A waiting stream asks again after a quarter of the time that has passed, within these bounds: many streams
/// that wait must not keep the worker busy.
const SHORTEST_STEP: Duration = Duration::from_millis(2);
const LONGEST_STEP: Duration = Duration::from_millis(100);

static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

fn now_ms() -> u64 {
    u64::try_from(BEGAN.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl Readiness {
    fn set(&self, up_to: i32) {
        self.up_to.store(up_to, Ordering::Release);
    }

    /// A configuration, or the VM, is missing from now on.
    fn lacks(&self, up_to: Option<i32>) {
        self.since.store(now_ms(), Ordering::Relaxed);
        if let Some(up_to) = up_to {
            self.set(up_to);
        }
    }

    #[inline]
    fn wait(&self, id: i32) -> Option<Duration> {
        if self.up_to.load(Ordering::Relaxed) >= id {
            return None;
        }
        let waited = now_ms().saturating_sub(self.since.load(Ordering::Relaxed));
        let step = Duration::from_millis(waited / 4).clamp(SHORTEST_STEP, LONGEST_STEP);
        (waited < VM_PATIENCE).then_some(step)
    }
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
    fn new(vm: Vm, worker: usize) -> Self {
        let seen = Arc::new(Seen::default());
        let mut held = Held {
            vm: None,
            worker,
            seen: Arc::clone(&seen),
        };
        held.install(vm);
        Self {
            vm: Mutex::new(held),
            released: Mutex::default(),
            has_released: AtomicBool::new(false),
            is_used: AtomicBool::new(false),
            readiness: Readiness::default(),
            seen,
        }
    }

    /// The VM, for its worker. `None` if it is in use: by a maker thread that has not let go of it after
    /// [`LONGEST_SPIN`], or for good, because a call is made within a call.
    #[inline]
    fn lock(&self) -> Option<MutexGuard<'_, Held>> {
        match self.vm.try_lock() {
            Ok(held) => Some(held),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.unpoisoned(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => self.contended(),
        }
    }

    #[cold]
    fn contended(&self) -> Option<MutexGuard<'_, Held>> {
        let began = Instant::now();
        while began.elapsed() < LONGEST_SPIN {
            std::hint::spin_loop();
            match self.vm.try_lock() {
                Ok(held) => return Some(held),
                Err(TryLockError::Poisoned(poisoned)) => {
                    return Some(self.unpoisoned(poisoned.into_inner()));
                }
                Err(TryLockError::WouldBlock) => {}
            }
        }
        None
    }

    /// A panic left the VM in an unknown state: another takes its place.
    #[cold]
    fn unpoisoned<'a>(&self, mut held: MutexGuard<'a, Held>) -> MutexGuard<'a, Held> {
        self.vm.clear_poison();
        held.discard("a panic left it in an unknown state");
        held
    }
}

/// A worker waits so long for a maker thread to let go of a VM.
const LONGEST_SPIN: Duration = Duration::from_micros(500);

/// What a worker holds.
#[derive(Debug)]
pub(crate) struct Held {
    /// `None` if the one that was there is not to be used again, and its replacement is not made yet.
    pub(crate) vm: Option<Vm>,
    worker: usize,
    seen: Arc<Seen>,
}

impl Held {
    /// Whether the VM that is there is not to be used again (see [`crate::ffi::State::unusable`]).
    pub(crate) fn is_unusable(&self) -> bool {
        self.vm
            .as_ref()
            .is_some_and(|vm| vm.state.unusable().is_some())
    }

    fn install(&mut self, vm: Vm) {
        vm.state.call_slot().set_worker(self.worker);
        *self.seen.now() = SeenVm {
            memory: Some(vm.state.memory_gauge()),
            trouble: None,
        };
        self.vm = Some(vm);
    }

    /// Drops the VM, which is not to be used again.
    fn discard(&mut self, reason: &str) {
        if let Some(vm) = self.vm.take() {
            vm.state.call_slot().set_worker(NO_WORKER);
            drop_later(vm);
            self.seen.replacements.fetch_add(1, Ordering::Relaxed);
        }
        *self.seen.now() = SeenVm {
            memory: None,
            trouble: Some(reason.to_owned()),
        };
    }
}

/// After the first failed start the next is tried when this is over; each further failure doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Loading all configurations into a VM may take this long.
const CONFIGURE_BUDGET: Duration = Duration::from_secs(10);
/// A configuration whose check took less is loaded by the loading thread into VMs that are not used yet.
const QUICK: Duration = Duration::from_millis(5);

/// What a plugin's configurations share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) shared: Arc<Shared>,
    pub(crate) time_budget: Duration,
    memory_budget: usize,
    /// Whether the coroutine of a headers handler goes on with the parts that follow.
    pub(crate) streams_on: bool,
    /// Whether the plugin has `on_configure`, which does not run on a worker.
    configures: bool,
    /// Whether VMs are made, and plugins configured, by maker threads only.
    off_worker: bool,
    workers: Vec<WorkerVm>,
    /// `file:line: ` where each handler begins, by the handler's number.
    handler_places: BTreeMap<usize, String>,
    next_configuration: AtomicI32,
    /// Those in use, of a plugin that has `on_configure`.
    configurations: Mutex<BTreeMap<i32, Documents>>,
    /// The number of the last VM: streams know by it which VM has their state.
    generation: AtomicU32,
    /// A VM with all configurations, for the next worker that needs one.
    spare: Mutex<Option<Vm>>,
    starts: Mutex<RestartBackoff>,
    making: Making,
    own: Weak<Self>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these locks hold is valid between any two statements that change it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    /// A worker's VM, with the configurations that are over taken out. `None` if it is in use, or there is
    /// no such worker.
    #[inline]
    pub(crate) fn worker(&self, worker: usize) -> Option<MutexGuard<'_, Held>> {
        let own = self.workers.get(worker)?;
        let mut held = own.lock()?;
        if own.has_released.load(Ordering::Relaxed) || !own.is_used.load(Ordering::Relaxed) {
            own.is_used.store(true, Ordering::Relaxed);
            drain(own, &mut held);
        }
        Some(held)
    }

    /// Returns how long a stream with this configuration has to wait on a worker, or `None` if it is to be
    /// called: for the plugin's CPU share, or for a VM that is being made or configured.
    #[inline]
    pub(crate) fn wait(&self, worker: usize, id: i32) -> Option<Duration> {
        let share = self.shared.account.as_ref();
        if let Some(wait) = share.and_then(|account| account.wait(worker)) {
            return Some(wait);
        }
        if !self.off_worker {
            return None;
        }
        let id = if self.configures { id } else { 1 };
        self.workers.get(worker)?.readiness.wait(id)
    }

    /// A configuration has come and was checked, which took so long: the workers' VMs load it, off the
    /// workers.
    fn add(&self, documents: &Documents, took: Duration) {
        if !self.configures {
            return;
        }
        let mut configurations = locked(&self.configurations);
        let before = configurations.keys().last().copied().unwrap_or(0);
        configurations.insert(documents.id, documents.clone());
        drop(configurations);
        if !self.off_worker {
            return;
        }
        for own in &self.workers {
            own.readiness.lacks(None);
            let held = own.vm.try_lock();
            let is_used = own.is_used.load(Ordering::Relaxed);
            if let Ok(mut held) = held
                && !is_used
                && took < QUICK
                // Else a maker thread loads those before it first.
                && own.readiness.up_to.load(Ordering::Relaxed) >= before
                && let Some(vm) = &mut held.vm
                && vm.configure(documents, Intake::Checked, None).is_ok()
            {
                own.readiness.set(documents.id);
            }
        }
        self.request();
    }

    /// A configuration is over: the VMs forget it at their next call.
    pub(crate) fn release(&self, id: i32) {
        if self.configures {
            locked(&self.configurations).remove(&id);
        }
        for worker in &self.workers {
            locked(&worker.released).push(id);
            worker.has_released.store(true, Ordering::Release);
        }
    }

    /// Whether the plugin has a handler with this number.
    pub(crate) fn has_handler(&self, number: usize) -> bool {
        self.handler_places.contains_key(&number)
    }

    /// Where a handler begins, for errors that name no place.
    pub(crate) fn handler_place(&self, number: usize) -> &str {
        self.handler_places.get(&number).map_or("", String::as_str)
    }

    /// Whether a configuration may be loaded on the calling thread, which may be a worker: it runs no code of
    /// the plugin.
    pub(crate) fn may_configure(&self) -> bool {
        !self.configures || !self.off_worker
    }

    /// Has a maker thread make or configure VMs.
    pub(crate) fn request(&self) {
        if let Some(core) = self.own.upgrade() {
            request_vms(&core);
        }
    }

    /// Has a VM take the place of one that is not to be used again: the spare one, or, where plugins are only
    /// tried, one that is made here. `now` is in milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// There is no VM yet, with the reason.
    pub(crate) fn replace(&self, held: &mut Held, now: u64) -> Result<(), String> {
        const BEING_MADE: &str = "a new VM is being made";
        let reason = held.vm.as_ref().and_then(|vm| vm.state.unusable());
        held.discard(reason.unwrap_or(BEING_MADE));
        if !self.off_worker {
            return self.replace_here(held, Duration::from_millis(now));
        }
        let own = self.workers.get(held.worker);
        let spare = self
            .spare
            .try_lock()
            .ok()
            .and_then(|mut spare| spare.take());
        // Before a maker thread looks whether the spare VM is there, which it is not any more.
        self.request();
        if let Some(mut vm) = spare {
            self.forget_released(&mut vm);
            let up_to = vm.configured_up_to;
            held.install(vm);
            if let Some(own) = own {
                own.readiness.set(up_to);
            }
            return Ok(());
        }
        if let Some(own) = own
            && own.readiness.up_to.load(Ordering::Relaxed) != 0
        {
            own.readiness.lacks(Some(0));
        }
        let failed = locked(&self.starts).reason().to_owned();
        let reason = if failed.is_empty() {
            BEING_MADE.to_owned()
        } else {
            format!("the last attempt to make one failed: {failed}")
        };
        held.seen.now().trouble = Some(reason.clone());
        Err(reason)
    }

    /// Makes a VM on this thread, which is no worker.
    fn replace_here(&self, held: &mut Held, now: Duration) -> Result<(), String> {
        let mut starts = locked(&self.starts);
        if starts.is_due(now) {
            match self.new_vm() {
                Ok(vm) => {
                    starts.clear();
                    held.install(vm);
                    return Ok(());
                }
                Err(error) => starts.note(now, load_message(&error)),
            }
        }
        let reason = format!("the last attempt to make one failed: {}", starts.reason());
        held.seen.now().trouble = Some(reason.clone());
        Err(reason)
    }

    /// What was released while a VM was spare, it has not been told.
    fn forget_released(&self, vm: &mut Vm) {
        let gone = vm.without(&locked(&self.configurations));
        for id in gone {
            vm.release_configuration(id);
        }
    }

    fn new_vm(&self) -> Result<Vm, LuaError> {
        // 0 is the generation of the VM on which configurations are checked.
        let generation = self.generation.fetch_add(1, Ordering::Relaxed).max(1);
        Vm::new(&self.shared, self.memory_budget, generation, None).map(|(vm, _)| vm)
    }

    /// Loads all configurations into a VM that it lacks.
    ///
    /// # Errors
    /// The VM's memory is used up, or it took too long.
    fn complete(&self, vm: &mut Vm) -> Result<(), LuaError> {
        if !self.configures {
            vm.configured_up_to = i32::MAX;
            return Ok(());
        }
        let known = locked(&self.configurations).clone();
        let began = Instant::now();
        for id in vm.without(&known) {
            vm.release_configuration(id);
        }
        let last = known.keys().last().copied();
        for documents in known.values() {
            if began.elapsed() > CONFIGURE_BUDGET {
                return Err(LuaError {
                    kind: LuaErrorKind::Time,
                    message: format!(
                        "on_configure took longer than {} s for all configurations together",
                        CONFIGURE_BUDGET.as_secs()
                    ),
                });
            }
            let loaded = vm.configure(documents, Intake::Checked, None);
            if let Err(error) = loaded
                && (error.kind == LuaErrorKind::Memory || vm.state.unusable().is_some())
            {
                return Err(error);
            }
        }
        vm.configured_up_to = last.unwrap_or(vm.configured_up_to).max(vm.configured_up_to);
        Ok(())
    }

    /// Gives a VM to a worker that has none. Returns it if there is no such worker, or it is in a call.
    fn give(&self, vm: Vm) -> Option<Vm> {
        for own in &self.workers {
            if own.readiness.up_to.load(Ordering::Acquire) == 0
                && let Ok(mut held) = own.vm.try_lock()
                && held.vm.is_none()
            {
                let up_to = vm.configured_up_to;
                held.install(vm);
                own.readiness.set(up_to);
                return None;
            }
        }
        Some(vm)
    }

    /// Loads what a worker's VM lacks, while its streams wait.
    fn complete_worker(&self, own: &WorkerVm) -> Progress {
        let newest = locked(&self.configurations).keys().last().copied();
        if newest.is_none_or(|newest| own.readiness.up_to.load(Ordering::Relaxed) >= newest) {
            return Progress::Done;
        }
        let mut held = match own.vm.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(poisoned)) => own.unpoisoned(poisoned.into_inner()),
            // In a call of its worker.
            Err(TryLockError::WouldBlock) => return Progress::Again(Duration::from_micros(100)),
        };
        let Some(vm) = &mut held.vm else {
            return Progress::Done;
        };
        own.readiness.lacks(Some(0));
        if let Err(error) = self.complete(vm) {
            let reason = load_message(&error);
            held.discard(&reason);
            locked(&self.starts).note(Duration::from_millis(now_ms()), reason);
            return Progress::Again(Duration::ZERO);
        }
        own.readiness.set(vm.configured_up_to);
        Progress::Done
    }
}

impl MakeVm for Core {
    fn make(&self) -> Progress {
        let mut pause: Option<Duration> = None;
        let mut again = |progress| {
            if let Progress::Again(next) = progress {
                pause = Some(pause.map_or(next, |pause| pause.min(next)));
            }
        };
        if self.configures {
            for own in &self.workers {
                again(self.complete_worker(own));
            }
        }
        // Taken out meanwhile: a worker that looks for one does not wait for this thread.
        let spare = locked(&self.spare).take();
        let now = Duration::from_millis(now_ms());
        let wait = locked(&self.starts).wait(now);
        if spare.is_none() && !wait.is_zero() {
            again(Progress::Again(wait));
        } else {
            let made = match spare {
                Some(vm) => Ok(vm),
                None => self.new_vm(),
            };
            let made = made.and_then(|mut vm| self.complete(&mut vm).map(|()| vm));
            match made {
                Ok(vm) => {
                    locked(&self.starts).clear();
                    if let Some(spare) = self.give(vm) {
                        *locked(&self.spare) = Some(spare);
                    } else {
                        again(Progress::Again(Duration::ZERO));
                    }
                }
                Err(error) => {
                    let mut starts = locked(&self.starts);
                    starts.note(now, load_message(&error));
                    again(Progress::Again(starts.wait(now)));
                }
            }
        }
        pause.map_or(Progress::Done, Progress::Again)
    }

    fn making(&self) -> &Making {
        &self.making
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        drop_later(std::mem::take(&mut self.workers));
        drop_later(locked(&self.spare).take());
    }
}

#[cold]
fn drain(own: &WorkerVm, held: &mut Held) {
    // The holder of this lock is about to let go; if so, the next call drains.
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
        let configures = has(CONFIGURES);
        let streams_on = streams_on(&results);
        let workers = (0..workers)
            .map(|worker| {
                let generation = u32::try_from(worker).unwrap_or(0) + 1;
                let (vm, _) = Vm::new(&shared, memory_budget, generation, None)?;
                let own = WorkerVm::new(vm, worker);
                own.readiness.set(if configures { 0 } else { i32::MAX });
                Ok(own)
            })
            .collect::<Result<Vec<_>, LuaError>>()
            .map_err(|error| refused(load_message(&error)))?;
        let generation = u32::try_from(workers.len()).unwrap_or(0) + 1;
        let core = Arc::new_cyclic(|own| Core {
            shared,
            time_budget,
            memory_budget,
            streams_on,
            configures,
            off_worker,
            handler_places: handler_places(results),
            workers,
            // 0 is no configuration.
            next_configuration: AtomicI32::new(1),
            configurations: Mutex::default(),
            generation: AtomicU32::new(generation),
            spare: Mutex::default(),
            starts: Mutex::new(RestartBackoff::new(0, FIRST_PAUSE, LONGEST_PAUSE)),
            making: Making::default(),
            own: Weak::clone(own),
        });
        if off_worker {
            core.request();
        }
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
            workers: self
                .core
                .workers
                .iter()
                .map(|own| own.seen.status())
                .collect(),
            spares: {
                let spare = self.core.spare.try_lock().ok();
                let used = spare.and_then(|spare| Some(spare.as_ref()?.state.memory_gauge()));
                used.map(|used| used.load(Ordering::Relaxed))
                    .into_iter()
                    .collect()
            },
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

fn load_message(error: &LuaError) -> String {
    match error.kind {
        LuaErrorKind::Time => format!("{} (it was loading)", error.message),
        LuaErrorKind::Error | LuaErrorKind::Memory => error.message.clone(),
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
