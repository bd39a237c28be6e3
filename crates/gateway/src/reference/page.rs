//! The configuration reference as one page: a preface, then a table for each object of the schema.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;

const PREFACE: &str = include_str!("preface.md");

/// A definition of the schema and where it is met first.
struct Section<'s> {
    path: String,
    object: &'s Value,
}

pub(super) fn page(schema: &Value) -> String {
    let mut text = PREFACE.to_owned();
    let mut met = BTreeSet::new();
    let mut sections = vec![Section {
        path: String::new(),
        object: schema,
    }];
    let mut next = 0;
    while let Some(section) = sections.get(next) {
        let (path, object) = (section.path.clone(), section.object);
        write_section(&mut text, schema, &path, object);
        let mut inner = Vec::new();
        for (key, value) in properties(object) {
            let path = if path.is_empty() {
                key.to_owned()
            } else {
                format!("{path}.{key}")
            };
            find_objects(schema, value, &path, &mut met, &mut inner);
        }
        // Depth first: what belongs together stays together.
        next += 1;
        sections.splice(next..next, inner);
    }
    let mut text = text.trim_end().to_owned();
    text.push('\n');
    text
}

fn properties(object: &Value) -> impl Iterator<Item = (&str, &Value)> {
    object
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(key, value)| (key.as_str(), value))
}

/// The definition that a schema refers to.
fn definition<'s>(schema: &'s Value, value: &Value) -> Option<(&'s Value, String)> {
    let reference = value.get("$ref")?.as_str()?;
    let name = reference.rsplit('/').next()?;
    Some((
        schema.pointer(reference.strip_prefix('#')?)?,
        name.to_owned(),
    ))
}

/// Objects that `value` may hold and that have not been met yet.
fn find_objects<'s>(
    schema: &'s Value,
    value: &'s Value,
    path: &str,
    met: &mut BTreeSet<String>,
    found: &mut Vec<Section<'s>>,
) {
    if let Some((object, name)) = definition(schema, value) {
        if object.get("properties").is_some() && met.insert(name) {
            found.push(Section {
                path: path.to_owned(),
                object,
            });
        }
        return;
    }
    if let Some(items) = value.get("items") {
        find_objects(schema, items, &format!("{path}[]"), met, found);
    }
    if let Some(values) = value.get("additionalProperties") {
        find_objects(schema, values, &format!("{path}.<name>"), met, found);
    }
    for variant in variants(value) {
        find_objects(schema, variant, path, met, found);
    }
}

fn variants(value: &Value) -> impl Iterator<Item = &Value> {
    ["anyOf", "oneOf"]
        .into_iter()
        .filter_map(|key| value.get(key).and_then(Value::as_array))
        .flatten()
}

fn write_section(text: &mut String, schema: &Value, path: &str, object: &Value) {
    let description = object
        .get("description")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let heading = if path.is_empty() {
        "## The file".to_owned()
    } else {
        format!("### `{path}`")
    };
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "{heading}\n\n{description}\n\n| key | value | meaning |\n|---|---|---|\n"
    );
    let required: Vec<&str> = object
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (key, value) in properties(object) {
        let meaning = value
            .get("description")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let required = if required.contains(&key) {
            " Required."
        } else {
            ""
        };
        let _ = writeln!(
            text,
            "| `{key}` | {} | {}{required} |",
            cell(&kind(schema, value)),
            cell(meaning)
        );
    }
    text.push('\n');
}

/// A `|` would end the cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// What a value is, in a few words.
fn kind(schema: &Value, value: &Value) -> String {
    if let Some((definition, _)) = definition(schema, value) {
        return if definition.get("properties").is_some() {
            "mapping".to_owned()
        } else {
            kind(schema, definition)
        };
    }
    if let Some(word) = value.get("const").and_then(Value::as_str) {
        return format!("`{word}`");
    }
    let several: Vec<String> = variants(value)
        .map(|variant| kind(schema, variant))
        .collect();
    if !several.is_empty() {
        let separator = if value.get("oneOf").is_some() {
            ", "
        } else {
            " or "
        };
        return several.join(separator);
    }
    let of = |key: &str| value.get(key).map(|inner| kind(schema, inner));
    match value.get("type").and_then(Value::as_str) {
        Some("array") => format!("list: {}", of("items").unwrap_or_default()),
        Some("integer") => match (value.get("minimum"), value.get("maximum")) {
            (Some(least), Some(most)) => format!("{least} to {most}"),
            _ => "whole number".to_owned(),
        },
        Some("boolean") => "`true`, `false`".to_owned(),
        Some("object") => match value.get("additionalProperties") {
            Some(Value::Object(_)) => {
                format!(
                    "by name: {}",
                    of("additionalProperties").unwrap_or_default()
                )
            }
            _ => "mapping".to_owned(),
        },
        Some("string") => "text".to_owned(),
        _ => "any".to_owned(),
    }
}
