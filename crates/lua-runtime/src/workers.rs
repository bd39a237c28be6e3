//! The VMs of a Lua plugin version on its workers: which configurations they have, and what replaces them.
//!
//! No VM is made, and no `on_configure` runs, on a worker. A worker whose VM is not to be used again takes the
//! spare one; maker threads ([`outrider_vm_pool::request_vms`]) make the next, and load configurations into the
//! VMs of workers that are between two calls. Meanwhile streams wait for a moment
//! ([`outrider_plugin_api::ConfiguredPlugin::wait_for_share`]) and then get the failure policy.
//!
//! A plugin without `on_configure` runs no code of its own for a configuration: its workers decode the
//! document when the first stream with it comes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use outrider_plugin_api::CALLOUT_COST;
use outrider_vm_pool::{
    CallSlot, MakeVm, Making, PooledVm, Progress, RestartBackoff, SpareVms, VM_AWAITED, WorkerSlot,
    WorkerVms, request_vms,
};

use crate::ffi::{LuaError, LuaErrorKind};
use crate::shared::Shared;
use crate::vm::{Documents, Intake, Vm};

/// The VMs of one worker, of this runtime.
pub(crate) type Held = WorkerVms<Vm>;

impl PooledVm for Vm {
    fn memory_gauge(&self) -> Arc<AtomicUsize> {
        self.state.memory_gauge()
    }

    fn call_slot(&self) -> &Arc<CallSlot> {
        self.state.call_slot()
    }

    fn generation(&self) -> u32 {
        self.generation
    }

    fn streams(&mut self) -> usize {
        self.state.streams().len()
    }
}

/// Whether the VM that is there is not to be used again (see [`crate::ffi::State::unusable`]).
pub(crate) fn is_unusable(held: &Held) -> bool {
    let vm = held.current.as_ref();
    vm.is_some_and(|vm| vm.state.unusable().is_some())
}

/// A worker's VM, and which configurations it has.
#[derive(Debug)]
pub(crate) struct WorkerVm {
    pub(crate) slot: WorkerSlot<Vm>,
    /// All configurations up to this number are loaded; 0 while there is no VM, or a maker thread has it.
    up_to: AtomicI32,
}

impl WorkerVm {
    fn set_up_to(&self, up_to: i32) {
        self.up_to.store(up_to, Ordering::Release);
    }

    /// The VM is missing from now on.
    fn set_missing(&self) {
        self.slot.patience().restart();
        self.set_up_to(0);
    }

    /// Returns how long a stream with this configuration has to wait, or `None` if it is to be called.
    #[inline]
    fn wait(&self, id: i32) -> Option<Duration> {
        if self.up_to.load(Ordering::Relaxed) >= id {
            return self.slot.wait();
        }
        self.slot.patience().step()
    }
}

/// After the first failed start the next is tried when this is over; each further failure doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Loading all configurations into a VM may take this long.
const CONFIGURE_BUDGET: Duration = Duration::from_secs(10);
/// A configuration whose check took less is loaded by the loading thread into VMs that are not used yet.
const QUICK: Duration = Duration::from_millis(5);

/// One version of a plugin: its workers' VMs and all else that its configurations share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) shared: Arc<Shared>,
    pub(crate) time_budget: Duration,
    pub(crate) memory_budget: usize,
    /// Whether the coroutine of a headers handler goes on with the parts that follow.
    pub(crate) streams_on: bool,
    /// Whether the plugin has `on_configure`, which does not run on a worker.
    configures: bool,
    /// Whether VMs are made, and plugins configured, by maker threads only.
    off_worker: bool,
    pub(crate) workers: Vec<WorkerVm>,
    /// `file:line: ` where each handler begins, by the handler's number.
    handler_places: BTreeMap<usize, String>,
    pub(crate) next_configuration: AtomicI32,
    /// Those in use, of a plugin that has `on_configure`.
    configurations: Mutex<BTreeMap<i32, Documents>>,
    /// The number of the last VM: streams know by it which VM has their state.
    generation: AtomicU32,
    /// A VM with all configurations, for the next worker that needs one.
    pub(crate) spares: SpareVms<Vm>,
    making: Making,
    own: Weak<Self>,
}

/// How the VMs of a plugin version are run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) time_budget: Duration,
    /// In bytes.
    pub(crate) memory_budget: usize,
    /// See [`Core`].
    pub(crate) streams_on: bool,
    pub(crate) configures: bool,
    pub(crate) off_worker: bool,
}

impl Core {
    /// Makes a plugin version's VMs, one for each worker.
    ///
    /// # Errors
    /// The plugin does not load.
    pub(crate) fn new(
        shared: Arc<Shared>,
        settings: Settings,
        handler_places: BTreeMap<usize, String>,
        workers: usize,
    ) -> Result<Arc<Self>, LuaError> {
        let Settings {
            time_budget,
            memory_budget,
            streams_on,
            configures,
            off_worker,
        } = settings;
        let workers = (0..workers)
            .map(|worker| {
                let generation = u32::try_from(worker).unwrap_or(0) + 1;
                let (vm, _) = Vm::new(&shared, memory_budget, generation, None)?;
                Ok(WorkerVm {
                    slot: WorkerSlot::new(vm, worker, backoff()),
                    up_to: AtomicI32::new(if configures { 0 } else { i32::MAX }),
                })
            })
            .collect::<Result<Vec<_>, LuaError>>()?;
        let generation = u32::try_from(workers.len()).unwrap_or(0) + 1;
        let core = Arc::new_cyclic(|own| Self {
            shared,
            time_budget,
            memory_budget,
            streams_on,
            configures,
            off_worker,
            handler_places,
            workers,
            // 0 is no configuration.
            next_configuration: AtomicI32::new(1),
            configurations: Mutex::default(),
            generation: AtomicU32::new(generation),
            spares: SpareVms::new(backoff()),
            making: Making::default(),
            own: Weak::clone(own),
        });
        if off_worker {
            core.request();
        }
        Ok(core)
    }
}

/// A start that fails will do so again: there are no free failures.
fn backoff() -> RestartBackoff {
    RestartBackoff::new(0, FIRST_PAUSE, LONGEST_PAUSE)
}

/// Time of the process, for pauses between starts.
fn now() -> Duration {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    BEGAN.elapsed()
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
        let slot = &self.workers.get(worker)?.slot;
        let mut held = slot.lock()?;
        if slot.is_due() {
            for id in slot.begin_use() {
                if let Some(vm) = &mut held.current {
                    vm.release_configuration(id.cast_signed());
                }
            }
        }
        Some(held)
    }

    /// Returns how long a stream with this configuration has to wait on a worker, or `None` if it is to be
    /// called: for the plugin's CPU share, or for a VM that is being made or configured.
    #[inline]
    pub(crate) fn wait(&self, worker: usize, waited: Duration, id: i32) -> Option<Duration> {
        let share = self.shared.account.as_ref();
        if let Some(wait) = share.and_then(|account| account.wait(worker, waited)) {
            return Some(wait);
        }
        if !self.off_worker {
            return None;
        }
        let id = if self.configures { id } else { 1 };
        self.workers.get(worker)?.wait(id)
    }

    /// Returns what a stream with this configuration waits for on a worker.
    pub(crate) fn awaited(&self, worker: usize, id: i32) -> Option<String> {
        let share = self.shared.account.as_ref();
        let limit = share.and_then(|account| account.limit_reached(worker));
        limit.map(|limit| limit.to_string()).or_else(|| {
            self.wait(worker, Duration::ZERO, id)
                .map(|_| VM_AWAITED.to_owned())
        })
    }

    /// Whether a call of the log phase may run on a worker now.
    pub(crate) fn may_log(&self, worker: usize) -> bool {
        let account = self.shared.account.as_ref();
        account.is_none_or(|account| account.may_log(worker))
    }

    /// Charges a call of the log phase to the plugin's share of a worker.
    pub(crate) fn charge_log(&self, worker: usize, cost: Duration) {
        if let Some(account) = &self.shared.account {
            account.charge_log(worker, cost);
        }
    }

    /// Charges a callout to the plugin's share of a worker.
    pub(crate) fn charge_callout(&self, worker: usize) {
        if let Some(account) = &self.shared.account {
            account.charge(worker, CALLOUT_COST);
        }
    }

    /// A configuration has come and was checked, which took so long: the workers' VMs load it, off the
    /// workers.
    pub(crate) fn add(&self, documents: &Documents, took: Duration) {
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
            own.slot.patience().restart();
            if !own.slot.is_used()
                && took < QUICK
                && let Some(mut held) = own.slot.borrow()
                // Else a maker thread loads those before it first.
                && own.up_to.load(Ordering::Relaxed) >= before
                && let Some(vm) = &mut held.current
                && vm.configure(documents, Intake::Checked, None).is_ok()
            {
                own.set_up_to(documents.id);
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
            worker.slot.release(id.cast_unsigned());
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

    /// Whether the plugin has `on_configure`.
    pub(crate) fn configures(&self) -> bool {
        self.configures
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
        let reason = held.current.as_ref().and_then(|vm| vm.state.unusable());
        held.discard(reason.unwrap_or(BEING_MADE));
        if !self.off_worker {
            return self.replace_here(held, Duration::from_millis(now));
        }
        let own = self.workers.get(held.worker());
        let spare = self.spares.take(|_| true);
        // Before a maker thread looks whether the spare VM is there, which it is not any more.
        self.request();
        if let Some(mut vm) = spare {
            self.forget_released(&mut vm);
            let up_to = vm.configured_up_to;
            held.install(vm);
            if let Some(own) = own {
                own.set_up_to(up_to);
            }
            return Ok(());
        }
        if let Some(own) = own
            && own.up_to.load(Ordering::Relaxed) != 0
        {
            own.set_missing();
        }
        let failed = self.spares.failure();
        let reason = if failed.is_empty() {
            BEING_MADE.to_owned()
        } else {
            format!("the last attempt to make one failed: {failed}")
        };
        held.set_missing(&reason);
        Err(reason)
    }

    /// Makes a VM on this thread, which is no worker.
    fn replace_here(&self, held: &mut Held, now: Duration) -> Result<(), String> {
        if held.backoff.is_due(now) {
            match self.new_vm() {
                Ok(vm) => {
                    held.backoff.clear();
                    held.install(vm);
                    return Ok(());
                }
                Err(error) => held.backoff.note(now, load_message(&error)),
            }
        }
        let failed = held.backoff.reason();
        let reason = format!("the last attempt to make one failed: {failed}");
        held.set_missing(&reason);
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
            if own.up_to.load(Ordering::Acquire) == 0
                && let Some(mut held) = own.slot.try_lock()
                && held.current.is_none()
            {
                let up_to = vm.configured_up_to;
                held.install(vm);
                own.set_up_to(up_to);
                return None;
            }
        }
        Some(vm)
    }

    /// Loads what a worker's VM lacks, while its streams wait.
    fn complete_worker(&self, own: &WorkerVm) -> Progress {
        let newest = locked(&self.configurations).keys().last().copied();
        if newest.is_none_or(|newest| own.up_to.load(Ordering::Relaxed) >= newest) {
            return Progress::Done;
        }
        let Some(mut held) = own.slot.borrow() else {
            // In a call of its worker.
            return Progress::Again(Duration::from_micros(100));
        };
        let Some(vm) = &mut held.current else {
            return Progress::Done;
        };
        own.set_missing();
        if let Err(error) = self.complete(vm) {
            let reason = load_message(&error);
            held.discard(&reason);
            self.spares.note_failure(now(), reason);
            return Progress::Again(Duration::ZERO);
        }
        own.set_up_to(vm.configured_up_to);
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
        let spare = self.spares.take(|_| true);
        let now = now();
        let wait = self.spares.wait(now);
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
                    self.spares.note_success();
                    if let Some(spare) = self.give(vm) {
                        self.spares.put(spare);
                    } else {
                        again(Progress::Again(Duration::ZERO));
                    }
                }
                Err(error) => {
                    self.spares.note_failure(now, load_message(&error));
                    again(Progress::Again(self.spares.wait(now)));
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
        self.spares.drop_all();
    }
}

pub(crate) fn load_message(error: &LuaError) -> String {
    match error.kind {
        LuaErrorKind::Time => format!("{} (it was loading)", error.message),
        LuaErrorKind::Error | LuaErrorKind::Memory => error.message.clone(),
    }
}
