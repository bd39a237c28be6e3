//! Plugins and configurations that do not load: refused with file and line, by the command and, where
//! somebody else hands Envoy its configuration, by the module; the last good generation serves on.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use outrider_e2e::{Gateway, GatewayOptions, Verdict, inline_lua, outrider};
use outrider_lab::client::{Connection, Request};
use outrider_lab::echo::Echo;
use serde_json::{Value, json};
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(10);

const GATEWAY: &str = "
gateway:
  listeners: [{name: main, address: '{listen}'}]
  admin: '{admin}'
  workers: 2
  use: [{plugin: season, config: {name: winter}}]
plugins:
  season: {source: season}
projects:
  - name: shop
    hosts: ['*']
    routes:
      - {match: {prefix: /route}, to: echo, use: [{plugin: season, config: {name: route}}]}
      - {match: {prefix: /}, to: echo}
upstreams:
  echo: {endpoints: ['ECHO']}
";

const SEASON: &str = "-- Says which season it is.
local handler = { version = 'v2' }

function handler:on_configure(config)
  if config.name == 'monsoon' then
    error('there is no monsoon here')
  end
end

function handler:on_response_header()
  envoy.resp.set_header('x-season', envoy.config().name)
end

return handler
";

const SCHEMA: &str =
    r#"{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}"#;

/// A fault of the plugin's code: what to replace, by what, and what the refusal has to say.
struct CodeFault {
    what: &'static str,
    from: &'static str,
    to: &'static str,
    says: &'static [&'static str],
}

const CODE_FAULTS: &[CodeFault] = &[
    CodeFault {
        what: "a syntax error",
        from: "function handler:on_response_header()",
        to: "function handler:on_response_header(",
        says: &["main.lua:11", "expected near"],
    },
    CodeFault {
        what: "a missing module",
        from: "function handler:on_configure",
        to: "local seasons = require('seasons')\nfunction handler:on_configure",
        says: &["main.lua:4", "module seasons not found"],
    },
    CodeFault {
        what: "an error while it loads",
        from: "function handler:on_configure",
        to: "local nothing\nlocal length = #nothing\nfunction handler:on_configure",
        says: &["main.lua:5", "nothing"],
    },
    CodeFault {
        what: "a misspelt handler",
        from: "handler:on_response_header",
        to: "handler:on_response_headers",
        says: &["main.lua:10", "on_response_headers", "on_response_header,"],
    },
    CodeFault {
        what: "an endless loop while it loads",
        from: "function handler:on_configure",
        to: "while true do end\nfunction handler:on_configure",
        says: &["main.lua:4"],
    },
    CodeFault {
        what: "no table of handlers",
        from: "return handler",
        to: "",
        says: &["main.lua", "must return its table of handlers"],
    },
];

/// A fault of a configuration.
const CONFIG_FAULTS: &[(&str, &str, &[&str])] = &[
    ("what the schema refuses", "name: 7", &["season", "name"]),
    (
        "what on_configure refuses",
        "name: monsoon",
        &["main.lua:6", "there is no monsoon here"],
    ),
];

async fn start() -> (Echo, Gateway, String) {
    let echo = Echo::start("echo").await.unwrap();
    let yaml = GATEWAY.replace("ECHO", &echo.address().to_string());
    let files = [
        ("season/plugin.yaml", "name: season\nruntime: lua\n"),
        ("season/config.schema.json", SCHEMA),
        ("season/main.lua", SEASON),
    ];
    let gateway = Gateway::start_with(&yaml, &files, GatewayOptions::default()).unwrap();
    (echo, gateway, yaml)
}

async fn season(connection: &mut Connection, path: &str) -> String {
    let response = connection.send(Request::get(path)).await.unwrap();
    assert_eq!(response.status, 200);
    response
        .headers
        .get("x-season")
        .unwrap_or_default()
        .to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_refuses_a_change_and_what_worked_goes_on() {
    let (echo, gateway, yaml) = start().await;
    let mut connection = Connection::open(&gateway.http1()).await.unwrap();
    for fault in CODE_FAULTS {
        let mark = gateway.output.mark();
        let code = SEASON.replace(fault.from, fault.to);
        assert_ne!(code, SEASON, "{}", fault.what);
        gateway.save_file("season/main.lua", &code).unwrap();
        let refused = gateway
            .output
            .wait_after(mark, "not applied; what worked goes on", SOON);
        refused.unwrap_or_else(|error| panic!("{}: {error}", fault.what));
        let told = gateway.output.lines().split_off(mark).join("\n");
        for part in fault.says {
            assert!(told.contains(part), "{}: no {part:?} in {told}", fault.what);
        }
        assert_eq!(
            season(&mut connection, "/status/200").await,
            "winter",
            "{}",
            fault.what
        );
        let mark = gateway.output.mark();
        gateway.save_file("season/main.lua", SEASON).unwrap();
        gateway
            .output
            .wait_after(mark, "the file is again as what is served", SOON)
            .unwrap();
    }
    for (what, config, says) in CONFIG_FAULTS {
        for (from, line) in [("name: winter", 6), ("name: route", 13)] {
            let mark = gateway.output.mark();
            gateway.save(&yaml.replace(from, config)).unwrap();
            let refused = gateway
                .output
                .wait_after(mark, "not applied; what worked goes on", SOON);
            refused.unwrap_or_else(|error| panic!("{what}: {error}"));
            let told = gateway.output.lines().split_off(mark).join("\n");
            for part in says
                .iter()
                .copied()
                .chain([format!("outrider.yaml:{line}:").as_str()])
            {
                assert!(told.contains(part), "{what}: no {part:?} in {told}");
            }
            assert_eq!(
                season(&mut connection, "/status/200").await,
                "winter",
                "{what}"
            );
            assert_eq!(season(&mut connection, "/route").await, "route", "{what}");
        }
    }
    gateway.save(&yaml).unwrap();
    gateway
        .update(&yaml.replace("name: winter", "name: summer"))
        .unwrap();
    assert_eq!(season(&mut connection, "/status/200").await, "summer");
    assert!(!connection.is_closed());
    // Nothing wrong ever got as far as Envoy.
    gateway.stop().unwrap();
    echo.stop().await;
}

#[test]
fn the_command_does_not_start_with_such_a_file() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    fs::create_dir(path.join("season")).unwrap();
    fs::write(
        path.join("season/plugin.yaml"),
        "name: season\nruntime: lua\n",
    )
    .unwrap();
    fs::write(path.join("season/config.schema.json"), SCHEMA).unwrap();
    let yaml = GATEWAY
        .replace("'{listen}'", "127.0.0.1:0")
        .replace("'{admin}'", "127.0.0.1:0")
        .replace("ECHO", "127.0.0.1:9");
    fs::write(path.join("outrider.yaml"), &yaml).unwrap();
    for fault in CODE_FAULTS {
        let code = SEASON.replace(fault.from, fault.to);
        fs::write(path.join("season/main.lua"), code).unwrap();
        for command in ["check", "up"] {
            let run = outrider(path, &[command, "outrider.yaml"], &[]).unwrap();
            assert_eq!(run.code, 1, "{command}, {}: {run}", fault.what);
            let told = format!("{}{}", run.stdout, run.stderr);
            for part in fault.says {
                assert!(
                    told.contains(part),
                    "{command}, {}: no {part:?} in {told}",
                    fault.what
                );
            }
        }
    }
    fs::write(path.join("season/main.lua"), SEASON).unwrap();
    for (what, config, says) in CONFIG_FAULTS {
        fs::write(
            path.join("outrider.yaml"),
            yaml.replace("name: winter", config),
        )
        .unwrap();
        let run = outrider(path, &["up", "outrider.yaml"], &[]).unwrap();
        assert_eq!(run.code, 1, "{what}: {run}");
        for part in says.iter().copied().chain(["outrider.yaml:6:"]) {
            assert!(run.stderr.contains(part), "{what}: no {part:?} in {run}");
        }
    }
}

/// The plugin in an ECDS document.
fn plugin(document: &mut Value) -> &mut Value {
    &mut document["resources"][0]["typed_config"]["filter_config"]["value"]["plugins"][0]
}

fn with_code(document: &Value, code: &str) -> Value {
    let mut document = document.clone();
    let (source, digest) = inline_lua(code);
    let plugin = plugin(&mut document);
    plugin["source"] = source;
    plugin["digest"] = digest.into();
    document
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_module_refuses_what_another_control_plane_hands_over() {
    let (echo, gateway, _) = start().await;
    let mut connection = Connection::open(&gateway.http2()).await.unwrap();
    let good = gateway.state("ecds.json").unwrap();

    let mut bad: Vec<(String, Value, Vec<&str>)> = Vec::new();
    for fault in CODE_FAULTS {
        let code = SEASON.replace(fault.from, fault.to);
        bad.push((
            fault.what.to_owned(),
            with_code(&good, &code),
            fault.says.to_vec(),
        ));
    }
    for (what, config, says) in CONFIG_FAULTS {
        let mut document = good.clone();
        let value = config.split(": ").nth(1).unwrap();
        plugin(&mut document)["config"]["name"] = value
            .parse::<i64>()
            .map_or_else(|_| value.into(), Value::from);
        bad.push(((*what).to_owned(), document, says.to_vec()));
    }
    let mut document = good.clone();
    plugin(&mut document)["digest"] = format!("sha256:{}", "0".repeat(64)).into();
    bad.push((
        "a wrong digest".to_owned(),
        document,
        vec!["season", "digest"],
    ));
    let mut document = good.clone();
    document["resources"][0]["typed_config"]["filter_config"]["value"]["format"] = 2.into();
    bad.push((
        "another format".to_owned(),
        document,
        vec!["format 2", "format 1"],
    ));
    let mut document = good.clone();
    plugin(&mut document)["colour"] = "red".into();
    bad.push(("an unknown key".to_owned(), document, vec!["colour"]));

    for (number, (what, document, says)) in bad.iter().enumerate() {
        let mark = gateway.output.mark();
        assert_eq!(
            gateway.hand_over("ecds.json", document).unwrap(),
            Verdict::Refused,
            "{what}"
        );
        // The module's reason comes before Envoy's own message, through a pipe.
        let line = gateway.output.wait_after(mark, "is refused", SOON);
        let line = line.unwrap_or_else(|error| panic!("{what}: {error}"));
        for part in says {
            assert!(line.contains(part), "{what}: no {part:?} in {line}");
        }
        assert!(number > 8 || line.contains("season"), "{what}: {line}");
        assert_eq!(
            season(&mut connection, "/status/200").await,
            "winter",
            "{what}"
        );
        assert_eq!(season(&mut connection, "/route").await, "route", "{what}");
    }
    let refused = gateway
        .admin
        .stats(
            r"^extension_config_discovery\.http_filter\.outrider\.(update_rejected|config_fail)$",
        )
        .unwrap();
    let most = refused.values().max().copied().unwrap_or_default();
    assert_eq!(most, bad.len() as u64, "{refused:?}");

    // After all that, a good one is taken.
    let mut better = good.clone();
    plugin(&mut better)["config"]["name"] = "spring".into();
    assert_eq!(
        gateway.hand_over("ecds.json", &better).unwrap(),
        Verdict::Taken
    );
    assert_eq!(season(&mut connection, "/status/200").await, "spring");
    assert!(!connection.is_closed());
    gateway.stop_after_refusals().unwrap();
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_module_refuses_a_routes_configuration_with_its_scope() {
    let (echo, gateway, _) = start().await;
    let mut connection = Connection::open(&gateway.http1()).await.unwrap();
    let good = gateway.state("rds.json").unwrap();
    let text = good.to_string();
    let route = "project shop, route route-0";
    for (what, document, says) in [
        (
            "on_configure",
            text.replace(r#""name":"route""#, r#""name":"monsoon""#),
            "there is no monsoon here",
        ),
        (
            "the schema",
            text.replace(r#"{"name":"route"}"#, r#"{"name":null}"#),
            "name",
        ),
    ] {
        assert_ne!(document, text, "{what}");
        let document: Value = serde_json::from_str(&document).unwrap();
        let mark = gateway.output.mark();
        assert_eq!(
            gateway.hand_over("rds.json", &document).unwrap(),
            Verdict::Refused,
            "{what}"
        );
        let line = gateway.output.wait_after(mark, "is refused", SOON).unwrap();
        assert!(
            line.contains(says) && line.contains(route),
            "{what}: {line}"
        );
        assert_eq!(season(&mut connection, "/route").await, "route", "{what}");
    }
    // A plugin that the gateway does not have.
    let mut document = good.clone();
    let mut found = 0;
    visit(&mut document, &mut |value| {
        if value.get("plugins").is_some() {
            value["plugins"] = json!([{ "name": "nobody", "enabled": true }]);
            found += 1;
        }
    });
    assert_eq!(found, 1);
    let mark = gateway.output.mark();
    assert_eq!(
        gateway.hand_over("rds.json", &document).unwrap(),
        Verdict::Refused
    );
    let line = gateway.output.wait_after(mark, "is refused", SOON).unwrap();
    assert!(line.contains("nobody") && line.contains(route), "{line}");
    assert_eq!(season(&mut connection, "/route").await, "route");
    assert_eq!(
        gateway.hand_over("rds.json", &good).unwrap(),
        Verdict::Taken
    );
    gateway.stop_after_refusals().unwrap();
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_route_whose_plugin_is_taken_away_keeps_what_it_had() {
    // Another control plane may send plugins and routes in any order.
    let (echo, gateway, _) = start().await;
    let mut connection = Connection::open(&gateway.http1()).await.unwrap();
    let mut document = gateway.state("ecds.json").unwrap();
    document["resources"][0]["typed_config"]["filter_config"]["value"]["plugins"] = json!([]);
    assert_eq!(
        gateway.hand_over("ecds.json", &document).unwrap(),
        Verdict::Taken
    );
    assert_eq!(season(&mut connection, "/status/200").await, "");
    // The route only changes the configuration of a plugin that the gateway no longer runs.
    assert_eq!(season(&mut connection, "/route").await, "");
    gateway.stop().unwrap();
    echo.stop().await;
}

fn visit(value: &mut Value, change: &mut impl FnMut(&mut Value)) {
    change(value);
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| visit(item, change)),
        Value::Object(object) => object.values_mut().for_each(|item| visit(item, change)),
        _ => {}
    }
}

#[test]
fn the_digest_here_is_the_stores() {
    let files = BTreeMap::from([("main.lua".to_owned(), SEASON.to_owned())]);
    assert_eq!(inline_lua(SEASON).1, outrider_plugin_store::digest(&files));
}
