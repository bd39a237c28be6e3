//! Everything that touches LuaJIT's C interface, and all of this crate's `unsafe`.
//!
//! What leaves this module is safe to use: [`State`] is one VM with its budgets. Not here:
//! what a plugin, a handler or a configuration is.
//!
//! The traps:
//! - A Lua error is an unwinding jump. No Rust frame that owns something may lie in its way, so
//!   functions that Lua calls never raise; they return codes, and the SDK (in Lua) raises.
//! - Anything in Lua's C interface that may allocate may raise. Outside of a protected call only
//!   functions that never allocate are used.
//! - A stream is reachable only while a call runs ([`CallState`]).
#![expect(unsafe_code, reason = "LuaJIT is a C library")]

mod call;
mod chunks;
mod functions;
mod hooks;
mod memory;
mod priority;
mod state;
mod tape;
mod watch;

pub(crate) use call::Pending;
pub(crate) use priority::{lower_maker_priority, lower_thread_priority};
pub(crate) use state::{
    Context, Entry, LuaError, LuaErrorKind, Outcome, Started, State, Step, Thread, place_of,
};
pub(crate) use watch::PosixClock;
