//! Wasm plugins on the real Envoy, used as Lua plugins are: at each scope, with configurations that are
//! mappings and strings, from a folder and from a bare file; updated and refused while streams pass; and
//! their compiled code kept from one start to the next.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use outrider_e2e::{Gateway, GatewayOptions, Guest, REFUSAL, Verdict, inline_lua, outrider};
use outrider_lab::client::{Connection, Request, Response};
use outrider_lab::echo::Echo;
use outrider_lab::steady::{SteadyPlan, Turn};
use serde_json::{Value, json};
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(20);

const GATEWAY: &str = "
gateway:
  listeners: [{name: main, address: '{listen}'}]
  admin: '{admin}'
  workers: 2
  use: [{plugin: teller, config: {scope: gateway, n: 1}}, stamp]
plugins:
  teller: {source: GUESTS/teller, budgets: {time_ms: 2000}}
  text: {source: GUESTS/text.wasm, priority: -1}
  stamp: {source: stamp.lua, priority: 1}
projects:
  - name: shop
    hosts: ['*']
    routes:
      - {match: {prefix: /route}, to: echo, use: [{plugin: teller, config: {scope: route, n: null}}]}
      - {match: {prefix: /text}, to: echo, use: [{plugin: text, config: 'level=1; name=\"é\"'}]}
      - {match: {prefix: /none}, to: echo, use: [{plugin: teller, enabled: false}]}
      - {match: {prefix: /}, to: echo}
  - name: blog
    hosts: [blog.test]
    use: [{plugin: teller, config: {scope: project}}]
    routes:
      - {match: {prefix: /deep}, to: echo, use: [{plugin: teller, config: {n: 3}}]}
      - {match: {prefix: /}, to: echo}
upstreams:
  echo: {endpoints: ['ECHO']}
";

const STAMP: &str = "
local handler = { version = 'v2' }
function handler:on_request_header() envoy.req.set_header('x-stamp', 'lua') end
function handler:on_response_header()
  envoy.resp.set_header('x-saw', envoy.resp.get_header('x-revision') or 'nothing')
end
return handler
";

/// A folder of guests: `teller` is a plugin's folder, `text.wasm` a bare file.
struct Guests(TempDir);

impl Guests {
    fn new() -> Self {
        let guests = Self(TempDir::new().unwrap());
        fs::create_dir(guests.path().join("teller")).unwrap();
        fs::write(
            guests.path().join("teller/plugin.yaml"),
            "name: teller\nruntime: wasm\nbuild: make teller\n",
        )
        .unwrap();
        guests.save("teller/plugin.wasm", &Guest::telling("1").module().unwrap());
        guests.save("text.wasm", &Guest::telling("text").module().unwrap());
        guests
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Replaces a file as compilers do that take care: by renaming.
    fn save(&self, name: &str, module: &[u8]) {
        let new = self.path().join("saving");
        fs::write(&new, module).unwrap();
        fs::rename(new, self.path().join(name)).unwrap();
    }

    fn yaml(&self, echo: &Echo) -> String {
        GATEWAY
            .replace("GUESTS", &self.path().display().to_string())
            .replace("ECHO", &echo.address().to_string())
    }
}

struct World {
    echo: Echo,
    guests: Guests,
    gateway: Gateway,
    yaml: String,
}

impl World {
    async fn start() -> Self {
        let echo = Echo::start("echo").await.unwrap();
        let guests = Guests::new();
        let yaml = guests.yaml(&echo);
        let files = [("stamp.lua", STAMP)];
        let gateway = Gateway::start_with(&yaml, &files, GatewayOptions::default()).unwrap();
        Self {
            echo,
            guests,
            gateway,
            yaml,
        }
    }
}

fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    assert_eq!(response.status, 200, "{}", response.text());
    response.headers.get(name).unwrap_or("none")
}

/// A configuration that a guest tells, as JSON.
fn config(response: &Response) -> Value {
    serde_json::from_str(header(response, "x-config")).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_scope_has_its_configuration_and_its_place_in_the_chain() {
    let world = World::start().await;
    let gateway = &world.gateway;
    let get = async |path: &str, host: &str| {
        let request = Request::get(path).header("host", host);
        gateway.send(request).await.unwrap()
    };
    let response = get("/headers", "shop.test").await;
    assert_eq!(config(&response), json!({"scope": "gateway", "n": 1}));
    assert_eq!(header(&response, "x-revision"), "1");
    // Responses pass the chain in reverse: the Lua plugin, first on the way in, sees what Wasm said.
    assert_eq!(header(&response, "x-saw"), "1");
    let seen = world.echo.wait_for_requests(1, SOON).await.unwrap();
    assert_eq!(seen[0].headers.get("x-stamp"), Some("lua"));
    assert_eq!(seen[0].headers.get("x-guest"), Some("was here"));

    let response = get("/route", "shop.test").await;
    assert_eq!(config(&response), json!({"scope": "route"}));
    let response = get("/", "blog.test").await;
    assert_eq!(config(&response), json!({"scope": "project", "n": 1}));
    let response = get("/deep", "blog.test").await;
    assert_eq!(config(&response), json!({"scope": "project", "n": 3}));
    assert_eq!(header(&get("/none", "shop.test").await, "x-config"), "none");
    // A string reaches the plugin as it is. Both plugins set the same header; the last on the way out is
    // the first on the way in.
    let response = get("/text", "shop.test").await;
    assert_eq!(config(&response), json!({"scope": "gateway", "n": 1}));

    let alone = world.yaml.replace(
        "use: [{plugin: text, config:",
        "use: [{plugin: teller, enabled: false}, {plugin: text, config:",
    );
    assert_ne!(alone, world.yaml);
    gateway.update(&alone).unwrap();
    let response = get("/text", "shop.test").await;
    assert_eq!(header(&response, "x-config"), "level=1; name=\"é\"");
    assert_eq!(header(&response, "x-revision"), "text");

    let page: Value = serde_json::from_str(
        &gateway
            .admin
            .get("/outrider/plugins?format=json")
            .unwrap()
            .body,
    )
    .unwrap();
    let teller = page["plugins"]
        .as_array()
        .unwrap()
        .iter()
        .find(|plugin| plugin["name"] == "teller")
        .unwrap();
    assert_eq!(teller["runtime"], "wasm");
    assert_eq!(teller["memory_budget_bytes"], 64 * 1024 * 1024);
    let vms = teller["vms"].as_array().unwrap();
    assert_eq!(vms.len(), 2, "one a worker: {vms:?}");
    for vm in vms {
        // Three pages are what the guest asks for.
        assert!(vm["memory_bytes"].as_u64().unwrap() >= 3 * 65536, "{vms:?}");
    }
    world.gateway.stop().unwrap();
    world.echo.stop().await;
}

/// What is put in the place of the module, and what has to be said of it.
fn bad_modules() -> Vec<(&'static str, Vec<u8>, Vec<&'static str>)> {
    let good = Guest::telling("2").module().unwrap();
    // Its parts are all there, but a function leaves out what it says it returns.
    let mut invalid = Guest::telling("2");
    invalid.function("(func $wrong (result i32))");
    let mut importing = Guest::telling("2");
    importing.import(r#"(import "env" "proxy_read_minds" (func (param i32) (result i32)))"#);
    let mut wrong_type = Guest::telling("2");
    wrong_type.import(r#"(import "env" "proxy_done" (func (param i64)))"#);
    let mut future = Guest::telling("2");
    future.abi(Some("9_9_9"));
    let mut none = Guest::telling("2");
    none.abi(None);
    let mut starting = Guest::telling("2");
    starting.function("(func $explode unreachable) (start $explode)");
    let module = |guest: &Guest| guest.module().unwrap();
    vec![
        (
            "not a module",
            b"#!/bin/sh\n".to_vec(),
            vec!["not a WebAssembly module"],
        ),
        ("cut off", good[..good.len() / 2].to_vec(), vec!["cut off"]),
        ("invalid", module(&invalid), vec!["cannot be compiled"]),
        (
            "an unknown import",
            module(&importing),
            vec!["proxy_read_minds"],
        ),
        (
            "an import of another type",
            module(&wrong_type),
            vec!["proxy_done"],
        ),
        (
            "a version that nobody knows",
            module(&future),
            vec!["proxy_abi_version"],
        ),
        ("no version", module(&none), vec!["proxy_abi_version"]),
        ("a start that traps", module(&starting), vec!["explode"]),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_refuses_what_does_not_load_and_what_worked_goes_on() {
    let world = World::start().await;
    let gateway = &world.gateway;
    let mut connection = Connection::open(&gateway.http1()).await.unwrap();
    let good = fs::read(world.guests.path().join("teller/plugin.wasm")).unwrap();
    for (what, module, says) in bad_modules() {
        let mark = gateway.output.mark();
        world.guests.save("teller/plugin.wasm", &module);
        gateway
            .output
            .wait_after(mark, "not applied; what worked goes on", SOON)
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        let told = gateway.output.lines().split_off(mark).join("\n");
        for part in says.iter().copied().chain(["teller"]) {
            assert!(told.contains(part), "{what}: no {part:?} in {told}");
        }
        let response = connection.send(Request::get("/status/200")).await.unwrap();
        assert_eq!(header(&response, "x-revision"), "1", "{what}");
        let mark = gateway.output.mark();
        world.guests.save("teller/plugin.wasm", &good);
        gateway
            .output
            .wait_after(mark, "the file is again as what is served", SOON)
            .unwrap();
    }
    // A configuration that the guest refuses, with the reason that it logs.
    let mark = gateway.output.mark();
    gateway
        .save(&world.yaml.replace("scope: route", "scope: 'route!'"))
        .unwrap();
    gateway
        .output
        .wait_after(mark, "not applied; what worked goes on", SOON)
        .unwrap();
    let told = gateway.output.lines().split_off(mark).join("\n");
    assert!(told.contains(REFUSAL), "{told}");
    assert!(told.contains("outrider.yaml:15:"), "{told}");
    // A module that is gone, as between two builds.
    gateway.save(&world.yaml).unwrap();
    let mark = gateway.output.mark();
    fs::remove_file(world.guests.path().join("teller/plugin.wasm")).unwrap();
    gateway
        .output
        .wait_after(mark, "not applied", SOON)
        .unwrap();
    let told = gateway.output.lines().split_off(mark).join("\n");
    assert!(told.contains("build it: make teller"), "{told}");

    let mark = gateway.output.mark();
    let next = Guest::telling("2").module().unwrap();
    world.guests.save("teller/plugin.wasm", &next);
    gateway.output.wait_after(mark, "applied in", SOON).unwrap();
    let response = connection.send(Request::get("/status/200")).await.unwrap();
    assert_eq!(header(&response, "x-revision"), "2");
    assert!(!connection.is_closed());
    // Nothing wrong ever got as far as Envoy.
    world.gateway.stop().unwrap();
    world.echo.stop().await;
}

/// The plugin `teller` in an ECDS document.
fn teller(document: &mut Value) -> &mut Value {
    let plugins =
        &mut document["resources"][0]["typed_config"]["filter_config"]["value"]["plugins"];
    plugins
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .find(|plugin| plugin["name"] == "teller")
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_module_refuses_what_another_control_plane_hands_over() {
    let world = World::start().await;
    let gateway = &world.gateway;
    let mut connection = Connection::open(&gateway.http2()).await.unwrap();
    let good = gateway.state("ecds.json").unwrap();
    let elsewhere = |name: &str, module: &[u8]| -> PathBuf {
        let path = world.guests.path().join(name);
        fs::write(&path, module).unwrap();
        path
    };
    let mut bad: Vec<(&str, Value, Vec<&str>)> = Vec::new();
    for (number, (what, module, says)) in bad_modules().into_iter().enumerate() {
        // Whether it is a module at all, is seen by the runtime here.
        let says = if number < 2 {
            vec!["WebAssembly"]
        } else {
            says
        };
        let says = if number == 2 { vec![] } else { says };
        let mut document = good.clone();
        let plugin = teller(&mut document);
        let path = elsewhere(&format!("bad-{number}.wasm"), &module);
        plugin["source"] = json!({"module": path});
        plugin["digest"] = outrider_plugin_store::module_digest(&module).into();
        bad.push((what, document, says));
    }
    let mut document = good.clone();
    teller(&mut document)["digest"] = format!("sha256:{}", "0".repeat(64)).into();
    bad.push(("a wrong digest", document, vec!["digest"]));
    let mut document = good.clone();
    // No code of this digest is kept, so the file is needed.
    let missing = teller(&mut document);
    missing["source"] = json!({"module": world.guests.path().join("missing.wasm")});
    missing["digest"] = format!("sha256:{}", "1".repeat(64)).into();
    bad.push(("a missing file", document, vec!["missing.wasm"]));
    let mut document = good.clone();
    let (source, digest) = inline_lua(STAMP);
    teller(&mut document)["source"] = source;
    teller(&mut document)["digest"] = digest.into();
    bad.push(("text files", document, vec!["a module"]));
    let mut document = good.clone();
    teller(&mut document)["config"] = "no!".into();
    bad.push(("a refused configuration", document, vec![REFUSAL]));

    for (what, document, says) in &bad {
        let mark = gateway.output.mark();
        assert_eq!(
            gateway.hand_over("ecds.json", document).unwrap(),
            Verdict::Refused,
            "{what}"
        );
        let line = gateway
            .output
            .wait_after(mark, "is refused", SOON)
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        for part in says.iter().copied().chain(["teller"]) {
            assert!(line.contains(part), "{what}: no {part:?} in {line}");
        }
        let response = connection.send(Request::get("/status/200")).await.unwrap();
        assert_eq!(header(&response, "x-revision"), "1", "{what}");
        assert_eq!(
            config(&response),
            json!({"scope": "gateway", "n": 1}),
            "{what}"
        );
    }
    assert!(!connection.is_closed());
    world.gateway.stop_after_refusals().unwrap();
    world.echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trap_costs_one_stream_and_names_the_place() {
    let world = World::start().await;
    let gateway = &world.gateway;
    gateway
        .update(&world.yaml.replace(
            "{time_ms: 2000}}",
            "{time_ms: 2000}, failure_policy: {causes: {unavailable: open}}}",
        ))
        .unwrap();
    let mark = gateway.output.mark();
    // Every hundredth request of a connection traps, for as long as the load goes on. The VM that it ends in
    // is gone, and with it the state of other streams under way in it: they fail for a cause of their own,
    // for which this plugin's policy is to go on.
    let passed = Arc::new(AtomicU64::new(0));
    let traps = |turn: Turn| (turn.request + 6 * turn.connection as u64) % 100 == 99;
    let load = SteadyPlan::new(gateway.http2(), 16, Request::get("/"))
        .requests(move |turn| {
            let mood = if traps(turn) { "trap" } else { "fine" };
            Request::get("/bytes/100")
                .header("x-mood", mood)
                .timeout(SOON)
        })
        .check({
            let passed = Arc::clone(&passed);
            move |turn, response| match (traps(turn), response.status) {
                (true, 500) | (false, 200) => Ok(()),
                // A trap soon after another: the next VM is made off the workers, and until it is there the
                // policy lets all streams pass.
                (true, 200) => {
                    passed.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                }
                (_, status) => Err(format!("status {status}")),
            }
        })
        .start()
        .await
        .unwrap();
    // `make soak-traps` has it go on for a minute.
    let seconds = std::env::var("TRAPS_SECONDS").map_or(0, |seconds| seconds.parse().unwrap());
    let end = Instant::now() + Duration::from_secs(seconds);
    loop {
        assert!(
            load.advance(5_000, Duration::from_mins(2)).await,
            "{}",
            load.so_far()
        );
        if Instant::now() >= end {
            break;
        }
    }
    let summary = load.stop().await;
    assert!(summary.is_clean(), "{summary}");
    println!(
        "{summary}\n{:#?}",
        gateway
            .not_zero(r"outrider\.plugin\.teller\.(calls|errors\.\w+|vm_\w+)")
            .unwrap()
    );
    let told = gateway
        .output
        .wait_after(mark, "plugin teller: failed", SOON)
        .unwrap();
    for part in [
        "request headers",
        "consider_mood",
        "unreachable",
        "plugin.wasm",
    ] {
        assert!(told.contains(part), "no {part:?} in {told}");
    }
    let errors = gateway
        .admin
        .stats(r"outrider\.plugin\.teller\.errors\.error$")
        .unwrap();
    let traps: u64 = errors.values().sum();
    assert!(traps >= summary.requests / 200, "{errors:?} of {summary}");
    let lost = gateway
        .admin
        .stats(r"outrider\.plugin\.teller\.errors\.unavailable$")
        .unwrap();
    let lost: u64 = lost.values().sum();
    assert!(lost < 16 * traps, "{lost} streams of others");
    let passed = passed.load(Ordering::Relaxed);
    assert!(
        passed <= lost && passed <= traps / 10,
        "{passed} of {traps} did not trap"
    );
    let response = gateway.send(Request::get("/status/200")).await.unwrap();
    assert_eq!(header(&response, "x-revision"), "1");
    world.gateway.stop().unwrap();
    world.echo.stop().await;
}

#[test]
fn what_is_compiled_is_kept_for_the_next_start() {
    let guests = Guests::new();
    let folder = guests.path();
    let cache = TempDir::new().unwrap();
    let cached = cache.path().display().to_string();
    let variables = [("XDG_CACHE_HOME", cached.as_str())];
    let yaml = GATEWAY
        .replace("GUESTS/", "")
        .replace("'{listen}'", "127.0.0.1:0")
        .replace("'{admin}'", "127.0.0.1:0")
        .replace("ECHO", "127.0.0.1:9");
    fs::write(folder.join("outrider.yaml"), yaml).unwrap();
    fs::write(folder.join("stamp.lua"), STAMP).unwrap();
    let check = || {
        let run = outrider(folder, &["check", "outrider.yaml"], &variables).unwrap();
        assert_eq!(run.code, 0, "{run}");
        run
    };
    let entries = || -> Vec<(PathBuf, SystemTime, u64)> {
        let mut entries: Vec<_> = fs::read_dir(cache.path().join("outrider/compiled"))
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let metadata = entry.metadata().unwrap();
                (entry.path(), metadata.modified().unwrap(), metadata.len())
            })
            .collect();
        entries.sort();
        entries
    };
    check();
    let first = entries();
    assert_eq!(first.len(), 2, "one for each module: {first:?}");
    check();
    assert_eq!(entries(), first, "nothing was compiled again");
    // Damaged, it is compiled again, and said so.
    let (damaged, _, length) = &first[0];
    let mut bytes = fs::read(damaged).unwrap();
    bytes[100] ^= 1;
    fs::write(damaged, bytes).unwrap();
    let run = check();
    let told = format!("{}{}", run.stdout, run.stderr);
    assert!(told.contains("is damaged"), "{run}");
    assert_eq!(fs::metadata(damaged).unwrap().len(), *length);
    let run = check();
    assert!(
        !format!("{}{}", run.stdout, run.stderr).contains("damaged"),
        "{run}"
    );
}
