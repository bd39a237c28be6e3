//! Spare VMs of a plugin version: a worker whose VM fails takes one at once, and a maker thread makes the next.
//!
//! The trap: workers take this lock, so no VM is made, configured or dropped while it is held.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::worker_slot::PooledVm;
use crate::{RestartBackoff, drop_later};

/// See the module.
#[derive(Debug)]
pub struct SpareVms<V>(Mutex<Stock<V>>);

#[derive(Debug)]
struct Stock<V> {
    vms: Vec<V>,
    backoff: RestartBackoff,
}

impl<V: PooledVm> SpareVms<V> {
    /// Returns an empty stock, with the pauses between attempts to make a VM.
    pub fn new(backoff: RestartBackoff) -> Self {
        Self(Mutex::new(Stock {
            vms: Vec::new(),
            backoff,
        }))
    }

    fn stock(&self) -> MutexGuard<'_, Stock<V>> {
        // What it holds is valid between any two statements that change it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a VM that was made.
    pub fn put(&self, vm: V) {
        self.stock().vms.push(vm);
    }

    /// Takes a VM that is fit for use.
    pub fn take(&self, is_fit: impl Fn(&V) -> bool) -> Option<V> {
        let mut stock = self.stock();
        let found = stock.vms.iter().position(is_fit)?;
        Some(stock.vms.swap_remove(found))
    }

    /// Returns how many VMs are fit for use.
    pub fn count(&self, is_fit: impl Fn(&V) -> bool) -> usize {
        self.stock().vms.iter().filter(|vm| is_fit(vm)).count()
    }

    /// Drops VMs that are not fit for use, and those beyond `most`.
    pub fn keep(&self, is_fit: impl Fn(&V) -> bool, most: usize) {
        let mut stock = self.stock();
        let mut dropped: Vec<V> = stock.vms.extract_if(.., |vm| !is_fit(vm)).collect();
        let surplus = stock.vms.len().saturating_sub(most);
        dropped.extend(stock.vms.drain(..surplus));
        drop(stock);
        dropped.into_iter().for_each(drop_later);
    }

    /// Drops all.
    pub fn drop_all(&self) {
        self.keep(|_| false, 0);
    }

    /// Returns the memory of each, in bytes.
    pub fn memory(&self) -> Vec<usize> {
        let stock = self.stock();
        let used = |vm: &V| vm.memory_gauge().load(Ordering::Relaxed);
        stock.vms.iter().map(used).collect()
    }

    /// Notes that a VM could be made.
    pub fn note_success(&self) {
        self.stock().backoff.clear();
    }

    /// Notes that a VM could not be made: the next attempt waits. `now` is on any clock that the caller keeps to.
    pub fn note_failure(&self, now: Duration, reason: String) {
        // A start that fails will do so again: it backs off at once.
        self.stock().backoff.note_at_once(now, reason);
    }

    /// Returns how long the next attempt has to wait.
    pub fn wait(&self, now: Duration) -> Duration {
        self.stock().backoff.wait(now)
    }

    /// Returns why the last attempt failed; empty if it did not.
    pub fn failure(&self) -> String {
        self.stock().backoff.reason().to_owned()
    }
}
