//! A thousand updates while 64 connections send requests without pause: not one failed request, not one
//! closed connection, memory back to where it was.
//!
//! Each update changes the configuration of plugins; every tenth also a plugin's code, every 25th adds
//! or removes a plugin and a route. A hundred of them go through the command, as a user saves a file;
//! nine hundred go to Envoy as another control plane would send them, ECDS and RDS documents renamed
//! over each other, which is as fast as Envoy takes them.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outrider_e2e::under_load::{self, Memory, advance, stop, wait_for_answer};
use outrider_e2e::{Gateway, GatewayOptions, Verdict, inline_lua};
use outrider_lab::client::{Response, Target};
use outrider_lab::echo::{Echo, EchoOptions};
use outrider_lab::steady::SteadyPlan;
use serde_json::{Value, json};

const UPDATES: usize = 1_000;
const THROUGH_THE_COMMAND: usize = 100;
const CONNECTIONS: usize = 32;
const PATIENCE: Duration = Duration::from_secs(20);

/// The state of the gateway after update number `number`.
#[derive(Debug, Clone, Copy)]
struct Version {
    number: usize,
}

impl Version {
    /// The code's revision: a new one with every tenth update.
    fn revision(self) -> usize {
        self.number / 10
    }

    /// A plugin and a route come with every 25th update, and go with the next 25th.
    fn has_extra(self) -> bool {
        self.number / 25 % 2 == 1
    }

    fn code(self) -> String {
        format!(
            "
local handler = {{ version = 'v2' }}
function handler:on_request_header()
  envoy.req.set_header('x-number', tostring(envoy.config().number))
  envoy.stream.shared.began = envoy.config().number
end
function handler:on_response_header()
  local config = envoy.config()
  envoy.resp.set_header('x-number', tostring(config.number))
  envoy.resp.set_header('x-scope', config.scope)
  envoy.resp.set_header('x-revision', '{}')
  -- A stream ends on the generation that it began with.
  if envoy.stream.shared.began ~= config.number then envoy.resp.set_header('x-torn', 'yes') end
end
function handler:on_response_body() envoy.resp.get_body() end
return handler
",
            self.revision()
        )
    }

    fn yaml(self, echo: &Echo) -> String {
        let number = self.number;
        let (plugin, route) = if self.has_extra() {
            (
                "  extra: {source: extra.lua}\n",
                "      - {name: extra, match: {prefix: /extra}, to: echo, use: [extra]}\n",
            )
        } else {
            ("", "")
        };
        format!(
            "
gateway:
  listeners: [{{name: main, address: '{{listen}}'}}]
  admin: '{{admin}}'
  workers: 2
  use: [{{plugin: numbered, config: {{number: {number}, scope: gateway}}}}]
plugins:
  numbered: {{source: numbered.lua}}
  steady: {{source: extra.lua}}
{plugin}projects:
  - name: shop
    hosts: ['*']
    use: [steady]
    routes:
{route}      - {{name: cart, match: {{prefix: /cart}}, to: echo, use: [{{plugin: numbered, config: {{scope: 'route-{number}'}}}}]}}
      - {{name: rest, match: {{prefix: /}}, to: echo}}
upstreams:
  echo: {{endpoints: ['{}']}}
",
            echo.address()
        )
    }
}

const EXTRA: &str = "
local handler = { version = 'v2' }
function handler:on_response_header() envoy.resp.set_header('x-extra', 'yes') end
return handler
";

/// What the load saw: the values of some response headers.
#[derive(Debug, Default)]
struct Seen {
    numbers: BTreeSet<usize>,
    revisions: BTreeSet<usize>,
    scopes: usize,
}

fn load(target: Target, seen: &Arc<Mutex<Seen>>) -> SteadyPlan {
    let seen = Arc::clone(seen);
    let paths = &["/cart/1", "/bytes/2000", "/extra", "/status/200"];
    under_load::load(target, CONNECTIONS, paths).check(move |_, response| check(response, &seen))
}

fn check(response: &Response, seen: &Mutex<Seen>) -> Result<(), String> {
    let header = |name: &str| {
        response
            .headers
            .get(name)
            .ok_or_else(|| format!("no {name}"))
    };
    let number = |name: &str| -> Result<usize, String> {
        header(name)?
            .parse()
            .map_err(|error| format!("{name}: {error}"))
    };
    if response.status != 200 {
        return Err(format!("status {}: {}", response.status, response.text()));
    }
    if response.headers.get("x-torn").is_some() {
        return Err("the stream changed its generation".into());
    }
    if response.headers.get("x-extra").is_none() {
        return Err("a plugin that no update touches was not there".into());
    }
    let mut seen = seen.lock().unwrap();
    seen.numbers.insert(number("x-number")?);
    seen.revisions.insert(number("x-revision")?);
    if header("x-scope")?.starts_with("route-") {
        seen.scopes += 1;
    }
    Ok(())
}

/// The documents of a version, made from those that the command rendered.
fn documents(version: Version, templates: &[(Value, Value); 2]) -> (Value, Value) {
    let (ecds, rds) = &templates[usize::from(version.has_extra())];
    let mut ecds = ecds.clone();
    let plugins = &mut ecds["resources"][0]["typed_config"]["filter_config"]["value"]["plugins"];
    for plugin in plugins.as_array_mut().unwrap() {
        if plugin["name"] == "numbered" {
            let (source, digest) = inline_lua(&version.code());
            plugin["source"] = source;
            plugin["digest"] = digest.into();
            plugin["entry"] = "main.lua".into();
            plugin["config"] = json!({ "number": version.number, "scope": "gateway" });
        }
    }
    let text = rds.to_string();
    let start = text.find("route-").unwrap();
    let mut text = text;
    // The only value of the document that begins so is the plugin's.
    let mut from = start;
    while let Some(found) = text.get(from..).unwrap().find("\"scope\":\"route-") {
        let begin = from + found + "\"scope\":\"route-".len();
        let end = begin + text.get(begin..).unwrap().find('"').unwrap();
        text.replace_range(begin..end, &version.number.to_string());
        from = begin;
    }
    (ecds, serde_json::from_str(&text).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_updates_under_load() {
    let options = EchoOptions {
        keep: 0,
        ..EchoOptions::named("echo")
    };
    let echo = Echo::start_with(options).await.unwrap();
    let first = Version { number: 0 };
    let files = [
        ("numbered.lua", first.code()),
        ("extra.lua", EXTRA.to_owned()),
    ];
    let files: Vec<(&str, &str)> = files
        .iter()
        .map(|(name, text)| (*name, text.as_str()))
        .collect();
    let gateway =
        Gateway::start_with(&first.yaml(&echo), &files, GatewayOptions::default()).unwrap();
    let seen = Arc::new(Mutex::new(Seen::default()));
    let loads = [
        load(gateway.http1(), &seen).start().await.unwrap(),
        load(gateway.http2(), &seen).start().await.unwrap(),
    ];
    advance(&loads, 200).await.unwrap();

    let mut applied = first;
    let mut templates = [const { (Value::Null, Value::Null) }; 2];
    for number in 1..=THROUGH_THE_COMMAND {
        let version = Version { number };
        let mark = gateway.output.mark();
        if version.revision() != applied.revision() {
            gateway.save_file("numbered.lua", &version.code()).unwrap();
        }
        gateway.save(&version.yaml(&echo)).unwrap();
        // Saving two files may make two updates; the last one ends where both are.
        let text = number.to_string();
        let is_it = |response: &Response| response.headers.get("x-number") == Some(text.as_str());
        let what = format!("update {number}");
        wait_for_answer(&gateway, &what, is_it).await.unwrap();
        gateway
            .output
            .wait_after(mark, "applied in", PATIENCE)
            .unwrap_or_else(|error| panic!("update {number}: {error}"));
        applied = version;
        templates[usize::from(version.has_extra())] = (
            gateway.state("ecds.json").unwrap(),
            gateway.state("rds.json").unwrap(),
        );
    }
    assert!(
        !gateway.output.text().contains("not applied"),
        "{}",
        gateway.output.text()
    );
    advance(&loads, 50).await.unwrap();
    let early = Memory::of(&gateway).unwrap();

    let mut marks = Vec::new();
    for number in THROUGH_THE_COMMAND + 1..=UPDATES {
        let version = Version { number };
        let (ecds, rds) = documents(version, &templates);
        // What comes is there before routes name it, and goes after they do.
        let order = if version.has_extra() || !applied.has_extra() {
            [("ecds.json", &ecds), ("rds.json", &rds)]
        } else {
            [("rds.json", &rds), ("ecds.json", &ecds)]
        };
        for (name, document) in order {
            let verdict = gateway.hand_over(name, document).unwrap();
            assert_eq!(
                verdict,
                Verdict::Taken,
                "update {number}: {}",
                gateway.output.text()
            );
        }
        applied = version;
        if number % 100 == 0 {
            advance(&loads, 50).await.unwrap();
            marks.push((number, Memory::of(&gateway).unwrap()));
        }
    }
    advance(&loads, 200).await.unwrap();
    let total = stop(loads, &gateway).await.unwrap();
    let late = Memory::of(&gateway).unwrap();

    let seen = Arc::into_inner(seen).unwrap().into_inner().unwrap();
    assert!(total > 5_000, "only {total} requests");
    assert!(
        seen.numbers.contains(&0) && seen.numbers.contains(&UPDATES),
        "{seen:?}"
    );
    assert!(
        seen.numbers.len() > UPDATES / 4,
        "only {} versions were seen",
        seen.numbers.len()
    );
    assert!(seen.revisions.len() > 50, "{:?}", seen.revisions);
    assert!(seen.scopes > 100, "{}", seen.scopes);
    assert_eq!(
        gateway.stat("listener_manager.listener_modified").unwrap(),
        0
    );
    assert_eq!(
        gateway
            .stat("listener_manager.listener_create_success")
            .unwrap(),
        2,
        "one a worker"
    );
    assert!(gateway.not_zero(r"\.errors\.\w+").unwrap().is_empty());
    let table =
        format!("after {THROUGH_THE_COMMAND}: {early:?}\nthen: {marks:#?}\nat the end: {late:?}");
    assert!(late.is_back_to(&early), "{table}");
    gateway.stop().unwrap();
    echo.stop().await;
}
