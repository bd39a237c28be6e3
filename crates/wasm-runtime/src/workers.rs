//! The VMs of a plugin version on its workers, and what becomes of them.

mod beside;
mod configurations;
mod made;
mod own;
mod spare;

use configurations::Configurations;
pub(crate) use made::taking;
pub(crate) use own::{Held, StreamVms, WorkerVm};

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use outrider_plugin_api::{
    CALLOUT_COST, Cause, ConfigPlace, Fault, LogLevel, MetricId, Slot, VmStatus,
};
use outrider_vm_pool::{CpuLimit, Making, RestartBackoff, SpareVms, drop_later};

use crate::code::Code;
use crate::memory::Loan;
use crate::shared::Shared;
use crate::state::MetricChange;
use crate::trouble::Trouble;
use crate::vm::{Configuration, Refusal, Vm, generation_of, slot_of};

/// VMs that are retiring on a worker may have as much memory as so many that have used up their budgets.
const MOST_RETIRING: usize = 4;
/// A VM gives way when it has used this part of its budget, in eighths.
const MARK: usize = 7;

/// CPU time within which a worker forgets configurations at once.
const MOST_DRAINING: Duration = Duration::from_millis(5);

/// Configurations often come in numbers.
const SOON: Duration = Duration::from_millis(20);

/// Statistics of a plugin's VMs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counters {
    pub(crate) replaced: Option<MetricId>,
    pub(crate) retired: Option<MetricId>,
}

/// One version of a plugin: its workers' VMs and all else that its configurations share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) code: Code,
    pub(crate) shared: Arc<Shared>,
    pub(crate) workers: Vec<WorkerVm>,
    next_configuration: AtomicU32,
    /// Those in use.
    configurations: Mutex<Configurations>,
    /// Grows with each that comes, and that VMs have to take in.
    configured: AtomicU64,
    /// What it costs to make a VM and to configure it once, in nanoseconds.
    cost: AtomicU64,
    /// For VMs that are made on a thread of their own.
    own: Weak<Self>,
    spares: SpareVms<Vm>,
    making: Making,
    /// The number of the next VM.
    generation: AtomicU32,
    /// Workers whose VM lacks a configuration that a stream needs.
    requests: Mutex<Vec<(usize, Configuration)>>,
    /// When the last configuration came.
    changed_at: Mutex<Option<Instant>>,
    counters: Counters,
}

/// Configurations that follow each other sooner belong to one change. Tests do not wait.
const SETTLE: Duration = Duration::from_millis(if cfg!(test) { 0 } else { 100 });

impl Core {
    pub(crate) fn new(code: Code, shared: Arc<Shared>, counters: Counters) -> Self {
        Self {
            code,
            shared,
            workers: Vec::new(),
            next_configuration: AtomicU32::new(1),
            configurations: Mutex::default(),
            configured: AtomicU64::new(0),
            cost: AtomicU64::new(0),
            own: Weak::new(),
            spares: SpareVms::new(RestartBackoff::default()),
            // Those that workers begin with have 1.
            generation: AtomicU32::new(2),
            making: Making::default(),
            requests: Mutex::default(),
            changed_at: Mutex::default(),
            counters,
        }
    }

    /// A worker, and its first VM.
    pub(crate) fn add_worker(&mut self, vm: Vm) {
        let worker = self.workers.len();
        self.workers.push(WorkerVm::new(vm, worker));
    }

    /// It has all its workers, and is shared from now on.
    pub(crate) fn shared(mut self) -> Arc<Self> {
        Arc::new_cyclic(|own| {
            self.own = Weak::clone(own);
            self
        })
    }

    /// The number of a configuration that comes.
    pub(crate) fn next_configuration(&self) -> u32 {
        self.next_configuration.fetch_add(1, Ordering::Relaxed)
    }

    /// A configuration has come, and was checked, which took so long.
    pub(crate) fn add(
        &self,
        configuration: &Configuration,
        cost: Duration,
        place: Option<&ConfigPlace>,
    ) {
        let is_long = Self::is_long(cost);
        let mut configurations = self.configurations();
        configurations.add(configuration, is_long, place);
        let counts = configurations.counts(configuration.id);
        drop(configurations);
        if counts {
            self.configured.fetch_add(1, Ordering::Release);
        }
    }

    /// A configuration that came before is for another place, too.
    pub(crate) fn also_for(&self, configuration: &Configuration, place: Option<&ConfigPlace>) {
        let mut configurations = self.configurations();
        let counted = configurations.counts(configuration.id);
        configurations.put(configuration.id, place);
        let counts = configurations.counts(configuration.id);
        drop(configurations);
        if counts && !counted {
            self.configured.fetch_add(1, Ordering::Release);
            self.spread(configuration);
        }
    }

    /// Has the VMs take in a configuration that is among all.
    pub(crate) fn spread(&self, configuration: &Configuration) {
        let is_long = self.configurations().is_long(configuration.id);
        if is_long || self.has_proxy() {
            self.hand_over(configuration);
        }
        self.note_change();
        self.stock_up();
        // The others hear of it on their workers.
        self.shared.ring_in(SOON);
    }

    /// Returns the number of configurations in use.
    pub(crate) fn configurations_in_use(&self) -> usize {
        self.configurations().len()
    }

    fn configurations(&self) -> MutexGuard<'_, Configurations> {
        let configurations = self.configurations.lock();
        configurations.unwrap_or_else(PoisonError::into_inner)
    }

    /// What its workers' VMs use.
    pub(crate) fn statuses(&self) -> Vec<VmStatus> {
        (self.workers.iter()).map(|own| own.slot.status()).collect()
    }

    /// A worker's VMs, with the configurations that are over taken out. None: they are in use, which means
    /// that a call is made within a call, or there is no such worker.
    #[inline]
    pub(crate) fn worker(&self, worker: usize) -> Option<MutexGuard<'_, Held>> {
        let own = self.workers.get(worker)?;
        let mut held = own.slot.lock()?;
        if own.slot.is_due() {
            self.drain(own, &mut held, own.slot.begin_use());
        }
        Some(held)
    }

    /// A configuration is over: the VMs forget it at their next call.
    pub(crate) fn release(&self, id: u32) {
        let mut configurations = self.configurations();
        configurations.remove(id);
        let is_last = configurations.is_empty();
        drop(configurations);
        self.shared.tick_failures().remove(id);
        if is_last {
            self.spares.drop_all();
        }
        for worker in &self.workers {
            worker.slot.release(id);
        }
    }

    /// Has a worker's VMs forget configurations that are over.
    fn drain(&self, own: &WorkerVm, held: &mut Held, mut ids: Vec<u32>) {
        if ids.is_empty() {
            return;
        }
        let began = self.shared.thread_cpu_time();
        // The first is taken first.
        ids.reverse();
        while let Some(id) = ids.pop() {
            let Held {
                current, retired, ..
            } = held;
            let failed = current
                .iter_mut()
                .chain(retired.iter_mut())
                .find_map(|vm| Some((vm.generation, vm.release(id, Loan::Nothing).err()?)));
            if let Some((generation, trouble)) = failed {
                self.failed_alone(held, slot_of(generation), &trouble);
            }
            let took = self
                .shared
                .thread_cpu_time()
                .zip(began)
                .map(|(now, began)| now.saturating_sub(began));
            if !ids.is_empty() && took.is_some_and(|took| took > MOST_DRAINING) {
                // Guests are called for each: the rest comes with the next call.
                ids.reverse();
                own.slot.release_later(ids);
                self.shared.ring_in(SOON);
                return;
            }
        }
    }

    /// Returns how long a call has to wait until it may run on a worker, or `None` if it may now; `waited` is how long its
    /// stream has waited already.
    #[inline]
    pub(crate) fn wait(&self, worker: usize, waited: Duration) -> Option<Duration> {
        self.shared.account.as_ref()?.wait(worker, waited)
    }

    /// Returns the limit of CPU that the plugin waits for on a worker.
    pub(crate) fn limit_reached(&self, worker: usize) -> Option<CpuLimit> {
        self.shared.account.as_ref()?.limit_reached(worker)
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

    /// Returns how often the plugin had to wait.
    pub(crate) fn share_waits(&self) -> u64 {
        let account = self.shared.account.as_ref();
        account.map_or(0, |account| account.waits())
    }

    /// Makes a VM for a stream that begins.
    ///
    /// # Errors
    /// None could be made, with the reason, or the stream has begun in one that is gone.
    #[cold]
    pub(crate) fn make_ready(&self, held: &mut Held, slot: Slot) -> Result<(), Option<String>> {
        if generation_of(slot).is_some() {
            return Err(None);
        }
        self.replace(held).map_err(Some)
    }

    /// Returns how long a stream has to wait for a worker's VM that is being made, or `None` if it is to be called.
    pub(crate) fn wait_for_vm(&self, worker: usize) -> Option<Duration> {
        let own = self.workers.get(worker)?;
        if let Some(wait) = own.slot.wait() {
            return Some(wait);
        }
        let lacks_vm = own.waits.load(Ordering::Relaxed) && !self.has_spare();
        let lacks_configuration = own.requested.load(Ordering::Relaxed);
        (lacks_vm || lacks_configuration)
            .then(|| own.slot.patience().step())
            .flatten()
    }

    fn replace(&self, held: &mut Held) -> Result<(), String> {
        let now = self.shared.clock.now();
        if self.adopt(held) {
            return Ok(());
        }
        if self.has_proxy() {
            if held.backoff.is_due(now) {
                if self.take_over(held) {
                    return Ok(());
                }
                if let Some(own) = self.workers.get(held.worker()) {
                    own.waits.store(true, Ordering::Relaxed);
                    own.slot.patience().restart_if_forgotten();
                }
                self.stock_up();
            }
        } else if held.backoff.is_due(now) {
            let budget = self.shared.load_budget;
            match Vm::new(&self.code, &self.shared, 0, budget, Loan::Nothing) {
                Ok(vm) => {
                    self.install(held, vm);
                    return Ok(());
                }
                Err(refusal) => {
                    let reason = self.describe(&refusal);
                    held.backoff.note(now, reason);
                }
            }
        }
        let reason = held.backoff.reason().to_owned();
        held.set_missing(&reason);
        Err(reason)
    }

    /// Puts a VM to where streams begin.
    fn install(&self, held: &mut Held, mut vm: Vm) {
        // 0 is no VM's.
        vm.generation = self.generation.fetch_add(1, Ordering::Relaxed).max(1);
        let worker = held.worker();
        held.install(vm);
        if let Some(own) = self.workers.get(worker) {
            // Streams that miss something in it wait anew.
            own.slot.patience().restart();
        }
        // The configurations that it lacks come with its streams, or beside them.
        self.shared.ring_in(Duration::ZERO);
    }

    /// A guest failed: its VM is closed, another takes its place, and the stream's fault is told.
    #[cold]
    pub(crate) fn failed(&self, held: &mut Held, slot: Slot, trouble: &Trouble) -> Fault {
        self.failed_within(held, slot, trouble, self.shared.time_budget)
    }

    /// The same for a call of this time budget.
    pub(crate) fn failed_within(
        &self,
        held: &mut Held,
        slot: Slot,
        trouble: &Trouble,
        budget: Duration,
    ) -> Fault {
        let message = self.message(trouble, budget);
        let cause = trouble.cause();
        let spent = match cause {
            Cause::Time if budget == self.shared.time_budget => {
                format!("; `budgets.time_ms` is {}", budget.as_millis())
            }
            Cause::Memory => {
                let mib = self.shared.memory_budget / (1024 * 1024);
                format!("; `budgets.memory_mib` is {mib}")
            }
            _ => String::new(),
        };
        let fault = Fault {
            cause,
            message: format!("{message}{spent}"),
        };
        let Some(mut failed) = held.take_for(slot) else {
            return fault;
        };
        if failed.served > 0 || failed.has_worked {
            held.backoff.clear();
        }
        held.backoff.note(self.shared.clock.now(), message);
        if held.current.is_none() {
            held.count_replacement();
            // Where that fails, the next call says so, or tries again.
            if self.replace(held).is_ok()
                && let Some(vm) = &mut held.current
            {
                vm.inherit(&mut failed);
                vm.count(self.counters.replaced);
            } else if let Some(replaced) = self.counters.replaced {
                self.shared.count(MetricChange::Add(replaced, 1));
            }
        }
        drop_later(failed);
        fault
    }

    /// The same where no stream can be told: the log is.
    #[cold]
    pub(crate) fn failed_alone(&self, held: &mut Held, slot: Slot, trouble: &Trouble) {
        let fault = self.failed(held, slot, trouble);
        self.log_fault(held, &fault);
    }

    /// Logs a fault that no stream reports.
    fn log_fault(&self, held: &mut Held, fault: &Fault) {
        match (&mut held.current, &self.shared.background) {
            (Some(vm), _) => vm.say(LogLevel::Error, &fault.message),
            (None, Some(background)) => {
                background.log(LogLevel::Error, &self.shared.plugin, &fault.message);
            }
            (None, None) => {}
        }
    }

    /// The same of a start or a configuration.
    #[cold]
    pub(crate) fn failed_loading(&self, held: &mut Held, slot: Slot, trouble: &Trouble) {
        let fault = self.failed_within(held, slot, trouble, self.shared.load_budget);
        self.log_fault(held, &fault);
    }

    /// A stream is over: VMs that nobody uses any more are closed, and one that has grown too large gives way.
    #[inline]
    pub(crate) fn tidy(&self, held: &mut Held) {
        let Some(vm) = &held.current else { return };
        let memory = vm.memory();
        if !held.retired.is_empty() || memory > self.mark() {
            self.tidy_now(held, memory);
        }
    }

    /// Bytes beyond which a VM gives way.
    fn mark(&self) -> usize {
        self.shared.memory_budget / 8 * MARK
    }

    /// Bytes that VMs may have together on a worker that only serve the streams they have.
    fn most_retiring(&self) -> usize {
        self.shared.memory_budget.saturating_mul(MOST_RETIRING)
    }

    #[cold]
    fn tidy_now(&self, held: &mut Held, memory: usize) {
        held.retired.drop_idle();
        // One that is as large from its beginning would only be followed by another such.
        let has_grown = held
            .current
            .as_ref()
            .is_some_and(|vm| memory > vm.first_memory && vm.served >= LEAST_SERVED);
        if memory <= self.mark() || !has_grown {
            return;
        }
        let Some(mut old) = held.current.take() else {
            return;
        };
        if self.replace(held).is_err() {
            // With a guest that takes long to make, the next stream's end finds another VM.
            held.install(old);
            if let Some(own) = self.workers.get(held.worker()) {
                // Streams do not wait: there is a VM for them.
                own.waits.store(false, Ordering::Relaxed);
            }
            return;
        }
        held.count_replacement();
        if let Some(vm) = &mut held.current {
            vm.inherit(&mut old);
            vm.count(self.counters.retired);
        }
        held.retired.push(old, self.most_retiring());
    }

    /// Message of a guest error; `budget` is the time budget of the call.
    fn message(&self, trouble: &Trouble, budget: Duration) -> String {
        trouble.message(&self.shared.file, budget)
    }

    pub(crate) fn describe(&self, refusal: &Refusal) -> String {
        match refusal {
            Refusal::Refused(reason) => format!("{}: {reason}", self.shared.file),
            Refusal::Failed(trouble) => self.message(trouble, self.shared.load_budget),
        }
    }

    /// The same of a start within this time budget.
    fn describe_within(&self, refusal: &Refusal, budget: Duration) -> String {
        match refusal {
            Refusal::Refused(_) => self.describe(refusal),
            Refusal::Failed(trouble) => self.message(trouble, budget),
        }
    }

    /// A configuration has come.
    fn note_change(&self) {
        let mut changed_at = self
            .changed_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *changed_at = Some(Instant::now());
    }

    /// Returns the time until no more configurations are expected to come: VMs that were made ahead take them in one
    /// after the other until a worker has them, and are made anew after that.
    pub(super) fn unsettled(&self) -> Duration {
        let changed_at = self
            .changed_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        changed_at.map_or(Duration::ZERO, |at| SETTLE.saturating_sub(at.elapsed()))
    }
}

/// A VM serves at least so many streams before it gives way.
const LEAST_SERVED: u64 = 16;

impl Drop for Core {
    fn drop(&mut self) {
        self.spares.drop_all();
        for worker in &mut self.workers {
            let ready = worker.ready.get_mut();
            if let Some(vm) = ready.unwrap_or_else(PoisonError::into_inner).take() {
                drop_later(vm);
            }
        }
    }
}
