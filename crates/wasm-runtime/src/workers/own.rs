//! What a worker has of a plugin version: its slot, and the VM that was made to follow the one in it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use outrider_plugin_api::Slot;
use outrider_vm_pool::{RestartBackoff, WorkerSlot, WorkerVms};

use crate::vm::{Vm, generation_of};

/// See the module.
#[derive(Debug)]
pub(crate) struct WorkerVm {
    pub(crate) slot: WorkerSlot<Vm>,
    /// One that was made elsewhere, to follow the worker's.
    pub(super) ready: Mutex<Option<Vm>>,
    pub(super) has_ready: AtomicBool,
    /// The worker's VM failed, and there was no other.
    pub(super) waits: AtomicBool,
    /// A VM with a configuration that a stream needs is being made.
    pub(super) requested: AtomicBool,
    /// The last configuration that the worker's VM took in, while it was not used.
    pub(crate) prepared: AtomicU32,
}

impl WorkerVm {
    /// Returns a worker with its first VM.
    pub(super) fn new(vm: Vm, worker: usize) -> Self {
        Self {
            slot: WorkerSlot::new(vm, worker, RestartBackoff::default()),
            ready: Mutex::default(),
            has_ready: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            requested: AtomicBool::new(false),
            prepared: AtomicU32::new(0),
        }
    }

    /// Whether the VM took in a configuration while it was not used, and none since.
    pub(super) fn has_configuration(&self, id: u32) -> bool {
        self.prepared.load(Ordering::Relaxed) == id
    }
}

/// The VMs of one worker, of this runtime.
pub(crate) type Held = WorkerVms<Vm>;

/// A worker's VMs by the streams that have begun in them.
pub(crate) trait StreamVms {
    /// Whether the VM is there that a stream has begun in, or that it will begin in.
    fn is_ready(&self, slot: Slot) -> bool;

    /// Returns, in that VM, the root of a configuration for a stream that begins, and 0 for one that has begun, whose
    /// context knows its root. `None` if the VM, or the root in it, is not there.
    fn root_for(&self, slot: Slot, configuration: u32) -> Option<u32>;

    /// Returns that VM.
    fn vm_for(&mut self, slot: Slot) -> Option<&mut Vm>;

    /// Takes that VM, which failed, out.
    fn take_for(&mut self, slot: Slot) -> Option<Vm>;
}

impl StreamVms for Held {
    #[inline]
    fn is_ready(&self, slot: Slot) -> bool {
        match generation_of(slot) {
            None => self.current.is_some(),
            Some(generation) => self.has(generation),
        }
    }

    #[inline]
    fn root_for(&self, slot: Slot, configuration: u32) -> Option<u32> {
        match generation_of(slot) {
            Some(_) => self.is_ready(slot).then_some(0),
            None => self.current.as_ref()?.root_of(configuration),
        }
    }

    #[inline]
    fn vm_for(&mut self, slot: Slot) -> Option<&mut Vm> {
        match generation_of(slot) {
            None => self.current.as_mut(),
            Some(generation) => self.vm_of(generation),
        }
    }

    fn take_for(&mut self, slot: Slot) -> Option<Vm> {
        match generation_of(slot) {
            None => self.current.take(),
            Some(generation) => self.take(generation),
        }
    }
}
