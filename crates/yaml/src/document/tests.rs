use std::collections::BTreeMap;
use std::fmt::Write as _;

use outrider_plugin_formats::{Manifest, Problem};
use proptest::prelude::*;
use serde::Deserialize;

use crate::{Document, Entries, Field, Located, Location, Node, Shape, Value};

fn lines(problems: &[Problem]) -> String {
    problems.iter().fold(String::new(), |mut text, problem| {
        writeln!(text, "{problem}").unwrap();
        text
    })
}

fn broken(text: &str) -> String {
    lines(&Document::parse("a.yaml", text).unwrap_err())
}

fn unreadable<T: serde::de::DeserializeOwned + std::fmt::Debug>(text: &str) -> String {
    let document = Document::parse("a.yaml", text).unwrap();
    lines(&document.read::<T>().unwrap_err())
}

#[test]
fn values_know_their_places() {
    let text = "\
a: 1
b:
  - x
  - {c: [true, ~]}
d: |
  text
  more
e: >-
  folded
  text
'f': \"q\"
g:
";
    let document = Document::parse("a.yaml", text).unwrap();
    let at = |pointer: &str| document.root.locate_pointer(pointer).to_string();
    assert_eq!(at("/a"), "1:4");
    assert_eq!(at("/b"), "3:3");
    assert_eq!(at("/b/1"), "4:5");
    assert_eq!(at("/b/1/c/0"), "4:10");
    assert_eq!(at("/b/1/c/1"), "4:16");
    assert_eq!(at("/b/1/c/7"), "4:9", "the last node that is there");
    assert_eq!(at("/d"), "6:3", "a block begins where its text does");
    assert_eq!(at("/e"), "9:3");
    assert_eq!(at("/f"), "11:6");
    let keys: Vec<String> = document
        .root
        .as_mapping()
        .unwrap()
        .entries()
        .iter()
        .map(|entry| format!("{} {}", entry.key, entry.key_location))
        .collect();
    assert_eq!(
        keys,
        ["a 1:1", "b 2:1", "d 5:1", "e 8:1", "f 11:1", "g 12:1"]
    );
    assert_eq!(
        document.root.to_json(),
        serde_json::json!({
            "a": 1, "b": ["x", {"c": [true, null]}], "d": "text\nmore\n", "e": "folded text",
            "f": "q", "g": null,
        })
    );
}

#[test]
fn an_empty_file_is_null() {
    for text in ["", "# only a comment\n", "---\n"] {
        let document = Document::parse("a.yaml", text).unwrap();
        assert_eq!(document.root.value, Value::Null, "{text:?}");
    }
}

#[test]
fn an_alias_repeats_a_value_with_its_own_place() {
    let document = Document::parse("a.yaml", "a: &x {k: 1}\nb: *x\n").unwrap();
    assert_eq!(
        document.root.to_json(),
        serde_json::json!({"a": {"k": 1}, "b": {"k": 1}})
    );
    assert_eq!(document.root.locate_pointer("/b/k").line, 1);
}

#[test]
fn broken_texts() {
    let cases = [
        "a: b: c",
        "a:\n\tb: 1",
        "a: 1\n  b: 2",
        "a: [1, 2",
        "a: {b: 1",
        "a: \"x",
        "a: ]",
        "a: *x",
        "a: &x [*x]",
        "a: @x",
        "a: \"\\q\"",
        "a: \"b\" c",
        "- 1\nb: 2",
        "a:\n- 1\n2",
        "a: 1\na: 2\nb: {c: 1, c: 2, c: 3}",
        "a: &x {k: 1}\nb:\n  <<: *x",
        "a: {{ x }}",
        "? [1]\n: 2",
        "a: 1\n---\nb: 2",
        "a: !secret x",
        "a: !!int x",
        "a: .inf\nb: 1e999\nc: 99999999999999999999",
        "a:\n  b: 1\n c: 2",
    ];
    let text = cases.iter().fold(String::new(), |mut text, case| {
        writeln!(text, "{case}\n>>> {}", broken(case).replace('\n', "\n>>> ")).unwrap();
        text
    });
    insta::assert_snapshot!(text.replace(">>> \n", "\n"));
}

#[test]
fn too_deep_and_too_many() {
    assert!(broken(&"[".repeat(5000)).contains("nested"));
    assert!(broken(&format!("{}1", "- ".repeat(5000))).contains("nested"));
    let mut bomb = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n".to_owned();
    for level in 1..12 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        writeln!(bomb, "a{level}: &a{level} [{aliases}]").unwrap();
    }
    assert!(broken(&bomb).contains("aliases"));
}

#[test]
fn a_manifest_tells_all_that_is_wrong() {
    let text = "\
name: basic-auth
runtime: luaa
prioritty: 3
versoin: 1
";
    insta::assert_snapshot!(unreadable::<Manifest>(text));
    insta::assert_snapshot!(unreadable::<Manifest>("name: 5\nruntime: lua\n"));
    insta::assert_snapshot!(unreadable::<Manifest>(
        "runtime: lua\nbudgets: {time: 3, memory_mib: -1}\n"
    ));
    insta::assert_snapshot!(unreadable::<Manifest>(
        "name: a\nruntime: lua\nfailure_policy: {causes: {eror: open}}\n"
    ));
    insta::assert_snapshot!(unreadable::<Manifest>("- name: a\n"));
    insta::assert_snapshot!(unreadable::<Manifest>(""));
}

#[test]
fn a_manifest_is_read() {
    let text =
        "name: a\nruntime: lua\nbody: {request: stream}\npriority: -3\nbudgets: {time_ms: 5}\n";
    let manifest: Manifest = Document::parse("plugin.yaml", text)
        .unwrap()
        .read()
        .unwrap();
    assert_eq!(manifest.priority, -3);
    assert_eq!(manifest.budgets.unwrap().time_ms, Some(5));
    assert_eq!(
        manifest.body.request(),
        outrider_plugin_formats::BodyMode::Stream
    );
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    #[serde(default)]
    names: Field<Vec<Field<String>>>,
    #[serde(default)]
    items: Entries<Field<Item>>,
    #[serde(default)]
    any: Field<Node>,
    #[serde(default)]
    either: Vec<Field<Shape<String, Item>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Item {
    #[serde(default)]
    size: Field<u16>,
    #[serde(default)]
    on: Field<bool>,
}

#[test]
fn fields_survive_faults_around_them() {
    let text = "\
names: [a, 1, b]
items:
  one: {size: 70000, on: yes, of: 1}
  two: {size: 3, on: true}
  three: []
either:
  - word
  - {sise: 1}
  - 4
";
    let document = Document::parse("a.yaml", text).unwrap();
    let (model, problems) = document.read_what_can_be::<Model>();
    insta::assert_snapshot!(lines(&problems));
    let model = model.unwrap();
    let names: Vec<Option<&str>> = model
        .names
        .value()
        .unwrap()
        .iter()
        .map(|name| name.value().map(String::as_str))
        .collect();
    assert_eq!(names, [Some("a"), None, Some("b")]);
    assert_eq!(
        model.names.location(),
        Some(Location { line: 1, column: 8 })
    );
    let (key, item) = &model.items.0[1];
    assert_eq!(
        key,
        &Located {
            location: Location { line: 4, column: 3 },
            value: "two".to_owned()
        }
    );
    let item = item.value().unwrap();
    assert_eq!(
        (item.size.value(), item.on.value()),
        (Some(&3), Some(&true))
    );
    assert!(model.any.is_missing());
    assert!(matches!(
        model.either[0].value(),
        Some(Shape::Text(word)) if word == "word"
    ));
}

#[test]
fn a_tree_in_a_model_keeps_its_places() {
    let text = "any:\n  a: [1, {b: -2.5}]\n  c: ~\n";
    let document = Document::parse("a.yaml", text).unwrap();
    let model: Model = document.read().unwrap();
    assert_eq!(
        model.any.value().unwrap(),
        document.root.as_mapping().unwrap().get("any").unwrap()
    );
}

/// JSON is YAML: whatever is written as JSON reads back as the same value.
fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<u64>().prop_map(Into::into),
        (-1e9f64..1e9).prop_map(Into::into),
        "[ -~\u{a0}-\u{d7ff}]{0,12}".prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
            prop::collection::btree_map("[a-z<~]{1,6}", inner, 0..6)
                .prop_map(|map: BTreeMap<String, serde_json::Value>| map.into_iter().collect()),
        ]
    })
}

proptest! {
    #[test]
    fn json_reads_back(value in json()) {
        let text = serde_json::to_string_pretty(&value).unwrap();
        let document = Document::parse("a.yaml", &text).map_err(|problems| {
            TestCaseError::fail(format!("{text}\n{}", lines(&problems)))
        })?;
        prop_assert_eq!(document.root.to_json(), value);
    }

    #[test]
    fn no_text_panics(text in "[ -~\n\t]{0,60}") {
        let _ = Document::parse("a.yaml", &text).map(|document| document.read::<Manifest>());
    }
}

#[test]
fn places_are_those_of_values_by_their_keys() {
    let text = "name: a\nbudgets:\n  time_ms: 5\nlist: [{key: 1}]\n";
    let places = Document::parse("a.yaml", text).unwrap().places();
    assert_eq!(places.file, "a.yaml");
    assert_eq!(places.of("budgets.time_ms"), (3, 12));
    assert_eq!(places.of("budgets.share"), places.of("budgets"));
    assert_eq!(places.of("circuit.failures"), (0, 0));
    assert!(places.has("list") && !places.has("list.key"));
}

#[test]
fn columns_count_characters_after_tabs_too() {
    #[derive(Debug, Deserialize)]
    struct Numbers {
        #[expect(dead_code, reason = "only its place is tested")]
        a: u32,
    }
    let problems = Document::parse("a.yaml", "{a:\t\t\"é\"}\n")
        .unwrap()
        .read::<Numbers>()
        .unwrap_err();
    assert_eq!((problems[0].line, problems[0].column), (1, 6));
    let problems = Document::parse("a.yaml", "b: 1\nx: [1,\t\t{a: b: c}]\n").unwrap_err();
    assert_eq!(problems[0].line, 2, "{problems:?}");
}

#[test]
fn documents_of_one_text_and_the_lines_of_their_faults() {
    let text = "# none\n---\na: 1\n---\n# a comment\n--- \nb: |\n  text\n  --- no end\n";
    let documents = Document::parse_all("a.yaml", text).unwrap();
    let read: Vec<String> = documents
        .iter()
        .map(|document| document.root.to_json().to_string())
        .collect();
    assert_eq!(read, ["{\"a\":1}", "{\"b\":\"text\\n--- no end\\n\"}"]);
    assert_eq!(Document::parse_all("a.yaml", "").unwrap(), []);

    let wrong = "a: 1\n---\nb: 1\nb: 2\n---\nc: [\n";
    let problems = Document::parse_all("a.yaml", wrong).unwrap_err();
    let lines: Vec<usize> = problems.iter().map(|problem| problem.line).collect();
    assert_eq!(lines, [4, 7], "{problems:?}");
}
