//! Rendered configuration as YAML for people: text of several lines becomes a block, so that Lua code
//! reads as it was written.

use saphyr::{Mapping, Scalar, Yaml, YamlEmitter};
use serde_json::Value;

/// `value` as a YAML document.
pub fn to_yaml(value: &Value) -> String {
    let mut text = String::new();
    let mut emitter = YamlEmitter::new(&mut text);
    emitter.multiline(true);
    // Writing to a string cannot fail.
    let _ = emitter.dump(&convert(value));
    let mut text = text.strip_prefix("---\n").unwrap_or(&text).to_owned();
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

fn convert(value: &Value) -> Yaml<'_> {
    match value {
        Value::Null => Yaml::Value(Scalar::Null),
        Value::Bool(value) => Yaml::Value(Scalar::Boolean(*value)),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(value), _) => Yaml::Value(Scalar::Integer(value)),
            (None, Some(value)) => Yaml::Value(Scalar::FloatingPoint(value.into())),
            (None, None) => Yaml::Value(Scalar::Null),
        },
        Value::String(text) => Yaml::Value(Scalar::String(text.as_str().into())),
        Value::Array(items) => Yaml::Sequence(items.iter().map(convert).collect()),
        Value::Object(object) => {
            let mut mapping = Mapping::new();
            for (key, value) in object {
                mapping.insert(
                    Yaml::Value(Scalar::String(key.as_str().into())),
                    convert(value),
                );
            }
            Yaml::Mapping(mapping)
        }
    }
}
