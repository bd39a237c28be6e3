//! Tests of plugins without Envoy: a scripted stream, clock and upstream, a driver that plays a
//! request and its response through a chain as Envoy would, and cases as data.
//!
//! The files of a plugin's `cases/` folder ([`load_cases`]) say what it has to do; [`run_case`] runs
//! one here. The same files are replayed on the real Envoy elsewhere, so a case may say only what
//! means the same in both: no clock that stands still, no header that only Envoy adds.
//!
//! Never a dependency of what ships inside Envoy.
#![forbid(unsafe_code)]

mod case;
mod clock;
mod drive;
mod facts;
mod headers;
mod host;
mod json_body;
mod load;
mod metrics;
mod plugin;
mod run;

pub use case::{
    Callout, CalloutAnswer, Case, CaseKind, Expect, ExpectedCallout, ExpectedMessage,
    ExpectedPattern, ExpectedRequest, ExpectedValues, Failure, Nothing, Pattern, Request, Step,
    Upstream, Values, read_cases,
};
pub use drive::{Arrival, EndOfStream, Message, Outcome, Rest, Sent, play};
pub use facts::{ExpectedFacts, Facts, Source};
pub use headers::Headers;
pub use host::{
    Buffers, CLOCK_START_MS, CalloutAnswer as ScriptedResponse, LogLine, MadeCallout, Metadata,
    MetadataMap, ReportedFault, ScriptedAnswer, ScriptedHost,
};
pub use json_body::{JsonDifference, json_difference};
pub use load::load_cases;
pub use metrics::MetricTable;
pub use plugin::{LoadedPlugin, wasm_options};
pub use run::{CaseLog, CaseResult, Difference, run_case, run_cases};
