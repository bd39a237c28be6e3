//! All talk with Envoy: the part of its dynamic-module ABI that Outrider uses, the hooks that Envoy
//! calls, and [`outrider_plugin_api::Host`] over one of its streams. One place to change for each
//! Envoy minor, and the home of nearly all `unsafe`.
//!
//! A loadable module implements [`Module`] and is declared with [`module!`]. Nothing here knows Lua, Wasm or
//! a configuration's content.
//!
//! The trap of this crate is re-entrancy: Envoy may call a hook of a stream, or free its filter,
//! inside a callback that replies or resumes. So no borrow of a filter's state lives across such a
//! callback: hooks compute [`outrider_plugin_api::Effects`], drop the borrow, and act last.
#![expect(
    unsafe_code,
    reason = "this crate is the boundary with Envoy's C ABI; each block says why it is sound"
)]

mod access_log;
mod background;
mod bootstrap;
mod callbacks;
mod callout;
mod cluster;
mod event_queue;
mod exchanges;
mod filter;
mod grpc;
mod hooks;
mod host;
mod known_headers;
mod log;
mod metadata_kinds;
mod module;
mod protobuf;
mod raw;
#[cfg(test)]
mod stub;
mod wake_queue;
mod worker;

pub use background::EnvoyBackground;
pub use bootstrap::{AdminAnswer, AdminPage, AdminPages, AdminRequest};
pub use callbacks::{MissingCallbacks, resolve};
pub use log::{log, log_enabled};
pub use module::{
    ConfigContext, EnvoyMetric, FilterConfig, MetricTable, Module, RouteConfig, install,
};

/// The ABI version that this crate speaks: Envoy 1.40's. Envoy warns of another, and promises to
/// load a module of the minor before its own.
pub const ABI_VERSION: &std::ffi::CStr = c"v0.2.0";

/// Makes `$module`, a `static` that implements [`Module`], the one that Envoy loads.
#[macro_export]
macro_rules! module {
    ($module:expr) => {
        /// Envoy calls this once, when it has loaded the library. Null: the library is refused.
        #[expect(unsafe_code, reason = "the name is Envoy's")]
        #[unsafe(no_mangle)]
        pub extern "C" fn envoy_dynamic_module_on_program_init() -> *const std::ffi::c_char {
            $crate::install(&$module)
        }
    };
}
