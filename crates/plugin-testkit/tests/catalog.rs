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

use outrider_plugin_formats::{Manifest, PluginPackage, Runtime};
use outrider_plugin_testkit::{LoadedPlugin, MetricTable, load_cases, run_cases};
use outrider_yaml::Document;
use serde_json::Value;

/// Fewer cases than this show too little.
const FEWEST_CASES: usize = 6;

/// The languages beside Lua, whose plugins have to be built.
const COMPILED: [&str; 4] = ["assemblyscript", "cpp", "go", "rust"];

/// The folders of the plugins in one language.
fn plugins_in(language: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../plugins")
        .join(language);
    let mut plugins: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("plugin.yaml").is_file())
        .collect();
    plugins.sort();
    assert!(!plugins.is_empty(), "{language}");
    plugins
}

/// The plugins that these tests load.
fn catalog() -> Vec<PathBuf> {
    plugins_in("lua")
}

/// Every plugin, whether or not it is built.
fn everything() -> Vec<PathBuf> {
    let mut plugins = plugins_in("lua");
    for language in COMPILED {
        plugins.extend(plugins_in(language));
    }
    plugins
}

/// Language and name of a plugin, by its folder.
fn place(folder: &Path) -> (&str, &str) {
    let language = folder.parent().unwrap().file_name().unwrap();
    let plugin = folder.file_name().unwrap();
    (language.to_str().unwrap(), plugin.to_str().unwrap())
}

/// A plugin's manifest; its code need not be there.
fn manifest(folder: &Path) -> Manifest {
    let file = folder.join("plugin.yaml").display().to_string();
    let document = Document::parse(&file, &fs::read_to_string(&file).unwrap())
        .unwrap_or_else(|problems| panic!("{}", told(&problems)));
    serde_json::from_value(document.root.to_json())
        .unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn schema(folder: &Path) -> Value {
    let text = fs::read_to_string(folder.join("config.schema.json")).unwrap();
    serde_json::from_str(&text).unwrap()
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
    for folder in everything() {
        for file in ["config.schema.json", "README.md"] {
            assert!(folder.join(file).is_file(), "{}: {file}", folder.display());
        }
        let (language, name) = place(&folder);
        let manifest = manifest(&folder);
        assert_eq!(manifest.name, name);
        assert!(manifest.description.is_some(), "{name}");
        if language == "lua" {
            assert!(folder.join("main.lua").is_file(), "{name}");
        } else {
            assert_eq!(manifest.runtime, Runtime::Wasm, "{name}");
            assert_eq!(manifest.entry.as_deref(), Some("plugin.wasm"), "{name}");
            let build = format!("make plugins-{language}");
            assert_eq!(manifest.build, Some(build), "{name}");
        }
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
    for folder in everything() {
        let manifest = manifest(&folder);
        let (language, name) = place(&folder);
        let begin = format!("| [{name}](../plugins/{language}/{name}/README.md) | ");
        let line = list.lines().find(|line| line.starts_with(&begin));
        let line = line.unwrap_or_else(|| panic!("docs/plugins.md has no line of {begin}"));
        let description = manifest.description.unwrap();
        assert!(line.contains(&format!("| {description} |")), "{line}");
        let group = format!("{:?}", manifest.group).to_lowercase();
        assert!(line.contains(&format!("| `{group}` |")), "{line}");
        assert!(
            readme.contains(&format!("](plugins/{language}/{name}/README.md)")),
            "the README has no link to {language}/{name}"
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
    for language in COMPILED {
        for lua in plugins_in("lua") {
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
    for folder in everything() {
        let schema = schema(&folder);
        assert_eq!(
            schema.get("$schema").and_then(Value::as_str),
            Some("https://json-schema.org/draft/2020-12/schema")
        );
        check_schema(&folder.display().to_string(), &schema);
    }
}

/// The keys of the first level of a schema are all in the README's table.
#[test]
fn every_key_is_in_the_readme() {
    for folder in everything() {
        let schema = schema(&folder);
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
