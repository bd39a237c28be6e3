//! `outrider plugin info`: a built-in plugin's configuration, an example and its README.

use std::fmt::Write as _;

use clap::Args;
use outrider_plugin_catalog::Builtin;
use outrider_plugin_formats::{Manifest, Problem};
use serde_json::{Value, json};

use super::list;
use crate::exit::{self, Exit};
use crate::output::{self, BOLD, Styled};

const EXAMPLES: &str = "\
Examples:
  outrider plugin info cors
  outrider plugin info cors --example >> gateway.yaml
  outrider plugin info cors --json | jq .schema";

/// Show a built-in plugin: its configuration as a table, an example, its README
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
pub(crate) struct Arguments {
    /// Its name, as `outrider plugin list` prints it
    #[arg(value_name = "NAME")]
    name: String,
    /// Print the example only
    #[arg(long, conflicts_with = "json")]
    example: bool,
    /// Print JSON: {"name", "source", "version", "language", "group", "description", "digest", "size", "schema",
    /// "example", "readme"}
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let name = arguments.name.strip_prefix("builtin:");
    let name = name.unwrap_or(&arguments.name);
    let Some(plugin) = outrider_plugin_catalog::find(name) else {
        let problems = outrider_plugin_catalog::open(name)
            .err()
            .unwrap_or_default();
        for Problem { message, mend, .. } in problems {
            output::note(message);
            output::note(format_args!("    {}", mend.unwrap_or_default()));
        }
        return Ok(Exit::Problems);
    };
    let package = list::package(plugin)?;
    let manifest = &package.manifest;
    let example = example(plugin);
    let readme = plugin.file("README.md").unwrap_or_default();
    if arguments.example {
        output::line(example.trim_end());
    } else if arguments.json {
        let Manifest {
            version,
            group,
            description,
            ..
        } = manifest;
        output::json(&json!({
            "name": plugin.name,
            "source": format!("builtin:{}", plugin.name),
            "version": version,
            "language": list::language(manifest),
            "group": group,
            "description": description,
            "digest": package.digest,
            "size": plugin.size(),
            "schema": package.schema,
            "example": example,
            "readme": readme,
        }));
    } else {
        let group = serde_json::to_value(manifest.group).unwrap_or_default();
        output::line(format_args!(
            "{} {} ({}, group {})",
            Styled(BOLD, plugin.name),
            manifest.version.as_deref().unwrap_or_default(),
            list::language(manifest),
            group.as_str().unwrap_or_default(),
        ));
        output::line(manifest.description.as_deref().unwrap_or_default());
        output::line(format_args!("\n{}\n", Styled(BOLD, "Configuration")));
        output::line(table(package.schema.as_ref()).trim_end());
        output::line(format_args!("\n{}\n", Styled(BOLD, "Example")));
        output::line(example.trim_end());
        output::line(format_args!("\n{}\n", Styled(BOLD, "README")));
        output::line(readme.trim_end());
    }
    Ok(Exit::Good)
}

/// A part of `outrider.yaml` that uses the plugin at the gateway, made of the first example in its README.
fn example(plugin: Builtin) -> String {
    let readme = plugin.file("README.md").unwrap_or_default();
    let block = readme
        .split_once("```yaml\n")
        .and_then(|(_, rest)| rest.split_once("```"))
        .map(|(block, _)| block)
        .filter(|block| block.starts_with("use:"));
    let default = format!("use:\n  - plugin: {}\n", plugin.name);
    let mut text = format!(
        "plugins:\n  {0}: {{source: \"builtin:{0}\"}}\ngateway:\n  listeners: [{{address: \"127.0.0.1:10000\"}}]\n",
        plugin.name
    );
    for line in block.unwrap_or(&default).lines() {
        if line.is_empty() {
            text.push('\n');
        } else {
            text.push_str("  ");
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// The options of a schema as a table in Markdown.
fn table(schema: Option<&Value>) -> String {
    let Some(schema) = schema else {
        return "It takes no configuration.".to_owned();
    };
    let mut rows = Vec::new();
    collect(schema, schema, "", 0, &mut rows);
    if rows.is_empty() {
        return "Its configuration has no named options.".to_owned();
    }
    let mut text = "| option | type | default | meaning |\n|---|---|---|---|\n".to_owned();
    for [option, kind, default, meaning] in rows {
        let meaning = meaning.replace('|', "\\|");
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| `{option}` | {kind} | {default} | {meaning} |");
    }
    text
}

/// Mappings within mappings that are listed.
const DEEPEST: usize = 6;

fn collect(root: &Value, schema: &Value, prefix: &str, depth: usize, rows: &mut Vec<[String; 4]>) {
    let schema = resolved(root, schema);
    if depth > DEEPEST {
        return;
    }
    let required: Vec<&str> = array(schema, "required")
        .filter_map(Value::as_str)
        .collect();
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, property) in properties.into_iter().flatten() {
        let option = format!("{prefix}{name}");
        let target = resolved(root, property);
        let text = |key| property.get(key).or_else(|| target.get(key));
        let default = match text("default") {
            Some(value) => format!("`{value}`"),
            None if required.contains(&name.as_str()) => "required".to_owned(),
            None => String::new(),
        };
        let meaning = text("description").and_then(Value::as_str);
        rows.push([
            option.clone(),
            kind(root, target),
            default,
            meaning.unwrap_or_default().to_owned(),
        ]);
        collect(root, target, &format!("{option}."), depth + 1, rows);
        if let Some(items) = target.get("items") {
            collect(root, items, &format!("{option}[]."), depth + 1, rows);
        }
    }
}

fn array<'v>(schema: &'v Value, key: &str) -> impl Iterator<Item = &'v Value> {
    schema
        .get(key)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

/// What a `$ref` within the schema leads to.
fn resolved<'v>(root: &'v Value, schema: &'v Value) -> &'v Value {
    let reference = schema.get("$ref").and_then(Value::as_str);
    reference
        .and_then(|reference| root.pointer(reference.strip_prefix('#')?))
        .unwrap_or(schema)
}

fn kind(root: &Value, schema: &Value) -> String {
    let words: Vec<String> = match schema.get("type") {
        Some(Value::String(one)) if one == "array" => {
            let items = schema
                .get("items")
                .map(|items| kind(root, resolved(root, items)));
            return match items.filter(|items| items != "any") {
                Some(items) => format!("list of {items}"),
                None => "list".to_owned(),
            };
        }
        Some(Value::String(one)) => vec![one.clone()],
        Some(Value::Array(several)) => {
            let words = several.iter().filter_map(Value::as_str);
            words.map(str::to_owned).collect()
        }
        _ => {
            let values: Vec<String> = array(schema, "enum")
                .map(|value| format!("`{value}`"))
                .collect();
            if !values.is_empty() {
                return values.join(", ");
            }
            let forms = array(schema, "oneOf").chain(array(schema, "anyOf"));
            let mut words: Vec<String> =
                forms.map(|form| kind(root, resolved(root, form))).collect();
            words.dedup();
            words
        }
    };
    if words.is_empty() {
        "any".to_owned()
    } else {
        words.join(" or ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_lists_nested_options_with_types_and_defaults() {
        let schema = json!({
            "required": ["rules"],
            "properties": {
                "rules": {
                    "type": "array",
                    "items": {"$ref": "#/$defs/rule"},
                    "description": "One | several.",
                },
                "mode": {"enum": ["a", "b"], "default": "a"},
            },
            "$defs": {"rule": {"type": "object", "properties": {"limit": {"type": ["integer", "null"]}}}},
        });
        assert_eq!(
            table(Some(&schema)),
            "| option | type | default | meaning |\n\
             |---|---|---|---|\n\
             | `rules` | list of object | required | One \\| several. |\n\
             | `rules[].limit` | integer or null |  |  |\n\
             | `mode` | `\"a\"`, `\"b\"` | `\"a\"` |  |\n"
        );
        let endless = json!({"properties": {"a": {"$ref": "#"}}});
        assert!(table(Some(&endless)).lines().count() < 20);
    }
}
