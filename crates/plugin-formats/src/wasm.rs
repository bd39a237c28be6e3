//! How a Wasm plugin's module is run: what proxy-wasm calls the plugin's and the VM's configuration, apart
//! from the configuration of scopes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What the host answers where Envoy's own Wasm filter and the authors of plugins want different things.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WasmResults {
    /// As Envoy's Wasm filter answers.
    #[default]
    Envoy,
    /// Request headers can be read in the response phase, and what is refused says so, where Envoy's
    /// filter answers that all is well.
    Relaxed,
}

/// How a Wasm plugin's module is run. The names are those of Envoy's `PluginConfig` and `VmConfig`
/// (`envoy.extensions.wasm.v3`) where there is one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WasmOptions {
    /// What the host answers where Envoy and plugin authors differ.
    #[serde(skip_serializing_if = "is_default")]
    pub results: WasmResults,
    /// Whether `StopIteration` from a headers callback lets the body come, as newer SDKs mean it. Otherwise
    /// it holds body and trailers back, too.
    #[serde(skip_serializing_if = "is_default")]
    pub allow_on_headers_stop_iteration: bool,
    /// Environment variables that the guest sees. It sees none of Envoy's.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// Keys of shared data and names of queues are apart for each. Other plugins' are out of reach whatever it says.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub vm_id: String,
    /// Plugins with the same one have their shared data and queues in common. For `outrider.yaml` only.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub shared: String,
    /// Which of a module's root contexts is asked for; for modules that hold several plugins.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub root_id: String,
    /// What the guest gets in `proxy_on_vm_start`: as JSON, or, when it is a string, the string itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm_configuration: Option<Value>,
    /// Whether each call between host and guest is logged, at the level of the plugin's own lines. Slow.
    #[serde(skip_serializing_if = "is_default")]
    pub trace: bool,
    /// Whether jumps of Go's code through a table whose target is known are made direct before the module is
    /// compiled. `false` compiles the file as it is, to rule this change out as a fault's cause.
    #[serde(skip_serializing_if = "is_true")]
    pub jump_threading: bool,
}

impl Default for WasmOptions {
    fn default() -> Self {
        Self {
            results: WasmResults::default(),
            allow_on_headers_stop_iteration: false,
            environment: BTreeMap::new(),
            vm_id: String::new(),
            shared: String::new(),
            root_id: String::new(),
            vm_configuration: None,
            trace: false,
            jump_threading: true,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_true(value: &bool) -> bool {
    *value
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl WasmOptions {
    /// Whether all of it is as it is where nobody says anything.
    pub fn is_default(&self) -> bool {
        is_default(self)
    }

    /// The bytes that the guest gets in `proxy_on_vm_start`.
    pub fn vm_configuration_bytes(&self) -> Vec<u8> {
        match &self.vm_configuration {
            None => Vec::new(),
            Some(Value::String(text)) => text.clone().into_bytes(),
            Some(value) => value.to_string().into_bytes(),
        }
    }
}
