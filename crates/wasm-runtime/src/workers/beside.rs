//! What a worker's VMs do beside its streams.

use std::sync::atomic::Ordering;
use std::time::Duration;

use outrider_plugin_api::LogLevel;
use outrider_vm_pool::{PooledVm, WakeCharge};

use super::{Core, Held};
use crate::memory::Loan;
use crate::vm::{Configuration, Refusal, slot_of};

/// When somebody has a VM who will be done with it soon.
const BUSY: Duration = Duration::from_millis(20);
/// So many configurations a worker's VM takes in at once beside its streams.
const MOST_AT_ONCE: usize = 16;

impl Core {
    /// Does what is due on a worker beside its streams.
    pub(crate) fn background(&self, worker: usize) {
        let Some(own) = self.workers.get(worker) else {
            return;
        };
        let Some(mut held) = own.slot.try_lock() else {
            // The thread that loads is configuring the VM.
            self.shared.ring_in(BUSY);
            return;
        };
        self.drain(own, &mut held, own.slot.take_released());
        let unsettled = self.unsettled();
        if unsettled.is_zero() {
            self.adopt(&mut held);
        }
        self.stock_up();
        let again = self.complete(&mut held);
        let again = again
            .into_iter()
            .chain((!unsettled.is_zero()).then_some(unsettled))
            .min();
        let due = if let Some(wait) = self.wait(worker, Duration::ZERO) {
            Some(wait)
        } else {
            self.run(&mut held)
        };
        self.tidy(&mut held);
        if let Some(delay) = again.into_iter().chain(due).min() {
            self.shared.ring_in(delay);
        }
    }

    /// Sees to it that there is a VM that has all configurations that streams may begin with. Answers when to try again.
    fn complete(&self, held: &mut Held) -> Option<Duration> {
        if held.current.is_none() && self.replace(held).is_err() {
            return Some(held.backoff.wait(self.shared.clock.now()).max(BUSY));
        }
        let configured = self.configured.load(Ordering::Acquire);
        let vm = held.current.as_mut()?;
        if self.has_proxy() {
            // Those that it lacks are in a VM that is made for it.
            vm.configured = configured;
        }
        if vm.configured == configured {
            return None;
        }
        let slot = slot_of(vm.generation);
        let missing: Vec<Configuration> = self
            .configurations()
            .that_count()
            .filter(|known| vm.root_of(known.id).is_none())
            .cloned()
            .collect();
        for configuration in missing.iter().take(MOST_AT_ONCE) {
            match vm.configure(configuration, Loan::Nothing) {
                Ok(_) => {}
                // A stream with it is told why.
                Err(Refusal::Refused(reason)) => vm.say(LogLevel::Error, &reason),
                Err(Refusal::Failed(trouble)) => {
                    self.failed_loading(held, slot, &trouble);
                    return Some(held.backoff.wait(self.shared.clock.now()).max(BUSY));
                }
            }
        }
        if missing.len() > MOST_AT_ONCE {
            return Some(BUSY);
        }
        vm.configured = configured;
        None
    }

    /// Runs what is due in a worker's VMs. Answers when there will be more.
    fn run(&self, held: &mut Held) -> Option<Duration> {
        let worker = held.worker();
        let Held {
            current, retired, ..
        } = held;
        let mut due: Option<Duration> = None;
        let mut failed = None;
        for vm in current.iter_mut().chain(retired.iter_mut()) {
            // All that a plugin does beside streams is charged.
            let _charge = WakeCharge::begin(vm.call_slot(), worker);
            match vm.background() {
                Ok(next) => due = due.into_iter().chain(next).min(),
                Err(trouble) => failed = Some((vm.generation, trouble)),
            }
        }
        if let Some((generation, trouble)) = failed {
            self.failed_alone(held, slot_of(generation), &trouble);
            return Some(held.backoff.wait(self.shared.clock.now()));
        }
        due
    }
}
