//! `outrider plugin test --envoy`: the same cases without Envoy and on the real one, and what each of them
//! says.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::fs;

use outrider_e2e::{outrider, root};
use serde_json::Value;

/// Cases of the plugin that `plugin new` makes, beside its own: right ones, wrong ones, and such as
/// Envoy cannot show.
const CASES: &str = r"
- name: what is true in both
  config: {header: x-a, value: b}
  expect: {response: {headers: {x-a: b}}}
- name: what is wrong in both
  config: {header: x-a, value: b}
  expect: {response: {headers: {x-a: c}}}
- name: only Envoy dates its responses
  config: {header: x-a, value: b}
  expect: {response: {headers: {date: null}}}
- name: an hour later
  config: {header: x-a, value: b}
  steps:
    - expect: {response: {status: 200}}
    - after_ms: 3600000
      expect: {response: {status: 200}}
- name: a configuration that is refused
  config: {value: 7}
  refused: /value
- name: a configuration that is not refused
  config: {value: fine}
  refused: /value
- name: a configuration that should be accepted
  config: {value: 7}
  expect: {response: {status: 200}}
";

const MAIN: &str = r#"
local handler = { version = "v2" }
function handler:on_response_header()
  local config = envoy.config()
  envoy.resp.set_header(config.header or "x-plugin", config.value or "here")
end
return handler
"#;

const SCHEMA: &str = r#"{"type": "object", "properties": {"header": {"type": "string"}, "value": {"type": "string"}}}"#;

fn plugin(folder: &std::path::Path) {
    let own = folder.join("marker");
    fs::create_dir_all(own.join("cases")).unwrap();
    fs::write(own.join("plugin.yaml"), "name: marker\nruntime: lua\n").unwrap();
    fs::write(own.join("main.lua"), MAIN).unwrap();
    fs::write(own.join("config.schema.json"), SCHEMA).unwrap();
    fs::write(own.join("cases/all.yaml"), CASES).unwrap();
}

#[test]
fn each_case_says_what_came_of_it_in_both() {
    let folder = tempfile::tempdir().unwrap();
    plugin(folder.path());
    let run = outrider(folder.path(), &["plugin", "test", "--envoy", "--json"], &[]).unwrap();
    assert_eq!(run.code, 1, "{run}");
    let told: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(told["ok"], false);
    let came: Vec<String> = told["plugins"][0]["cases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|case| {
            let whats = |list: &Value| -> Vec<String> {
                list.as_array()
                    .into_iter()
                    .flatten()
                    .map(|difference| difference["what"].as_str().unwrap().to_owned())
                    .collect()
            };
            format!(
                "{}: {:?}, {:?}, {}",
                case["name"].as_str().unwrap(),
                whats(&case["differences"]),
                whats(&case["envoy"]["differences"]),
                case["envoy"]["reason"].as_str().unwrap_or("replayed"),
            )
        })
        .collect();
    assert_eq!(
        came,
        [
            r"what is true in both: [], [], replayed",
            r#"what is wrong in both: ["response header `x-a`"], ["response header `x-a`"], replayed"#,
            r#"only Envoy dates its responses: [], ["response header `date`"], replayed"#,
            r"an hour later: [], [], it takes 3600000 ms, which only a clock that is put forward can wait for",
            r"a configuration that is refused: [], [], replayed",
            r#"a configuration that is not refused: ["the configuration"], [], its configuration is not as the case says, so it is not tried on Envoy"#,
            r#"a configuration that should be accepted: ["the configuration"], [], its configuration is not as the case says, so it is not tried on Envoy"#,
        ],
        "{run}"
    );
}

#[test]
fn people_are_told_where_a_difference_came_and_what_was_not_replayed() {
    let folder = tempfile::tempdir().unwrap();
    plugin(folder.path());
    let run = outrider(folder.path(), &["plugin", "test", "marker", "--envoy"], &[]).unwrap();
    assert_eq!(run.code, 1, "{run}");
    for part in [
        "wrong marker: 4 of 7 cases\n",
        "    without Envoy: response header `x-a`\n      expected: \"c\"\n      got:      \"b\"\n    on Envoy: response header `x-a`\n",
        "    on Envoy: response header `date`\n      expected: nothing\n",
        "not replayed: marker/cases/all.yaml:11: an hour later: it takes 3600000 ms",
        "7 cases of 1 plugin, 4 of them on Envoy, too: 4 wrong",
    ] {
        assert!(run.stdout.contains(part), "{part}\n{run}");
    }
}

#[test]
fn a_new_plugin_does_what_its_cases_say_on_envoy() {
    let folder = tempfile::tempdir().unwrap();
    let made = outrider(folder.path(), &["plugin", "new", "lua", "hello"], &[]).unwrap();
    assert_eq!(made.code, 0, "{made}");
    let run = outrider(folder.path(), &["plugin", "test", "hello", "--envoy"], &[]).unwrap();
    assert_eq!(run.code, 0, "{run}");
    assert!(
        run.stdout.contains("on Envoy, too: all as they should be"),
        "{run}"
    );
}

/// Those in other languages: `make test-plugins`.
#[test]
fn the_plugins_in_rust_do_what_their_cases_say_in_both() {
    let folder = root().join("plugins/rust");
    let run = outrider(&folder, &["plugin", "test", ".", "--envoy", "--json"], &[]).unwrap();
    assert_eq!(run.code, 0, "are they built (make plugins-rust)? {run}");
    let told: Value = serde_json::from_str(&run.stdout).unwrap();
    let plugins = told["plugins"].as_array().unwrap();
    let cases = plugins
        .iter()
        .flat_map(|plugin| plugin["cases"].as_array().unwrap());
    let (mut all, mut replayed) = (0, 0);
    for case in cases {
        all += 1;
        replayed += usize::from(case["envoy"]["reason"].is_null());
    }
    assert_eq!(plugins.len(), 3, "{run}");
    assert!(all >= 50 && replayed == all, "{all}, {replayed}: {run}");
}

#[test]
fn without_an_envoy_the_command_says_so() {
    let folder = tempfile::tempdir().unwrap();
    plugin(folder.path());
    let run = outrider(
        folder.path(),
        &["plugin", "test", "marker", "--envoy"],
        &[("OUTRIDER_ENVOY", "nowhere/envoy")],
    )
    .unwrap();
    assert_eq!(run.code, 3, "{run}");
    assert!(
        run.stderr.contains("the cases cannot be replayed on Envoy"),
        "{run}"
    );
    assert!(run.stderr.contains("nowhere/envoy"), "{run}");
}
