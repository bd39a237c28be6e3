//! JSON Merge Patch (RFC 7396), by which a narrower scope changes a wider one's configuration.

use serde_json::{Map, Value};

/// Applies a patch to a value.
pub(crate) fn merge(base: &Value, patch: &Value) -> Value {
    let Value::Object(patch) = patch else {
        return patch.clone();
    };
    let mut merged = match base {
        Value::Object(base) => base.clone(),
        _ => Map::new(),
    };
    for (key, change) in patch {
        if change.is_null() {
            merged.shift_remove(key);
        } else {
            let old = merged.get(key).unwrap_or(&Value::Null);
            let new = merge(old, change);
            merged.insert(key.clone(), new);
        }
    }
    Value::Object(merged)
}

#[cfg(test)]
mod tests {
    use super::merge;
    use serde_json::{Value, json};

    /// The examples of RFC 7396, appendix A.
    #[test]
    fn the_rfc_s_examples() {
        let cases = [
            (json!({"a":"b"}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"b"}), json!({"b":"c"}), json!({"a":"b","b":"c"})),
            (json!({"a":"b"}), json!({"a":null}), json!({})),
            (
                json!({"a":"b","b":"c"}),
                json!({"a":null}),
                json!({"b":"c"}),
            ),
            (json!({"a":["b"]}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"c"}), json!({"a":["b"]}), json!({"a":["b"]})),
            (
                json!({"a":{"b":"c"}}),
                json!({"a":{"b":"d","c":null}}),
                json!({"a":{"b":"d"}}),
            ),
            (json!({"a":[{"b":"c"}]}), json!({"a":[1]}), json!({"a":[1]})),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a":"b"}), json!(["c"]), json!(["c"])),
            (json!({"a":"foo"}), Value::Null, Value::Null),
            (json!({"a":"foo"}), json!("bar"), json!("bar")),
            (json!({"e":null}), json!({"a":1}), json!({"e":null,"a":1})),
            (json!([1, 2]), json!({"a":"b","c":null}), json!({"a":"b"})),
            (
                json!({}),
                json!({"a":{"bb":{"ccc":null}}}),
                json!({"a":{"bb":{}}}),
            ),
        ];
        for (base, patch, expected) in cases {
            assert_eq!(merge(&base, &patch), expected, "{base} patched by {patch}");
        }
    }
}
