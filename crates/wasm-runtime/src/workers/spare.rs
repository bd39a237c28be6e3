//! VMs that are kept beside the workers'.
//!
//! A worker whose VM fails takes one over at once, and another is made on a maker thread (`vm-pool`). A spare
//! VM has all configurations that streams may begin with (see `configurations`), and has done what a guest
//! does with them; but its roots do not tick, and it is told of no queue, before a worker has it. One that
//! lacks a configuration which came later is of no use: it is dropped, and another is made.

use std::sync::atomic::Ordering;
use std::time::Duration;

use outrider_vm_pool::{MakeVm, Making, Progress, drop_later, request_vms};

use super::{Core, Held};
use crate::vm::Vm;

/// So many VMs are made at once where a configuration comes.
pub(super) const MOST_MAKERS: usize = 4;

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
    /// Returns whether a VM has all configurations that have come.
    fn is_fit(&self) -> impl Fn(&Vm) -> bool {
        let configured = self.configured.load(Ordering::Acquire);
        move |vm| vm.configured == configured
    }

    /// How many spare VMs there are to be: one for each worker that has none, and one more.
    fn wanted_spares(&self) -> usize {
        // Where plugins are only tried, nobody waits for the next stream.
        let kept = usize::from(!self.configurations().is_empty());
        let waiting = self.workers.iter();
        let waiting = waiting.filter(|own| own.waits.load(Ordering::Relaxed));
        kept + waiting.count()
    }

    /// Has spare VMs made, and drops those that are of no use: a worker that waited may have had another
    /// meanwhile, and a plugin may be gone.
    pub(crate) fn stock_up(&self) {
        if !self.has_proxy() {
            return;
        }
        let Some(core) = self.own.upgrade() else {
            return;
        };
        self.spares.keep(self.is_fit(), self.wanted_spares());
        if self.lacks_spare() {
            request_vms(&core);
        }
    }

    /// Whether a spare VM is to be made.
    fn lacks_spare(&self) -> bool {
        self.spares.count(self.is_fit()) < self.wanted_spares()
            && self.spares.wait(self.shared.clock.now()).is_zero()
    }

    /// The memory of each spare VM, in bytes.
    pub(crate) fn spares(&self) -> Vec<usize> {
        self.spares.memory()
    }

    /// Whether a spare VM is there that has all configurations.
    pub(super) fn has_spare(&self) -> bool {
        self.spares.count(self.is_fit()) > 0
    }

    fn make_spare(&self) -> Duration {
        let configured = self.configured.load(Ordering::Acquire);
        let again = match self.made() {
            Ok(mut vm) => {
                self.spares.note_success();
                vm.configured = configured;
                if self.is_fit()(&vm) {
                    self.spares.put(vm);
                } else {
                    // It lacks a configuration that came meanwhile.
                    drop_later(vm);
                }
                Duration::ZERO
            }
            Err(refusal) => {
                self.say(&refusal);
                let now = self.shared.clock.now();
                self.spares.note_failure(now, String::new());
                self.spares.wait(now)
            }
        };
        self.shared.ring_in(again);
        again
    }

    /// A worker takes a spare VM, if there is one that has all configurations.
    pub(super) fn take_over(&self, held: &mut Held) -> bool {
        let spare = self.spares.take(self.is_fit());
        let has_one = spare.is_some_and(|vm| self.begin_with(held, vm));
        self.stock_up();
        has_one
    }
}
