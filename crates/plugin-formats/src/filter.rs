//! What the module reads: the filter's configuration (from ECDS) and a route's (from RDS).
//! Both are JSON, the `filter_config` Struct of Envoy's `DynamicModuleFilter` and
//! `DynamicModuleFilterPerRoute`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::allow::Allow;
use crate::circuit::Circuit;
use crate::lanes::{LaneGroup, LaneUse};
use crate::manifest::{BodyModes, Group, Runtime};
use crate::policy::{Budgets, FailurePolicy};
use crate::telemetry::{RouteTelemetry, Telemetry};
use crate::wasm::WasmOptions;

/// The version of both documents. A document of another version is refused.
pub const FORMAT: u32 = 1;

/// The filter's configuration: every plugin that the gateway has, and the gateway's own scope.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FilterConfig {
    /// Always [`FORMAT`].
    pub format: u32,
    /// How many bytes of one body may be held back, whatever HTTP version carries it; absent: as the
    /// proxy is configured otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_limit: Option<u32>,
    /// A folder on Envoy's machine for the files that plugins log to, one each; absent: what they log
    /// there goes to Envoy's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_folder: Option<String>,
    /// A folder on Envoy's machine in which the compiled code of Wasm plugins is kept from one start to
    /// the next. Only Envoy's user may write there: what is in it runs. Absent: it is compiled each time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compiled_folder: Option<String>,
    /// Whether the time of plugins' calls is measured.
    #[serde(default, skip_serializing_if = "PluginTime::is_off")]
    pub plugin_time: PluginTime,
    /// Clusters for callouts by the name of their upstream, so that a callout shares no connection with requests
    /// of routes. An upstream that is not here is called by its own name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub callout_clusters: BTreeMap<String, String>,
    /// Groups of lanes; names are unique.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lane_groups: Vec<LaneGroup>,
    /// What the gateway's scope does with the lanes of its requests; a route's document that says something of lanes goes
    /// before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lanes: Vec<LaneUse>,
    /// Where records of streams go, and the access logs of the gateway's scope; absent: nothing is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<Telemetry>,
    /// The plugins, in any order; names are unique.
    #[serde(default)]
    pub plugins: Vec<PluginEntry>,
}

/// Whether the time of plugins' calls is measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PluginTime {
    /// It is not, and costs nothing.
    #[default]
    Off,
    /// As a histogram for each plugin and phase, in the proxy's statistics.
    Histograms,
}

impl PluginTime {
    /// Whether nothing is measured.
    pub fn is_off(&self) -> bool {
        *self == Self::Off
    }
}

/// One plugin of the gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PluginEntry {
    /// The name by which scopes use it.
    pub name: String,
    /// What runs it.
    pub runtime: Runtime,
    /// The author's version of it, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// `sha256:` and 64 hexadecimal digits, over the source: see [`PluginSource`].
    pub digest: String,
    /// Where its code is.
    pub source: PluginSource,
    /// The file that is run first; of a Wasm plugin, its module, as messages name it.
    pub entry: String,
    /// Where in a chain it stands.
    #[serde(default)]
    pub group: Group,
    /// Within the group: the higher, the earlier a request meets it.
    #[serde(default)]
    pub priority: i32,
    /// How it wants bodies.
    #[serde(default)]
    pub body: BodyModes,
    /// What a stream gets when it fails.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
    /// What it may use.
    #[serde(default)]
    pub budgets: Budgets,
    /// How a Wasm plugin is run.
    #[serde(default, skip_serializing_if = "WasmOptions::is_default")]
    pub wasm: WasmOptions,
    /// When it is not called for a while.
    #[serde(default, skip_serializing_if = "Circuit::is_default")]
    pub circuit: Circuit,
    /// What it may do.
    #[serde(default, skip_serializing_if = "Allow::is_default")]
    pub allow: Allow,
    /// Bytes a second that it may write to a log; absent: 65536.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_rate: Option<u32>,
    /// JSON Schema that every effective configuration of it has to satisfy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
    /// Whether streams pass it when project and route say nothing of it.
    #[serde(default)]
    pub enabled: bool,
    /// The gateway's configuration of it; absent counts as `{}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Value>,
}

/// Where a plugin's code is.
///
/// The digest of text files is SHA-256 over the files in the order of their paths, each as: the path's
/// length in bytes as a 64-bit little-endian number, the path, the content's length likewise, the content.
/// That of a module is SHA-256 over the file, as `sha256sum` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PluginSource {
    /// Text files in the document itself, by path relative to the plugin's folder.
    Inline(BTreeMap<String, String>),
    /// A folder on Envoy's machine; the files counted are those that the runtime loads
    /// (`*.lua`, at any depth).
    Folder(String),
    /// A WebAssembly module on Envoy's machine, by its absolute path.
    Module(String),
}

/// A route's, or a virtual host's, configuration: what differs from the gateway's.
///
/// Envoy hands a filter only the most specific one, so whoever writes a route's document has put the
/// project's part into it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RouteConfig {
    /// Always [`FORMAT`].
    pub format: u32,
    /// The scope, for messages: `project shop, route /cart`.
    #[serde(default)]
    pub scope: String,
    /// What the scope does with the lanes of its requests; empty: as at the gateway.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lanes: Vec<LaneUse>,
    /// The access logs in force; absent: as at the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<RouteTelemetry>,
    /// The plugins of which something differs.
    #[serde(default)]
    pub plugins: Vec<RoutePlugin>,
}

/// What differs of one plugin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RoutePlugin {
    /// Its name in [`FilterConfig`].
    pub name: String,
    /// Whether streams of this route pass it; absent: as at the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// A JSON Merge Patch (RFC 7396) over the gateway's configuration of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Value>,
}
