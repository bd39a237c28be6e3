//! Proxy-Wasm plugins: Wasmtime, the host functions of ABI 0.1.0 to 0.2.1 for HTTP, the WASI calls that
//! guests need, and the [`Plugin`] that streams are passed through.
//!
//! One VM per plugin version and worker, made before the first request; one more checks configurations. Not
//! here: where a plugin's file comes from, and anything of Envoy.
//!
//! The traps are in `memory`, which lends a stream to host calls, and in `contexts`: a guest names streams
//! by numbers, and acts for whichever it wants to.

mod abi;
mod cache;
mod code;
mod compiled;
mod configured;
mod contexts;
mod engine;
mod exports;
mod grpc;
mod guest_memory;
mod host;
mod jumps;
mod limits;
mod mailbox;
mod memory;
mod own_modules;
mod pairs;
mod plugin;
mod proto;
mod room;
mod sequences;
mod shared;
mod shared_data;
mod source;
mod state;
mod ticks;
mod time;
mod trouble;
mod vm;
mod workers;

use std::sync::Arc;

use outrider_plugin_api::{LoadError, Metrics, Plugin};

pub use host::foreign::NAMES as FOREIGN_FUNCTIONS;
pub use host::{HostFunction, all as host_functions};
pub use source::{Clock, Digest, WasmModule, WasmOptions, WasmSource};

/// Loads a plugin: compiles its module, checks what it imports and exports, and makes a VM for each of
/// `workers`.
///
/// # Errors
/// It is no module of Proxy-Wasm, is made for another version of it, imports what nobody provides, or does
/// not start within its budgets.
pub fn load(
    source: WasmSource,
    workers: usize,
    metrics: &mut dyn Metrics,
) -> Result<Arc<dyn Plugin>, LoadError> {
    Ok(Arc::new(plugin::WasmPlugin::load(
        source, workers, metrics,
    )?))
}

#[cfg(test)]
mod tests;
