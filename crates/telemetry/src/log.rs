//! A compiled access log: which streams it records, which fields a record has, and how a record is written.

use std::cell::Cell;

use outrider_plugin_formats::{self as formats, AccessLogFilter, AccessLogFormat};

use crate::event::{LogEvent, Number};
use crate::format::{FormatProblem, Node, Scratch, Template, default_json};
use crate::record::{Field, Values, encode};

/// One of a million.
const MILLION: u32 = 1_000_000;

/// A compiled access log.
#[derive(Debug, PartialEq)]
pub struct AccessLog {
    name: Box<str>,
    fields: Box<[Field]>,
    layout: Layout,
    only: Option<AccessLogFilter>,
    sample: u32,
    limit: usize,
}

/// How a record is written.
#[derive(Debug, PartialEq)]
enum Layout {
    Text(Template),
    Json(Node),
}

impl AccessLog {
    /// Compiles an access log of a document.
    ///
    /// # Errors
    /// If its format has an operator that telemetry does not render.
    pub fn compile(log: &formats::AccessLog) -> Result<Self, FormatProblem> {
        // Receivers of the OpenTelemetry protocol are told the time beside the fields.
        let mut fields = vec![Field::Number(Number::Start)];
        let layout = match &log.format {
            AccessLogFormat::Text(text) => Layout::Text(Template::parse(text, &mut fields)?),
            AccessLogFormat::Default => Layout::Json(Node::parse(&default_json(), &mut fields)?),
            AccessLogFormat::Json(json) => Layout::Json(Node::parse(json, &mut fields)?),
        };
        Ok(Self {
            name: log.name.as_str().into(),
            fields: fields.into(),
            layout,
            only: log.only.clone(),
            sample: log.sample.unwrap_or(MILLION).min(MILLION),
            limit: log.value_limit.unwrap_or(formats::DEFAULT_VALUE_LIMIT) as usize,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether a stream is recorded.
    pub fn takes(&self, event: &mut impl LogEvent) -> bool {
        self.only.as_ref().is_none_or(|only| passes(only, event))
            && (self.sample == MILLION || random() % MILLION < self.sample)
    }

    /// Appends the fields of a stream.
    pub fn encode(&self, record: &mut Vec<u8>, event: &mut impl LogEvent) {
        encode(record, &self.fields, self.limit, event);
    }

    /// Appends a record as a line; `false` if it was encoded by another access log.
    pub fn write_line(&self, into: &mut Vec<u8>, record: &[u8]) -> bool {
        let Some(values) = Values::decode(record, &self.fields) else {
            return false;
        };
        let mut scratch = Scratch::default();
        match &self.layout {
            Layout::Text(template) => template.write(into, &values, &mut scratch),
            Layout::Json(node) => {
                node.write(into, &values, &mut scratch);
                into.push(b'\n');
            }
        }
        true
    }

    /// The fields of a record, for receivers that take fields instead of a line.
    #[cfg(feature = "export")]
    pub(crate) fn decode<'r>(&self, record: &'r [u8]) -> Option<Values<'r>> {
        Values::decode(record, &self.fields)
    }

    /// When the stream of a record began, in nanoseconds since 1970.
    #[cfg(feature = "export")]
    pub(crate) fn start(values: &Values<'_>) -> i64 {
        values.number(0).unwrap_or(0)
    }

    /// The format, if it is one of JSON.
    #[cfg(feature = "export")]
    pub(crate) fn json(&self) -> Option<&Node> {
        match &self.layout {
            Layout::Json(node) => Some(node),
            Layout::Text(_) => None,
        }
    }
}

fn passes(only: &AccessLogFilter, event: &mut impl LogEvent) -> bool {
    let status = event.number(Number::ResponseCode).unwrap_or(0);
    let is_error = only.errors
        && (status == 0 || status >= 500 || event.number(Number::ResponseFlags).unwrap_or(0) != 0);
    is_error
        || only.slower_than_ms.is_some_and(|least| {
            let took = event.number(Number::Complete).unwrap_or(0);
            took >= i64::from(least) * 1_000_000
        })
        || only
            .status
            .iter()
            .any(|range| (i64::from(range.from)..=i64::from(range.to)).contains(&status))
}

/// The next number of the thread's generator, a xorshift: which streams are sampled is no secret.
fn random() -> u32 {
    thread_local! {
        static STATE: Cell<u64> = const { Cell::new(0) };
    }
    let mut state = STATE.get();
    if state == 0 {
        // The address differs from thread to thread, and from process to process.
        let here = 0_u8;
        state = (&raw const here).addr() as u64 | 1;
    }
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    STATE.set(state);
    (state >> 32) as u32
}
