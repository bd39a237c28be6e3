//! Lines in Envoy's log, under its component `dynamic_modules`.

use outrider_plugin_api::LogLevel;

use crate::callbacks::callbacks;
use crate::raw::ModuleBuffer;

/// `envoy_dynamic_module_type_log_level`
fn number(level: LogLevel) -> u32 {
    match level {
        LogLevel::Trace => 0,
        LogLevel::Debug => 1,
        LogLevel::Info => 2,
        LogLevel::Warn => 3,
        LogLevel::Error => 4,
        LogLevel::Critical => 5,
    }
}

/// Whether Envoy writes lines of this level.
pub fn log_enabled(level: LogLevel) -> bool {
    callbacks().is_some_and(|callbacks| {
        // SAFETY: takes a number of the ABI's enumeration; callable from any thread.
        unsafe { (callbacks.log_enabled)(number(level)) }
    })
}

/// Writes a line to Envoy's log, with control characters escaped; nothing happens without an Envoy.
pub fn log(level: LogLevel, message: &str) {
    if let Some(callbacks) = callbacks()
        && log_enabled(level)
    {
        let message = outrider_plugin_api::escaped(message);
        // SAFETY: the message outlives the call, and Envoy copies it.
        unsafe { (callbacks.log)(number(level), ModuleBuffer::new(message.as_bytes())) }
    }
}
