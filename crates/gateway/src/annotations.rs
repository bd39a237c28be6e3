//! What a JSON Schema says of the values of a configuration beyond whether they are right: which of them are secrets
//! (`writeOnly: true`), which name an upstream (`format`).
//!
//! A configuration is gone through beside its schema. All alternatives of `anyOf`, `oneOf`, `if` and the like count,
//! whether or not a value satisfies them: a secret in one form is a secret.

use outrider_yaml::PathSegment;
use regex::Regex;
use serde_json::Value;

/// How many pairs of a value and a schema are looked at: references may branch without end.
const MOST_STEPS: usize = 100_000;
/// How deep schemas may refer to, or hold, each other for one value.
const MOST_NESTED: usize = 64;

/// There is more to look at than [`MOST_STEPS`], or it is nested deeper than [`MOST_NESTED`]; or a schema refers to another
/// in a way that is not followed here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooMuch;

/// Goes through a configuration; `visit` is told of each value, with its path, and each schema that is about it.
pub(crate) fn describe<'v>(
    schema: &Value,
    config: &'v Value,
    visit: &mut dyn FnMut(&[PathSegment], &'v Value, &Value),
) -> Result<(), TooMuch> {
    let mut walk = Walk {
        root: schema,
        steps: 0,
        path: Vec::new(),
        visit,
    };
    walk.value(schema, config, 0)
}

/// A copy of a configuration in which secrets are `***`: what the schema marks `writeOnly`. All of it, where the schema is
/// too large to say.
pub(crate) fn without_secrets(schema: &Value, config: &Value) -> Value {
    let mut secrets = Vec::new();
    let looked = describe(schema, config, &mut |path, _, schema| {
        if schema.get("writeOnly") == Some(&Value::Bool(true)) {
            secrets.push(path.to_vec());
        }
    });
    if looked.is_err() {
        return hidden();
    }
    let mut shown = config.clone();
    for path in secrets {
        let place = path.iter().try_fold(&mut shown, |value, step| match step {
            PathSegment::Key(key) => value.get_mut(key),
            PathSegment::Index(index) => value.get_mut(*index),
        });
        if let Some(place) = place {
            *place = hidden();
        }
    }
    shown
}

fn hidden() -> Value {
    Value::String("***".to_owned())
}

struct Walk<'s, 'v, 'f> {
    root: &'s Value,
    steps: usize,
    path: Vec<PathSegment>,
    visit: &'f mut dyn FnMut(&[PathSegment], &'v Value, &Value),
}

impl<'s, 'v> Walk<'s, 'v, '_> {
    /// `nested` counts the schemas around this one that are about the same value.
    fn value(&mut self, schema: &'s Value, value: &'v Value, nested: usize) -> Result<(), TooMuch> {
        self.steps += 1;
        if self.steps > MOST_STEPS || nested > MOST_NESTED {
            return Err(TooMuch);
        }
        let refers = |key: &str| schema.get(key).is_some();
        let is_followed = match schema.get("$ref").and_then(Value::as_str) {
            Some(reference) => self.target(reference).is_some(),
            None => true,
        };
        let has_own_base = refers("$id") && !std::ptr::eq(schema, self.root);
        if !is_followed || has_own_base || refers("$dynamicRef") || refers("$recursiveRef") {
            return Err(TooMuch);
        }
        (self.visit)(&self.path, value, schema);
        for schema in self.of_the_same(schema) {
            self.value(schema, value, nested + 1)?;
        }
        match value {
            Value::Object(members) => {
                for (key, member) in members {
                    self.path.push(PathSegment::Key(key.clone()));
                    for schema in of_member(schema, key) {
                        self.value(schema, member, 0)?;
                    }
                    self.path.pop();
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.path.push(PathSegment::Index(index));
                    for schema in of_item(schema, index) {
                        self.value(schema, item, 0)?;
                    }
                    self.path.pop();
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        Ok(())
    }

    /// The schemas that are about the same value.
    fn of_the_same(&self, schema: &'s Value) -> Vec<&'s Value> {
        let reference = schema.get("$ref").and_then(Value::as_str);
        let target = reference.and_then(|reference| self.target(reference));
        let dependent = ["dependentSchemas", "dependencies"].into_iter();
        let dependent = dependent.filter_map(|key| schema.get(key)?.as_object());
        let lists = ["allOf", "anyOf", "oneOf"].into_iter();
        let lists = lists.filter_map(|key| schema.get(key)?.as_array());
        // Of keys that are secret, and of a text that is a document with secrets, all is hidden.
        let single = [
            "if",
            "then",
            "else",
            "not",
            "propertyNames",
            "contentSchema",
        ]
        .into_iter();
        let single = single.filter_map(|key| schema.get(key));
        target
            .into_iter()
            .chain(lists.flatten())
            .chain(single)
            .chain(dependent.flatten().map(|(_, schema)| schema))
            .collect()
    }

    /// What a reference within the document leads to.
    fn target(&self, reference: &str) -> Option<&'s Value> {
        let pointer = reference.strip_prefix('#')?;
        // Escapes of a URL are left to those who need them.
        self.root
            .pointer(pointer)
            .filter(|_| !pointer.contains('%'))
    }
}

/// The schemas of a member of a mapping.
fn of_member<'s>(schema: &'s Value, key: &str) -> Vec<&'s Value> {
    let named = schema.get("properties").and_then(|all| all.get(key));
    let patterns = schema.get("patternProperties").and_then(Value::as_object);
    // A pattern that the crate cannot read, or reads in its own way, may match.
    let is_own = |pattern: &str| {
        ["&&", "--", "~~", "[["]
            .iter()
            .any(|part| pattern.contains(part))
    };
    let may_match = |pattern: &str| {
        is_own(pattern) || Regex::new(pattern).map_or(true, |read| read.is_match(key))
    };
    let by_pattern = patterns
        .into_iter()
        .flatten()
        .filter(|(pattern, _)| may_match(pattern))
        .map(|(_, schema)| schema);
    let mut found: Vec<&Value> = named.into_iter().chain(by_pattern).collect();
    if found.is_empty() {
        let others = ["additionalProperties", "unevaluatedProperties"].into_iter();
        found.extend(others.filter_map(|key| schema.get(key)));
    }
    found
}

/// The schemas of an item of a list.
fn of_item(schema: &Value, index: usize) -> Vec<&Value> {
    // Before draft 2020-12, a list in `items` was what `prefixItems` is.
    let lists = ["prefixItems", "items"].into_iter();
    let mut lists = lists.filter_map(|key| schema.get(key)?.as_array());
    let prefix = lists.find_map(|items| items.get(index));
    let of_all = ["contains"].into_iter().filter_map(|key| schema.get(key));
    let rest = ["items", "additionalItems", "unevaluatedItems"].into_iter();
    let rest = rest.filter_map(|key| schema.get(key));
    let rest = rest.filter(|_| prefix.is_none());
    prefix.into_iter().chain(of_all).chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::without_secrets;

    #[test]
    fn secrets_are_hidden_wherever_the_schema_marks_them() {
        let schema = json!({
            "$defs": { "key": { "type": "string", "writeOnly": true } },
            "properties": {
                "plain": { "type": "string" },
                "token": { "properties": { "value": { "writeOnly": true } } },
                "consumers": { "additionalProperties": { "oneOf": [
                    { "$ref": "#/$defs/key" },
                    { "type": "array", "items": { "$ref": "#/$defs/key" } },
                ] } },
                "pair": { "prefixItems": [{}, { "$ref": "#/$defs/key" }], "items": false },
                "all": { "writeOnly": true },
                "old": { "items": [{}, { "writeOnly": true }], "additionalItems": { "writeOnly": true } },
            },
            "dependentSchemas": { "plain": { "properties": { "dependent": { "writeOnly": true } } } },
            "patternProperties": { "^secret-": { "writeOnly": true } },
            "if": { "properties": { "kind": { "const": "a" } } },
            "then": { "properties": { "when": { "writeOnly": true } } },
        });
        let config = json!({
            "plain": "p", "token": { "header": "h", "value": "v" },
            "consumers": { "alice": "k", "bob": ["k1", "k2"] },
            "pair": ["name", "k"], "all": { "a": 1 }, "secret-a": 1, "public-a": 1, "when": "w", "unknown": "u",
            "old": ["name", "k", "k"], "dependent": "d",
        });
        let shown = json!({
            "plain": "p", "token": { "header": "h", "value": "***" },
            "consumers": { "alice": "***", "bob": "***" },
            "pair": ["name", "***"], "all": "***", "secret-a": "***", "public-a": 1, "when": "***", "unknown": "u",
            "old": ["name", "***", "***"], "dependent": "***",
        });
        assert_eq!(without_secrets(&schema, &config), shown);
    }

    #[test]
    fn schema_without_end_hides_everything() {
        let elsewhere = json!({ "properties": { "a": { "$ref": "#secret" } } });
        let dynamic = json!({ "properties": { "a": { "$dynamicRef": "#secret" } } });
        let circular = json!({ "allOf": [{ "$ref": "#" }] });
        let branching = json!({ "anyOf": [{ "$ref": "#" }, { "$ref": "#" }, { "$ref": "#" }] });
        for schema in [circular, branching, elsewhere, dynamic] {
            assert_eq!(without_secrets(&schema, &json!({ "a": "b" })), json!("***"));
        }
    }
}
