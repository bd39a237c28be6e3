//! What `outrider check` says of broken files: every problem at once, each with its place and its mend.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::fs;

use outrider_e2e::{outrider, root};
use serde_json::Value;
use tempfile::TempDir;

/// A file of many faults: one of each kind of the table in the issue, and some of plugins.
const BROKEN: &str = "gateway:
  listeners:
    - address: 127.0.0.1:0
      adress: 127.0.0.1:1
  use:
    - plugin: headers
      config: {request: {set: {x-a: 1}}}
    - {plugin: ua-restriction, config: {}}
    - nobody
  body_limit: large
plugins:
  headers: {source: PLUGINS/headers}
  ua-restriction: {source: PLUGINS/ua-restriction}
  gone: {source: ./gone}
  broken: {source: broken.lua}
  refusing: {source: refusing.lua}
projects:
  - name: shop
    hosts: [shop.example.com, shop.example.com]
    use: [broken, refusing]
    routes:
      - {match: {prefix: /a}, to: echoo}
      - {match: {prefix: /a/b}, to: echo}
      - {match: {prefx: /c}, to: echo}
      - {match: {regex: '(['}, to: echo}
      - {match: {path: /d}, to: echo, respond: {status: 200}}
      - {match: {path: /e}, to: echo, timeout: fast}
  - name: shop
    hosts: [other.example.com]
    routes: [{match: {prefix: /}, to: [{upstream: echo, weight: -1}]}]
upstreams:
  echo:
    endpoints: [127.0.0.1:99999]
    load_balancing: round-robin
";

fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    let plugins = root().join("plugins/lua").display().to_string();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("outrider.yaml", &BROKEN.replace("PLUGINS", &plugins));
    write(
        "broken.lua",
        "local handler = {}\nfunction handler:on_request_header(\nreturn handler\n",
    );
    write(
        "refusing.lua",
        "local handler = {}\nfunction handler:on_configure(config)\n  error('no key')\nend\n\
         function handler:on_request_header() end\nreturn handler\n",
    );
    write(
        "duplicate.yaml",
        "gateway:\n  listeners: []\n  listeners: []\n",
    );
    write("syntax.yaml", "gateway:\n  listeners: [\n");
    folder
}

#[test]
fn every_problem_at_once_with_place_and_mend() {
    let folder = folder();
    let run = outrider(folder.path(), &["check", "outrider.yaml"], &[]).unwrap();
    assert_eq!(run.code, 1, "{run}");
    let told = run
        .stdout
        .replace(&folder.path().display().to_string(), "[folder]")
        .replace(&root().display().to_string(), "[root]");
    insta::assert_snapshot!("check", told);

    let run = outrider(folder.path(), &["check", "outrider.yaml", "--json"], &[]).unwrap();
    assert_eq!(run.code, 1, "{run}");
    let told: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(told["ok"], false);
    let problems = told["problems"].as_array().unwrap();
    let line_of = |text: &str| BROKEN.lines().position(|line| line.contains(text)).unwrap() + 1;
    for (text, says) in [
        ("adress:", "adress"),
        ("x-a: 1", "x-a"),
        ("ua-restriction, config", "ua-restriction"),
        ("- nobody", "nobody"),
        ("body_limit", "large"),
        ("./gone", "gone"),
        ("hosts: [shop", "shop.example.com"),
        ("echoo", "echoo"),
        ("/a/b", ""),
        ("prefx", "prefx"),
        ("(['", ""),
        ("respond: {status", ""),
        ("timeout: fast", "fast"),
        ("weight: -1", ""),
        ("99999", "99999"),
        ("round-robin", "round"),
    ] {
        let found = problems.iter().any(|problem| {
            problem["file"] == "outrider.yaml"
                && problem["line"] == line_of(text)
                && problem["message"].as_str().unwrap().contains(says)
        });
        assert!(
            found,
            "no problem at {text:?} with {says:?}: {}",
            run.stdout
        );
    }
    for (file, line) in [("broken.lua", 3), ("refusing.lua", 3)] {
        let found = problems.iter().any(|problem| {
            let place =
                problem["file"].as_str().unwrap().ends_with(file) && problem["line"] == line;
            place
                || problem["message"]
                    .as_str()
                    .unwrap()
                    .contains(&format!("{file}:{line}"))
        });
        assert!(found, "no problem of {file}:{line}: {}", run.stdout);
    }
    // What is expected instead, or what a plugin says of its own, is how to mend it.
    let says_how = |problem: &Value| {
        let message = problem["message"].as_str().unwrap();
        problem["mend"].is_string()
            || message.starts_with("expected ")
            || message.starts_with("plugin `")
            || problem["file"] != "outrider.yaml"
    };
    let silent: Vec<&Value> = problems
        .iter()
        .filter(|problem| !says_how(problem))
        .collect();
    assert!(silent.is_empty(), "{silent:#?}");
}

#[test]
fn yaml_that_is_broken_or_has_duplicate_keys() {
    let folder = folder();
    for (file, place, says) in [
        ("syntax.yaml", "syntax.yaml:", ""),
        ("duplicate.yaml", "duplicate.yaml:3:3", "listeners"),
        ("missing.yaml", "missing.yaml", "no such file"),
    ] {
        let run = outrider(folder.path(), &["check", file], &[]).unwrap();
        assert_eq!(run.code, 1, "{run}");
        assert!(
            run.stdout.contains(place) && run.stdout.contains(says),
            "{run}"
        );
    }
}
