//! Time budgets of calls into guests: the watchdog (`vm-pool`) measures the calls, Wasmtime's epochs end them.
//!
//! Compiled code compares the engine's epoch with the store's deadline at the beginning of each function and loop, and
//! between the parts of a long bulk operation. A store's deadline is always one beyond the epoch, so a call sets none.
//! The watchdog increments the epoch only while the call of some VM is overdue, at each of its ticks until that call
//! ends. Then each guest that runs comes to [`CallTime::at_deadline`]: the overdue call ends there, others go on.
//! Host functions that may take long ask [`CallTime::check`] themselves.

use std::fmt::{Debug, Formatter};
use std::sync::Arc;
use std::time::Duration;

use outrider_plugin_api::bytes::copy;
use outrider_vm_pool::{CallSlot, Interrupt, Overrun};
use wasmtime::{Engine, Trap, UpdateDeadline};

use crate::shared::Shared;

/// Epochs from the current one to a store's deadline.
pub(crate) const NEXT_EPOCH: u64 = 1;

/// Increments the engine's epoch.
struct NextEpoch(Engine);

impl Debug for NextEpoch {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("NextEpoch")
    }
}

impl Interrupt for NextEpoch {
    fn interrupt(&self, _attempt: u32) {
        self.0.increment_epoch();
    }
}

/// Time budget of the calls into one VM.
#[derive(Debug)]
pub(crate) struct CallTime(Arc<CallSlot>);

impl CallTime {
    /// Returns the time budget of a VM's calls. The watchdog measures them after [`CallSlot::register`].
    pub(crate) fn new(engine: &Engine, shared: &Shared) -> Self {
        let interrupt = Box::new(NextEpoch(engine.clone()));
        let slot = CallSlot::new(interrupt, shared.cpu_clock, shared.account.clone());
        Self(Arc::new(slot))
    }

    /// Returns the slot of the VM's calls.
    pub(crate) fn slot(&self) -> &Arc<CallSlot> {
        &self.0
    }

    /// Returns the store's next deadline, for Wasmtime's deadline callback.
    ///
    /// # Errors
    /// `Trap::Interrupt`: the budget is used up. Otherwise the call of another VM was interrupted.
    pub(crate) fn at_deadline(&self) -> wasmtime::Result<UpdateDeadline> {
        self.check()?;
        Ok(UpdateDeadline::Continue(NEXT_EPOCH))
    }

    /// Checks the budget within a host function. Costs one load.
    ///
    /// # Errors
    /// `Trap::Interrupt`: the budget is used up.
    #[inline]
    pub(crate) fn check(&self) -> wasmtime::Result<()> {
        if self.0.is_overdue() {
            return Err(Trap::Interrupt.into());
        }
        Ok(())
    }
}

/// Bytes that a host function copies between two checks of the budget: some 0.1 ms.
const CHUNK: usize = 1024 * 1024;

impl CallTime {
    /// Appends bytes, and checks the budget between parts of a long copy.
    ///
    /// # Errors
    /// `Trap::Interrupt`: the budget is used up.
    #[inline]
    pub(crate) fn append(&self, into: &mut Vec<u8>, bytes: &[u8]) -> wasmtime::Result<()> {
        if bytes.len() <= CHUNK {
            into.extend_from_slice(bytes);
            return Ok(());
        }
        into.reserve(bytes.len());
        for part in bytes.chunks(CHUNK) {
            self.check()?;
            into.extend_from_slice(part);
        }
        Ok(())
    }

    /// Copies bytes to a place of the same length, and checks the budget between parts of a long copy.
    ///
    /// # Errors
    /// `Trap::Interrupt`: the budget is used up.
    #[inline]
    pub(crate) fn copy(&self, to: &mut [u8], from: &[u8]) -> wasmtime::Result<()> {
        if from.len() <= CHUNK {
            copy(to, from);
            return Ok(());
        }
        for (to, from) in to.chunks_mut(CHUNK).zip(from.chunks(CHUNK)) {
            self.check()?;
            copy(to, from);
        }
        Ok(())
    }
}

/// A call that runs in a VM. Its end is noted also when the host panics within it.
#[derive(Debug)]
#[must_use]
pub(crate) struct RunningCall<'a>(Option<&'a CallSlot>);

impl<'a> RunningCall<'a> {
    #[inline]
    pub(crate) fn begin(slot: &'a CallSlot, budget: Duration) -> Self {
        slot.begin(budget);
        Self(Some(slot))
    }

    /// Ends the call.
    ///
    /// # Errors
    /// The call was interrupted.
    #[inline]
    pub(crate) fn end(mut self) -> Result<(), Overrun> {
        self.0.take().map_or(Ok(()), CallSlot::end)
    }
}

impl Drop for RunningCall<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            // The VM of a call that panicked is not used again, whether the call was interrupted or not.
            let _ = slot.end();
        }
    }
}
