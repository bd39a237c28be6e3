//! JSON Merge Patch (RFC 7396): how a narrower scope's configuration changes a wider one's.

use serde_json::{Map, Value};

/// `patch` applied to `target`. The result holds no null in any object that `patch` touched.
pub fn merge(target: &Value, patch: &Value) -> Value {
    let Value::Object(patch) = patch else {
        return patch.clone();
    };
    let mut result = match target {
        Value::Object(target) => target.clone(),
        _ => Map::new(),
    };
    for (key, change) in patch {
        if change.is_null() {
            result.shift_remove(key);
        } else {
            let old = result.get(key).unwrap_or(&Value::Null);
            let new = merge(old, change);
            result.insert(key.clone(), new);
        }
    }
    Value::Object(result)
}

/// One patch that does to `base` what `first` and then `second` do.
///
/// Nulls survive, and what neither patch mentions is not in it. `base` matters only where `first`
/// replaces an object by something else that `second` makes an object again: no patch says "replace by
/// this object", so the keys of `base` that have to go are named one by one.
///
/// `base` has no null in any object.
pub fn compose(base: &Value, first: &Value, second: &Value) -> Value {
    let (first, second) = match (first, second) {
        (Value::Object(first), Value::Object(second)) => (first, second),
        (_, Value::Object(_)) if base.is_object() => {
            return difference(base, &merge(&Value::Null, second));
        }
        // What `first` puts in the place of `base` is gone, or `base` was nothing to keep.
        (_, second) => return second.clone(),
    };
    let mut composed = first.clone();
    for (key, later) in second {
        let below = base.get(key).unwrap_or(&Value::Null);
        let change = match (first.get(key), later) {
            (Some(earlier @ Value::Object(_)), Value::Object(_)) => compose(below, earlier, later),
            (Some(_), Value::Object(_)) if below.is_object() => {
                difference(below, &merge(&Value::Null, later))
            }
            _ => later.clone(),
        };
        composed.insert(key.clone(), change);
    }
    Value::Object(composed)
}

/// The patch that makes the object `old` the object `new`.
fn difference(old: &Value, new: &Value) -> Value {
    let empty = Map::new();
    let old = old.as_object().unwrap_or(&empty);
    let new = new.as_object().unwrap_or(&empty);
    let mut patch = Map::new();
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, value) in new {
        match old.get(key) {
            Some(before @ Value::Object(_)) if value.is_object() => {
                patch.insert(key.clone(), difference(before, value));
            }
            Some(before) if before == value => {}
            _ => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    Value::Object(patch)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::{compose, merge};

    /// The example and the test cases of RFC 7396, section 3 and appendix A.
    #[test]
    fn rfc_cases() {
        let cases = [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (
                json!({"a": "b"}),
                json!({"b": "c"}),
                json!({"a": "b", "b": "c"}),
            ),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (
                json!({"a": "b", "b": "c"}),
                json!({"a": null}),
                json!({"b": "c"}),
            ),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (
                json!({"a": {"b": "c"}}),
                json!({"a": {"b": "d", "c": null}}),
                json!({"a": {"b": "d"}}),
            ),
            (
                json!({"a": [{"b": "c"}]}),
                json!({"a": [1]}),
                json!({"a": [1]}),
            ),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a": "b"}), json!(["c"]), json!(["c"])),
            (json!({"a": "foo"}), json!(null), json!(null)),
            (json!({"a": "foo"}), json!("bar"), json!("bar")),
            (
                json!({"e": null}),
                json!({"a": 1}),
                json!({"e": null, "a": 1}),
            ),
            (
                json!([1, 2]),
                json!({"a": "b", "c": null}),
                json!({"a": "b"}),
            ),
            (
                json!({}),
                json!({"a": {"bb": {"ccc": null}}}),
                json!({"a": {"bb": {}}}),
            ),
        ];
        for (target, patch, result) in cases {
            assert_eq!(merge(&target, &patch), result, "{target} {patch}");
        }
    }

    #[test]
    fn composition_keeps_nulls_and_says_no_more_than_it_must() {
        let base = json!({"a": 1, "b": {"x": 1, "y": 2}});
        assert_eq!(
            compose(&base, &json!({"a": null}), &json!({"b": {"y": null}})),
            json!({"a": null, "b": {"y": null}})
        );
        assert_eq!(
            compose(&base, &json!({"b": 5}), &json!({"b": {"y": 3}})),
            json!({"b": {"x": null, "y": 3}}),
        );
    }

    fn value(nulls: bool) -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            if nulls { 2 } else { 0 } => Just(Value::Null),
            3 => (0..3i32).prop_map(Into::into),
            1 => "[ab]{0,2}".prop_map(Into::into),
            1 => Just(json!([{"a": null}, 1])),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop::collection::btree_map("[a-d]", inner, 0..4)
                .prop_map(|map| map.into_iter().collect::<Value>())
        })
    }

    /// A configuration, or a patch of one: mostly an object.
    fn config(nulls: bool) -> impl Strategy<Value = Value> {
        let object = prop::collection::btree_map("[a-d]", value(nulls), 0..4)
            .prop_map(|map| map.into_iter().collect::<Value>());
        prop_oneof![
            5 => object,
            1 => "[ab]{0,2}".prop_map(Into::into),
        ]
    }

    proptest! {
        /// Two patches one after the other do what their composition does.
        #[test]
        fn composition(base in config(false), first in config(true), second in config(true)) {
            let in_turn = merge(&merge(&base, &first), &second);
            let at_once = merge(&base, &compose(&base, &first, &second));
            prop_assert_eq!(in_turn, at_once);
        }
    }
}
