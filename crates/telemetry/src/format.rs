//! Formats of access logs: texts with Envoy's command operators, parsed once, and rendered from records.
//!
//! What is rendered is what Envoy's own loggers write for the same stream. There are two differences, both on purpose:
//! a value that was cut says so, and JSON is valid UTF-8 whatever bytes a client sent.

mod flags;
mod json;
mod parse;
mod render;
pub(crate) mod time;

pub(crate) use json::Node;
pub use json::write_string;
pub(crate) use parse::Template;
pub use parse::{DEFAULT_TEXT, FormatProblem, default_json, operators, parse_text};
pub(crate) use render::Scratch;
#[cfg(feature = "export")]
pub(crate) use render::{Rendered, marked, value};
