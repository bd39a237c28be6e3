//! Bytes on the wire: whatever plugins do, messages keep their framing, and nobody gets another's bytes.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outrider_e2e::{Gateway, GatewayOptions};
use outrider_lab::client::Request;

const SOON: Duration = Duration::from_secs(10);

const EVIL: &str = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nx-evil: 1\r\n\r\nEVIL!";

/// An upstream that answers every request on a connection in chunks, and keeps what it read.
struct Upstream {
    address: SocketAddr,
    read: Arc<Mutex<Vec<u8>>>,
}

impl Upstream {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let read = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&read);
        std::thread::spawn(move || {
            for connection in listener.incoming().take(64) {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || serve(connection.unwrap(), &shared));
            }
        });
        Self { address, read }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.read.lock().unwrap()).into_owned()
    }
}

/// Answers whenever a request's head is complete; a body that has its end with it does not matter.
fn serve(mut connection: TcpStream, read: &Mutex<Vec<u8>>) {
    connection.set_read_timeout(Some(SOON)).unwrap();
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = connection.read(&mut buffer) {
        let part = &buffer[..length];
        read.lock().unwrap().extend_from_slice(part);
        let heads = part
            .windows(9)
            .filter(|part| *part == b"HTTP/1.1\r")
            .count();
        if part.starts_with(b"GET /unchanged ") {
            let answer = b"HTTP/1.1 304 Not Modified\r\ncontent-length: 231\r\n\r\n";
            if connection.write_all(answer).is_err() {
                return;
            }
            continue;
        }
        for _ in 0..heads {
            let answer = format!(
                "HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{EVIL}\r\n0\r\n\r\n",
                EVIL.len()
            );
            if connection.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }
}

const PLUGINS: &[(&str, &str)] = &[
    (
        "no-content.lua",
        "return { version = 'v2',
  on_response_header = function() envoy.resp.set_header(':status', '204') end }",
    ),
    (
        "missing.lua",
        "return { version = 'v2',
  on_response_header = function() envoy.resp.set_header(':status', '404') end }",
    ),
    (
        "replies.lua",
        "return { version = 'v2', on_request_header = function()
  envoy.respond({ [':status'] = 304, ['content-length'] = '3', connection = 'close' }, 'a body that nobody may see')
end }",
    ),
    (
        "length.lua",
        "function envoy_on_response(handle)
  handle:headers():replace('content-length', 2)
  local last
  for chunk in handle:bodyChunks() do chunk:setBytes('') last = chunk end
  last:setBytes('ok')
end",
    ),
    (
        "half.lua",
        "return { version = 'v2', on_response_header = function()
  envoy.resp.set_header('content-length', '3')
  envoy.resp.set_header('x-half', '1')
  error('on purpose')
end }",
    ),
    (
        "smuggler.lua",
        "return { version = 'v2', on_request_header = function()
  local body = '0\\r\\n\\r\\nGET /smuggled HTTP/1.0\\r\\nhost: a\\r\\n\\r\\n'
  envoy.callout.start{cluster='raw', path='/first', method='POST', body=body, headers={
    ['transfer-encoding']='chunked', connection='keep-alive', upgrade='x', ['content-length']='1'}}:wait()
  local names = {}
  for name, value in pairs{ ['transfer-encoding']='chunked', connection='close', upgrade='h2c', te='gzip',
      trailer='x', ['keep-alive']='1', ['proxy-connection']='close', [':method']='GET /x HTTP/1.1',
      [':path']='/a b', [':authority']='a b' } do
    if pcall(envoy.req.set_header, name, value) then names[#names + 1] = name end
  end
  envoy.req.set_header('content-length', '50')
  envoy.req.set_header('x-taken', table.concat(names, ','))
end }",
    ),
    (
        "leaves.lua",
        "return { version = 'v2', on_request_header = function()
  envoy.req.set_header(':authority', 'guarded.test')
  envoy.req.set_header(':path', '/admin')
  envoy.req.clear_route_cache()
end }",
    ),
    (
        "guard.lua",
        "return { version = 'v2', on_request_header = function() envoy.respond({[':status'] = 401}) end }",
    ),
];

fn start(upstream: &Upstream) -> Gateway {
    let yaml = "
gateway:
  listeners: [{name: main, address: '{listen}'}]
  admin: '{admin}'
plugins:
  no-content: {source: no-content.lua}
  replies: {source: replies.lua}
  length: {source: length.lua, failure_policy: open}
  half: {source: half.lua, failure_policy: open}
  smuggler: {source: smuggler.lua, allow: {upstreams: [raw]}}
  leaves: {source: leaves.lua}
  missing: {source: missing.lua}
  guard: {source: guard.lua}
projects:
  - name: guarded
    hosts: [guarded.test]
    routes:
      - {match: {prefix: /}, respond: {status: 200, body: secret}, use: [guard]}
  - name: all
    hosts: ['*']
    routes:
      - {match: {prefix: /no-content}, to: raw, use: [no-content]}
      - {match: {prefix: /replies}, to: raw, use: [replies]}
      - {match: {prefix: /length}, to: raw, use: [length]}
      - {match: {prefix: /half}, to: raw, use: [half]}
      - {match: {prefix: /smuggler}, to: raw, use: [smuggler]}
      - {match: {prefix: /leaves}, to: raw, use: [leaves]}
      - {match: {prefix: /unchanged}, to: raw, use: [missing]}
      - {match: {prefix: /}, respond: {status: 200, body: plain}}
upstreams:
  raw: {endpoints: ['RAW']}
"
    .replace("RAW", &upstream.address.to_string());
    Gateway::start_with(&yaml, PLUGINS, GatewayOptions::default()).unwrap()
}

/// Sends a request and one behind it on the same connection, which is then closed; returns all that came.
fn exchange(gateway: &Gateway, path: &str) -> String {
    let mut client = TcpStream::connect(gateway.http1().address).unwrap();
    client.set_read_timeout(Some(SOON)).unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: a.test\r\n\r\nGET /plain HTTP/1.1\r\nhost: a.test\r\nconnection: close\r\n\r\n"
    );
    client.write_all(request.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    client.read_to_end(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// The first head, and what follows it.
fn split(answer: &str) -> (&str, &str) {
    answer.split_once("\r\n\r\n").unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_keep_their_framing_whatever_plugins_do() {
    let upstream = Upstream::start();
    let gateway = start(&upstream);
    for (path, status) in [
        ("/no-content", "HTTP/1.1 204"),
        ("/replies", "HTTP/1.1 304"),
    ] {
        let answer = exchange(&gateway, path);
        let (head, rest) = split(&answer);
        assert!(head.starts_with(status), "{answer}");
        assert!(!head.contains("content-length"), "{answer}");
        assert!(!head.contains("transfer-encoding"), "{answer}");
        // Straight to the next response.
        assert!(rest.starts_with("HTTP/1.1 200 OK"), "{answer}");
        assert!(rest.ends_with("plain"), "{answer}");
    }
    // The upstream's 304 says how long the body is that it does not send.
    let answer = exchange(&gateway, "/unchanged");
    let (head, rest) = split(&answer);
    assert!(head.starts_with("HTTP/1.1 404"), "{answer}");
    assert!(head.contains("content-length: 0"), "{answer}");
    assert!(rest.starts_with("HTTP/1.1 200 OK"), "{answer}");
    let answer = exchange(&gateway, "/length");
    let (head, rest) = split(&answer);
    assert!(head.contains("transfer-encoding: chunked"), "{answer}");
    assert!(!head.contains("content-length"), "{answer}");
    assert!(
        rest.starts_with("2\r\nok\r\n0\r\n\r\nHTTP/1.1 200 OK"),
        "{answer}"
    );
    let answer = exchange(&gateway, "/half");
    let (head, rest) = split(&answer);
    assert!(head.contains("transfer-encoding: chunked"), "{answer}");
    assert!(
        !head.contains("content-length") && !head.contains("x-half"),
        "{answer}"
    );
    assert!(rest.contains(EVIL), "{answer}");

    let before = upstream.text().len();
    let answer = exchange(&gateway, "/smuggler");
    assert!(answer.contains("HTTP/1.1 201"), "{answer}");
    let sent = upstream.text();
    let sent = &sent[before..];
    let (callout, forwarded) = sent.split_once("GET /smuggler").unwrap();
    assert!(callout.starts_with("POST /first HTTP/1.1\r\n"), "{sent}");
    assert!(callout.contains("content-length: 40\r\n"), "{sent}");
    for name in ["transfer-encoding", "connection", "upgrade"] {
        assert!(!split(callout).0.contains(name), "{name}: {sent}");
    }
    for name in [
        "x-taken",
        "content-length",
        "transfer-encoding",
        "te:",
        "trailer",
        "h2c",
    ] {
        assert!(!forwarded.contains(name), "{name}: {sent}");
    }
    gateway.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_does_not_leave_its_project_without_that_projects_plugins() {
    let upstream = Upstream::start();
    let gateway = start(&upstream);
    let guarded = Request::get("/admin").host("guarded.test");
    assert_eq!(gateway.send(guarded).await.unwrap().status, 401);
    let response = gateway.send(Request::get("/leaves")).await.unwrap();
    assert_eq!(response.status, 403);
    assert!(!response.text().contains("secret"));
    gateway.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn path_of_slashes_only_does_not_pass_by_the_route_that_guards_the_root() {
    let upstream = Upstream::start();
    let yaml = "gateway:
  listeners: [{name: main, address: '{listen}'}]
  admin: '{admin}'
plugins:
  guard: {source: guard.lua}
projects:
  - name: shop
    hosts: ['*']
    routes:
      - {match: {path: /}, to: raw, use: [guard]}
      - {match: {prefix: /}, to: raw}
upstreams:
  raw: {endpoints: ['RAW']}
"
    .replace("RAW", &upstream.address.to_string());
    let guard = "return { version = 'v2', on_request_header = function()
  envoy.respond({ [':status'] = 401 }, 'no') end }";
    let gateway =
        Gateway::start_with(&yaml, &[("guard.lua", guard)], GatewayOptions::default()).unwrap();
    for path in [
        "/", "//", "///", "/.//", "/..//", "//.", "//?x", "/a/..//", "//%2e",
    ] {
        let answer = exchange(&gateway, path);
        let is_guarded = answer.starts_with("HTTP/1.1 401");
        let is_sent_there = answer.starts_with("HTTP/1.1 307") && answer.contains("location: http");
        assert!(is_guarded || is_sent_there, "{path}: {answer}");
    }
    let sent = upstream.text();
    assert!(
        !sent.contains("GET / ") && !sent.contains("GET //"),
        "{sent}"
    );
    gateway.stop().unwrap();
}
