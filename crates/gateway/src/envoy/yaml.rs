//! Rendered configuration as YAML for people: text of several lines becomes a block, so that Lua code
//! reads as it was written.

use saphyr::{Mapping, Scalar, ScalarStyle, Yaml, YamlEmitter};
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
        // The emitter knows `yes` and `no`, and not these.
        Value::String(text) if matches!(text.as_str(), "y" | "Y" | "n" | "N") => {
            Yaml::Representation(text.as_str().into(), ScalarStyle::DoubleQuoted, None)
        }
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use outrider_yaml::Document;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::to_yaml;

    fn read(text: &str) -> Value {
        Document::parse("a.yaml", text).unwrap().root.to_json()
    }

    #[test]
    fn code_is_a_block() {
        let code = "function f(handle)\n  return \"a: b\" -- #\n\nend\n";
        let text = to_yaml(&json!({"files": {"main.lua": code}, "empty": {}, "none": []}));
        insta::assert_snapshot!(text);
        assert_eq!(read(&text)["files"]["main.lua"], code);
    }

    /// Envoy's reader is of YAML 1.1: what that takes for something else than text has to be quoted.
    #[test]
    fn words_that_are_not_text_elsewhere() {
        for word in [
            "yes",
            "No",
            "on",
            "OFF",
            "y",
            "n",
            "true",
            "null",
            "~",
            "",
            "1",
            "-1",
            "1.5",
            "1e3",
            "0x1f",
            "0o7",
            "012",
            ".5",
            ".inf",
            ".nan",
            "+1",
            "1_000",
            "-",
            "?",
            ":",
            "a: b",
            "a #b",
            "#a",
            "&a",
            "*a",
            "!a",
            "|",
            ">",
            "@a",
            "`a",
            "%a",
            "[a",
            "{a",
            "'a",
            "\"a",
            " a",
            "a ",
            "---",
            "...",
            "2026-01-01",
            "=",
            "<<",
            "a:",
            "\t",
            "a\tb",
            "1:30",
        ] {
            let text = to_yaml(&json!({ "key": word }));
            assert_eq!(read(&text), json!({ "key": word }), "{text}");
            let plain = text.trim_end() == format!("key: {word}");
            let harmless = matches!(
                word,
                "a\tb" | "2026-01-01" | "1:30" | "=" | "<<" | "1_000" | "0o7"
            );
            assert!(!plain || harmless, "{text}");
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            (-1e9f64..1e9).prop_map(Into::into),
            "[ -~\n\té]{0,16}".prop_map(Into::into),
            "( ?[a-z#:]{0,3} ?\n){1,4}".prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
                prop::collection::btree_map("[ -~]{0,6}", inner, 0..5)
                    .prop_map(|map: BTreeMap<String, Value>| map.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        /// What is written reads back as the same.
        #[test]
        fn reads_back(value in value()) {
            let text = to_yaml(&value);
            let document = Document::parse("a.yaml", &text).map_err(|problems| {
                TestCaseError::fail(format!("{text}\n{problems:?}"))
            })?;
            prop_assert_eq!(document.root.to_json(), value, "{}", text);
        }
    }
}
