//! A JSON document in the form in which the SDK reads it: its pieces in reading order, so that Lua
//! builds its tables itself, under its own memory budget, and Rust never calls into Lua for it.

use serde_json::Value;

use super::call::TapeItem;

/// Parses a document.
pub(super) fn parse(text: &[u8]) -> Result<Value, serde_json::Error> {
    serde_json::from_slice(text)
}

/// Writes a document; the tape points into it.
pub(super) fn write(value: &Value, tape: &mut Vec<TapeItem>) {
    let item = |kind, length: usize, data: *const u8, number| TapeItem {
        kind,
        length: i32::try_from(length).unwrap_or(i32::MAX),
        data,
        number,
    };
    let none = std::ptr::null();
    match value {
        Value::Null => tape.push(item(0, 0, none, 0.0)),
        Value::Bool(false) => tape.push(item(1, 0, none, 0.0)),
        Value::Bool(true) => tape.push(item(2, 0, none, 0.0)),
        Value::Number(number) => {
            tape.push(item(3, 0, none, number.as_f64().unwrap_or(f64::NAN)));
        }
        Value::String(text) => tape.push(item(4, text.len(), text.as_ptr(), 0.0)),
        Value::Array(values) => {
            tape.push(item(5, values.len(), none, 0.0));
            for value in values {
                write(value, tape);
            }
        }
        Value::Object(members) => {
            tape.push(item(6, members.len(), none, 0.0));
            for (name, value) in members {
                tape.push(item(4, name.len(), name.as_ptr(), 0.0));
                write(value, tape);
            }
        }
    }
}
