//! What a gateway's statistics tell of its plugins: calls, replies and errors of each, in Envoy's own
//! statistics, and the metrics that plugins define themselves.
#![allow(
    clippy::unwrap_used,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::time::Duration;

use outrider_e2e::{Gateway, Guest};
use outrider_lab::client::Request;
use outrider_lab::echo::Echo;

const GATEWAY: &str = "
gateway:
  listeners: [{name: main, address: '{listen}'}]
  admin: '{admin}'
  workers: 2
plugins:
  counted: {source: counted.lua}
  moody: {source: moody.lua}
projects:
  - name: shop
    hosts: ['*']
    use: [counted, moody]
    routes: [{match: {prefix: /}, to: echo}]
upstreams:
  echo: {endpoints: ['ECHO']}
";

const COUNTED: &str = "
local handler = { version = 'v2' }
local requests = envoy.define_metric(0, 'shop_requests')
local level = envoy.define_metric(1, 'shop_level')
local sizes = envoy.define_metric(2, 'shop_sizes')
function handler:on_request_header()
  envoy.increment_metric(requests, 2)
  envoy.record_metric(level, tonumber(envoy.req.get_header('x-level') or '0'))
  envoy.record_metric(sizes, 100)
  envoy.req.set_header('x-seen', tostring(envoy.get_metric(requests)))
end
return handler
";

const MOODY: &str = "
local handler = { version = 'v2' }
function handler:on_request_header()
  local mood = envoy.req.get_header('x-mood')
  if mood == 'reply' then envoy.respond({[':status'] = '418'}, 'no') end
  if mood == 'error' then error('bad mood') end
  if mood == 'loop' then while true do end end
end
function handler:on_response_header() end
return handler
";

/// The whole name of a metric of the module, and its value.
fn metric(gateway: &Gateway, ending: &str) -> (String, u64) {
    let found = gateway.admin.stats(&format!("{ending}$")).unwrap();
    assert_eq!(found.len(), 1, "{ending}: {found:?}");
    found.into_iter().next().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoys_statistics_count_each_plugin() {
    let echo = Echo::start("echo").await.unwrap();
    let yaml = GATEWAY.replace("ECHO", &echo.address().to_string());
    let files = [("counted.lua", COUNTED), ("moody.lua", MOODY)];
    let gateway =
        Gateway::start_with(&yaml, &files, outrider_e2e::GatewayOptions::default()).unwrap();
    let send = |mood: &str| {
        let request = Request::get("/status/200")
            .header("x-mood", mood)
            .header("x-level", "7");
        gateway.send(request)
    };
    for _ in 0..3 {
        assert_eq!(send("fine").await.unwrap().status, 200);
    }
    for _ in 0..2 {
        assert_eq!(send("reply").await.unwrap().status, 418);
    }
    for _ in 0..4 {
        assert_eq!(send("error").await.unwrap().status, 500);
    }
    assert_eq!(send("loop").await.unwrap().status, 500);

    let (name, value) = metric(&gateway, r"outrider\.plugin\.moody\.replies");
    assert_eq!(value, 2);
    let namespace = name.strip_suffix("outrider.plugin.moody.replies").unwrap();
    let stat = |rest: &str| {
        gateway
            .stat(&format!("{namespace}outrider.plugin.{rest}"))
            .unwrap()
    };
    // The request phase of each of ten requests, and the response phase of those that the plugin let
    // pass; a plugin does not see the response that it made itself, or failed on.
    assert_eq!(stat("moody.calls"), 10 + 3);
    assert_eq!(stat("moody.errors.error"), 4);
    assert_eq!(stat("moody.errors.time"), 1);
    assert_eq!(stat("moody.errors.memory"), 0);
    assert_eq!(stat("moody.errors.unavailable"), 0);
    assert_eq!(stat("counted.calls"), 10);
    assert_eq!(stat("counted.errors.error"), 0);
    assert_eq!(stat("counted.replies"), 0);

    let (_, requests) = metric(&gateway, "shop_requests");
    assert_eq!(requests, 20, "a counter that is moved by two");
    let (_, level) = metric(&gateway, "shop_level");
    assert_eq!(level, 7, "a gauge that is set");
    // Envoy merges histograms every five seconds.
    let prometheus = |part: &str| {
        let page = gateway.admin.get("/stats/prometheus").unwrap().body;
        let line = page
            .lines()
            .find(|line| line.contains(part))
            .map(ToOwned::to_owned);
        line.ok_or(page)
    };
    let began = std::time::Instant::now();
    let line = loop {
        match prometheus("shop_sizes_count") {
            Ok(line) if line.ends_with(" 10") => break line,
            other => assert!(began.elapsed() < Duration::from_secs(15), "{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(line.contains("shop_sizes"), "{line}");

    // Prometheus gets one metric for all plugins, and the plugin as a label.
    let line = prometheus("outrider_plugin_replies{").unwrap();
    assert!(line.contains("outrider_plugin="), "{line}");
    let page = gateway.admin.get("/stats/prometheus").unwrap().body;
    let moody: Vec<&str> = page
        .lines()
        .filter(|line| line.contains("outrider_plugin_replies{") && line.contains(r#"="moody""#))
        .collect();
    assert_eq!(moody.len(), 1, "{page}");
    assert!(moody.first().unwrap().ends_with(" 2"), "{moody:?}");

    // The value that a plugin reads back is the whole process's.
    let response = send("fine").await.unwrap();
    let seen = response.json();
    assert_eq!(seen["headers"]["x-seen"][0], "22", "{seen}");
    gateway.stop().unwrap();
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_go_on_when_the_configuration_changes() {
    let echo = Echo::start("echo").await.unwrap();
    let yaml = GATEWAY.replace("ECHO", &echo.address().to_string());
    let files = [("counted.lua", COUNTED), ("moody.lua", MOODY)];
    let gateway =
        Gateway::start_with(&yaml, &files, outrider_e2e::GatewayOptions::default()).unwrap();
    for _ in 0..3 {
        gateway.send(Request::get("/status/200")).await.unwrap();
    }
    gateway
        .update(&yaml.replace(
            "moody: {source: moody.lua}",
            "moody: {source: moody.lua, failure_policy: open}",
        ))
        .unwrap();
    for _ in 0..2 {
        gateway.send(Request::get("/status/200")).await.unwrap();
    }
    assert_eq!(metric(&gateway, r"outrider\.plugin\.counted\.calls").1, 5);
    assert_eq!(metric(&gateway, "shop_requests").1, 10);
    let response = gateway.send(Request::get("/status/200")).await.unwrap();
    assert_eq!(response.json()["headers"]["x-seen"][0], "12");
    gateway.stop().unwrap();
    echo.stop().await;
}

/// A guest that defines a counter, a gauge and a histogram when the first request comes, in each of its VMs.
fn late_guest() -> Vec<u8> {
    let mut guest = Guest::default();
    let names = ["late_requests", "late_level", "late_sizes"].map(|name| guest.text(name));
    let [requests, level, sizes] = names;
    guest
        .import(r#"(import "env" "proxy_define_metric" (func $define (param i32 i32 i32 i32) (result i32)))"#)
        .import(r#"(import "env" "proxy_increment_metric" (func $increment (param i32 i64) (result i32)))"#)
        .import(r#"(import "env" "proxy_record_metric" (func $record (param i32 i64) (result i32)))"#)
        .function(&format!(
            r#"
  (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
    (drop (call $define (i32.const 0) {requests} (i32.const 40)))
    (drop (call $define (i32.const 1) {level} (i32.const 44)))
    (drop (call $define (i32.const 2) {sizes} (i32.const 48)))
    (drop (call $increment (i32.load (i32.const 40)) (i64.const 2)))
    (drop (call $record (i32.load (i32.const 44)) (i64.const 7)))
    (drop (call $record (i32.load (i32.const 48)) (i64.const 100)))
    (i32.const 0))"#
        ));
    guest.module().unwrap()
}

/// Also on a second worker, and through changes of the configuration, by the same name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metric_that_a_guest_defines_late_shows_at_once() {
    let echo = Echo::start("echo").await.unwrap();
    let yaml = "
gateway:
  listeners: [{name: main, address: '{listen}'}]
  admin: '{admin}'
  workers: 2
plugins:
  late: {source: late.wasm}
  moody: {source: moody.lua}
projects:
  - name: shop
    hosts: ['*']
    use: [late, moody]
    routes: [{match: {prefix: /}, to: echo}]
upstreams:
  echo: {endpoints: ['ECHO']}
"
    .replace("ECHO", &echo.address().to_string());
    let module = tempfile::NamedTempFile::with_suffix(".wasm").unwrap();
    std::fs::write(module.path(), late_guest()).unwrap();
    let yaml = yaml.replace("late.wasm", module.path().to_str().unwrap());
    let files = [("moody.lua", MOODY)];
    let gateway =
        Gateway::start_with(&yaml, &files, outrider_e2e::GatewayOptions::default()).unwrap();
    assert_eq!(gateway.admin.stats("late_requests").unwrap().len(), 0);
    // A connection for each request: both workers have some.
    for _ in 0..8 {
        gateway.send(Request::get("/status/200")).await.unwrap();
    }
    assert_eq!(
        metric(&gateway, "late_requests"),
        (
            "dynamicmodulescustom.outrider.late.counter.metric.wasmcustom.late_requests".to_owned(),
            16
        )
    );
    assert_eq!(metric(&gateway, "late_level").1, 7);
    let page = gateway
        .admin
        .get("/stats/prometheus?filter=outrider.late")
        .unwrap()
        .body;
    for line in [
        r#"outrider_late_counter{metric="wasmcustom.late_requests"} 16"#,
        r#"outrider_late_gauge{metric="wasmcustom.late_level"} 7"#,
        r#"outrider_late_histogram_count{metric="wasmcustom.late_sizes"}"#,
    ] {
        assert!(page.contains(line), "{page}");
    }
    gateway
        .update(&yaml.replace(
            "moody: {source: moody.lua}",
            "moody: {source: moody.lua, failure_policy: open}",
        ))
        .unwrap();
    for _ in 0..4 {
        gateway.send(Request::get("/status/200")).await.unwrap();
    }
    assert_eq!(metric(&gateway, "late_requests").1, 24);
    assert_eq!(metric(&gateway, "late_level").1, 7);
    gateway.stop().unwrap();
    echo.stop().await;
}
