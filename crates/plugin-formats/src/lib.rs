//! The documents that one floor of Outrider writes and another reads: a plugin's manifest
//! (`plugin.yaml`), the filter's configuration, a route's configuration.
//!
//! Types and their defaults, no logic: who validates, merges or renders does so elsewhere.

mod allow;
mod circuit;
mod distribution;
mod filter;
mod forms;
mod lanes;
mod manifest;
mod package;
mod policy;
mod problem;
mod telemetry;
mod wasm;

pub use allow::{All, Allow, AllowedNames, REPORTING_HEADERS};
pub use circuit::{Circuit, CircuitLimits, CircuitOff};
pub use distribution::{
    Distribution, PluginLocation, PluginRequest, PolicyRule, PullPolicy, RegistrySettings,
    SecretText, SecretValue, is_digest,
};
pub use filter::{
    FORMAT, FilterConfig, PluginEntry, PluginSource, PluginTime, RouteConfig, RoutePlugin,
};
pub use lanes::{
    LaneCondition, LaneGroup, LanePart, LanePlace, LaneRole, LaneRule, LaneTest, LaneUse,
    MIRROR as MIRRORED_LANE, WHOLE as WHOLE_LANE_WEIGHT,
};
pub use manifest::{BodyMode, BodyModes, Group, Manifest, Runtime};
pub use package::{PluginCode, PluginPackage, WasmModule};
pub use policy::{Budgets, BudgetsForm, Cause, FailureAction, FailurePolicy};
pub use problem::{Places, Problem};
pub use telemetry::{
    AccessLog, AccessLogFilter, AccessLogFormat, DEFAULT_FLUSH, DEFAULT_RING, DEFAULT_STARVATION,
    DEFAULT_VALUE_LIMIT, FileSink, OtlpProtocol, OtlpSink, RouteTelemetry, Scheduling, Sink,
    StatusRange, Telemetry,
};
pub use wasm::{WasmOptions, WasmResults};
