//! CPU shares of a plugin on its workers.
//!
//! Each worker has a call slot, so that the watchdog sees how long calls into the plugin's VMs run and charges
//! them. It does not end them: the engine's epochs do.

use std::sync::Arc;
use std::time::Duration;

use outrider_vm_pool::{CallSlot, Interrupt, ShareAccount, WakeCharge};

use super::Core;
use crate::source::CpuShares;

/// No call of a guest takes as long: the watchdog never interrupts one.
const UNLIMITED: Duration = Duration::from_hours(24);

/// Calls are ended by the engine's epochs.
#[derive(Debug)]
struct NoInterrupt;

impl Interrupt for NoInterrupt {
    fn interrupt(&self, _attempt: u32) {}
}

/// A call into one of a worker's VMs; it ends when this is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct ChargedCall<'a>(&'a CallSlot);

impl Drop for ChargedCall<'_> {
    fn drop(&mut self) {
        // Without an interrupt there is no overrun.
        let _ = self.0.end();
    }
}

/// Returns the call slot of a worker, or `None` if the plugin's share is not limited.
pub(super) fn call_slot(
    shares: Option<CpuShares>,
    account: Option<&Arc<ShareAccount>>,
    worker: usize,
) -> Option<Arc<CallSlot>> {
    let account = Arc::clone(account?);
    let slot = CallSlot::new(Box::new(NoInterrupt), shares?.clock, Some(account));
    slot.set_worker(worker);
    let slot = Arc::new(slot);
    slot.register();
    Some(slot)
}

impl Core {
    /// Returns how long the plugin has to wait until it may run on a worker, or `None` if it may now.
    #[inline]
    pub(crate) fn wait(&self, worker: usize) -> Option<Duration> {
        self.shared.account.as_ref()?.wait(worker)
    }

    /// Returns how often the plugin had to wait.
    pub(crate) fn share_waits(&self) -> u64 {
        let account = self.shared.account.as_ref();
        account.map_or(0, |account| account.waits())
    }

    /// Begins a call into a VM of a worker, whose VMs are locked.
    #[inline]
    pub(crate) fn begin_call(&self, worker: usize) -> Option<ChargedCall<'_>> {
        let calls = self.workers.get(worker)?.calls.as_deref()?;
        calls.begin(UNLIMITED);
        Some(ChargedCall(calls))
    }

    /// Charges all that a plugin does beside streams, until what is returned is dropped.
    pub(super) fn charge_wake(&self, worker: usize) -> Option<WakeCharge> {
        WakeCharge::begin(self.workers.get(worker)?.calls.as_ref()?, worker)
    }
}
