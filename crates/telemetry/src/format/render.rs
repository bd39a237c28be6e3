//! Values of operators, from records.

use super::flags;
use super::parse::{Piece, Source, Template, Value};
use super::time::digits;
use crate::record::{Stored, StoredField, Values};

/// The value of an operator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Rendered<'v> {
    /// The stream has none: `-` in a text, `null` in JSON.
    Absent,
    /// A text, and the length of which it is the beginning.
    Text(&'v [u8], Option<u32>),
    /// An integer.
    Integer(i64),
    /// Another number.
    Double(f64),
    /// A truth value.
    Bool(bool),
}

/// Buffer for values that are no part of the record.
#[derive(Debug, Default)]
pub(crate) struct Scratch(Vec<u8>);

fn stored(stored: Stored<'_>, limit: Option<usize>) -> Rendered<'_> {
    match limit {
        // A length in the format cuts as Envoy does, without a mark.
        Some(limit) if limit <= stored.bytes.len() => {
            Rendered::Text(stored.bytes.get(..limit).unwrap_or_default(), None)
        }
        _ => Rendered::Text(stored.bytes, stored.cut_from),
    }
}

/// Returns the value of an operator.
pub(crate) fn value<'v>(
    value: &'v Value,
    values: &Values<'v>,
    scratch: &'v mut Scratch,
) -> Rendered<'v> {
    const MILLISECOND: i64 = 1_000_000;
    let limit = value.limit;
    let buffer = &mut scratch.0;
    match &value.source {
        Source::Text(first, second) => match (values.get(*first), second) {
            (StoredField::Text(text), _) => stored(text, limit),
            (_, Some(second)) => match values.get(*second) {
                StoredField::Text(text) => stored(text, limit),
                _ => Rendered::Absent,
            },
            (_, None) => Rendered::Absent,
        },
        Source::Words(place) => match values.get(*place) {
            StoredField::Text(text) if text.bytes.iter().any(u8::is_ascii_whitespace) => {
                buffer.clear();
                buffer.extend(text.bytes.iter().map(|byte| {
                    if byte.is_ascii_whitespace() {
                        b'_'
                    } else {
                        *byte
                    }
                }));
                Rendered::Text(buffer, text.cut_from)
            }
            StoredField::Text(text) => stored(text, limit),
            _ => Rendered::Absent,
        },
        Source::Number(place) => integer(values.number(*place)),
        Source::NumberOrZero(place) => Rendered::Integer(values.number(*place).unwrap_or(0)),
        Source::Milliseconds(place) => {
            integer(values.number(*place).map(|time| time / MILLISECOND))
        }
        Source::Between(from, to) => match (values.number(*from), values.number(*to)) {
            (Some(from), Some(to)) => Rendered::Integer((to - from) / MILLISECOND),
            _ => Rendered::Absent,
        },
        Source::Address(place) => match values.get(*place) {
            StoredField::Address(address, port) => {
                buffer.clear();
                let is_v6 = address.contains(&b':');
                if is_v6 {
                    buffer.push(b'[');
                }
                buffer.extend_from_slice(address);
                if is_v6 {
                    buffer.push(b']');
                }
                buffer.push(b':');
                digits(buffer, i64::from(port), 1);
                Rendered::Text(buffer, None)
            }
            _ => Rendered::Absent,
        },
        Source::AddressWithoutPort(place) => match values.get(*place) {
            StoredField::Address(address, _) => Rendered::Text(address, None),
            _ => Rendered::Absent,
        },
        Source::Port(place) => match values.get(*place) {
            StoredField::Address(_, port) => Rendered::Integer(i64::from(port)),
            _ => Rendered::Absent,
        },
        Source::StartTime(place, format) => match values.number(*place) {
            Some(time) => {
                buffer.clear();
                format.write(buffer, time);
                Rendered::Text(buffer, None)
            }
            None => Rendered::Absent,
        },
        Source::Flags { place, long } => {
            buffer.clear();
            flags::write(buffer, values.number(*place).unwrap_or(0), *long);
            Rendered::Text(buffer, None)
        }
        Source::Metadata(place) => match values.get(*place) {
            StoredField::Text(text) => stored(text, limit),
            StoredField::Double(number) => Rendered::Double(number),
            StoredField::Bool(yes) => Rendered::Bool(yes),
            _ => Rendered::Absent,
        },
        Source::Constant(text) => Rendered::Text(text.as_bytes(), None),
    }
}

fn integer(number: Option<i64>) -> Rendered<'static> {
    number.map_or(Rendered::Absent, Rendered::Integer)
}

/// Returns as much of a text that was cut as is whole characters.
pub(super) fn whole_characters(text: &[u8]) -> &[u8] {
    // At most three bytes of an incomplete character.
    for back in 0..=text.len().min(3) {
        let kept = text.get(..text.len() - back).unwrap_or_default();
        match std::str::from_utf8(kept) {
            Ok(_) => return kept,
            // It is not the end that is wrong.
            Err(error) if error.error_len().is_some() => return text,
            Err(_) => {}
        }
    }
    text
}

/// Appends the mark of a text that was cut.
pub(super) fn write_mark(into: &mut Vec<u8>, whole: u32) {
    into.extend_from_slice(b"...[cut, ");
    digits(into, i64::from(whole), 1);
    into.extend_from_slice(b" bytes]");
}

/// Returns a text as UTF-8, with the mark where it was cut.
#[cfg(feature = "export")]
pub(crate) fn marked(text: &[u8], cut_from: Option<u32>) -> String {
    match cut_from {
        None => String::from_utf8_lossy(text).into_owned(),
        Some(whole) => {
            let mut into = String::from_utf8_lossy(whole_characters(text))
                .into_owned()
                .into_bytes();
            write_mark(&mut into, whole);
            String::from_utf8_lossy(&into).into_owned()
        }
    }
}

/// Appends a number as JSON, and Envoy, write it.
pub(super) fn write_double(into: &mut Vec<u8>, number: f64) {
    match serde_json::Number::from_f64(number) {
        // Beyond 2^53 not every integer is a double.
        Some(_) if number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0 => {
            digits(into, number as i64, 1);
        }
        Some(number) => into.extend_from_slice(number.to_string().as_bytes()),
        None => into.extend_from_slice(b"null"),
    }
}

impl Template {
    /// Appends the text of a record.
    pub(crate) fn write(&self, into: &mut Vec<u8>, values: &Values<'_>, scratch: &mut Scratch) {
        for piece in &self.0 {
            match piece {
                Piece::Literal(text) => into.extend_from_slice(text.as_bytes()),
                Piece::Value(operator) => match value(operator, values, scratch) {
                    Rendered::Absent => into.push(b'-'),
                    Rendered::Text(text, None) => into.extend_from_slice(text),
                    Rendered::Text(text, Some(whole)) => {
                        into.extend_from_slice(whole_characters(text));
                        write_mark(into, whole);
                    }
                    Rendered::Integer(number) => digits(into, number, 1),
                    Rendered::Double(number) => write_double(into, number),
                    Rendered::Bool(yes) => {
                        into.extend_from_slice(if yes { b"true" } else { b"false" });
                    }
                },
            }
        }
    }
}
