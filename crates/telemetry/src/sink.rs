//! Where records go: files, standard output, receivers of the OpenTelemetry protocol.
//!
//! A sink never grows: it holds a bounded number of bytes, and what comes beyond them is dropped and counted. Nothing here
//! runs on a worker.

mod client;
mod file;
mod otlp;

use outrider_plugin_formats as formats;
use tokio::runtime::Runtime;

use crate::registry::Definition;
use crate::stats::SinkStatus;

/// Identity of a sink: two configurations with one file write to it through one sink.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SinkKey {
    File(String),
    Stdout,
    Otlp(Box<formats::OtlpSink>),
}

impl SinkKey {
    pub(crate) fn of(sink: &formats::Sink) -> Self {
        match sink {
            formats::Sink::File(file) => Self::File(file.path.clone()),
            formats::Sink::Stdout => Self::Stdout,
            formats::Sink::Otlp(otlp) => Self::Otlp(Box::new(otlp.clone())),
        }
    }
}

/// A sink that is open.
#[derive(Debug)]
pub(crate) enum Sink {
    Lines(file::Lines),
    Otlp(otlp::Otlp),
}

impl Sink {
    pub(crate) fn open(sink: &formats::Sink, runtime: &Runtime) -> Self {
        match sink {
            formats::Sink::File(file) => Self::Lines(file::Lines::file(file)),
            formats::Sink::Stdout => Self::Lines(file::Lines::stdout()),
            formats::Sink::Otlp(otlp) => Self::Otlp(otlp::Otlp::open(otlp, runtime)),
        }
    }

    /// Takes a record: the fields that follow its id.
    pub(crate) fn append(&mut self, definition: &Definition, fields: &[u8]) {
        match self {
            Self::Lines(lines) => lines.append(definition, fields),
            Self::Otlp(otlp) => otlp.append(definition, fields),
        }
    }

    /// Writes what waits, as far as that goes; `all`: batches that are not full, too.
    pub(crate) fn flush(&mut self, all: bool) {
        match self {
            Self::Lines(lines) => lines.flush(),
            Self::Otlp(otlp) => otlp.flush(all),
        }
    }

    /// Bytes that wait.
    pub(crate) fn waiting(&self) -> usize {
        match self {
            Self::Lines(lines) => lines.waiting(),
            Self::Otlp(otlp) => otlp.waiting(),
        }
    }

    /// Called when no access log has the sink any more. Returns whether nothing waits in it, or it was given up.
    pub(crate) fn is_done(&mut self) -> bool {
        match self {
            Self::Lines(lines) => lines.is_done(),
            Self::Otlp(otlp) => otlp.is_done(),
        }
    }

    pub(crate) fn status(&self) -> SinkStatus {
        match self {
            Self::Lines(lines) => lines.status(),
            Self::Otlp(otlp) => otlp.status(),
        }
    }
}
