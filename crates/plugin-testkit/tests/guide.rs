//! The plugin guide's plugins: they are written to disk as the page has them, and do what its cases
//! say.
//!
//! A fenced block of Lua, JSON or YAML follows a comment that says what it is: `<!-- file: PATH -->`,
//! or `<!-- gateway -->` for an excerpt of `outrider.yaml`. Files that the page does not show stand in
//! `<!-- hidden file: PATH` comments.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use outrider_plugin_formats::{BudgetsForm, FailurePolicy};
use outrider_plugin_testkit::{CaseKind, LoadedPlugin, MetricTable, load_cases, run_case};
use outrider_yaml::Document;
use serde_json::{Value, json};

const GUIDE: &str = "docs/plugin-guide.md";

#[derive(Debug, Default)]
struct Guide {
    files: BTreeMap<String, String>,
    gateways: Vec<String>,
    texts: Vec<String>,
}

/// The lines up to one that is `end`.
fn until<'a>(lines: &mut impl Iterator<Item = &'a str>, end: &str) -> String {
    let mut text = String::new();
    for line in lines {
        if line == end {
            return text;
        }
        text.push_str(line);
        text.push('\n');
    }
    panic!("{GUIDE}: {end} is missing at the end of a block");
}

fn guide() -> Guide {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(GUIDE);
    let page = fs::read_to_string(path).unwrap();
    let mut guide = Guide::default();
    let mut lines = page.lines();
    let mut mark: Option<&str> = None;
    while let Some(line) = lines.next() {
        if let Some(path) = line.strip_prefix("<!-- hidden file: ") {
            let text = until(&mut lines, "-->");
            assert!(
                guide.files.insert(path.to_owned(), text).is_none(),
                "{path}"
            );
        } else if let Some(comment) = line.strip_prefix("<!-- ") {
            mark = Some(comment.strip_suffix(" -->").unwrap());
        } else if let Some(language) = line.strip_prefix("```") {
            let text = until(&mut lines, "```");
            match (language, mark.take()) {
                ("sh", None) => {}
                ("text", None) => guide.texts.push(text),
                ("yaml", Some("gateway")) => guide.gateways.push(text),
                ("lua" | "json" | "yaml", Some(mark)) => {
                    let path = mark.strip_prefix("file: ").unwrap();
                    assert!(
                        guide.files.insert(path.to_owned(), text).is_none(),
                        "{path}"
                    );
                }
                (language, mark) => {
                    panic!("{GUIDE}: a block of {language:?} with {mark:?}\n{text}")
                }
            }
        } else if !line.is_empty() {
            assert_eq!(
                mark, None,
                "{GUIDE}: no block follows the comment before {line:?}"
            );
        }
    }
    guide
}

fn told<T: ToString>(problems: &[T]) -> String {
    problems
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

fn write(guide: &Guide, folder: &Path) -> BTreeSet<String> {
    let mut plugins = BTreeSet::new();
    for (path, text) in &guide.files {
        let file = folder.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
        plugins.insert(path.split('/').next().unwrap().to_owned());
    }
    assert!(plugins.contains("maintenance"));
    plugins
}

fn load(folder: &Path) -> LoadedPlugin {
    let package = outrider_plugin_store::open(folder)
        .unwrap_or_else(|problems| panic!("{}", told(&problems)));
    LoadedPlugin::from_package(&package).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_plugin_of_the_guide_does_what_its_cases_say() {
    let guide = guide();
    let folder = tempfile::tempdir().unwrap();
    for name in write(&guide, folder.path()) {
        let plugin = load(&folder.path().join(&name));
        let cases = load_cases(&folder.path().join(&name).join("cases"))
            .unwrap_or_else(|problems| panic!("{}", told(&problems)));
        for case in &cases {
            let result = run_case(&plugin, case);
            assert!(result.is_right(), "{result}");
        }
        // What a plugin says when it fails is what the page shows.
        for case in cases {
            let CaseKind::Steps(steps) = case.kind else {
                continue;
            };
            for fault in steps.iter().filter_map(|step| step.expect.fault.as_ref()) {
                let message = fault.split_once(": ").unwrap().1;
                assert!(
                    guide.texts.iter().any(|text| text.contains(message)),
                    "{GUIDE} does not show {message:?}"
                );
            }
        }
    }
}

/// Every list of uses in an excerpt of `outrider.yaml`.
fn uses(value: &Value, found: &mut Vec<Value>) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                if key == "use" {
                    found.extend(member.as_array().unwrap().iter().cloned());
                } else {
                    uses(member, found);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| uses(item, found)),
        _ => {}
    }
}

#[test]
fn every_use_in_the_guide_is_accepted() {
    let guide = guide();
    let folder = tempfile::tempdir().unwrap();
    let plugins = write(&guide, folder.path());
    assert!(!guide.gateways.is_empty());
    for text in &guide.gateways {
        let document = Document::parse(GUIDE, text)
            .unwrap_or_else(|problems| panic!("{}\n{text}", told(&problems)))
            .root
            .to_json();
        for (name, plugin) in document["plugins"].as_object().into_iter().flatten() {
            assert!(plugins.contains(name), "{name}");
            assert!(plugins.contains(plugin["source"].as_str().unwrap()));
            if let Some(policy) = plugin.get("failure_policy") {
                serde_json::from_value::<FailurePolicy>(policy.clone()).unwrap();
            }
            if let Some(budgets) = plugin.get("budgets") {
                serde_json::from_value::<BudgetsForm>(budgets.clone()).unwrap();
            }
        }
        let mut found = Vec::new();
        uses(&document, &mut found);
        for used in found {
            let name = used["plugin"].as_str().unwrap();
            let config = used.get("config").cloned().unwrap_or_else(|| json!({}));
            let plugin = load(&folder.path().join(name));
            if let Err(error) = plugin.chain(&config, None, &mut MetricTable::new()) {
                panic!("{error}\n{text}");
            }
        }
    }
}
