//! What everything inside Envoy agrees on: phases, decisions, what a runtime may ask of the proxy
//! ([`Stream`]), what a chain asks of a runtime ([`ConfiguredPlugin`]) and of the proxy ([`Host`]),
//! and the one algorithm that passes a stream through a chain ([`ChainRun`]).
//!
//! Pure: no I/O, no threads, no `unsafe`, and nothing here knows Envoy, Lua or Wasm. All of it is
//! tested without them.
#![forbid(unsafe_code)]

mod attribute;
mod background;
pub mod bytes;
mod call_times;
mod callout;
mod chain;
mod circuit;
mod failure;
pub mod framing;
mod host;
mod journal;
mod last_fault;
mod local;
mod log_budget;
mod memory;
mod metadata;
mod metric;
mod nearest;
mod owned;
mod permissions;
mod phase;
mod plugin;
mod plugin_background;
mod run;
mod status;
mod stream;
mod view;
mod waits;

pub use attribute::{Attribute, AttributeKind};
pub use background::{Background, CalloutDone, HttpStreamHandle, HttpStreamTold};
pub use call_times::CallTimes;
pub use callout::{
    CalloutFailure, CalloutId, CalloutRequest, CalloutResponse, HttpStreamEvent, HttpStreamId,
    HttpStreamRequest, Wake, WakeId,
};
pub use chain::{Attachment, Chain, Link, LinkMetrics};
pub use circuit::{
    Admission, Circuit, CircuitChange, CircuitPolicy, CircuitState, CircuitStatus, OpenCircuits,
};
pub use failure::{
    Cause, FailureAction, FailureLogHandle, FailurePolicy, Fault, FaultLog, LineInterval,
};
pub use framing::HeaderError;
pub use host::{BodyBuffer, Host};
pub use last_fault::{LastFault, LastFaults};
pub use log_budget::{LINE_LIMIT, LogAdmission, LogBudget, escaped, log_line};
pub use memory::{ENTRY_COST, MemoryAccount, MemoryExceeded, Reservation, headers_cost};
pub use metadata::{MetadataSource, MetadataTree};
pub use metric::{LateMetrics, MetricId, MetricKind, Metrics};
pub use nearest::nearest;
pub use owned::{OwnedHeaders, OwnedHttpStreamEvent, lend_headers, own_headers};
pub use permissions::{Allowed, CalloutClusters, MetadataDenied, Permissions};
pub use phase::{BodyMode, Direction, HeaderMap, Phase};
pub use plugin::{
    Audience, Call, ConfigPlace, ConfiguredPlugin, DEFAULT_SHARE, Decision, Interest, LoadError,
    Pause, Plugin, Reaction, Reply, ScopedConfig, Slot,
};
pub use plugin_background::{PluginBackground, PluginLimits};
pub use run::{ChainRun, Effects, SHARE_PATIENCE, Verdict};
pub use status::{PluginStatus, VmStatus};
pub use stream::{
    BodyError, FilterStateError, FilterStateKind, LogLevel, MetadataError, OverrideHostError,
    OverrideHostFallback, Scalar, Stream, Timing,
};
pub use view::{MOST_HEADER_BYTES, MOST_STATE_BYTES};
pub use waits::{CALLOUT_COST, MOST_UNDER_WAY};
