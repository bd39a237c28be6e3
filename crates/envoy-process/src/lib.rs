//! One Envoy as a child process: found, checked, installed, started, waited for, asked, drained and
//! stopped.
//!
//! Not here: what Envoy is told to do (its bootstrap is a file that someone else wrote), and plugins.
//! The trap: an Envoy that answers `/ready` may still have refused a listener or a filter; ask
//! [`Envoy::rejections`] before calling it good.

mod admin;
mod diagnosis;
mod error;
mod guard;
mod hot_restart;
mod install;
mod locate;
mod log;
mod process;
mod version;

pub use admin::{Admin, Answer, Counters};
pub use diagnosis::reason;
pub use error::Error;
pub use hot_restart::{FIRST_FLUSH, Generation, HotRestart};
pub use install::{Installed, install, installed};
pub use locate::{Found, Origin, Search, home};
pub use log::{Level, LogLine, LogSink};
pub use process::{Drained, Envoy, Options, Rejection, StandardOutput};
pub use version::{SUPPORTED, Version};
