use std::fs;

use super::*;
use crate::loader::compile_file;

pub(crate) const PLUGIN: &str = "return { version = 'v2', on_log = function() end }\n";

pub(crate) const BASE: &str = r#"
gateway:
  listeners: [{name: main, address: "127.0.0.1:10000"}]
  use: [{plugin: headers, config: {a: 1}}]
plugins:
  headers: {source: headers.lua}
  other: {source: other.lua}
projects:
  - name: shop
    hosts: [shop.example]
    use: [other]
    routes:
      - {name: cart, match: {path: /cart}, to: one}
      - {name: rest, match: {prefix: /}, to: one}
upstreams:
  one: {endpoints: ["127.0.0.1:1"]}
"#;

pub(crate) fn plan(text: &str, headers: &str) -> Plan {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.yaml");
    fs::write(&file, text).unwrap();
    fs::write(folder.path().join("headers.lua"), headers).unwrap();
    fs::write(folder.path().join("other.lua"), PLUGIN).unwrap();
    let compiled = compile_file(&file);
    assert_eq!(compiled.problems, []);
    compiled.plan.unwrap()
}

#[test]
fn nothing_but_comments() {
    let old = plan(BASE, PLUGIN);
    let new = plan(&format!("# hello\n{BASE}"), PLUGIN);
    assert_eq!(summary(&old, &new), [] as [&str; 0]);
}

#[test]
fn one_thing_at_a_time() {
    let old = plan(BASE, PLUGIN);
    let of = |from: &str, to: &str| {
        assert!(BASE.contains(from), "{from}");
        summary(&old, &plan(&BASE.replace(from, to), PLUGIN)).join("; ")
    };
    insta::assert_snapshot!(
        [
            of("127.0.0.1:10000", "127.0.0.1:10001"),
            of("{a: 1}", "{a: 2}"),
            of("{source: other.lua}", "{source: other.lua, priority: 3}"),
            of("{source: other.lua}", "{source: headers.lua}"),
            of("use: [other]", "use: []"),
            of("[shop.example]", "[shop.example, www.example]"),
            of("{path: /cart}", "{path: /basket}"),
            of("name: cart", "name: basket"),
            of("\"127.0.0.1:1\"", "\"127.0.0.1:2\""),
            of("  one:", "  two: {endpoints: [\"127.0.0.1:2\"]}\n  one:"),
            of("  use: [{", "  body_limit: 2MiB\n  use: [{"),
        ]
        .join("\n")
    );
    let lines = summary(
        &old,
        &plan(
            BASE,
            "return { version = 'v2', on_request_header = function() end }\n",
        ),
    );
    assert_eq!(lines, ["plugin headers e8285d → e79660"]);
}

#[test]
fn what_waits_for_a_restart() {
    let old = plan(BASE, PLUGIN);
    let text = BASE.replace(
        "gateway:",
        "gateway:\n  workers: 3\n  admin: 127.0.0.1:9901",
    );
    let new = plan(&text, PLUGIN);
    assert_eq!(
        RestartOnly::of(&old).needs_restart(&old, &new),
        ["gateway.admin", "gateway.workers"]
    );
    let back = RestartOnly::of(&old).needs_restart(&new, &old);
    assert_eq!(back, [] as [&str; 0]);
    assert_eq!(summary(&old, &new), [] as [&str; 0]);
}
