//! A Proxy-Wasm plugin with one configuration: what streams call.

use std::sync::Arc;
use std::time::Duration;

use outrider_plugin_api::{
    Call, Cause, ConfigPlace, ConfiguredPlugin, Decision, Direction, Fault, Reaction, Slot, Stream,
    Wake, WakeId,
};
use outrider_vm_pool::VM_AWAITED;

use crate::memory::Loan;
use crate::vm::{Configuration, Refusal};
use crate::workers::{Core, Held, StreamVms};

/// See the module.
#[derive(Debug)]
pub(crate) struct WasmConfigured {
    core: Arc<Core>,
    configuration: Configuration,
}

const NO_VM: &str = "the worker's VM came to its end and could not be replaced";
const NOT_YET: &str =
    "the worker's VM does not have this configuration; one that has it is being made";
const LOST: &str = "the stream's state was lost as the plugin's VM failed on another stream";
const BUSY: &str = "the worker has no VM for this, or it is in use";

#[cold]
fn unavailable(message: &str) -> Fault {
    Fault {
        cause: Cause::Unavailable,
        message: message.to_owned(),
    }
}

impl WasmConfigured {
    pub(crate) fn new(core: Arc<Core>, configuration: Configuration) -> Self {
        Self {
            core,
            configuration,
        }
    }

    /// Sees to the VM for a stream that has begun in it, or that begins, and to this configuration in it. Answers
    /// the configuration's root there; for a stream that has begun, whose context knows its root, 0.
    #[inline]
    fn prepare(&self, held: &mut Held, slot: Slot, stream: &mut dyn Stream) -> Result<u32, Fault> {
        match held.root_for(slot, self.configuration.id) {
            Some(root) => Ok(root),
            None => self.make_ready(held, slot, stream),
        }
    }

    #[cold]
    fn make_ready(
        &self,
        held: &mut Held,
        slot: Slot,
        stream: &mut dyn Stream,
    ) -> Result<u32, Fault> {
        if !held.is_ready(slot)
            && let Err(reason) = self.core.make_ready(held, slot)
        {
            return Err(match reason {
                Some(reason) => unavailable(&format!(
                    "{NO_VM}; it is tried again soon. The last failure: {reason}"
                )),
                None => unavailable(LOST),
            });
        }
        match held.root_for(slot, self.configuration.id) {
            Some(root) => Ok(root),
            None => self.take_in(held, slot, stream),
        }
    }

    /// The VM does not have this configuration yet.
    #[cold]
    fn take_in(&self, held: &mut Held, slot: Slot, stream: &mut dyn Stream) -> Result<u32, Fault> {
        if slot == Slot::default() {
            // There may be one that does.
            self.core.adopt(held);
        }
        if self.core.has_proxy() {
            if let Some(root) = held.root_for(slot, self.configuration.id) {
                return Ok(root);
            }
            self.core.request(stream.worker(), &self.configuration);
            return Err(unavailable(NOT_YET));
        }
        let Some(vm) = held.vm_for(slot) else {
            return Err(unavailable(NO_VM));
        };
        match vm.configure(&self.configuration, Loan::Stream(stream)) {
            Ok(root) => Ok(root),
            Err(Refusal::Refused(reason)) => Err(Fault {
                cause: Cause::Unavailable,
                message: format!("{reason} (on this worker)"),
            }),
            Err(Refusal::Failed(trouble)) => {
                let budget = self.core.shared.load_budget;
                Err(self.core.failed_within(held, slot, &trouble, budget))
            }
        }
    }
}

impl ConfiguredPlugin for WasmConfigured {
    /// As in Envoy's Wasm filter: the callback of request headers makes the guest's context, and a guest relies on it.
    fn sees_response_without_request(&self) -> bool {
        false
    }

    fn call(
        &self,
        slot: &mut Slot,
        call: Call,
        stream: &mut dyn Stream,
    ) -> Result<Decision, Fault> {
        let Some(mut held) = self.core.worker(stream.worker()) else {
            return Err(unavailable(BUSY));
        };
        let root = self.prepare(&mut held, *slot, stream)?;
        let Some(vm) = held.vm_for(*slot) else {
            return Err(unavailable(NO_VM));
        };
        match vm.call(root, slot, call, stream) {
            Ok(decision) => decision,
            Err(trouble) => Err(self.core.failed(&mut held, *slot, &trouble)),
        }
    }

    fn resume(
        &self,
        _slot: &mut Slot,
        _direction: Direction,
        _wake: Wake<'_>,
        _stream: &mut dyn Stream,
    ) -> Result<Decision, Fault> {
        // All events come beside calls: the guest says what they let go on.
        Ok(Decision::Continue)
    }

    fn waits_in(
        &self,
        _slot: Slot,
        _id: WakeId,
        _started: Direction,
        _worker: usize,
    ) -> Option<Direction> {
        None
    }

    fn event(
        &self,
        slot: &mut Slot,
        wake: Wake<'_>,
        stream: &mut dyn Stream,
    ) -> Result<Reaction, Fault> {
        let Some(mut held) = self.core.worker(stream.worker()) else {
            return Err(unavailable(BUSY));
        };
        let Some(vm) = held.vm_for(*slot) else {
            return Err(unavailable(LOST));
        };
        match vm.event(*slot, &wake, stream) {
            Ok(reaction) => reaction,
            Err(trouble) => Err(self.core.failed(&mut held, *slot, &trouble)),
        }
    }

    fn also_for(&self, place: Option<&ConfigPlace>) {
        self.core.also_for(&self.configuration, place);
    }

    #[inline]
    fn wait_for_share(&self, worker: usize, waited: Duration) -> Option<Duration> {
        let wait = self.core.wait(worker, waited);
        wait.or_else(|| self.core.wait_for_vm(worker))
    }

    fn awaited(&self, worker: usize) -> Option<String> {
        let limit = self.core.limit_reached(worker);
        limit
            .map(|limit| limit.to_string())
            .or_else(|| self.core.wait_for_vm(worker).map(|_| VM_AWAITED.to_owned()))
    }

    fn may_log(&self, worker: usize) -> bool {
        self.core.may_log(worker)
    }

    fn charge_log(&self, worker: usize, cost: Duration) {
        self.core.charge_log(worker, cost);
    }

    fn charge_callout(&self, worker: usize) {
        self.core.charge_callout(worker);
    }

    fn end(&self, slot: Slot, worker: usize) {
        let Some(mut held) = self.core.worker(worker) else {
            return;
        };
        let Some(vm) = held.vm_for(slot) else { return };
        if let Err(trouble) = vm.end(slot) {
            self.core.failed_alone(&mut held, slot, &trouble);
        } else {
            self.core.tidy(&mut held);
        }
    }
}

impl Drop for WasmConfigured {
    fn drop(&mut self) {
        self.core.release(self.configuration.id);
    }
}
