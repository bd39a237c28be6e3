//! Runs a gateway: starts Envoy, follows the gateway's file, starts Envoy again when it ends, drains and stops.
//!
//! [`machine`] decides, and can be read on one page; [`supervisor`] does what it decides, and tells it what happened. What
//! a gateway's file means is `outrider-gateway`'s, one running Envoy is `outrider-envoy-process`'s, and words for people
//! are the command's.

mod apply;
mod courier;
mod handover;
mod machine;
mod memory;
mod module;
mod notify;
mod places;
mod ports;
mod refusal;
mod refusals;
mod rendered;
mod report;
mod revision;
mod signals;
mod state;
mod successor;
mod supervisor;
mod trial;
mod watch;

pub use machine::Exit;
pub use module::find as find_module;
pub use report::Report;
pub use supervisor::{Compilation, LogSink, Settings, run};
pub use watch::Seen;
