//! What one worker holds of a plugin version: the VM in which its streams begin, those that serve theirs to the
//! end, and what other threads may know of them.
//!
//! The worker locks its slot for a call ([`WorkerSlot::lock`]). Another thread borrows it to load a
//! configuration ([`WorkerSlot::borrow`]): streams wait meanwhile ([`WorkerSlot::wait`]).
//! Neither side blocks: a worker that finds its slot taken for longer than a moment fails the call as
//! unavailable, and the chain makes it again when there is nothing to wait for any more.
//!
//! The trap: a call made within a call of the same VM finds the slot locked for good. So does a call after a
//! panic, but the lock is poisoned then, and the VMs, whose state is unknown, are discarded.

use std::fmt::Debug;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use outrider_plugin_api::VmStatus;

use crate::retired::RetiredVms;
use crate::{CallSlot, NO_WORKER, RestartBackoff, drop_later};

/// The longest time that a worker waits for another thread to unlock its slot.
const LONGEST_SPIN: Duration = Duration::from_micros(500);
/// A stream waits so long for its VM, before it gets the failure policy.
const PATIENCE: Duration = Duration::from_millis(750);
/// Streams wait again for a VM that is made so long after the one before.
const FORGET: Duration = Duration::from_secs(1);
/// What a stream is told that waited for a VM in vain.
pub const VM_AWAITED: &str = "no VM of the plugin is ready on this worker; a new one is being made, which takes as long as its start does";
/// A waiting stream asks again after a quarter of the time that has passed, within these bounds: many streams
/// that wait must not keep the worker busy.
const SHORTEST_STEP: Duration = Duration::from_millis(2);
const LONGEST_STEP: Duration = Duration::from_millis(100);

/// A runtime's VM, as the pool sees it.
pub trait PooledVm: Debug + Send + 'static {
    /// Returns the gauge of the memory that the VM uses, in bytes.
    fn memory_gauge(&self) -> Arc<AtomicUsize>;

    /// Returns the slot of the VM's calls.
    fn call_slot(&self) -> &Arc<CallSlot>;

    /// Returns the number that tells the VM apart from those that its worker had before.
    fn generation(&self) -> u32;

    /// Returns the number of streams that have begun in the VM and are not over.
    fn streams(&mut self) -> usize;
}

/// Time that streams spend waiting for what one worker's VM lacks.
#[derive(Debug, Default)]
pub struct VmPatience {
    /// Since when something is missing, in milliseconds of the process.
    since: AtomicU64,
}

static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Milliseconds of the process; later than [`FORGET`] from the beginning.
fn now_ms() -> u64 {
    let passed = BEGAN.elapsed() + FORGET + FORGET;
    u64::try_from(passed.as_millis()).unwrap_or(u64::MAX)
}

impl VmPatience {
    fn waited(&self) -> Duration {
        Duration::from_millis(now_ms().saturating_sub(self.since.load(Ordering::Relaxed)))
    }

    /// Streams wait from now on.
    pub fn restart(&self) {
        self.since.store(now_ms(), Ordering::Relaxed);
    }

    /// Streams wait from now on, unless they began to wait a short time ago: what is missing again and again
    /// does not have them wait for ever.
    pub fn restart_if_forgotten(&self) {
        if self.waited() > FORGET {
            self.restart();
        }
    }

    /// Returns how long a stream waits until it asks again, or `None` if streams have waited long enough.
    pub fn step(&self) -> Option<Duration> {
        let waited = self.waited();
        (waited < PATIENCE).then(|| (waited / 4).clamp(SHORTEST_STEP, LONGEST_STEP))
    }
}

/// Status of one worker's VM, which any thread may read.
#[derive(Debug, Default)]
struct WorkerStatus {
    replacements: AtomicU64,
    vm: Mutex<VmState>,
}

#[derive(Debug, Default)]
struct VmState {
    memory: Option<Arc<AtomicUsize>>,
    trouble: Option<String>,
}

impl WorkerStatus {
    fn vm(&self) -> MutexGuard<'_, VmState> {
        // Two fields that are written together; no code that may panic runs in between.
        self.vm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_vm(&self, vm: &impl PooledVm) {
        *self.vm() = VmState {
            memory: Some(vm.memory_gauge()),
            trouble: None,
        };
    }

    fn set_missing(&self, reason: &str) {
        *self.vm() = VmState {
            memory: None,
            trouble: Some(reason.to_owned()),
        };
    }

    fn status(&self) -> VmStatus {
        let vm = self.vm();
        VmStatus {
            memory: vm.memory.as_ref().map(|used| used.load(Ordering::Relaxed)),
            replacements: self.replacements.load(Ordering::Relaxed),
            trouble: vm.trouble.clone(),
        }
    }
}

/// The VMs of one worker.
#[derive(Debug)]
pub struct WorkerVms<V: PooledVm> {
    /// The VM in which streams begin, or `None` if that failed and its replacement is not made yet.
    pub current: Option<V>,
    /// VMs that only serve the streams that they have.
    pub retired: RetiredVms<V>,
    /// Pauses between replacements that fail.
    pub backoff: RestartBackoff,
    worker: usize,
    status: Arc<WorkerStatus>,
}

impl<V: PooledVm> WorkerVms<V> {
    /// Returns the number of the worker.
    pub fn worker(&self) -> usize {
        self.worker
    }

    /// Has streams begin in this VM.
    pub fn install(&mut self, vm: V) {
        vm.call_slot().set_worker(self.worker);
        self.status.set_vm(&vm);
        self.current = Some(vm);
    }

    /// Counts a VM that another takes the place of.
    pub fn count_replacement(&self) {
        self.status.replacements.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes why no VM is there.
    pub fn set_missing(&self, reason: &str) {
        self.status.set_missing(reason);
    }

    /// Drops the VM in which streams begin, which is not to be used again.
    pub fn discard(&mut self, reason: &str) {
        if let Some(vm) = self.current.take() {
            vm.call_slot().set_worker(NO_WORKER);
            drop_later(vm);
            self.count_replacement();
        }
        self.set_missing(reason);
    }

    /// Returns the VM of this generation.
    pub fn vm_of(&mut self, generation: u32) -> Option<&mut V> {
        self.current
            .as_mut()
            .filter(|vm| vm.generation() == generation)
            .or_else(|| self.retired.vm_of(generation))
    }

    /// Whether the VM of this generation is there.
    pub fn has(&self, generation: u32) -> bool {
        let current = self.current.as_ref();
        current.is_some_and(|vm| vm.generation() == generation) || self.retired.has(generation)
    }

    /// Takes the VM of this generation out.
    pub fn take(&mut self, generation: u32) -> Option<V> {
        let is_current = |vm: &mut V| vm.generation() == generation;
        self.current
            .take_if(is_current)
            .or_else(|| self.retired.take(generation))
    }
}

/// See the module.
#[derive(Debug)]
pub struct WorkerSlot<V: PooledVm> {
    vms: Mutex<WorkerVms<V>>,
    /// Another thread has the slot, or is about to.
    is_borrowed: AtomicBool,
    /// A stream has come.
    is_used: AtomicBool,
    /// Configurations that are over, and that the VMs have not forgotten yet.
    released: Mutex<Vec<u32>>,
    has_released: AtomicBool,
    patience: VmPatience,
    status: Arc<WorkerStatus>,
}

impl<V: PooledVm> WorkerSlot<V> {
    /// Returns the slot of a worker with its first VM.
    pub fn new(vm: V, worker: usize, backoff: RestartBackoff) -> Self {
        let status = Arc::new(WorkerStatus::default());
        let mut vms = WorkerVms {
            current: None,
            retired: RetiredVms::default(),
            backoff,
            worker,
            status: Arc::clone(&status),
        };
        vms.install(vm);
        Self {
            vms: Mutex::new(vms),
            is_borrowed: AtomicBool::new(false),
            is_used: AtomicBool::new(false),
            released: Mutex::default(),
            has_released: AtomicBool::new(false),
            patience: VmPatience::default(),
            status,
        }
    }

    /// Returns the VMs, for a call of their worker, or `None` if they are in use: by another thread that has
    /// not let go of them after a moment, or for good, because a call is made within a call.
    #[inline]
    pub fn lock(&self) -> Option<MutexGuard<'_, WorkerVms<V>>> {
        match self.vms.try_lock() {
            Ok(vms) => Some(vms),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.recover(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => self.lock_soon(),
        }
    }

    #[cold]
    fn lock_soon(&self) -> Option<MutexGuard<'_, WorkerVms<V>>> {
        let began = Instant::now();
        while began.elapsed() < LONGEST_SPIN {
            std::hint::spin_loop();
            if let Some(vms) = self.try_lock() {
                return Some(vms);
            }
        }
        None
    }

    /// Returns the VMs, or `None` if they are in use at this moment.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, WorkerVms<V>>> {
        match self.vms.try_lock() {
            Ok(vms) => Some(vms),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.recover(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Returns the VMs, for a thread that is not their worker, or `None` if they are in use. Streams wait until
    /// it lets go of them, and its calls are not charged to the plugin's share of the worker.
    pub fn borrow(&self) -> Option<BorrowedVms<'_, V>> {
        let vms = self.try_lock()?;
        self.patience.restart();
        self.is_borrowed.store(true, Ordering::Release);
        if let Some(vm) = &vms.current {
            // The worker is not charged for what it does not run.
            vm.call_slot().set_worker(NO_WORKER);
        }
        Some(BorrowedVms {
            _flag: BorrowFlag(&self.is_borrowed),
            vms,
        })
    }

    /// A panic left the VMs in an unknown state: others take their places.
    #[cold]
    fn recover<'a>(&self, mut vms: MutexGuard<'a, WorkerVms<V>>) -> MutexGuard<'a, WorkerVms<V>> {
        self.vms.clear_poison();
        vms.discard("a panic left it in an unknown state");
        vms.retired.drop_all();
        vms
    }

    /// Returns how long streams wait while another thread has the slot.
    #[inline]
    pub fn wait(&self) -> Option<Duration> {
        if self.is_borrowed.load(Ordering::Relaxed) {
            return self.patience.step();
        }
        None
    }

    /// Returns how long streams have waited for what the worker's VM lacks.
    pub fn patience(&self) -> &VmPatience {
        &self.patience
    }

    /// Whether a stream has come.
    pub fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Returns the status for administrators.
    pub fn status(&self) -> VmStatus {
        self.status.status()
    }

    /// Notes a configuration that is over.
    pub fn release(&self, id: u32) {
        self.released().push(id);
        self.has_released.store(true, Ordering::Release);
    }

    /// Notes again those that were not released yet, in the order in which they are to be released.
    pub fn release_later(&self, mut ids: Vec<u32>) {
        let mut released = self.released();
        ids.append(&mut released);
        *released = ids;
        self.has_released.store(true, Ordering::Release);
    }

    fn released(&self) -> MutexGuard<'_, Vec<u32>> {
        // A list of numbers is valid whatever panicked.
        self.released.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a call of the worker has to call [`WorkerSlot::take_released`] first.
    #[inline]
    pub fn is_due(&self) -> bool {
        !self.is_used() || self.has_released.load(Ordering::Relaxed)
    }

    /// Notes that a stream has come, and takes the configurations that are over.
    #[cold]
    pub fn begin_use(&self) -> Vec<u32> {
        self.is_used.store(true, Ordering::Relaxed);
        self.take_released()
    }

    /// Takes the configurations that are over.
    pub fn take_released(&self) -> Vec<u32> {
        // The holder of this lock is about to let go; if so, the next call takes them.
        let Ok(mut released) = self.released.try_lock() else {
            return Vec::new();
        };
        self.has_released.store(false, Ordering::Relaxed);
        std::mem::take(&mut *released)
    }
}

impl<V: PooledVm> Drop for WorkerSlot<V> {
    fn drop(&mut self) {
        let vms = self.vms.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(vm) = vms.current.take() {
            drop_later(vm);
        }
        vms.retired.drop_all();
    }
}

#[derive(Debug)]
struct BorrowFlag<'a>(&'a AtomicBool);

impl Drop for BorrowFlag<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The VMs of a worker in the hands of another thread.
#[derive(Debug)]
pub struct BorrowedVms<'a, V: PooledVm> {
    // Cleared first: a stream that sees it set after that would wait for nothing.
    _flag: BorrowFlag<'a>,
    vms: MutexGuard<'a, WorkerVms<V>>,
}

impl<V: PooledVm> Drop for BorrowedVms<'_, V> {
    fn drop(&mut self) {
        if let Some(vm) = &self.vms.current {
            vm.call_slot().set_worker(self.vms.worker);
        }
    }
}

impl<V: PooledVm> Deref for BorrowedVms<'_, V> {
    type Target = WorkerVms<V>;

    fn deref(&self) -> &WorkerVms<V> {
        &self.vms
    }
}

impl<V: PooledVm> DerefMut for BorrowedVms<'_, V> {
    fn deref_mut(&mut self) -> &mut WorkerVms<V> {
        &mut self.vms
    }
}

#[cfg(test)]
mod tests;
