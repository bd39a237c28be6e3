//! Access logs that are written off the workers: what they hold, beside Envoy's own for the same requests; which scope
//! holds; and what becomes of records when the configuration changes, sinks fail, or Envoy stops.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use outrider_e2e::{Gateway, GatewayOptions};
use outrider_lab::client::Request;
use outrider_lab::echo::Echo;
use serde_json::Value;

/// How long something may take that is about to happen. Debug builds on a busy machine are slow.
const SOON: Duration = Duration::from_secs(30);

fn lines(path: &Path) -> Vec<String> {
    let bytes = std::fs::read(path).unwrap_or_default();
    // What Envoy writes for invalid UTF-8 is not UTF-8.
    let text = String::from_utf8_lossy(&bytes);
    text.lines().map(ToOwned::to_owned).collect()
}

fn wait_for_lines(path: &Path, count: usize) -> Vec<String> {
    let began = Instant::now();
    loop {
        let lines = lines(path);
        if lines.len() >= count {
            return lines;
        }
        assert!(
            began.elapsed() < SOON,
            "{} has {} lines, and not {count}",
            path.display(),
            lines.len()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends bytes, and reads until the connection ends.
fn raw(gateway: &Gateway, request: &[u8]) -> String {
    let mut connection = TcpStream::connect(gateway.address).unwrap();
    connection.write_all(request).unwrap();
    let mut answer = Vec::new();
    // A client that sends nonsense may be answered by a reset.
    let _reset = connection.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// All operators that telemetry renders, each as it is used.
fn operators() -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = outrider_telemetry::format::operators()
        .map(|name| {
            let used = match name {
                "REQ" | "REQUEST_HEADER" => format!("%{name}(X-NONE?USER-AGENT)%"),
                "RESP" | "RESPONSE_HEADER" => format!("%{name}(CONTENT-TYPE?SERVER):9%"),
                "TRAILER" | "RESPONSE_TRAILER" => format!("%{name}(X-LAST)%"),
                "DYNAMIC_METADATA" => format!("%{name}(metadata:text)%"),
                _ => format!("%{name}%"),
            };
            (name.to_ascii_lowercase(), used)
        })
        .collect();
    for (key, used) in [
        ("path", "%REQ(:PATH)%"),
        ("method", "%REQ(:METHOD):2%"),
        ("authority", "%REQ(:AUTHORITY)%"),
        ("id", "%REQ(X-REQUEST-ID)%"),
        ("time", "%START_TIME(%Y/%m/%d %H:%M:%S.%3f %s %j %a %B)%"),
        ("time_of_day", "%START_TIME(%T.%6f%z)%"),
        ("details", "%RESPONSE_CODE_DETAILS(ALLOW_WHITESPACES)%"),
        ("service_time", "%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%"),
        ("number", "%DYNAMIC_METADATA(metadata:number)%"),
        ("fraction", "%DYNAMIC_METADATA(metadata:fraction)%"),
        ("yes", "%DYNAMIC_METADATA(metadata:yes)%"),
        ("mixed", "%RESPONSE_CODE% 100%% %REQ(X-NONE)% of %PROTOCOL%"),
    ] {
        found.push((key.to_owned(), used.to_owned()));
    }
    found
}

const METADATA: &str = "
local handler = { version = 'v2' }
function handler:on_request_header()
  envoy.metadata.set('metadata', 'text', 'a value')
  envoy.metadata.set('metadata', 'number', 3)
  envoy.metadata.set('metadata', 'fraction', 0.25)
  envoy.metadata.set('metadata', 'yes', true)
end
return handler
";

/// A gateway whose own access log, and Outrider's, are given.
fn beside(echo: &Echo, envoys: &str, ours: &str) -> Gateway {
    let yaml = format!(
        "
gateway:
  listeners: [{{address: '{{listen}}'}}]
  admin: '{{admin}}'
  workers: 1
  use: [metadata]
  access_log:
    path: envoys.log
{envoys}
  telemetry:
    sinks: {{requests: {{file: ours.log}}}}
    access_logs:
      requests:
        sink: requests
{ours}
plugins:
  metadata: {{source: metadata.lua}}
projects:
  - name: all
    hosts: [shop.test]
    routes:
      - {{name: fixed, match: {{prefix: /fixed}}, respond: {{status: 404, body: gone}}}}
      - {{name: dead, match: {{prefix: /dead}}, to: dead}}
      - {{name: echo, match: {{prefix: /}}, to: echo, timeout: 300ms}}
upstreams:
  echo: {{endpoints: ['{}']}}
  dead: {{endpoints: ['{}']}}
",
        echo.address(),
        outrider_e2e::free_address().unwrap()
    );
    let files = [("metadata.lua", METADATA)];
    Gateway::start_with(&yaml, &files, GatewayOptions::default()).unwrap()
}

/// Requests of all kinds; returns how many.
async fn send_all_kinds(gateway: &Gateway) -> usize {
    let shop = |path: &str| Request::get(path).host("shop.test");
    for request in [
        shop("/plain").header("user-agent", "curl/8.5.0"),
        shop("/query?a=1&b=%20").header("x-forwarded-for", "203.0.113.7, 198.51.100.9"),
        Request::post("/body", vec![b'x'; 100_000]).host("shop.test"),
        shop("/fixed/thing"),
        shop("/dead/end"),
        Request::get("/nowhere").host("other.test"),
    ] {
        gateway.http1().send(request).await.unwrap();
    }
    for path in ["/plain", "/fixed", "/dead"] {
        let request = Request::get(path).host("shop.test");
        gateway.http2().send(request).await.unwrap();
    }
    // Streams that never reach a filter.
    let bad = raw(
        gateway,
        b"GET /bad HTTP/1.1\r\nhost: shop.test\r\ncontent-length: x\r\n\r\n",
    );
    assert!(bad.starts_with("HTTP/1.1 400"), "{bad}");
    let nonsense = raw(gateway, b"NONSENSE\r\n\r\n");
    assert!(nonsense.starts_with("HTTP/1.1 400"), "{nonsense}");
    // A client that goes while its request waits for an upstream.
    let mut gone = TcpStream::connect(gateway.address).unwrap();
    gone.write_all(b"POST /slow HTTP/1.1\r\nhost: shop.test\r\ncontent-length: 10\r\n\r\n12345")
        .unwrap();
    std::thread::sleep(Duration::from_millis(100));
    gone.shutdown(Shutdown::Both).unwrap();
    12
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_equals_envoys_own_field_by_field() {
    let echo = Echo::start("echo").await.unwrap();
    let fields = |indent: &str| -> String {
        let fields = operators().into_iter();
        fields
            .map(|(key, used)| format!("{indent}{key}: '{used}'\n"))
            .collect::<Vec<_>>()
            .concat()
    };
    let envoys = format!("    json_format:\n{}", fields("      "));
    let ours = format!("        json:\n{}", fields("          "));
    let gateway = beside(&echo, &envoys, &ours);
    let count = send_all_kinds(&gateway).await;
    let (envoys, ours) = ("envoys.log", "ours.log").map_paths(gateway.folder());
    let envoys = wait_for_lines(&envoys, count);
    let ours = wait_for_lines(&ours, count);
    assert_eq!(envoys.len(), count);
    assert_eq!(ours.len(), count);
    let mut differences = Vec::new();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for (envoys, ours) in envoys.iter().zip(&ours) {
        let read = |line: &str| -> serde_json::Map<String, Value> {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
        };
        let (envoys, ours) = (read(envoys), read(ours));
        assert_eq!(envoys.len(), ours.len());
        for (key, value) in &envoys {
            if ours[key] != *value {
                let path = &envoys["path"];
                differences.push(format!(
                    "{path} {key}: {value} of Envoy, {} of ours",
                    ours[key]
                ));
            }
            *seen.entry(key.clone()).or_default() += usize::from(!value.is_null());
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    // The comparison means something only where there are values.
    let empty: Vec<&String> = seen
        .iter()
        .filter(|(_, count)| **count == 0)
        .map(|(key, _)| key)
        .collect();
    println!("no request had: {empty:?}");
    assert!(empty.len() <= 16, "{empty:?}");
    gateway.stop().unwrap();
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_equals_envoys_own_byte_for_byte() {
    let echo = Echo::start("echo").await.unwrap();
    let line = operators()
        .into_iter()
        .map(|(_, used)| used)
        .collect::<Vec<_>>()
        .join("|");
    let envoys = format!("    format: '{line}'");
    let ours = format!("        text: '{line}'");
    let gateway = beside(&echo, &envoys, &ours);
    let count = send_all_kinds(&gateway).await;
    let (envoys, ours) = ("envoys.log", "ours.log").map_paths(gateway.folder());
    wait_for_lines(&envoys, count);
    wait_for_lines(&ours, count);
    assert_eq!(lines(&ours), lines(&envoys));
    gateway.stop().unwrap();
    echo.stop().await;
}

trait MapPaths {
    fn map_paths(self, folder: &Path) -> (std::path::PathBuf, std::path::PathBuf);
}

impl MapPaths for (&str, &str) {
    fn map_paths(self, folder: &Path) -> (std::path::PathBuf, std::path::PathBuf) {
        (folder.join(self.0), folder.join(self.1))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scopes_decide_which_requests_are_recorded() {
    let yaml = "
gateway:
  listeners: [{address: '{listen}'}]
  admin: '{admin}'
  telemetry:
    sinks: {all: {file: all.log}, shop: {file: shop.log}, errors: {file: errors.log}}
    access_logs:
      all: {sink: all, text: '%REQ(:PATH)% %ROUTE_NAME%'}
      errors: {sink: errors, text: '%REQ(:PATH)%', only: {status: [5xx, 418]}}
projects:
  - name: shop
    hosts: [shop.test]
    telemetry: {access_logs: {all: {sink: shop}}}
    routes:
      - {name: quiet, match: {prefix: /quiet}, respond: {status: 503}, telemetry: {access_logs: {all: off, errors: off}}}
      - {name: more, match: {prefix: /more}, respond: {status: 200}, telemetry: {access_logs: {more: {sink: all, text: 'more %REQ(:PATH)%'}}}}
      - {name: broken, match: {prefix: /broken}, respond: {status: 503}}
      - {name: rest, match: {prefix: /}, respond: {status: 200}}
  - name: other
    hosts: ['*']
    routes:
      - {name: teapot, match: {prefix: /teapot}, respond: {status: 418}}
      - {name: other, match: {prefix: /}, respond: {status: 200}}
";
    let gateway = Gateway::start(yaml).unwrap();
    for (host, path) in [
        ("shop.test", "/quiet"),
        ("shop.test", "/more"),
        ("shop.test", "/broken"),
        ("shop.test", "/cart"),
        ("other.test", "/teapot"),
        ("other.test", "/cart"),
    ] {
        let request = Request::get(path).host(host);
        gateway.http1().send(request).await.unwrap();
    }
    let sorted = |name: &str, count: usize| {
        let mut lines = wait_for_lines(&gateway.folder().join(name), count);
        lines.sort();
        lines
    };
    assert_eq!(
        sorted("all.log", 3),
        ["/cart other", "/teapot teapot", "more /more"]
    );
    assert_eq!(
        sorted("shop.log", 3),
        ["/broken broken", "/cart rest", "/more more"]
    );
    assert_eq!(sorted("errors.log", 2), ["/broken", "/teapot"]);
    gateway.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_headers_stay_json_and_are_cut() {
    let yaml = "
gateway:
  listeners: [{address: '{listen}'}]
  admin: '{admin}'
  workers: 1
  telemetry:
    sinks: {all: {file: all.log}}
    access_logs: {all: {sink: all, json: {agent: '%REQ(USER-AGENT)%', path: '%REQ(:PATH)%'}}}
projects:
  - {name: all, hosts: ['*'], routes: [{match: {prefix: /}, respond: {status: 204}}]}
";
    let gateway = Gateway::start(yaml).unwrap();
    let long = vec![b'x'; 50_000];
    let agents: [&[u8]; 5] = [
        b"a\"b",
        b"\", \"status\": 200, \"x\": \"",
        b"back\\slash\ttab",
        b"bytes \x80\xff\xfe\xc3\x28",
        &long,
    ];
    for agent in agents {
        let mut request =
            b"GET /\"x HTTP/1.1\r\nhost: a\r\nconnection: close\r\nuser-agent: ".to_vec();
        request.extend_from_slice(agent);
        request.extend_from_slice(b"\r\n\r\n");
        let answer = raw(&gateway, &request);
        assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    }
    let path = gateway.folder().join("all.log");
    wait_for_lines(&path, agents.len());
    let text = String::from_utf8(std::fs::read(&path).unwrap()).unwrap();
    for (line, agent) in text.lines().zip(agents) {
        let line: Value = serde_json::from_str(line).unwrap();
        let expected = if agent.len() > 4096 {
            format!("{}...[cut, 50000 bytes]", "x".repeat(4096))
        } else {
            String::from_utf8_lossy(agent).into_owned()
        };
        assert_eq!(line["agent"], Value::from(expected));
        // As the gateway normalized it.
        assert_eq!(line["path"], "/%22x");
    }
    gateway.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn change_under_load_loses_and_doubles_no_record() {
    let yaml = |log: &str| {
        format!(
            "
gateway:
  listeners: [{{address: '{{listen}}'}}]
  admin: '{{admin}}'
  workers: 2
  telemetry:
    sinks: {{a: {{file: a.log}}, b: {{file: b.log}}}}
    access_logs: {{all: {log}}}
projects:
  - {{name: all, hosts: ['*'], routes: [{{match: {{prefix: /}}, respond: {{status: 204}}}}]}}
"
        )
    };
    let versions = [
        yaml("{sink: a, text: 'first %REQ(X-NUMBER)%'}"),
        yaml("{sink: b, text: 'second %PROTOCOL% %REQ(X-NUMBER)%'}"),
    ];
    let gateway = Gateway::start(&versions[0]).unwrap();
    let address = gateway.address;
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..4)
        .map(|client: usize| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                let mut connection = TcpStream::connect(address).unwrap();
                let mut sent = 0;
                let mut answer = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let request =
                        format!("GET / HTTP/1.1\r\nhost: a\r\nx-number: {client}-{sent}\r\n\r\n");
                    connection.write_all(request.as_bytes()).unwrap();
                    sent += 1;
                    answer.clear();
                    let mut byte = [0];
                    while !answer.ends_with(b"\r\n\r\n") {
                        // No change closes a connection.
                        connection.read_exact(&mut byte).unwrap();
                        answer.push(byte[0]);
                    }
                    assert!(answer.starts_with(b"HTTP/1.1 204"));
                }
                sent
            })
        })
        .collect();
    for change in 1..=6 {
        std::thread::sleep(Duration::from_millis(200));
        gateway.update(&versions[change % 2]).unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    let sent: Vec<usize> = clients
        .into_iter()
        .map(|client| client.join().unwrap())
        .collect();
    assert_eq!(
        gateway.stat("listener_manager.listener_modified").unwrap(),
        0
    );
    let (a, b) = ("a.log", "b.log").map_paths(gateway.folder());
    // Whatever is not written yet is written at the stop.
    let folder = gateway.folder().to_owned();
    let kept = tempfile::tempdir().unwrap();
    let (kept_a, kept_b) = ("a.log", "b.log").map_paths(kept.path());
    std::fs::hard_link(&a, &kept_a)
        .or_else(|_| std::os::unix::fs::symlink(&a, &kept_a))
        .unwrap();
    std::fs::hard_link(&b, &kept_b)
        .or_else(|_| std::os::unix::fs::symlink(&b, &kept_b))
        .unwrap();
    gateway.stop().unwrap();
    drop(folder);
    let mut numbers: Vec<String> = Vec::new();
    let (first, second) = (lines(&kept_a), lines(&kept_b));
    assert!(!first.is_empty() && !second.is_empty());
    numbers.extend(
        first
            .iter()
            .map(|line| line.strip_prefix("first ").unwrap().to_owned()),
    );
    let second = second
        .iter()
        .map(|line| line.strip_prefix("second HTTP/1.1 ").unwrap());
    numbers.extend(second.map(ToOwned::to_owned));
    numbers.sort();
    let mut expected: Vec<String> = sent
        .iter()
        .enumerate()
        .flat_map(|(client, sent)| (0..*sent).map(move |number| format!("{client}-{number}")))
        .collect();
    expected.sort();
    assert_eq!(numbers.len(), expected.len());
    assert_eq!(numbers, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_receiver_is_counted_and_delays_no_request() {
    let yaml = format!(
        "
gateway:
  listeners: [{{address: '{{listen}}'}}]
  admin: '{{admin}}'
  telemetry:
    flush: 200ms
    sinks: {{collector: {{otlp: 'http://{}/v1/logs', queue: 16KiB}}}}
    access_logs: {{all: {{sink: collector}}}}
projects:
  - {{name: all, hosts: ['*'], routes: [{{match: {{prefix: /}}, respond: {{status: 204}}}}]}}
",
        outrider_e2e::free_address().unwrap()
    );
    let gateway = Gateway::start(&yaml).unwrap();
    let counter = |name: &str| {
        let name = format!("dynamicmodulescustom.outrider.telemetry.{name}");
        gateway.stat(&name).unwrap()
    };
    let began = Instant::now();
    let mut slowest = Duration::ZERO;
    while counter("dropped.queue_full") == 0 {
        for _ in 0..50 {
            let sent = Instant::now();
            gateway.send(Request::get("/")).await.unwrap();
            slowest = slowest.max(sent.elapsed());
        }
        assert!(began.elapsed() < SOON, "nothing was dropped");
    }
    // A request that waited for a receiver would wait for its timeout.
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
    assert!(counter("retries") > 0);
    assert_eq!(counter("written"), 0);
    let began = Instant::now();
    gateway.stop().unwrap();
    assert!(began.elapsed() < SOON);
}
