//! What a worker has of a plugin version: the VM in which streams begin, those that serve theirs to the end, and
//! how other threads meet it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use std::time::{Duration, Instant};

use outrider_plugin_api::{Slot, VmStatus};
use outrider_vm_pool::{RestartBackoff, drop_later};

use crate::vm::{Vm, generation_of};

/// A worker's VM. The lock is the worker's own: others take it only while no stream has come yet.
#[derive(Debug)]
pub(crate) struct WorkerVm {
    pub(crate) held: Mutex<Held>,
    /// One that was made elsewhere, to follow it.
    pub(super) ready: Mutex<Option<Vm>>,
    pub(super) has_ready: AtomicBool,
    /// Its own failed, and there was no other.
    pub(super) waits: AtomicBool,
    pub(super) released: Mutex<Vec<u32>>,
    pub(super) has_released: AtomicBool,
    /// A stream has come.
    pub(crate) is_used: AtomicBool,
    /// A VM with a configuration that a stream needs is being made.
    pub(super) requested: AtomicBool,
    /// Since when a VM is being made for it.
    waits_since: Mutex<Option<Instant>>,
    /// The last configuration that the worker's VM took in, while it was not used.
    pub(crate) prepared: AtomicU32,
    pub(super) seen: Arc<Seen>,
}

impl WorkerVm {
    /// A worker, and its first VM.
    pub(super) fn new(vm: Vm, worker: usize) -> Self {
        vm.set_worker(worker);
        let seen = Arc::new(Seen::default());
        seen.memory.store(vm.memory(), Ordering::Relaxed);
        Self {
            held: Mutex::new(Held {
                generation: vm.generation,
                current: Some(vm),
                retiring: Vec::new(),
                worker,
                backoff: RestartBackoff::default(),
                configured: 0,
                seen: Arc::clone(&seen),
            }),
            ready: Mutex::default(),
            has_ready: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            released: Mutex::default(),
            has_released: AtomicBool::new(false),
            is_used: AtomicBool::new(false),
            requested: AtomicBool::new(false),
            waits_since: Mutex::default(),
            prepared: AtomicU32::new(0),
            seen,
        }
    }

    /// Whether the VM took in a configuration while it was not used, and none since.
    pub(super) fn has_configuration(&self, id: u32) -> bool {
        self.prepared.load(Ordering::Relaxed) == id
    }

    /// A VM is being made for it.
    pub(super) fn wait_from_now(&self) {
        let mut since = self
            .waits_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if since.is_none_or(|since| since.elapsed() > FORGET) {
            *since = Some(Instant::now());
        }
    }

    /// Another VM has come: streams that miss something in it wait anew.
    pub(super) fn wait_anew(&self) {
        *self
            .waits_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Returns how long a stream waits until it asks again for the VM that is being made, or `None` if it has taken too
    /// long.
    pub(super) fn patience(&self) -> Option<Duration> {
        let since = self
            .waits_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let waited = (*since)?.elapsed();
        (waited < PATIENCE).then(|| (waited / 4).clamp(SHORTEST_STEP, LONGEST_STEP))
    }

    /// What it holds. None: it is in use for good, which means that a call is made within a call.
    #[inline]
    pub(super) fn lock(&self) -> Option<MutexGuard<'_, Held>> {
        match self.held.try_lock() {
            Ok(held) => Some(held),
            Err(trouble) => wait_for(self, trouble),
        }
    }
}

/// What other threads may see of a worker's VM.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(super) replacements: AtomicU64,
    pub(super) memory: AtomicUsize,
    pub(super) trouble: Mutex<Option<String>>,
}

impl Seen {
    pub(super) fn trouble(&self) -> MutexGuard<'_, Option<String>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn status(&self) -> VmStatus {
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
    pub(super) retiring: Vec<Vm>,
    pub(super) generation: u32,
    /// Whose it is.
    pub(super) worker: usize,
    pub(super) backoff: RestartBackoff,
    pub(super) seen: Arc<Seen>,
    /// How many configurations had come when the VM was last seen to have them all.
    pub(super) configured: u64,
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
    pub(super) fn retire(&mut self, old: Vm, most: usize) {
        self.retiring.push(old);
        self.bury_idle();
        let size = |vm: &Vm| vm.memory().max(LEAST_SIZE);
        while self.retiring.iter().map(size).sum::<usize>() > most {
            drop_later(self.retiring.remove(0));
        }
    }

    /// VMs that have no stream any more are closed.
    pub(super) fn bury_idle(&mut self) {
        let idle = self.retiring.extract_if(.., |vm| vm.streams() == 0);
        idle.for_each(drop_later);
    }

    /// Takes a VM out that failed.
    pub(super) fn take(&mut self, slot: Slot) -> Option<Vm> {
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

/// The longest that streams wait for a VM that is being made.
const PATIENCE: Duration = Duration::from_millis(750);
/// A waiting stream asks again after a quarter of the time that has passed, within these bounds: many streams
/// that wait must not keep the worker busy.
const SHORTEST_STEP: Duration = Duration::from_millis(5);
const LONGEST_STEP: Duration = Duration::from_millis(100);
/// Streams wait again for a VM that was asked for so long after the one before.
const FORGET: Duration = Duration::from_secs(1);

/// What one counts for at least, in bytes.
const LEAST_SIZE: usize = 1024 * 1024;

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

/// A panic left the VM in a state that nobody knows: another takes its place.
#[cold]
pub(super) fn unpoisoned<'a>(
    own: &'a WorkerVm,
    mut held: MutexGuard<'a, Held>,
) -> MutexGuard<'a, Held> {
    own.held.clear_poison();
    if let Some(vm) = held.current.take() {
        drop_later(vm);
    }
    for vm in held.retiring.drain(..) {
        drop_later(vm);
    }
    held
}
