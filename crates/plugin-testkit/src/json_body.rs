//! Bodies that are compared as JSON: numbers by their values, members in any order.

use std::fmt::Write as _;

use serde_json::Value;

/// Where two documents differ first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonDifference {
    /// Where, as a JSON Pointer ([RFC 6901](https://www.rfc-editor.org/rfc/rfc6901)) behind a space; nothing for the whole
    /// document.
    pub pointer: String,
    /// What the case says; `nothing`: a member or an item that is too many.
    pub expected: String,
    /// What came.
    pub got: String,
}

/// Compares a body with what it has to be. `None`: it is that.
pub fn json_difference(expected: &Value, body: &[u8]) -> Option<JsonDifference> {
    match serde_json::from_slice(body) {
        Ok(got) => compare(expected, &got, &mut String::new()),
        Err(why) => Some(JsonDifference {
            pointer: String::new(),
            expected: expected.to_string(),
            got: format!("no JSON ({why}): {:?}", String::from_utf8_lossy(body)),
        }),
    }
}

fn compare(expected: &Value, got: &Value, pointer: &mut String) -> Option<JsonDifference> {
    let length = pointer.len();
    let mut within = |key: &str, expected: Option<&Value>, got: Option<&Value>| {
        let _ = write!(pointer, "/{}", key.replace('~', "~0").replace('/', "~1"));
        let found = match (expected, got) {
            (Some(expected), Some(got)) => compare(expected, got, pointer),
            (expected, got) => Some(differs(pointer, expected, got)),
        };
        pointer.truncate(length);
        found
    };
    match (expected, got) {
        (Value::Object(expected), Value::Object(got)) => expected
            .iter()
            .find_map(|(name, value)| within(name, Some(value), got.get(name)))
            .or_else(|| {
                let more = got.iter().find(|(name, _)| !expected.contains_key(*name));
                more.and_then(|(name, value)| within(name, None, Some(value)))
            }),
        (Value::Array(expected), Value::Array(got)) => (0..expected.len().max(got.len()))
            .find_map(|place| within(&place.to_string(), expected.get(place), got.get(place))),
        (Value::Number(expected), Value::Number(got))
            if expected == got
                || (expected.is_f64() || got.is_f64()) && expected.as_f64() == got.as_f64() =>
        {
            None
        }
        (expected, got) if expected == got => None,
        (expected, got) => Some(differs(pointer, Some(expected), Some(got))),
    }
}

fn differs(pointer: &str, expected: Option<&Value>, got: Option<&Value>) -> JsonDifference {
    let told = |value: Option<&Value>| value.map_or("nothing".to_owned(), Value::to_string);
    JsonDifference {
        pointer: if pointer.is_empty() {
            String::new()
        } else {
            format!(" {pointer}")
        },
        expected: told(expected),
        got: told(got),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(expected: &Value, body: &str) -> String {
        json_difference(expected, body.as_bytes()).map_or_else(
            || "same".to_owned(),
            |JsonDifference {
                 pointer,
                 expected,
                 got,
             }| format!("{pointer}: {expected}, {got}"),
        )
    }

    #[test]
    fn documents_are_compared_by_value() {
        let expected =
            json!({"a": [1, {"b/c": 2.5}], "d": null, "id": 12_345_678_901_234_567_890_u64});
        for (body, difference) in [
            (
                r#"{"id":12345678901234567890,"d":null,"a":[1.0,{"b/c":2.50}]}"#,
                "same",
            ),
            (
                r#"{"id":12345678901234567891,"d":null,"a":[1,{"b/c":2.5}]}"#,
                " /id: 12345678901234567890, 12345678901234567891",
            ),
            (
                r#"{"a":[1,{"b/c":3}],"d":null,"id":12345678901234567890}"#,
                " /a/1/b~1c: 2.5, 3",
            ),
            (
                r#"{"a":[1],"d":null,"id":1}"#,
                " /a/1: {\"b/c\":2.5}, nothing",
            ),
            (
                r#"{"a":[1,{"b/c":2.5},3],"d":null,"id":12345678901234567890}"#,
                " /a/2: nothing, 3",
            ),
            (
                r#"{"a":[1,{"b/c":2.5}],"d":null,"id":12345678901234567890,"x":0}"#,
                " /x: nothing, 0",
            ),
            (
                r#"{"a":[1,{"b/c":2.5}],"id":12345678901234567890}"#,
                " /d: null, nothing",
            ),
        ] {
            assert_eq!(told(&expected, body), difference, "{body}");
        }
        assert_eq!(told(&json!([]), "{}"), ": [], {}");
        assert!(told(&json!("x"), "x").starts_with(": \"x\", no JSON (expected value"));
    }
}
