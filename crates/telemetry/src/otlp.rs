//! Encoding of log records as messages of the OpenTelemetry protocol (`opentelemetry.proto.logs.v1`).
//!
//! The few messages that are needed are written by hand, into buffers that are used again: what `opentelemetry-proto`
//! decodes from them is compared in the tests.

use crate::format::{Node, Rendered, Scratch, value};
use crate::log::AccessLog;
use crate::record::Values;

/// Kinds of fields on the wire.
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const BYTES: u32 = 2;

fn varint(into: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

fn tag(into: &mut Vec<u8>, field: u32, kind: u32) {
    varint(into, u64::from(field << 3 | kind));
}

/// Appends a field of bytes, text or a message.
pub(crate) fn bytes(into: &mut Vec<u8>, field: u32, content: &[u8]) {
    tag(into, field, BYTES);
    varint(into, content.len() as u64);
    into.extend_from_slice(content);
}

fn fixed64(into: &mut Vec<u8>, field: u32, number: u64) {
    tag(into, field, FIXED64);
    into.extend_from_slice(&number.to_le_bytes());
}

/// Appends a field with a message that `content` writes.
pub(crate) fn message(into: &mut Vec<u8>, field: u32, content: impl FnOnce(&mut Vec<u8>)) {
    let mut inner = Vec::new();
    content(&mut inner);
    bytes(into, field, &inner);
}

/// Appends text as protobuf has it: UTF-8.
fn text(into: &mut Vec<u8>, field: u32, content: &[u8], cut_from: Option<u32>) {
    match (std::str::from_utf8(content), cut_from) {
        (Ok(_), None) => bytes(into, field, content),
        _ => bytes(
            into,
            field,
            crate::format::marked(content, cut_from).as_bytes(),
        ),
    }
}

/// Fields of `AnyValue`.
mod any {
    pub(super) const STRING: u32 = 1;
    pub(super) const BOOL: u32 = 2;
    pub(super) const INT: u32 = 3;
    pub(super) const DOUBLE: u32 = 4;
    pub(super) const ARRAY: u32 = 5;
    pub(super) const KEY_VALUES: u32 = 6;
}

/// Appends the content of an `AnyValue`.
fn any_value(into: &mut Vec<u8>, node: &Node, values: &Values<'_>, scratch: &mut Scratch) {
    match node {
        Node::Constant(json) => constant(into, json),
        Node::Text(template) => {
            let mut line = Vec::new();
            template.write(&mut line, values, scratch);
            text(into, any::STRING, &line, None);
        }
        Node::Value(operator) => match value(operator, values, scratch) {
            // A value without any member: absent.
            Rendered::Absent => {}
            Rendered::Text(content, cut_from) => text(into, any::STRING, content, cut_from),
            Rendered::Integer(number) => integer(into, number),
            Rendered::Double(number) => double(into, number),
            Rendered::Bool(yes) => boolean(into, yes),
        },
        Node::Array(items) => message(into, any::ARRAY, |array| {
            for item in items {
                message(array, 1, |any| any_value(any, item, values, scratch));
            }
        }),
        Node::Object(entries) => message(into, any::KEY_VALUES, |list| {
            key_values(list, 1, entries, values, scratch);
        }),
    }
}

fn integer(into: &mut Vec<u8>, number: i64) {
    tag(into, any::INT, VARINT);
    varint(into, number.cast_unsigned());
}

fn double(into: &mut Vec<u8>, number: f64) {
    fixed64(into, any::DOUBLE, number.to_bits());
}

fn boolean(into: &mut Vec<u8>, yes: bool) {
    tag(into, any::BOOL, VARINT);
    varint(into, u64::from(yes));
}

fn constant(into: &mut Vec<u8>, json: &str) {
    match serde_json::from_str(json) {
        Ok(serde_json::Value::Bool(yes)) => boolean(into, yes),
        Ok(serde_json::Value::Number(number)) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => integer(into, number),
            (None, Some(number)) => double(into, number),
            (None, None) => {}
        },
        _ => {}
    }
}

/// Appends `KeyValue` messages.
fn key_values(
    into: &mut Vec<u8>,
    field: u32,
    entries: &[(Box<str>, Node)],
    values: &Values<'_>,
    scratch: &mut Scratch,
) {
    for (key, node) in entries {
        // As it is written in JSON: quoted, and with a colon.
        let name: String = serde_json::from_str(key.trim_end_matches(':')).unwrap_or_default();
        message(into, field, |pair| {
            bytes(pair, 1, name.as_bytes());
            message(pair, 2, |any| any_value(any, node, values, scratch));
        });
    }
}

/// Fields of `LogRecord`.
mod log_record {
    pub(super) const TIME: u32 = 1;
    pub(super) const BODY: u32 = 5;
    pub(super) const ATTRIBUTES: u32 = 6;
    pub(super) const OBSERVED_TIME: u32 = 11;
}

/// Appends a record as an element of `ScopeLogs.log_records`: the fields of a format in JSON become attributes, and a line
/// of text becomes the body. Returns `false` if the record was encoded by another access log.
pub fn write_record(into: &mut Vec<u8>, log: &AccessLog, record: &[u8], observed: u64) -> bool {
    const LOG_RECORDS: u32 = 2;
    let Some(values) = log.decode(record) else {
        return false;
    };
    let mut scratch = Scratch::default();
    message(into, LOG_RECORDS, |message_of_record| {
        let time = AccessLog::start(&values).cast_unsigned();
        fixed64(message_of_record, log_record::TIME, time);
        match log.json() {
            Some(Node::Object(entries)) => {
                key_values(
                    message_of_record,
                    log_record::ATTRIBUTES,
                    entries,
                    &values,
                    &mut scratch,
                );
            }
            Some(node) => message(message_of_record, log_record::BODY, |any| {
                any_value(any, node, &values, &mut scratch);
            }),
            None => {
                let mut line = Vec::new();
                log.write_line(&mut line, record);
                let line = line.strip_suffix(b"\n").unwrap_or(&line);
                message(message_of_record, log_record::BODY, |any| {
                    text(any, any::STRING, line, None);
                });
            }
        }
        fixed64(message_of_record, log_record::OBSERVED_TIME, observed);
    });
    true
}

/// Returns an `ExportLogsServiceRequest` with the records of each access log in a scope of its own.
pub fn request<'b>(
    resource: impl Iterator<Item = (&'b str, &'b str)>,
    scopes: impl Iterator<Item = (&'b str, &'b [u8])>,
) -> Vec<u8> {
    let mut request = Vec::new();
    message(&mut request, 1, |resource_logs| {
        message(resource_logs, 1, |message_of_resource| {
            for (key, value) in resource {
                message(message_of_resource, 1, |pair| {
                    bytes(pair, 1, key.as_bytes());
                    message(pair, 2, |any| bytes(any, any::STRING, value.as_bytes()));
                });
            }
        });
        for (name, records) in scopes {
            message(resource_logs, 2, |scope_logs| {
                message(scope_logs, 1, |scope| {
                    bytes(scope, 1, b"outrider");
                    message(scope, 3, |pair| {
                        bytes(pair, 1, b"log_name");
                        message(pair, 2, |any| bytes(any, any::STRING, name.as_bytes()));
                    });
                });
                // Elements of the repeated field, with their tags.
                scope_logs.extend_from_slice(records);
            });
        }
    });
    request
}

/// The number of rejected records of an `ExportLogsServiceResponse`, and the receiver's message.
pub fn rejected(response: &[u8]) -> (u64, String) {
    let Some(partial) = field(response, 1) else {
        return (0, String::new());
    };
    let Found::Bytes(partial) = partial else {
        return (0, String::new());
    };
    let count = match field(partial, 1) {
        Some(Found::Varint(count)) => count,
        _ => 0,
    };
    let text = match field(partial, 2) {
        Some(Found::Bytes(text)) => String::from_utf8_lossy(text).into_owned(),
        _ => String::new(),
    };
    (count, text)
}

enum Found<'m> {
    Varint(u64),
    Bytes(&'m [u8]),
}

/// The last field of a number in a message; `None` where there is none, or the message is broken.
fn field(mut message: &[u8], wanted: u32) -> Option<Found<'_>> {
    let mut found = None;
    while !message.is_empty() {
        let key = read_varint(&mut message)?;
        let value = match key as u32 & 7 {
            VARINT => Found::Varint(read_varint(&mut message)?),
            FIXED64 => {
                let (fixed, rest) = message.split_first_chunk()?;
                message = rest;
                Found::Varint(u64::from_le_bytes(*fixed))
            }
            BYTES => {
                let length = usize::try_from(read_varint(&mut message)?).ok()?;
                let (content, rest) = message.split_at_checked(length)?;
                message = rest;
                Found::Bytes(content)
            }
            5 => {
                let (fixed, rest) = message.split_first_chunk()?;
                message = rest;
                Found::Varint(u64::from(u32::from_le_bytes(*fixed)))
            }
            _ => return None,
        };
        if key >> 3 == u64::from(wanted) {
            found = Some(value);
        }
    }
    found
}

fn read_varint(message: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = message.split_first()?;
        *message = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
