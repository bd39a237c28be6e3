//! The process's Wasmtime engine.
//!
//! The trap: an engine installs signal handlers for good, so there is one for the process, made when the
//! first plugin loads, and the library that holds it is never unloaded.

use std::sync::LazyLock;

use wasmtime::{Config, Engine, OptLevel, Strategy, WasmBacktraceDetails};

/// How deep guests may call, in bytes of the worker's stack, of which Envoy's threads have 8 MiB.
const STACK: usize = 1024 * 1024;

static ENGINE: LazyLock<Result<Engine, String>> =
    LazyLock::new(|| Engine::new(&config()).map_err(|error| format!("{error:#}")));

/// What was tried beyond this, and left, is in docs/benchmarks/wasm.md: inlining, no guards against speculation,
/// tables that are filled at once. Memories are reserved for all that 32 bits reach, by default, so accesses need
/// no checks.
fn config() -> Config {
    let mut config = Config::new();
    config
        .strategy(Strategy::Cranelift)
        .cranelift_opt_level(OptLevel::Speed)
        .epoch_interruption(true)
        .max_wasm_stack(STACK)
        .wasm_backtrace_details(WasmBacktraceDetails::Enable)
        .memory_init_cow(true);
    config
}

/// The process's engine.
///
/// # Errors
/// This machine cannot run it, with the reason.
pub(crate) fn engine() -> Result<&'static Engine, String> {
    ENGINE
        .as_ref()
        .map_err(|reason| format!("Wasmtime cannot run WebAssembly on this machine: {reason}"))
}
