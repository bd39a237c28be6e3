//! What the plugins here need beside the Proxy-Wasm SDK: a configuration that says what is wrong with it,
//! and replies with a response-code detail.
//!
//! Not a second SDK: what the SDK does, plugins take from the SDK.

#[expect(
    unsafe_code,
    reason = "the host's functions are imported, and take pointers"
)]
mod reply;

use serde::de::DeserializeOwned;

pub use reply::reply;

/// Reads a plugin's configuration, which is JSON; none at all stands for `{}`.
///
/// The error is one line for whoever wrote the configuration.
pub fn configuration<T: DeserializeOwned>(bytes: Option<&[u8]>) -> Result<T, String> {
    serde_json::from_slice(bytes.filter(|bytes| !bytes.is_empty()).unwrap_or(b"{}"))
        .map_err(|error| format!("configuration: {error}"))
}
