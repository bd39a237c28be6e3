//! Valid requests beside malformed ones, and callouts beside routes' requests, on the real Envoy.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use outrider_e2e::{Gateway, GatewayOptions, Guest};
use outrider_lab::client::Request;
use outrider_lab::echo::Echo;

const MALFORMED: &str = "
gateway:
  listeners: [{name: main, address: '{listen}'}]
  admin: '{admin}'
  workers: 1
plugins:
  teller: {source: teller.wasm, budgets: {time_ms: 2000}}
  checker: {source: checker.lua, budgets: {time_ms: 2000}}
projects:
  - name: shop
    hosts: ['*']
    use: [{plugin: teller, config: {n: 1}}, checker]
    routes:
      - {match: {prefix: /}, to: echo}
upstreams:
  echo: {endpoints: ['ECHO']}
";

/// Fails where its request handler did not run before the response's.
const CHECKER: &str = "
local handler = { version = 'v2' }
function handler:on_request_header() envoy.stream.shared.path = envoy.req.get_header(':path') end
function handler:on_response_header()
  envoy.resp.set_header('x-path', envoy.stream.shared.path:lower())
end
return handler
";

/// Sends bytes, and returns the status line of what comes back, if anything does.
fn send_raw(address: SocketAddr, bytes: &[u8]) -> String {
    let mut connection = TcpStream::connect(address).unwrap();
    connection
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    // Envoy may answer and close before all of it is sent.
    let _sent = connection.write_all(bytes);
    let mut start = [0; 64];
    let length = connection.read(&mut start).unwrap_or(0);
    let text = String::from_utf8_lossy(&start[..length]).into_owned();
    text.lines().next().unwrap_or_default().to_owned()
}

/// Requests that Envoy answers itself, before its filters see them or after their headers.
fn malformed_requests() -> Vec<Vec<u8>> {
    let large = "x".repeat(70 * 1024);
    [
        "OPTIONS * HTTP/1.1\r\nhost: shop.test\r\nconnection: close\r\n\r\n".to_owned(),
        "GET no-slash HTTP/1.1\r\nhost: shop.test\r\nconnection: close\r\n\r\n".to_owned(),
        "GET /a%2fb%5c..%2f HTTP/1.1\r\nhost: shop.test\r\nconnection: close\r\n\r\n".to_owned(),
        "GET /%00 HTTP/1.1\r\nhost: shop.test\r\nconnection: close\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nconnection: close\r\n\r\n".to_owned(),
        format!("GET / HTTP/1.1\r\nhost: shop.test\r\nx-large: {large}\r\n\r\n"),
        "GET / HTTP/1.1\r\nhost: shop.test\r\ncontent-length: x\r\n\r\n".to_owned(),
    ]
    .map(String::into_bytes)
    .into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_requests_beside_valid_ones_cost_no_valid_one_its_answer() {
    let echo = Echo::start("echo").await.unwrap();
    let yaml = MALFORMED.replace("ECHO", &echo.address().to_string());
    let folder = tempfile::tempdir().unwrap();
    let guest = folder.path().join("teller.wasm");
    std::fs::write(&guest, Guest::telling("1").module().unwrap()).unwrap();
    let yaml = yaml.replace(
        "source: teller.wasm",
        &format!("source: {}", guest.display()),
    );
    let files = [("checker.lua", CHECKER)];
    let gateway = Gateway::start_with(&yaml, &files, GatewayOptions::default()).unwrap();
    let address = gateway.http1().address;
    let (ended, refused) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let attacker = std::thread::spawn({
        let (ended, refused) = (Arc::clone(&ended), Arc::clone(&refused));
        move || {
            let requests = malformed_requests();
            let began = Instant::now();
            for number in 0_u32.. {
                if ended.load(Ordering::Relaxed) {
                    break;
                }
                let status = send_raw(address, &requests[number as usize % requests.len()]);
                if status.starts_with("HTTP/1.1 4") {
                    refused.fetch_add(1, Ordering::Relaxed);
                }
                // 50 a second.
                let due = began + Duration::from_millis(20) * number;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        }
    });
    for number in 0..200 {
        let path = format!("/Valid/{number}");
        let response = gateway.send(Request::get(&path)).await.unwrap();
        assert_eq!(response.status, 200, "{}", gateway.output.text());
        assert_eq!(response.headers.get("x-revision"), Some("1"));
        assert_eq!(
            response.headers.get("x-path"),
            Some(path.to_lowercase().as_str())
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    ended.store(true, Ordering::Relaxed);
    attacker.join().unwrap();
    assert!(refused.load(Ordering::Relaxed) >= 30, "{refused:?}");
    gateway.stop().unwrap();
    echo.stop().await;
}

const CALLOUTS: &str = "
gateway:
  listeners: [{name: main, address: '{listen}'}]
  admin: '{admin}'
  workers: 1
plugins:
  asker: {source: asker.lua, allow: {upstreams: [echo]}, budgets: {time_ms: 2000}}
projects:
  - name: shop
    hosts: ['*']
    use: [asker]
    routes:
      - {match: {path: /quiet}, respond: {status: 200, body: ok}}
      - {match: {prefix: /}, to: echo}
upstreams:
  echo: {endpoints: ['ECHO']}
  other: {endpoints: ['ECHO']}
";

/// Calls the upstream that the request names, and says what came of it in the response.
const ASKER: &str = "
local handler = { version = 'v2' }
function handler:on_request_header()
  local upstream = envoy.req.get_header('x-ask')
  if not upstream then return end
  local headers, why = envoy.httpCall(upstream, {
    [':method'] = 'GET', [':path'] = '/asked', [':authority'] = 'ask',
  }, '', 5000)
  envoy.stream.shared.answer = headers and headers[':status'] or why
end
function handler:on_response_header()
  if envoy.stream.shared.answer then envoy.resp.set_header('x-answer', envoy.stream.shared.answer) end
end
return handler
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callouts_count_in_their_own_cluster_and_denied_ones_name_the_key() {
    let echo = Echo::start("echo").await.unwrap();
    let yaml = CALLOUTS.replace("ECHO", &echo.address().to_string());
    let files = [("asker.lua", ASKER)];
    let gateway = Gateway::start_with(&yaml, &files, GatewayOptions::default()).unwrap();
    let count = |cluster: &str| gateway.stat(&format!("cluster.{cluster}.upstream_rq_total"));
    let asking = |path: &str, upstream: &str| Request::get(path).header("x-ask", upstream);

    for _ in 0..3 {
        let response = gateway.send(asking("/quiet", "echo")).await.unwrap();
        assert_eq!(response.headers.get("x-answer"), Some("200"));
    }
    assert_eq!(count("echo/callouts").unwrap(), 3);
    assert_eq!(count("echo").unwrap(), 0);

    assert_eq!(gateway.send(Request::get("/")).await.unwrap().status, 200);
    assert_eq!(count("echo/callouts").unwrap(), 3);
    assert_eq!(count("echo").unwrap(), 1);

    let response = gateway.send(asking("/quiet", "other")).await.unwrap();
    let answer = response.headers.get("x-answer").unwrap_or_default();
    assert!(answer.contains("plugins.asker.allow.upstreams"), "{answer}");
    assert_eq!(count("other").unwrap(), 0);
    assert_eq!(count("echo/callouts").unwrap(), 3);
    gateway.stop().unwrap();
    echo.stop().await;
}

const STEERING: &str = "
gateway:
  listeners: [{name: main, address: '{listen}'}]
  admin: '{admin}'
  workers: 1
plugins:
  denied: {source: steerer.lua}
  allowed: {source: steerer.lua, allow: {router_headers: true, typed_filter_state: all}}
projects:
  - name: denied
    hosts: [denied.test]
    use: [denied]
    routes:
      - {match: {prefix: /}, to: dead}
  - name: allowed
    hosts: [allowed.test]
    use: [allowed]
    routes:
      - {match: {prefix: /}, to: dead}
upstreams:
  # Nothing listens on port 1 of the loopback.
  dead: {endpoints: ['127.0.0.1:1']}
";

/// Asks the router for retries, and for a server name; says in the response why it was denied.
const STEERER: &str = "
local handler = { version = 'v2' }
function handler:on_request_header()
  local denied = {}
  local function try(act, ...)
    local ok, why = pcall(act, ...)
    if not ok then denied[#denied + 1] = why end
  end
  try(envoy.req.set_header, 'x-envoy-retry-on', 'connect-failure')
  try(envoy.req.set_header, 'X-Envoy-Max-Retries', '2')
  try(envoy.filter_state.set_typed, 'envoy.network.upstream_server_name', 'a.test')
  envoy.stream.shared.denied = table.concat(denied, ' | ')
end
function handler:on_response_header()
  envoy.resp.set_header('x-denied', envoy.stream.shared.denied)
end
return handler
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_without_permission_neither_retries_nor_chooses_a_server_name() {
    let files = [("steerer.lua", STEERER)];
    let gateway = Gateway::start_with(STEERING, &files, GatewayOptions::default()).unwrap();
    let retries = || gateway.stat("cluster.dead.upstream_rq_retry").unwrap();
    let to = |host: &str| gateway.send(Request::get("/").host(host));

    let response = to("denied.test").await.unwrap();
    assert_eq!(response.status, 503);
    let denied = response.headers.get("x-denied").unwrap_or_default();
    assert_eq!(
        denied.matches("`allow.router_headers: true`").count(),
        2,
        "{denied}"
    );
    assert_eq!(
        denied.matches("`allow.typed_filter_state`").count(),
        1,
        "{denied}"
    );
    assert_eq!(retries(), 0);

    let response = to("allowed.test").await.unwrap();
    assert_eq!(response.status, 503);
    assert_eq!(response.headers.get("x-denied").unwrap_or_default(), "");
    assert_eq!(retries(), 2);
    gateway.stop().unwrap();
}
