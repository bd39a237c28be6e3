//! The VMs of a plugin version on its workers, and what becomes of them.

mod beside;
mod made;
mod spare;

pub(crate) use made::taking;
use spare::Spares;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Duration;

use outrider_plugin_api::{Fault, LogLevel, MetricId, Slot, VmStatus};

use crate::code::Code;
use crate::memory::Loan;
use crate::reaper;
use crate::repair::Repair;
use crate::shared::Shared;
use crate::state::MetricChange;
use crate::trouble::Trouble;
use crate::vm::{Configuration, Refusal, Vm, generation_of, slot_of};

/// A worker's VM. The lock is the worker's own: others take it only while no stream has come yet.
#[derive(Debug)]
pub(crate) struct WorkerVm {
    pub(crate) held: Mutex<Held>,
    /// One that was made elsewhere, to follow it.
    ready: Mutex<Option<Vm>>,
    has_ready: AtomicBool,
    /// Its own failed, and there was no other.
    waits: AtomicBool,
    released: Mutex<Vec<u32>>,
    has_released: AtomicBool,
    /// A stream has come.
    pub(crate) is_used: AtomicBool,
    seen: Arc<Seen>,
}

/// What other threads may see of a worker's VM.
#[derive(Debug, Default)]
struct Seen {
    replacements: AtomicU64,
    memory: AtomicUsize,
    trouble: Mutex<Option<String>>,
}

impl Seen {
    fn trouble(&self) -> MutexGuard<'_, Option<String>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn status(&self) -> VmStatus {
        let trouble = self.trouble().clone();
        VmStatus {
            memory: trouble
                .is_none()
                .then(|| self.memory.load(Ordering::Relaxed)),
            replacements: self.replacements.load(Ordering::Relaxed),
            trouble,
        }
    }
}

/// What a worker holds.
#[derive(Debug)]
pub(crate) struct Held {
    /// Where streams begin. None when the one that was there failed and no other could be made yet.
    pub(crate) current: Option<Vm>,
    /// Which serve the streams that they have to their end.
    retiring: Vec<Vm>,
    generation: u32,
    /// Whose it is.
    worker: usize,
    repair: Repair,
    seen: Arc<Seen>,
    /// How many configurations had come when the VM was last seen to have them all.
    configured: u64,
}

impl Held {
    /// Whether the VM is there that a stream has begun in, or that it will begin in.
    #[inline]
    pub(crate) fn is_ready(&self, slot: Slot) -> bool {
        match (generation_of(slot), &self.current) {
            (None, Some(_)) => true,
            (Some(generation), Some(vm)) if vm.generation == generation => true,
            (None, None) => false,
            (Some(generation), _) => self.retiring.iter().any(|vm| vm.generation == generation),
        }
    }

    /// In that VM, the root of a configuration for a stream that begins, and 0 for one that has begun, whose context
    /// knows its root. None: the VM, or the root in it, is not there.
    #[inline]
    pub(crate) fn root_for(&self, slot: Slot, configuration: u32) -> Option<u32> {
        match generation_of(slot) {
            Some(_) => self.is_ready(slot).then_some(0),
            None => self.current.as_ref()?.root_of(configuration),
        }
    }

    /// That VM.
    #[inline]
    pub(crate) fn vm_of(&mut self, slot: Slot) -> Option<&mut Vm> {
        let current = self.current.as_mut();
        match generation_of(slot) {
            None => current,
            Some(generation) => current
                .filter(|vm| vm.generation == generation)
                .or_else(|| {
                    self.retiring
                        .iter_mut()
                        .find(|vm| vm.generation == generation)
                }),
        }
    }

    /// A VM has given way to another: it serves its streams to their end, while those that do so have no more
    /// than `most` bytes together. Beyond that the oldest lose theirs.
    fn retire(&mut self, old: Vm, most: usize) {
        self.retiring.push(old);
        self.bury_idle();
        let size = |vm: &Vm| vm.memory().max(LEAST_SIZE);
        while self.retiring.iter().map(size).sum::<usize>() > most {
            reaper::bury(self.retiring.remove(0));
        }
    }

    /// VMs that have no stream any more are closed.
    fn bury_idle(&mut self) {
        let idle = self.retiring.extract_if(.., |vm| vm.streams() == 0);
        idle.for_each(reaper::bury);
    }

    /// Takes a VM out that failed.
    fn take(&mut self, slot: Slot) -> Option<Vm> {
        let failed =
            generation_of(slot).or_else(|| self.current.as_ref().map(|vm| vm.generation))?;
        if self
            .current
            .as_ref()
            .is_some_and(|vm| vm.generation == failed)
        {
            return self.current.take();
        }
        let found = self
            .retiring
            .iter()
            .position(|vm| vm.generation == failed)?;
        Some(self.retiring.remove(found))
    }
}

/// VMs that are retiring on a worker may have as much memory as so many that have used up their budgets.
const MOST_RETIRING: usize = 4;
/// What one counts for at least, in bytes.
const LEAST_SIZE: usize = 1024 * 1024;
/// A VM gives way when it has used this part of its budget, in eighths.
const MARK: usize = 7;

/// Statistics of a plugin's VMs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counters {
    pub(crate) replaced: Option<MetricId>,
    pub(crate) retired: Option<MetricId>,
}

/// What a plugin's configurations share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) code: Code,
    pub(crate) shared: Arc<Shared>,
    pub(crate) workers: Vec<WorkerVm>,
    next_configuration: AtomicU32,
    /// Those in use, in the order in which they came.
    configurations: Mutex<Vec<Configuration>>,
    /// Grows with each that comes.
    configured: AtomicU64,
    /// What it costs to make a VM and to configure it once, in nanoseconds.
    cost: AtomicU64,
    /// For VMs that are made on a thread of their own.
    own: Weak<Self>,
    spares: Spares,
    counters: Counters,
}

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
            spares: Spares::default(),
            counters,
        }
    }

    /// A worker, and its first VM.
    pub(crate) fn add_worker(&mut self, vm: Vm) {
        self.workers.push(worker(vm, self.workers.len()));
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

    /// A configuration has come, and was checked.
    pub(crate) fn add(&self, configuration: &Configuration) {
        self.configurations().push(configuration.clone());
        self.configured.fetch_add(1, Ordering::Release);
    }

    fn configurations(&self) -> MutexGuard<'_, Vec<Configuration>> {
        let configurations = self.configurations.lock();
        configurations.unwrap_or_else(PoisonError::into_inner)
    }

    /// What its workers' VMs use.
    pub(crate) fn statuses(&self) -> Vec<VmStatus> {
        self.workers.iter().map(|own| own.seen.status()).collect()
    }

    /// A worker's VMs, with the configurations that are over taken out. None: they are in use, which means
    /// that a call is made within a call, or there is no such worker.
    #[inline]
    pub(crate) fn worker(&self, worker: usize) -> Option<MutexGuard<'_, Held>> {
        let own = self.workers.get(worker)?;
        let mut held = match own.held.try_lock() {
            Ok(held) => held,
            Err(trouble) => wait_for(own, trouble)?,
        };
        if !own.is_used.load(Ordering::Relaxed) || own.has_released.load(Ordering::Relaxed) {
            self.attend(own, &mut held);
        }
        Some(held)
    }

    /// A stream has come, and configurations may be over.
    #[cold]
    fn attend(&self, own: &WorkerVm, held: &mut Held) {
        own.is_used.store(true, Ordering::Relaxed);
        if own.has_released.load(Ordering::Relaxed) {
            self.drain(own, held);
        }
    }

    /// A configuration is over: the VMs forget it at their next call.
    pub(crate) fn release(&self, id: u32) {
        let mut configurations = self.configurations();
        configurations.retain(|known| known.id != id);
        let is_last = configurations.is_empty();
        drop(configurations);
        if is_last {
            self.spares.bury();
        }
        for worker in &self.workers {
            worker
                .released
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(id);
            worker.has_released.store(true, Ordering::Release);
        }
    }

    fn drain(&self, own: &WorkerVm, held: &mut Held) {
        // Whoever holds this lock now is about to let go; if so, the next call drains.
        let Ok(mut released) = own.released.try_lock() else {
            return;
        };
        own.has_released.store(false, Ordering::Relaxed);
        let ids = std::mem::take(&mut *released);
        drop(released);
        for id in ids {
            let Held {
                current, retiring, ..
            } = held;
            let failed = current
                .iter_mut()
                .chain(retiring)
                .find_map(|vm| Some((vm.generation, vm.release(id, Loan::Nothing).err()?)));
            if let Some((generation, trouble)) = failed {
                self.failed_alone(held, slot_of(generation), &trouble);
            }
        }
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

    fn replace(&self, held: &mut Held) -> Result<(), String> {
        let now = self.shared.clock.now();
        if self.adopt(held) {
            return Ok(());
        }
        if self.is_heavy() {
            if held.repair.is_due(now) {
                if self.take_over(held) {
                    return Ok(());
                }
                if let Some(own) = self.workers.get(held.worker) {
                    own.waits.store(true, Ordering::Relaxed);
                }
                self.stock_up();
            }
        } else if held.repair.is_due(now) {
            match Vm::new(&self.code, &self.shared, 0, Loan::Nothing) {
                Ok(vm) => {
                    self.install(held, vm);
                    return Ok(());
                }
                Err(refusal) => {
                    let reason = self.describe(&refusal);
                    held.repair.note(now, reason);
                }
            }
        }
        *held.seen.trouble() = Some(held.repair.reason.clone());
        Err(held.repair.reason.clone())
    }

    /// Puts a VM to where streams begin.
    fn install(&self, held: &mut Held, mut vm: Vm) {
        held.generation = next(held.generation);
        vm.generation = held.generation;
        held.seen.memory.store(vm.memory(), Ordering::Relaxed);
        *held.seen.trouble() = None;
        held.current = Some(vm);
        held.configured = 0;
        // The configurations that it lacks come with its streams, or beside them.
        self.shared.ring_in(Duration::ZERO);
    }

    /// A guest failed: its VM is closed, another takes its place, and the stream's fault is told.
    #[cold]
    pub(crate) fn failed(&self, held: &mut Held, slot: Slot, trouble: &Trouble) -> Fault {
        let message = trouble.message(&self.shared.file, self.shared.time_budget);
        let fault = Fault {
            cause: trouble.cause(),
            message: message.clone(),
        };
        let Some(mut failed) = held.take(slot) else {
            return fault;
        };
        if failed.served > 0 {
            held.repair.failures = 0;
        }
        held.repair.note(self.shared.clock.now(), message);
        if held.current.is_none() {
            held.seen.replacements.fetch_add(1, Ordering::Relaxed);
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
        reaper::bury(failed);
        fault
    }

    /// The same where no stream can be told: the log is.
    #[cold]
    pub(crate) fn failed_alone(&self, held: &mut Held, slot: Slot, trouble: &Trouble) {
        let fault = self.failed(held, slot, trouble);
        if let Some(vm) = &mut held.current {
            vm.say(LogLevel::Error, &fault.message);
        }
    }

    /// A stream is over: VMs that nobody uses any more are closed, and one that has grown too large gives way.
    #[inline]
    pub(crate) fn tidy(&self, held: &mut Held) {
        let Some(vm) = &held.current else { return };
        let memory = vm.memory();
        held.seen.memory.store(memory, Ordering::Relaxed);
        if !held.retiring.is_empty() || memory > self.mark() {
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
        held.bury_idle();
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
            *held.seen.trouble() = None;
            held.current = Some(old);
            return;
        }
        held.seen.replacements.fetch_add(1, Ordering::Relaxed);
        if let Some(vm) = &mut held.current {
            vm.inherit(&mut old);
            vm.count(self.counters.retired);
        }
        held.retire(old, self.most_retiring());
    }

    pub(crate) fn describe(&self, refusal: &Refusal) -> String {
        match refusal {
            Refusal::Refused(reason) => format!("{}: {reason}", self.shared.file),
            Refusal::Failed(trouble) => trouble.message(&self.shared.file, self.shared.load_budget),
        }
    }
}

/// A VM serves at least so many streams before it gives way.
const LEAST_SERVED: u64 = 16;

/// The number of the next VM; 0 is none's.
fn next(generation: u32) -> u32 {
    generation.checked_add(1).unwrap_or(1)
}

/// A panic left the VM in a state that nobody knows: another takes its place.
#[cold]
fn unpoisoned<'a>(own: &'a WorkerVm, mut held: MutexGuard<'a, Held>) -> MutexGuard<'a, Held> {
    own.held.clear_poison();
    if let Some(vm) = held.current.take() {
        reaper::bury(vm);
    }
    for vm in held.retiring.drain(..) {
        reaper::bury(vm);
    }
    held
}

impl Drop for Core {
    fn drop(&mut self) {
        self.spares.bury();
        for worker in &mut self.workers {
            let ready = worker.ready.get_mut();
            if let Some(vm) = ready.unwrap_or_else(PoisonError::into_inner).take() {
                reaper::bury(vm);
            }
            let held = worker
                .held
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner);
            for vm in held
                .current
                .take()
                .into_iter()
                .chain(held.retiring.drain(..))
            {
                reaper::bury(vm);
            }
        }
    }
}

/// The VMs of a worker that could not be locked at once.
#[cold]
fn wait_for<'a>(
    own: &'a WorkerVm,
    trouble: TryLockError<MutexGuard<'a, Held>>,
) -> Option<MutexGuard<'a, Held>> {
    match trouble {
        TryLockError::Poisoned(poisoned) => Some(unpoisoned(own, poisoned.into_inner())),
        TryLockError::WouldBlock if own.is_used.load(Ordering::Relaxed) => contended(own),
        // The thread that loads is about to let go: it configures VMs only before they are used.
        TryLockError::WouldBlock => Some(own.held.lock().unwrap_or_else(PoisonError::into_inner)),
    }
}

/// The VMs of a worker that has used them, which are in use: for a moment, where the thread that loads finds
/// out that they have been used meanwhile; or for good, where a call is made within a call. None: the latter.
fn contended(own: &WorkerVm) -> Option<MutexGuard<'_, Held>> {
    const TRIES: u32 = 10_000;
    for _ in 0..TRIES {
        std::hint::spin_loop();
        match own.held.try_lock() {
            Ok(held) => return Some(held),
            Err(TryLockError::Poisoned(poisoned)) => {
                return Some(unpoisoned(own, poisoned.into_inner()));
            }
            Err(TryLockError::WouldBlock) => {}
        }
    }
    None
}

fn worker(vm: Vm, worker: usize) -> WorkerVm {
    let seen = Arc::new(Seen::default());
    seen.memory.store(vm.memory(), Ordering::Relaxed);
    WorkerVm {
        held: Mutex::new(Held {
            generation: vm.generation,
            current: Some(vm),
            retiring: Vec::new(),
            worker,
            repair: Repair::default(),
            configured: 0,
            seen: Arc::clone(&seen),
        }),
        ready: Mutex::default(),
        has_ready: AtomicBool::new(false),
        waits: AtomicBool::new(false),
        released: Mutex::default(),
        has_released: AtomicBool::new(false),
        is_used: AtomicBool::new(false),
        seen,
    }
}
