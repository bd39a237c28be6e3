//! What both runtimes need to keep a hostile plugin from holding up a worker: the watchdog that ends
//! overdue calls, CPU shares, the slot in which a worker holds its VMs, spare and retired VMs, threads that
//! make VMs off the workers, restart back-off, and the queue in which VMs are dropped.
//!
//! Not here: Lua, Wasm, and anything unsafe. A runtime gives its VM as a [`PooledVm`], its way to end a call as
//! an [`Interrupt`], and its way to read a thread's CPU time as a [`ThreadClock`].

mod backoff;
mod drop_queue;
mod makers;
mod retired;
mod shares;
mod spare;
mod watchdog;
mod worker_slot;

pub use backoff::RestartBackoff;
pub use drop_queue::{drop_later, start_drop_queue};
pub use makers::{MakeVm, Making, Progress, request_vms, start_makers};
pub use retired::RetiredVms;
pub use shares::{CpuLimit, ShareAccount, WakeCharge};
pub use spare::SpareVms;
pub use watchdog::{CallSlot, Interrupt, NO_CLOCK, NO_WORKER, Overrun, ThreadClock};
pub use worker_slot::{BorrowedVms, PooledVm, VM_AWAITED, VmPatience, WorkerSlot, WorkerVms};
