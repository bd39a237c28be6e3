//! Memory that plugins make Envoy keep by clients and upstreams that do not read, on the real Envoy.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use outrider_e2e::{Gateway, GatewayOptions, resident_memory};
use outrider_lab::client::Request;
use outrider_lab::echo::Echo;

const MIB: u64 = 1024 * 1024;

const GATEWAY: &str = "
gateway:
  listeners: [{name: main, address: '{listen}'}]
  admin: '{admin}'
  workers: 1
plugins:
  replies: {source: replies.lua, budgets: {time_ms: 2000}}
  calls: {source: calls.lua, budgets: {time_ms: 2000}, allow: {upstreams: [deaf]}}
projects:
  - name: shop
    hosts: ['*']
    routes:
      - {match: {prefix: /reply}, to: echo, use: [replies]}
      - {match: {prefix: /call}, to: echo, use: [calls]}
      - {match: {prefix: /}, to: echo}
upstreams:
  echo: {endpoints: ['ECHO']}
  deaf: {endpoints: ['DEAF']}
";

/// Replies with as many KiB as the path says.
const REPLIES: &str = "
local handler = { version = 'v2' }
function handler:on_request_header()
  local kib = tonumber(envoy.req.get_header(':path'):match('%d+'))
  envoy.respond({ [':status'] = 200 }, ('x'):rep(kib * 1024))
end
return handler
";

/// Starts as many callouts as it may, whole ones or in parts, to an upstream that never reads.
const CALLS: &str = "
local handler = { version = 'v2' }
function handler:on_request_header()
  local body, reason = ('x'):rep(1024 * 1024 - 1), 'none'
  local in_parts = envoy.req.get_header(':path'):find('parts')
  for i = 1, 64 do
    if in_parts then
      local stream = envoy.callout.stream{ cluster = 'deaf', method = 'POST', path = '/' }
      for j = 1, 8 do
        local sent, why = stream:send(body)
        reason = sent and reason or why
      end
    else
      local sent, why = envoy.callout.send{ cluster = 'deaf', method = 'POST', path = '/', body = body, timeout_ms = 60000 }
      reason = sent and reason or why
    end
  end
  envoy.logWarn('refused: ' .. reason)
  envoy.sleep(20000)
end
return handler
";

/// An upstream that accepts connections and never reads.
fn deaf_upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut kept = Vec::new();
        while let Ok((connection, _)) = listener.accept() {
            kept.push(connection);
        }
    });
    address
}

async fn gateway(echo: &Echo) -> Gateway {
    let yaml = GATEWAY
        .replace("ECHO", &echo.address().to_string())
        .replace("DEAF", &deaf_upstream().to_string());
    let files = [("replies.lua", REPLIES), ("calls.lua", CALLS)];
    let gateway = Gateway::start_with(&yaml, &files, GatewayOptions::default()).unwrap();
    // Each plugin has run before memory is measured.
    let response = gateway.send(Request::get("/reply/1")).await.unwrap();
    assert_eq!((response.status, response.body.len()), (200, 1024));
    gateway
}

fn resident(gateway: &Gateway) -> u64 {
    resident_memory(gateway.envoy_process().unwrap()).unwrap()
}

/// Sends a request on a connection, and leaves what comes unread but for the status line.
fn send_unread(address: SocketAddr, path: &str) -> (TcpStream, String) {
    let mut connection = TcpStream::connect(address).unwrap();
    connection
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    write!(connection, "GET {path} HTTP/1.1\r\nhost: shop.test\r\n\r\n").unwrap();
    let mut start = [0; 12];
    let status = match connection.read_exact(&mut start) {
        Ok(()) => String::from_utf8_lossy(&start).into_owned(),
        Err(_) => String::new(),
    };
    (connection, status)
}

/// Waits until a condition holds.
fn wait_for(what: &str, gateway: &Gateway, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        let output = gateway.output.text();
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "{what}: {output}"
        );
        thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_clients_do_not_read_take_bounded_memory() {
    let echo = Echo::start("echo").await.unwrap();
    let gateway = gateway(&echo).await;
    let address = gateway.http1().address;
    let before = resident(&gateway);
    let mut connections = Vec::new();
    for _ in 0..60 {
        let (connection, status) = send_unread(address, "/reply/7168");
        assert_eq!(status, "HTTP/1.1 500");
        connections.push(connection);
    }
    let after = resident(&gateway);
    let growth = after.saturating_sub(before);
    assert!(growth < 60 * MIB, "{} MiB", growth / MIB);
    let output = gateway.output.text();
    assert!(output.contains("raise `body_limit`"), "{output}");
    // Of replies within the limit, a connection of HTTP/1.1 keeps one.
    for _ in 0..60 {
        let (connection, status) = send_unread(address, "/reply/1024");
        assert_eq!(status, "HTTP/1.1 200");
        connections.push(connection);
    }
    let growth = resident(&gateway).saturating_sub(after);
    assert!(growth < 110 * MIB, "{} MiB", growth / MIB);
    drop(connections);
    let response = gateway.send(Request::get("/reply/1024")).await.unwrap();
    assert_eq!((response.status, response.body.len()), (200, 1024 * 1024));
    gateway.stop().unwrap();
}

/// Frames of HTTP/2: a client that grants no window at all, and so many requests.
fn http2_without_window(path: &str, requests: u32) -> Vec<u8> {
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = length[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        frame
    };
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // SETTINGS_INITIAL_WINDOW_SIZE is 0.
    bytes.extend(frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]));
    for request in 0..requests {
        // `:method: GET`, `:scheme: http`, then `:authority` and `:path` as literals.
        let mut block = vec![0x82, 0x86, 0x01, 9];
        block.extend(b"shop.test");
        block.extend([0x04, u8::try_from(path.len()).unwrap()]);
        block.extend(path.as_bytes());
        bytes.extend(frame(1, 5, request * 2 + 1, &block));
    }
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_on_http2_without_window_stay_within_the_plugins_memory_budget() {
    let echo = Echo::start("echo").await.unwrap();
    let gateway = gateway(&echo).await;
    let before = resident(&gateway);
    let mut connections = Vec::new();
    for _ in 0..4 {
        let mut connection = TcpStream::connect(gateway.http2().address).unwrap();
        let frames = http2_without_window("/reply/1000", 60);
        connection.write_all(&frames).unwrap();
        connections.push(connection);
    }
    // The account holds 16 of the 240 replies.
    let refused = 240 - 16;
    wait_for("refused replies", &gateway, || {
        gateway.stat("http.main.downstream_rq_5xx").unwrap() >= refused
    });
    let held = gateway.stat("http.main.downstream_rq_active").unwrap();
    assert_eq!(held, 16, "{}", gateway.output.text());
    let growth = resident(&gateway).saturating_sub(before);
    assert!(growth < 60 * MIB, "{} MiB", growth / MIB);
    let output = gateway.output.text();
    assert!(output.contains("`budgets.memory_mib`"), "{output}");
    drop(connections);
    wait_for("freed replies", &gateway, || {
        gateway.stat("http.main.downstream_rq_active").unwrap() == 0
    });
    let response = gateway.send(Request::get("/reply/1000")).await.unwrap();
    assert_eq!((response.status, response.body.len()), (200, 1_024_000));
    gateway.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callouts_that_upstreams_do_not_read_stay_within_the_plugins_memory_budget() {
    let echo = Echo::start("echo").await.unwrap();
    let gateway = gateway(&echo).await;
    let address = gateway.http1().address;
    let before = resident(&gateway);
    let mut connections = Vec::new();
    for number in 0..12 {
        let mut connection = TcpStream::connect(address).unwrap();
        let path = if number % 2 == 0 { "whole" } else { "parts" };
        write!(
            connection,
            "GET /call/{path} HTTP/1.1\r\nhost: shop.test\r\n\r\n"
        )
        .unwrap();
        connections.push(connection);
        wait_for("refused callouts", &gateway, || {
            gateway.output.text().matches("refused: ").count() > number
        });
    }
    let growth = resident(&gateway).saturating_sub(before);
    assert!(growth < 100 * MIB, "{} MiB", growth / MIB);
    let output = gateway.output.text();
    assert!(
        output.contains("raise the plugin's `budgets.memory_mib`"),
        "{output}"
    );
    assert!(!output.contains("refused: none"), "{output}");
    drop(connections);
    wait_for("freed callouts", &gateway, || {
        gateway.stat("http.main.downstream_rq_active").unwrap() == 0
    });
    let response = gateway.send(Request::get("/")).await.unwrap();
    assert_eq!(response.status, 200);
    gateway.stop().unwrap();
}
