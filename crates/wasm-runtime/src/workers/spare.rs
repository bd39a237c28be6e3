//! VMs that are kept beside the workers'.
//!
//! A worker whose VM fails takes one over at once, and another is made on a maker thread (`vm-pool`). A spare
//! VM has all configurations that streams may begin with (see `configurations`), and has done what a guest
//! does with them; but its roots do not tick, and it is told of no queue, before a worker has it. One that
//! lacks a configuration which came later is of no use: it is dropped, and another is made.
//!
//! The trap: the lock is taken on workers, so no VM is made, and none is closed, while it is held.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Core, Held};
use outrider_vm_pool::{MakeVm, Making, Progress, RestartBackoff, drop_later, request_vms};

use crate::vm::Vm;

/// So many VMs are made at once where a configuration comes.
pub(super) const MOST_MAKERS: usize = 4;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Spares(Mutex<Stock>);

#[derive(Debug, Default)]
struct Stock {
    vms: Vec<Spare>,
    backoff: RestartBackoff,
}

#[derive(Debug)]
struct Spare {
    vm: Vm,
    /// How many configurations had come when it was begun.
    configured: u64,
}

impl Spares {
    fn stock(&self) -> MutexGuard<'_, Stock> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// They are not needed any more.
    pub(super) fn bury(&self) {
        let vms = std::mem::take(&mut self.stock().vms);
        for spare in vms {
            drop_later(spare.vm);
        }
    }
}

impl MakeVm for Core {
    fn make(&self) -> Progress {
        if self.do_request() {
            return Progress::Again(Duration::ZERO);
        }
        if !self.lacks_spare() {
            return Progress::Done;
        }
        let unsettled = self.unsettled();
        if !unsettled.is_zero() {
            return Progress::Again(unsettled);
        }
        Progress::Again(self.make_spare())
    }

    fn making(&self) -> &Making {
        &self.making
    }
}

impl Core {
    /// Has VMs made until there is one for each worker that has none, and one more.
    pub(crate) fn stock_up(&self) {
        if !self.has_proxy() {
            return;
        }
        let Some(core) = self.own.upgrade() else {
            return;
        };
        let configured = self.configured.load(Ordering::Acquire);
        // Where plugins are only tried, nobody waits for the next stream.
        let kept = usize::from(!self.configurations().is_empty());
        let waiting = self
            .workers
            .iter()
            .filter(|own| own.waits.load(Ordering::Relaxed));
        let wanted = kept + waiting.count();
        let mut stock = self.spares.stock();
        let old = stock
            .vms
            .extract_if(.., |spare| spare.configured != configured);
        for spare in old.collect::<Vec<_>>() {
            drop_later(spare.vm);
        }
        // A worker that waited may have had another meanwhile, and a plugin may be gone.
        let surplus = stock.vms.len().saturating_sub(wanted);
        for spare in stock.vms.drain(..surplus) {
            drop_later(spare.vm);
        }
        let lacks = stock.vms.len() < wanted && stock.backoff.is_due(self.shared.clock.now());
        drop(stock);
        if lacks {
            request_vms(&core);
        }
    }

    /// Whether a spare VM is to be made.
    fn lacks_spare(&self) -> bool {
        let kept = usize::from(!self.configurations().is_empty());
        let waiting = self.workers.iter();
        let waiting = waiting.filter(|own| own.waits.load(Ordering::Relaxed));
        let wanted = kept + waiting.count();
        let configured = self.configured.load(Ordering::Acquire);
        let stock = self.spares.stock();
        let fit = stock
            .vms
            .iter()
            .filter(|spare| spare.configured == configured);
        fit.count() < wanted && stock.backoff.is_due(self.shared.clock.now())
    }

    /// The memory of each spare VM, in bytes.
    pub(crate) fn spares(&self) -> Vec<usize> {
        let stock = self.spares.stock();
        stock.vms.iter().map(|spare| spare.vm.memory()).collect()
    }

    /// Whether a spare VM is there that has all configurations.
    pub(super) fn has_spare(&self) -> bool {
        let configured = self.configured.load(Ordering::Acquire);
        let stock = self.spares.stock();
        stock.vms.iter().any(|spare| spare.configured == configured)
    }

    fn make_spare(&self) -> Duration {
        let configured = self.configured.load(Ordering::Acquire);
        let made = self.made();
        let mut stock = self.spares.stock();
        let again = match made {
            Ok(vm) => {
                stock.backoff.clear();
                if configured == self.configured.load(Ordering::Acquire) {
                    stock.vms.push(Spare { vm, configured });
                } else {
                    // It lacks a configuration that came meanwhile.
                    drop_later(vm);
                }
                Duration::ZERO
            }
            Err(refusal) => {
                self.say(&refusal);
                let now = self.shared.clock.now();
                // A start that fails will do so again: it backs off at once.
                stock.backoff.note_at_once(now, String::new());
                stock.backoff.wait(now)
            }
        };
        drop(stock);
        self.shared.ring_in(again);
        again
    }

    /// A worker takes a spare VM, if there is one that has all configurations.
    pub(super) fn take_over(&self, held: &mut Held) -> bool {
        let configured = self.configured.load(Ordering::Acquire);
        let mut stock = self.spares.stock();
        let found = stock
            .vms
            .iter()
            .position(|spare| spare.configured == configured);
        let spare = found.map(|found| stock.vms.swap_remove(found));
        drop(stock);
        let has_one = spare.is_some_and(|spare| self.begin_with(held, spare.vm));
        self.stock_up();
        has_one
    }
}
