//! Records as JSON.
//!
//! Keys come in the order of their bytes, as Envoy writes them. A text that is one operator is a value of its type, any
//! other text is a string.

use serde_json::Value as Json;

use super::FormatProblem;
use super::parse::{Piece, Template, Value};
use super::render::{Rendered, Scratch, value, whole_characters, write_double, write_mark};
use super::time::digits;
use crate::record::{Field, Values};

/// A node of a format in JSON.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Node {
    /// One operator: a value with a type.
    Value(Value),
    /// Any other text.
    Text(Template),
    /// A value without operators, as JSON.
    Constant(Box<str>),
    /// An object: each key as JSON, with its colon.
    Object(Vec<(Box<str>, Node)>),
    /// An array.
    Array(Vec<Node>),
}

impl Node {
    /// Parses a format; fields that it needs are added to `fields`.
    pub(crate) fn parse(json: &Json, fields: &mut Vec<Field>) -> Result<Self, FormatProblem> {
        Ok(match json {
            Json::String(text) => {
                let mut template = Template::parse(text, fields)?;
                match template.0.as_mut_slice() {
                    [Piece::Value(value)] => Self::Value(value.clone()),
                    _ => Self::Text(template),
                }
            }
            Json::Array(items) => Self::Array(
                items
                    .iter()
                    .map(|item| Self::parse(item, fields))
                    .collect::<Result<_, _>>()?,
            ),
            Json::Object(entries) => {
                let mut sorted: Vec<_> = entries.iter().collect();
                sorted.sort_by_key(|(key, _)| *key);
                let mut nodes = Vec::new();
                for (key, entry) in sorted {
                    let mut name = Vec::new();
                    write_string(&mut name, key.as_bytes());
                    name.push(b':');
                    let name = String::from_utf8_lossy(&name).into_owned();
                    nodes.push((name.into(), Self::parse(entry, fields)?));
                }
                Self::Object(nodes)
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => Self::Constant(json.to_string().into()),
        })
    }

    /// Appends a record.
    pub(crate) fn write(&self, into: &mut Vec<u8>, values: &Values<'_>, scratch: &mut Scratch) {
        match self {
            Self::Constant(json) => into.extend_from_slice(json.as_bytes()),
            Self::Text(template) => {
                let mut text = Vec::new();
                template.write(&mut text, values, scratch);
                write_string(into, &text);
            }
            Self::Value(operator) => match value(operator, values, scratch) {
                Rendered::Absent => into.extend_from_slice(b"null"),
                Rendered::Text(text, cut_from) => write_cut(into, text, cut_from),
                Rendered::Integer(number) => digits(into, number, 1),
                Rendered::Double(number) => write_double(into, number),
                Rendered::Bool(yes) => into.extend_from_slice(if yes { b"true" } else { b"false" }),
            },
            Self::Array(items) => {
                into.push(b'[');
                for (place, item) in items.iter().enumerate() {
                    if place > 0 {
                        into.push(b',');
                    }
                    item.write(into, values, scratch);
                }
                into.push(b']');
            }
            Self::Object(entries) => {
                into.push(b'{');
                for (place, (key, entry)) in entries.iter().enumerate() {
                    if place > 0 {
                        into.push(b',');
                    }
                    into.extend_from_slice(key.as_bytes());
                    entry.write(into, values, scratch);
                }
                into.push(b'}');
            }
        }
    }
}

fn write_cut(into: &mut Vec<u8>, text: &[u8], cut_from: Option<u32>) {
    let Some(whole) = cut_from else {
        return write_string(into, text);
    };
    write_string(into, whole_characters(text));
    // The mark goes before the closing quote, and needs no escape.
    into.pop();
    write_mark(into, whole);
    into.push(b'"');
}

/// How a byte is written in a string: 0: as it is, `u`: as `\u00xx`, else behind a backslash.
fn escape(byte: u8) -> u8 {
    match byte {
        b'"' | b'\\' => byte,
        0x08 => b'b',
        b'\t' => b't',
        b'\n' => b'n',
        0x0c => b'f',
        b'\r' => b'r',
        0..0x20 | 0x7f => b'u',
        _ => 0,
    }
}

/// Appends bytes as a JSON string. What is not UTF-8 becomes U+FFFD.
pub fn write_string(into: &mut Vec<u8>, bytes: &[u8]) {
    into.push(b'"');
    for chunk in bytes.utf8_chunks() {
        write_escaped(into, chunk.valid().as_bytes());
        if !chunk.invalid().is_empty() {
            into.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
    into.push(b'"');
}

fn write_escaped(into: &mut Vec<u8>, mut text: &[u8]) {
    while let Some(place) = text.iter().position(|byte| escape(*byte) != 0) {
        let (plain, rest) = text.split_at(place);
        into.extend_from_slice(plain);
        let Some((byte, rest)) = rest.split_first() else {
            return;
        };
        match escape(*byte) {
            b'u' => {
                const HEX: &[u8; 16] = b"0123456789abcdef";
                let digit = |value: u8| HEX.get(usize::from(value & 15)).copied().unwrap_or(b'0');
                into.extend_from_slice(b"\\u00");
                into.extend([digit(byte >> 4), digit(*byte)]);
            }
            letter => into.extend([b'\\', letter]),
        }
        text = rest;
    }
    into.extend_from_slice(text);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::write_string;

    fn written(bytes: &[u8]) -> Vec<u8> {
        let mut into = Vec::new();
        write_string(&mut into, bytes);
        into
    }

    #[test]
    fn strings_are_escaped() {
        assert_eq!(
            written(b"a\"\\\n\x01\x7f"),
            b"\"a\\\"\\\\\\n\\u0001\\u007f\""
        );
        assert_eq!(written(b"a\xffb\xc3"), "\"a\u{fffd}b\u{fffd}\"".as_bytes());
        assert_eq!(written("ü𝄞".as_bytes()), "\"ü𝄞\"".as_bytes());
    }

    proptest! {
        #[test]
        fn any_bytes_make_a_valid_string(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let json: String = serde_json::from_slice(&written(&bytes)).unwrap();
            prop_assert_eq!(json, String::from_utf8_lossy(&bytes));
        }
    }
}
