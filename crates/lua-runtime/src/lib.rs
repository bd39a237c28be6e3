//! Lua plugins: LuaJIT states with a memory and a time budget, the SDK in a closed sandbox, and the
//! [`Plugin`] that streams are passed through.
//!
//! One VM per plugin version and worker, made before the first request; one more checks
//! configurations. Not here: where a plugin's files come from, and anything of Envoy.
//!
//! The traps are those of LuaJIT's C interface; they are named in `ffi`.

mod bounded_regex;
mod configured;
mod ffi;
mod file_log;
mod json;
mod json_schemas;
mod lua_pattern;
mod moment;
mod outcomes;
mod pattern_cost;
mod patterns;
mod plugin;
mod query;
mod schema;
mod sdk_names;
mod shared;
mod source;
mod store;
mod streams;
mod vm;
mod workers;

use std::sync::Arc;

use outrider_plugin_api::{LoadError, Metrics, Plugin};
use outrider_vm_pool::ThreadClock;

pub use source::{LogFolder, LuaSource};

/// What plugins can call, as annotations for lua-language-server.
pub const TYPES: &str = include_str!("../types/outrider.lua");

/// Returns the CPU clocks of threads, by which the other runtime's calls are charged, too.
pub fn thread_clock() -> &'static dyn ThreadClock {
    &ffi::PosixClock
}

/// Loads a plugin: compiles its files, runs its entry, finds its handlers, and makes a VM for each of
/// `workers`.
///
/// # Errors
/// A file does not compile, a module is missing, code at the top of a file raises an error, there is
/// no handler, or the memory budget does not hold the plugin.
pub fn load(
    source: LuaSource,
    workers: usize,
    metrics: &mut dyn Metrics,
) -> Result<Arc<dyn Plugin>, LoadError> {
    Ok(Arc::new(plugin::LuaPlugin::load(source, workers, metrics)?))
}

#[cfg(test)]
mod tests;
