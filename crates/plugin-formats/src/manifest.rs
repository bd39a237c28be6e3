//! `plugin.yaml`: what a plugin's author says of it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::circuit::Circuit;
use crate::policy::{BudgetsForm, FailurePolicy};
use crate::wasm::WasmOptions;

/// What runs a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// Lua source, run by LuaJIT.
    Lua,
    /// A WebAssembly module that speaks Proxy-Wasm, run by Wasmtime.
    Wasm,
}

/// Phase group: the coarse order of a chain. Requests pass the groups from top to bottom, responses
/// from bottom to top.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// Who is asking.
    Authn,
    /// May they.
    Authz,
    /// Where, how often, how fast.
    Traffic,
    /// What the messages say.
    #[default]
    Transform,
    /// What is recorded of them.
    Observe,
}

/// How a plugin wants the body of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BodyMode {
    /// Once, complete; headers and body wait for the handler.
    #[default]
    Whole,
    /// Chunk by chunk, as it arrives; nothing is held back.
    Stream,
}

/// How a plugin wants the bodies of requests and responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum BodyModes {
    /// The same for both directions: `body: stream`.
    Both(BodyMode),
    /// Each its own: `body: {request: whole, response: stream}`.
    Each {
        /// Of requests.
        #[serde(default)]
        request: BodyMode,
        /// Of responses.
        #[serde(default)]
        response: BodyMode,
    },
}

impl BodyModes {
    /// The mode of requests.
    pub fn request(self) -> BodyMode {
        match self {
            Self::Both(mode) | Self::Each { request: mode, .. } => mode,
        }
    }

    /// The mode of responses.
    pub fn response(self) -> BodyMode {
        match self {
            Self::Both(mode) | Self::Each { response: mode, .. } => mode,
        }
    }
}

impl Default for BodyModes {
    fn default() -> Self {
        Self::Both(BodyMode::default())
    }
}

/// A plugin's manifest, the file `plugin.yaml` in its folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The plugin's own name; lower-case letters, digits and hyphens.
    pub name: String,
    /// What runs it.
    pub runtime: Runtime,
    /// The author's version of it, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// One sentence: what it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The file that is run first, relative to the folder. Default for `lua`: `main.lua`; for `wasm`, whose
    /// module it is: `plugin.wasm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<String>,
    /// Where in a chain it stands.
    #[serde(default)]
    pub group: Group,
    /// Within the group: the higher, the earlier a request meets it.
    #[serde(default)]
    pub priority: i32,
    /// How it wants bodies.
    #[serde(default)]
    pub body: BodyModes,
    /// What a stream gets when the plugin fails, unless `outrider.yaml` says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_policy: Option<FailurePolicy>,
    /// What one call, and one VM, need at most. It lowers the budgets of `outrider.yaml`, or their defaults, and raises
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budgets: Option<BudgetsForm>,
    /// When the plugin, failing again and again, is not called for a while. It makes the circuit of
    /// `outrider.yaml`, or the default, stricter, and never laxer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub circuit: Option<Circuit>,
    /// The command that builds the module, told to whoever has not done so. For `wasm` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<String>,
    /// How the module is run, unless `outrider.yaml` says otherwise. For `wasm` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wasm: Option<WasmOptions>,
}
