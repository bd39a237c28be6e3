//! A thousand updates of a Wasm plugin's code and configuration while connections send requests without
//! pause: not one failed request, not one closed connection, memory back to where it was.
//!
//! Each update changes the plugin's configuration, at the gateway and on a route; every tenth its code, every
//! 50th goes back to code that was there before. A hundred of them go through the command, as a user saves
//! files; nine hundred go to Envoy as another control plane would send them.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outrider_e2e::under_load::{self, Memory, advance, stop, wait_for_answer};
use outrider_e2e::{Gateway, GatewayOptions, Guest, Verdict};
use outrider_lab::client::{Response, Target};
use outrider_lab::echo::{Echo, EchoOptions};
use outrider_lab::steady::SteadyPlan;
use serde_json::{Value, json};
use tempfile::TempDir;

const UPDATES: usize = 1_000;
const THROUGH_THE_COMMAND: usize = 100;
const CONNECTIONS: usize = 32;
const PATIENCE: Duration = Duration::from_secs(30);

/// The code's revision after an update: a new one with every tenth, and the first again with every 50th.
fn revision(number: usize) -> usize {
    if (number / 10).is_multiple_of(5) {
        0
    } else {
        number / 10
    }
}

/// The file of a revision, written when it is first asked for.
fn module(folder: &Path, revision: usize) -> PathBuf {
    let file = folder.join(format!("revision-{revision}.wasm"));
    if !file.exists() {
        let module = Guest::telling(&revision.to_string()).module().unwrap();
        fs::write(&file, module).unwrap();
    }
    file
}

fn yaml(number: usize, guests: &Path, echo: &Echo) -> String {
    format!(
        "
gateway:
  listeners: [{{name: main, address: '{{listen}}'}}]
  admin: '{{admin}}'
  workers: 2
  use: [{{plugin: numbered, config: {{number: {number}, scope: gateway}}}}]
plugins:
  numbered: {{source: '{}', budgets: {{time_ms: 2000}}}}
  steady: {{source: steady.lua}}
projects:
  - name: shop
    hosts: ['*']
    use: [steady]
    routes:
      - {{name: cart, match: {{prefix: /cart}}, to: echo, use: [{{plugin: numbered, config: {{scope: 'route-{number}'}}}}]}}
      - {{name: rest, match: {{prefix: /}}, to: echo}}
upstreams:
  echo: {{endpoints: ['{}']}}
",
        module(guests, revision(number)).display(),
        echo.address()
    )
}

const STEADY: &str = "
local handler = { version = 'v2' }
function handler:on_response_header() envoy.resp.set_header('x-steady', 'yes') end
return handler
";

/// What the load saw.
#[derive(Debug, Default)]
struct Seen {
    numbers: BTreeSet<usize>,
    revisions: BTreeSet<usize>,
    routes: usize,
}

fn load(target: Target, seen: &Arc<Mutex<Seen>>) -> SteadyPlan {
    let seen = Arc::clone(seen);
    let paths = &["/cart/1", "/bytes/2000", "/status/200"];
    under_load::load(target, CONNECTIONS, paths).check(move |_, response| check(response, &seen))
}

fn check(response: &Response, seen: &Mutex<Seen>) -> Result<(), String> {
    let header = |name: &str| {
        let value = response.headers.get(name);
        value.ok_or_else(|| format!("no {name}"))
    };
    if response.status != 200 {
        return Err(format!("status {}: {}", response.status, response.text()));
    }
    header("x-steady")?;
    let config: Value =
        serde_json::from_str(header("x-config")?).map_err(|error| error.to_string())?;
    let number = config["number"].as_u64().ok_or("no number")?;
    let revision = header("x-revision")?;
    let mut seen = seen.lock().unwrap();
    seen.numbers.insert(usize::try_from(number).unwrap());
    seen.revisions
        .insert(revision.parse().map_err(|error| format!("{error}"))?);
    if config["scope"] != "gateway" {
        seen.routes += 1;
    }
    Ok(())
}

/// The documents of an update, made from those that the command rendered.
fn documents(number: usize, guests: &Path, (ecds, rds): &(Value, Value)) -> (Value, Value) {
    let mut ecds = ecds.clone();
    let plugins = &mut ecds["resources"][0]["typed_config"]["filter_config"]["value"]["plugins"];
    let file = module(guests, revision(number));
    for plugin in plugins.as_array_mut().unwrap() {
        if plugin["name"] == "numbered" {
            let module = fs::read(&file).unwrap();
            plugin["source"] = json!({ "module": file });
            plugin["digest"] = outrider_plugin_store::module_digest(&module).into();
            plugin["entry"] = file.file_name().unwrap().to_str().unwrap().into();
            plugin["config"] = json!({ "number": number, "scope": "gateway" });
        }
    }
    let last = format!("\"route-{THROUGH_THE_COMMAND}\"");
    let text = rds.to_string();
    assert!(text.contains(&last));
    let text = text.replace(&last, &format!("\"route-{number}\""));
    (ecds, serde_json::from_str(&text).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_updates_of_a_wasm_plugin_under_load() {
    let options = EchoOptions {
        keep: 0,
        ..EchoOptions::named("echo")
    };
    let echo = Echo::start_with(options).await.unwrap();
    let folder = TempDir::new().unwrap();
    let guests = folder.path();
    let files = [("steady.lua", STEADY)];
    let gateway =
        Gateway::start_with(&yaml(0, guests, &echo), &files, GatewayOptions::default()).unwrap();
    let seen = Arc::new(Mutex::new(Seen::default()));
    let loads = [
        load(gateway.http1(), &seen).start().await.unwrap(),
        load(gateway.http2(), &seen).start().await.unwrap(),
    ];
    advance(&loads, 200).await.unwrap();

    for number in 1..=THROUGH_THE_COMMAND {
        let mark = gateway.output.mark();
        gateway.save(&yaml(number, guests, &echo)).unwrap();
        gateway
            .output
            .wait_after(mark, "applied in", PATIENCE)
            .unwrap_or_else(|error| panic!("update {number}: {error}"));
    }
    let last = |response: &Response| is_of(THROUGH_THE_COMMAND, response);
    wait_for_answer(&gateway, "the last update", last)
        .await
        .unwrap();
    assert!(
        !gateway.output.text().contains("not applied"),
        "{}",
        gateway.output.text()
    );
    let templates = (
        gateway.state("ecds.json").unwrap(),
        gateway.state("rds.json").unwrap(),
    );
    advance(&loads, 50).await.unwrap();
    let early = Memory::of(&gateway).unwrap();

    let mut marks = Vec::new();
    for number in THROUGH_THE_COMMAND + 1..=UPDATES {
        let (ecds, rds) = documents(number, guests, &templates);
        for (name, document) in [("ecds.json", &ecds), ("rds.json", &rds)] {
            let verdict = gateway.hand_over(name, document).unwrap();
            assert_eq!(
                verdict,
                Verdict::Taken,
                "update {number}: {}",
                gateway.output.text()
            );
        }
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
        "only {} updates were seen",
        seen.numbers.len()
    );
    assert!(seen.revisions.len() > 40, "{:?}", seen.revisions);
    assert!(seen.routes > 100, "{}", seen.routes);
    assert_eq!(
        gateway.stat("listener_manager.listener_modified").unwrap(),
        0
    );
    assert!(gateway.not_zero(r"\.errors\.\w+").unwrap().is_empty());
    let table =
        format!("after {THROUGH_THE_COMMAND}: {early:?}\nthen: {marks:#?}\nat the end: {late:?}");
    assert!(late.is_back_to(&early), "{table}");
    gateway.stop().unwrap();
    echo.stop().await;
}

/// Whether a response was made with the configuration of this update.
fn is_of(number: usize, response: &Response) -> bool {
    // Envoy may have turned the keys of a document around.
    let config = response.headers.get("x-config").unwrap_or_default();
    let config: Value = serde_json::from_str(config).unwrap_or_default();
    config["number"] == number
}
