//! Every plugin that ships: it has all its files, its examples are valid, and it does what its cases
//! say.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use outrider_plugin_formats::PluginPackage;
use outrider_plugin_testkit::{LoadedPlugin, MetricTable, load_cases, run_cases};
use outrider_yaml::Document;
use serde_json::Value;

/// Fewer cases than this show too little.
const FEWEST_CASES: usize = 6;

fn catalog() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/lua");
    let mut plugins: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    plugins.sort();
    assert!(!plugins.is_empty());
    plugins
}

fn told<T: ToString>(problems: &[T]) -> String {
    problems
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

fn open(folder: &Path) -> PluginPackage {
    outrider_plugin_store::open(folder).unwrap_or_else(|problems| panic!("{}", told(&problems)))
}

fn load(folder: &Path) -> LoadedPlugin {
    LoadedPlugin::from_package(&open(folder)).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_plugin_has_all_its_files_under_its_own_name() {
    for folder in catalog() {
        for file in ["plugin.yaml", "config.schema.json", "README.md", "main.lua"] {
            assert!(folder.join(file).is_file(), "{}: {file}", folder.display());
        }
        let package = open(&folder);
        let name = folder.file_name().unwrap().to_str().unwrap();
        assert_eq!(package.manifest.name, name);
        assert!(package.manifest.description.is_some(), "{name}");
        let readme = fs::read_to_string(folder.join("README.md")).unwrap();
        assert!(readme.starts_with(&format!("# {name}\n")), "{name}");
    }
}

/// The page that lists the plugins has a line for each, with what its manifest says, and the README a
/// link.
#[test]
fn every_plugin_is_in_the_lists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let list = fs::read_to_string(root.join("docs/plugins.md")).unwrap();
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let mut lines = 0;
    for folder in catalog() {
        let manifest = open(&folder).manifest;
        let name = &manifest.name;
        let begin = format!("| [{name}](../plugins/lua/{name}/README.md) | `");
        let line = list.lines().find(|line| line.starts_with(&begin));
        let line = line.unwrap_or_else(|| panic!("docs/plugins.md has no line of {name}"));
        let description = manifest.description.unwrap();
        assert!(line.contains(&format!("| {description} |")), "{line}");
        let group = format!("{:?}", manifest.group).to_lowercase();
        assert!(line.contains(&format!("| `{group}` |")), "{line}");
        assert!(
            readme.contains(&format!("[{name}](plugins/lua/{name}/README.md)")),
            "the README has no link to {name}"
        );
        lines += 1;
    }
    let listed = list.lines().filter(|line| line.starts_with("| [")).count();
    assert_eq!(
        listed, lines,
        "docs/plugins.md lists plugins that are not there"
    );
}

/// A plugin that is there in several languages takes the same configuration and does the same: its schema
/// and its cases are those of its sibling in Lua, to the byte.
#[test]
fn siblings_share_schema_and_cases() {
    let plugins = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins");
    let mut siblings = 0;
    for language in ["rust", "go", "assemblyscript", "cpp"] {
        for lua in catalog() {
            let sibling = plugins.join(language).join(lua.file_name().unwrap());
            if !sibling.is_dir() {
                continue;
            }
            siblings += 1;
            assert_eq!(files(&sibling.join("cases")), files(&lua.join("cases")));
            let schema = "config.schema.json";
            assert_eq!(
                fs::read_to_string(sibling.join(schema)).unwrap(),
                fs::read_to_string(lua.join(schema)).unwrap(),
                "{}",
                sibling.display()
            );
        }
    }
    assert!(siblings >= 6, "{siblings}");
}

/// The files of a folder: their names and what is in them.
fn files(folder: &Path) -> BTreeMap<PathBuf, String> {
    fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            (PathBuf::from(path.file_name().unwrap()), text)
        })
        .collect()
}

/// Every object of a schema refuses unknown keys and describes those that it has.
fn check_schema(place: &str, schema: &Value) {
    let Value::Object(keywords) = schema else {
        return;
    };
    if let Some(properties) = keywords.get("properties").and_then(Value::as_object) {
        assert_eq!(
            keywords.get("additionalProperties"),
            Some(&Value::Bool(false)),
            "{place}: additionalProperties"
        );
        for (name, property) in properties {
            assert!(
                property.get("description").is_some(),
                "{place}/{name}: description"
            );
        }
    }
    for (name, value) in keywords {
        match value {
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    check_schema(&format!("{place}/{name}/{index}"), item);
                }
            }
            // The names in here are the user's, not keywords.
            Value::Object(_) if name == "default" => {}
            value => check_schema(&format!("{place}/{name}"), value),
        }
    }
}

#[test]
fn every_schema_is_closed_and_described() {
    for folder in catalog() {
        let package = open(&folder);
        let schema = package.schema.unwrap();
        assert_eq!(
            schema.get("$schema").and_then(Value::as_str),
            Some("https://json-schema.org/draft/2020-12/schema")
        );
        check_schema(&package.manifest.name, &schema);
    }
}

/// The keys of the first level of a schema are all in the README's table.
#[test]
fn every_key_is_in_the_readme() {
    for folder in catalog() {
        let schema = open(&folder).schema.unwrap();
        let readme = fs::read_to_string(folder.join("README.md")).unwrap();
        for key in schema["properties"].as_object().unwrap().keys() {
            let named = readme.contains(&format!("| `{key}` |"))
                || readme.contains(&format!("| `{key}."))
                || readme.contains(&format!("`{key}` and `"))
                || readme.contains(&format!("` and `{key}`"));
            assert!(named, "{}: {key}", folder.display());
        }
    }
}

#[test]
fn every_plugin_does_what_its_cases_say() {
    let mut wrong = Vec::new();
    let mut ran = 0;
    for folder in catalog() {
        let plugin = load(&folder);
        let cases = load_cases(&folder.join("cases"))
            .unwrap_or_else(|problems| panic!("{}", told(&problems)));
        assert!(cases.len() >= FEWEST_CASES, "{}", folder.display());
        ran += cases.len();
        wrong.extend(
            run_cases(&plugin, &cases)
                .into_iter()
                .filter(|result| !result.is_right()),
        );
    }
    assert!(
        wrong.is_empty(),
        "{} of {ran} cases came out differently:\n\n{}",
        wrong.len(),
        told(&wrong)
    );
}

fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(members) => members.values().any(has_null),
        _ => false,
    }
}

/// The fenced YAML blocks of a page.
fn yaml_blocks(page: &str) -> Vec<String> {
    page.split("```yaml\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap().to_owned())
        .collect()
}

/// What an example says is accepted by the schema and by the plugin. One with a null is what a
/// narrower scope says, over the page's first example.
#[test]
fn every_example_is_accepted() {
    for folder in catalog() {
        let plugin = load(&folder);
        let readme = folder.join("README.md").display().to_string();
        let page = fs::read_to_string(&readme).unwrap();
        let mut first: Option<Value> = None;
        for block in yaml_blocks(&page) {
            let document = Document::parse(&readme, &block)
                .unwrap_or_else(|problems| panic!("{}\n{block}", told(&problems)));
            let example = document.root.to_json();
            for used in example["use"].as_array().into_iter().flatten() {
                assert_eq!(used["plugin"], plugin.name(), "{readme}");
                let config = &used["config"];
                let mut metrics = MetricTable::new();
                let accepted = match &first {
                    Some(first) if has_null(config) => {
                        plugin.chain(first, Some(config), &mut metrics)
                    }
                    _ => plugin.chain(config, None, &mut metrics),
                };
                if let Err(error) = accepted {
                    panic!("{readme}: {error}\n{block}");
                }
                first.get_or_insert_with(|| config.clone());
            }
        }
        assert!(first.is_some(), "{readme}: no example");
    }
}
