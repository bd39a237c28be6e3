//! Access logs off Envoy's workers.
//!
//! A worker encodes the fields that an access log is configured with into a *record*, and pushes it into its ring
//! ([`worker`]). One thread of the process, which runs only where no other wants the CPU ([`exporter`]), reads the rings,
//! formats the records and writes them to their sinks. So what a worker does is bounded whatever becomes of a sink: a ring
//! that is full drops records, and counts them.
//!
//! Nothing here knows Envoy: what a stream offers when it ends is [`LogEvent`], which `envoy-abi` implements. Formats
//! ([`format`](mod@format)) are parsed here for the renderer of `outrider.yaml`, too, which needs no exporter: that is the feature
//! `export`.
//!
//! The trap: a record outlives the configuration that it was made under. It names its access log by an id, and an id is
//! forgotten only after all rings were read once after its last user was gone ([`registry`]).

mod event;
pub mod format;
mod log;
mod record;
pub mod ring;

#[cfg(feature = "export")]
pub mod exporter;
#[cfg(feature = "export")]
pub mod otlp;
#[cfg(feature = "export")]
pub mod registry;
#[cfg(feature = "export")]
mod sink;
#[cfg(feature = "export")]
pub mod stats;
#[cfg(feature = "export")]
pub mod worker;

pub use event::{Address, HeaderMap, LogEvent, MetadataValue, Number, Text};
pub use format::{FormatProblem, parse_text};
pub use log::AccessLog;
pub use record::Values;
