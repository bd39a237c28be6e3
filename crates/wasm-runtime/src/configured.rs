//! A Proxy-Wasm plugin with one configuration: what streams call.

use std::sync::Arc;

use outrider_plugin_api::{
    Call, Cause, ConfiguredPlugin, Decision, Direction, Fault, Reaction, Slot, Stream, Wake, WakeId,
};

use crate::memory::Loan;
use crate::vm::{Configuration, Refusal, Vm, generation_of};
use crate::workers::{Core, Held};

/// See the module.
#[derive(Debug)]
pub(crate) struct WasmConfigured {
    core: Arc<Core>,
    configuration: Configuration,
}

const NO_VM: &str = "the worker's VM came to its end and could not be replaced";
const LOST: &str = "the stream's state was lost as the plugin's VM failed on another stream";
const BUSY: &str = "the worker has no VM for this, or it is in use";

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

    /// The VM for a stream that has begun in it, or that begins, and this configuration's root in it; for one that
    /// has begun, whose context knows its root, 0.
    fn vm<'a>(
        &self,
        held: &'a mut Held,
        slot: Slot,
        stream: &mut dyn Stream,
    ) -> Result<(&'a mut Vm, u32), Fault> {
        if generation_of(slot).is_some() {
            let vm = held.vm_of(slot);
            return vm.map(|vm| (vm, 0)).ok_or_else(|| unavailable(LOST));
        }
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
        let known = held
            .vm_of(slot)
            .and_then(|vm| vm.root_of(self.configuration.id));
        let root = match known {
            Some(root) => root,
            None => self.take_in(held, slot, stream)?,
        };
        // Found again, as the compiler does not see where the first loan ends.
        let vm = held.vm_of(slot).ok_or_else(|| unavailable(NO_VM))?;
        Ok((vm, root))
    }

    /// The VM does not have this configuration yet.
    #[cold]
    fn take_in(&self, held: &mut Held, slot: Slot, stream: &mut dyn Stream) -> Result<u32, Fault> {
        if slot == Slot::default() {
            // There may be one that does.
            self.core.adopt(held);
        }
        let Some(vm) = held.vm_of(slot) else {
            return Err(unavailable(NO_VM));
        };
        match vm.configure(&self.configuration, Loan::Stream(stream)) {
            Ok(root) => Ok(root),
            Err(Refusal::Refused(reason)) => Err(Fault {
                cause: Cause::Unavailable,
                message: format!("{reason} (on this worker)"),
            }),
            Err(Refusal::Failed(trouble)) => Err(self.core.failed(held, slot, &trouble)),
        }
    }
}

impl ConfiguredPlugin for WasmConfigured {
    fn call(
        &self,
        slot: &mut Slot,
        call: Call,
        stream: &mut dyn Stream,
    ) -> Result<Decision, Fault> {
        let mut held = self
            .core
            .worker(stream.worker())
            .ok_or_else(|| unavailable(BUSY))?;
        let (vm, root) = self.vm(&mut held, *slot, stream)?;
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
        let mut held = self
            .core
            .worker(stream.worker())
            .ok_or_else(|| unavailable(BUSY))?;
        let (vm, _) = self.vm(&mut held, *slot, stream)?;
        match vm.event(*slot, &wake, stream) {
            Ok(reaction) => reaction,
            Err(trouble) => Err(self.core.failed(&mut held, *slot, &trouble)),
        }
    }

    fn end(&self, slot: Slot, worker: usize) {
        let Some(mut held) = self.core.worker(worker) else {
            return;
        };
        let Some(vm) = held.vm_of(slot) else { return };
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
