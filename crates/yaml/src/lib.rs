//! YAML that users write: values with their places, did-you-mean, located problems.
//!
//! A [`Document`] is one file's tree of [`Node`]s, each with its line and column. [`Document::read`]
//! turns it into a type of one's own through serde and says everything that is wrong with it, where
//! serde alone would stop at the first fault and know no place. Not for writing YAML, and not for YAML
//! at large: keys are text, one document in a file, no merge keys, no tags of one's own.
//!
//! The trap: scalars follow YAML 1.2's core schema, so `yes`, `no`, `on` and `off` are text.

mod build;
mod deserialize;
mod document;
mod failure;
mod node;
mod scalar;
mod suggest;
mod syntax;
mod typed;

pub use document::Document;
pub use node::{Entry, Location, Mapping, Node, PathSegment, Value};
pub use suggest::suggest;
pub use typed::{Entries, Field, Located, Shape};
