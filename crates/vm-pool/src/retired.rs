//! VMs that another has taken the place of, and that serve the streams that they have to their end.

use std::sync::atomic::Ordering;

use crate::drop_later;
use crate::worker_slot::PooledVm;

/// Memory that a retired VM counts for at least, in bytes.
const LEAST_SIZE: usize = 1024 * 1024;

/// See the module.
#[derive(Debug)]
pub struct RetiredVms<V>(Vec<V>);

impl<V> Default for RetiredVms<V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<V: PooledVm> RetiredVms<V> {
    /// Whether no VM is retired.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Retires a VM. While all have more than `most` bytes together, the oldest lose their streams.
    pub fn push(&mut self, old: V, most: usize) {
        self.0.push(old);
        self.drop_idle();
        let size = |vm: &V| vm.memory_gauge().load(Ordering::Relaxed).max(LEAST_SIZE);
        while self.0.iter().map(size).sum::<usize>() > most {
            drop_later(self.0.remove(0));
        }
    }

    /// Drops VMs whose streams are over.
    pub fn drop_idle(&mut self) {
        let idle = self.0.extract_if(.., |vm| vm.streams() == 0);
        idle.for_each(drop_later);
    }

    /// Drops all.
    pub fn drop_all(&mut self) {
        self.0.drain(..).for_each(drop_later);
    }

    /// Returns the VMs, the oldest first.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut()
    }

    pub(crate) fn has(&self, generation: u32) -> bool {
        self.0.iter().any(|vm| vm.generation() == generation)
    }

    pub(crate) fn vm_of(&mut self, generation: u32) -> Option<&mut V> {
        self.0.iter_mut().find(|vm| vm.generation() == generation)
    }

    pub(crate) fn take(&mut self, generation: u32) -> Option<V> {
        let found = self.0.iter().position(|vm| vm.generation() == generation)?;
        Some(self.0.remove(found))
    }
}
