//! Bodies through the real gateway: read whole and as a stream, replaced in both directions, of every
//! size and kind, over HTTP/1.1 and HTTP/2.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::time::Duration;

use outrider_e2e::{Gateway, GatewayOptions};
use outrider_lab::client::{Connection, Request, Response, Target};
use outrider_lab::echo::{Echo, pattern};

const GATEWAY: &str = "
gateway:
  listeners: [{name: main, address: '{listen}'}]
  admin: '{admin}'
  body_limit: LIMIT
  workers: 2
plugins:
  whole: {source: whole, budgets: {time_ms: 2000, memory_mib: 256}}
  stream: {source: stream, budgets: {time_ms: 2000, memory_mib: 256}}
  first: {source: first.lua, budgets: {time_ms: 2000, memory_mib: 256}}
  trailers: {source: trailers.lua}
projects:
  - name: http1
    hosts: [http1]
    routes: &routes
      - {match: {prefix: /bytes, headers: [{name: x-plugin, exact: whole}]}, to: one, use: [whole]}
      - {match: {prefix: /, headers: [{name: x-plugin, exact: whole}]}, to: one, use: [whole]}
      - {match: {prefix: /, headers: [{name: x-plugin, exact: stream}]}, to: one, use: [stream]}
      - {match: {prefix: /, headers: [{name: x-plugin, exact: first}]}, to: one, use: [first]}
      - {match: {prefix: /, headers: [{name: x-plugin, exact: trailers}]}, to: one, use: [trailers]}
      - {match: {prefix: /}, to: one}
upstreams:
  one: {endpoints: ['ECHO'], protocol: PROTOCOL}
";

/// Reads bodies whole; `x-do` says what it makes of them.
const WHOLE: &str = "
local handler = { version = 'v2' }
local function change(message, side)
  if not message.get_body_size() then return end
  local body = message.get_body()
  message.set_header('x-' .. side .. '-length', tostring(body and #body))
  local what = envoy.req.get_header('x-do') or ''
  if what == 'wrap' then message.set_body('<' .. (body or '') .. '>') end
  if what == 'empty' then message.set_body('') end
  if what == 'double' then message.set_body((body or '') .. (body or '')) end
end
function handler:on_request_body() change(envoy.req, 'request') end
function handler:on_response_body() change(envoy.resp, 'response') end
return handler
";

/// Sees chunks: counts them and the bytes, and turns every `a` of theirs into `A`.
const STREAM: &str = "
local handler = { version = 'v2' }
local function count(side, chunk)
  local shared = envoy.stream.shared
  shared[side] = (shared[side] or 0) + #chunk
end
function handler:on_request_body()
  if not envoy.req.get_body_size() then return end
  local chunk = envoy.req.get_body() or ''
  count('request', chunk)
  envoy.req.set_body((chunk:gsub('a', 'A')))
end
function handler:on_response_header()
  envoy.resp.set_header('x-request-bytes', tostring(envoy.stream.shared.request))
end
function handler:on_response_body()
  if not envoy.resp.get_body_size() then return end
  local chunk = envoy.resp.get_body() or ''
  envoy.resp.set_body((chunk:gsub('a', 'A')))
end
return handler
";

/// Version 1: `get_body` waits for the body inside of the request's one handler.
const FIRST: &str = "
require('rider')
local handler = {}
function handler:on_request()
  local body = envoy.req.get_body()
  if body then
    envoy.req.set_header('x-request-length', tostring(body:length()))
    envoy.req.set_header('x-request-begins', body:getBytes(0, 1):byte())
  else
    envoy.req.set_header('x-request-length', 'none')
  end
end
function handler:on_response()
  local body = envoy.resp.get_body()
  envoy.resp.set_header('x-response-length', tostring(body and body:length()))
end
return handler
";

const TRAILERS: &str = "
local handler = { version = 'v2' }
function handler:on_request_trailer()
  envoy.req.set_trailer('x-check', (envoy.req.get_trailer('x-check') or '') .. '!')
end
function handler:on_response_trailer()
  envoy.resp.set_trailer('x-echo-trailer', (envoy.resp.get_trailer('x-echo-trailer') or '') .. '!')
end
return handler
";

fn start(echo: &Echo, limit: &str, upstream: &str) -> Gateway {
    let yaml = GATEWAY
        .replace("ECHO", &echo.address().to_string())
        .replace("LIMIT", limit)
        .replace("PROTOCOL", upstream)
        .replace("&routes", "")
        .replace("hosts: [http1]", "hosts: ['*']");
    let manifest = |name: &str, mode: &str| format!("name: {name}\nruntime: lua\nbody: {mode}\n");
    let files = [
        ("whole/plugin.yaml", manifest("whole", "whole")),
        ("whole/main.lua", WHOLE.to_owned()),
        ("stream/plugin.yaml", manifest("stream", "stream")),
        ("stream/main.lua", STREAM.to_owned()),
        ("first.lua", FIRST.to_owned()),
        ("trailers.lua", TRAILERS.to_owned()),
    ];
    let files: Vec<(&str, &str)> = files
        .iter()
        .map(|(path, text)| (*path, text.as_str()))
        .collect();
    Gateway::start_with(&yaml, &files, GatewayOptions::default()).unwrap()
}

const SIZES: [usize; 6] = [0, 1, 1_000, 70_000, 1_200_000, 8 * 1024 * 1024];

fn in_pieces(request: Request, body: &[u8]) -> Request {
    let pieces: Vec<(Duration, Vec<u8>)> = body
        .chunks(body.len().div_ceil(4).max(1))
        .map(|piece| (Duration::from_millis(2), piece.to_vec()))
        .collect();
    request.delayed_pieces(pieces)
}

async fn last_request(echo: &Echo) -> outrider_lab::echo::RecordedRequest {
    let recorded = echo
        .wait_for_requests(1, Duration::from_secs(10))
        .await
        .unwrap();
    recorded.last().unwrap().clone()
}

fn length(response: &Response) -> Option<usize> {
    response
        .headers
        .get("content-length")
        .map(|length| length.parse().unwrap())
}

async fn whole_bodies(gateway: &Gateway, echo: &Echo, target: &Target) {
    for size in SIZES {
        for pieces in [false, true] {
            let what = format!("{size} bytes, in pieces: {pieces}, {}", target.protocol);
            let body = pattern(size);
            let request = Request::post("/echo?whole", "")
                .header("x-plugin", "whole")
                .header("x-do", "wrap");
            let request = if pieces {
                in_pieces(request, &body)
            } else {
                request.body(body.clone())
            };
            echo.forget_requests();
            let response = target.send(request).await.unwrap();
            assert_eq!(response.status, 200, "{what}");
            let reached = last_request(echo).await;
            // A request without any body has none to wrap.
            let bare = size == 0 && !pieces;
            let sent = if bare { 0 } else { size + 2 };
            assert_eq!(reached.body.length, sent as u64, "{what}");
            if !bare {
                assert_eq!(
                    reached.headers.get("x-request-length"),
                    Some(size.to_string().as_str()),
                    "{what}"
                );
            }
            if let Some(length) = reached.headers.get("content-length") {
                assert_eq!(length, sent.to_string(), "{what}");
            }
            let got = if bare { response.body.len() } else { size + 4 };
            assert_eq!(response.body.len(), got, "{what}");
            if let Some(length) = length(&response) {
                assert_eq!(length, response.body.len(), "{what}");
            }
            if !bare {
                assert_eq!(&response.body[..2], b"<<", "{what}");
                assert_eq!(&response.body[2..size + 2], &body[..], "{what}");
                assert_eq!(&response.body[size + 2..], b">>", "{what}");
            }
        }
    }
    for (size, what, expected) in [
        (5_000, "empty", 0),
        (5_000, "double", 20_000),
        (0, "double", 0),
    ] {
        let request = Request::post("/echo?whole", pattern(size))
            .header("x-plugin", "whole")
            .header("x-do", what);
        let response = target.send(request).await.unwrap();
        assert_eq!(response.body.len(), expected, "{what} of {size}");
        if let Some(length) = length(&response) {
            assert_eq!(length, expected, "{what} of {size}");
        }
    }
    assert!(gateway.not_zero(r"\.errors\.\w+").unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whole_bodies_of_every_size_can_be_replaced() {
    let echo = Echo::start("echo").await.unwrap();
    for upstream in ["http1", "http2"] {
        let gateway = start(&echo, "20MiB", upstream);
        for target in [gateway.http1(), gateway.http2()] {
            whole_bodies(&gateway, &echo, &target).await;
        }
        gateway.stop().unwrap();
    }
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streamed_bodies_pass_chunk_by_chunk() {
    let echo = Echo::start("echo").await.unwrap();
    // Far below the largest body: nothing may be held back.
    let gateway = start(&echo, "64KiB", "http1");
    for target in [gateway.http1(), gateway.http2()] {
        for size in SIZES {
            for pieces in [false, true] {
                let what = format!("{size} bytes, in pieces: {pieces}, {}", target.protocol);
                let body = pattern(size);
                let expected: Vec<u8> = body
                    .iter()
                    .map(|byte| if *byte == b'a' { b'A' } else { *byte })
                    .collect();
                let request = Request::post("/echo?whole", "").header("x-plugin", "stream");
                let request = if pieces {
                    in_pieces(request, &body)
                } else {
                    request.body(body.clone())
                };
                let response = target.send(request).await.unwrap();
                assert_eq!(response.status, 200, "{what}");
                assert!(
                    response.body == expected,
                    "{what}: {} bytes",
                    response.body.len()
                );
                if size > 0 {
                    let seen = response.headers.get("x-request-bytes");
                    assert_eq!(seen, Some(size.to_string().as_str()), "{what}");
                }
            }
        }
    }
    assert!(gateway.not_zero(r"\.errors\.\w+").unwrap().is_empty());
    gateway.stop().unwrap();
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_streamed_response_is_on_its_way_before_it_is_complete() {
    let echo = Echo::start("echo").await.unwrap();
    let gateway = start(&echo, "64KiB", "http1");
    for target in [gateway.http1(), gateway.http2()] {
        let mut connection = Connection::open(&target).await.unwrap();
        let request = Request::get("/slow-body?chunks=4&interval_ms=150&size=10")
            .header("x-plugin", "stream");
        let began = std::time::Instant::now();
        let mut response = connection.start(request).await.unwrap();
        assert!(response.next_piece().await.unwrap().is_some());
        let first = began.elapsed();
        let rest = response.finish().await.unwrap();
        assert!(
            began.elapsed() > first + Duration::from_millis(200),
            "{first:?}"
        );
        assert!(rest.body.len() <= 30);
    }
    gateway.stop().unwrap();
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_large_to_be_held_is_refused() {
    let echo = Echo::start("echo").await.unwrap();
    let gateway = start(&echo, "64KiB", "http1");
    for target in [gateway.http1(), gateway.http2()] {
        for pieces in [false, true] {
            let body = pattern(1_000_000);
            let request = Request::post("/echo?whole", "").header("x-plugin", "whole");
            let request = if pieces {
                in_pieces(request, &body)
            } else {
                request.body(body)
            };
            let before = echo.request_count();
            let response = target.send(request).await.unwrap();
            assert_eq!(response.status, 413, "{}", target.protocol);
            assert_eq!(
                echo.request_count(),
                before,
                "it must not reach the upstream"
            );
        }
        let request = Request::get("/bytes/1000000").header("x-plugin", "whole");
        assert_eq!(
            target.send(request).await.unwrap().status,
            500,
            "{}",
            target.protocol
        );
        // Without a plugin that wants it whole, nothing has to be held.
        let response = target
            .send(Request::post("/echo?whole", pattern(1_000_000)))
            .await
            .unwrap();
        assert_eq!(response.body.len(), 1_000_000);
    }
    gateway.stop().unwrap();
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_without_a_body_stay_without_one() {
    let echo = Echo::start("echo").await.unwrap();
    let gateway = start(&echo, "1MiB", "http1");
    for target in [gateway.http1(), gateway.http2()] {
        let mut connection = Connection::open(&target).await.unwrap();
        for plugin in ["whole", "stream", "first"] {
            for (method, path, status) in [
                ("HEAD", "/bytes/500", 200),
                ("GET", "/status/204", 204),
                ("GET", "/status/304", 304),
                ("GET", "/bytes/0", 200),
            ] {
                let request = Request::new(method, path)
                    .header("x-plugin", plugin)
                    .header("x-do", "none");
                let response = connection.send(request).await.unwrap();
                let what = format!("{method} {path}, {plugin}, {}", target.protocol);
                assert_eq!(response.status, status, "{what}");
                assert!(response.body.is_empty(), "{what}");
                if method == "HEAD" {
                    assert_eq!(length(&response), Some(500), "{what}");
                }
            }
        }
        assert!(!connection.is_closed(), "{}", target.protocol);
    }
    assert!(gateway.not_zero(r"\.errors\.\w+").unwrap().is_empty());
    gateway.stop().unwrap();
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_may_come_during_the_upload() {
    let echo = Echo::start("echo").await.unwrap();
    let gateway = start(&echo, "1MiB", "http2");
    for plugin in ["stream", "none"] {
        // `/echo` sends back what it has while more is still coming.
        let body = pattern(300_000);
        let request = in_pieces(Request::post("/echo", "").header("x-plugin", plugin), &body);
        let response = gateway.http2().send(request).await.unwrap();
        assert_eq!(response.status, 200, "{plugin}");
        assert_eq!(response.body.len(), body.len(), "{plugin}");
    }
    assert!(gateway.not_zero(r"\.errors\.\w+").unwrap().is_empty());
    gateway.stop().unwrap();
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_1_plugin_waits_for_bodies_in_its_only_handler() {
    let echo = Echo::start("echo").await.unwrap();
    let gateway = start(&echo, "2MiB", "http1");
    for target in [gateway.http1(), gateway.http2()] {
        for size in [1usize, 1_000, 1_200_000] {
            let body = pattern(size);
            echo.forget_requests();
            let request = in_pieces(
                Request::post("/echo?whole", "").header("x-plugin", "first"),
                &body,
            );
            let response = target.send(request).await.unwrap();
            let what = format!("{size} bytes, {}", target.protocol);
            assert_eq!(response.status, 200, "{what}: {}", response.text());
            assert!(response.body == body, "{what}");
            assert_eq!(
                response.headers.get("x-response-length"),
                Some(size.to_string().as_str()),
                "{what}"
            );
            let reached = last_request(&echo).await;
            assert_eq!(
                reached.headers.get("x-request-length"),
                Some(size.to_string().as_str()),
                "{what}"
            );
        }
        let response = target
            .send(Request::get("/status/200").header("x-plugin", "first"))
            .await
            .unwrap();
        assert_eq!(response.json()["headers"]["x-request-length"][0], "none");
    }
    assert!(gateway.not_zero(r"\.errors\.\w+").unwrap().is_empty());
    gateway.stop().unwrap();
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trailers_pass_and_can_be_changed() {
    let echo = Echo::start("echo").await.unwrap();
    let gateway = start(&echo, "1MiB", "http2");
    for plugin in ["none", "whole", "stream", "trailers"] {
        echo.forget_requests();
        let request = Request::post("/echo?whole", "")
            .header("x-plugin", plugin)
            .pieces([pattern(100), pattern(50)])
            .trailer("x-check", "yes")
            .accept_trailers();
        let response = gateway.http2().send(request).await.unwrap();
        assert_eq!(response.status, 200, "{plugin}");
        assert_eq!(response.body.len(), 150, "{plugin}");
        let reached = last_request(&echo).await;
        let expected = if plugin == "trailers" { "yes!" } else { "yes" };
        assert_eq!(reached.trailers.get("x-check"), Some(expected), "{plugin}");
        assert_eq!(response.trailers.get("x-check"), Some(expected), "{plugin}");

        let response = gateway
            .http2()
            .send(
                Request::get("/trailers")
                    .header("x-plugin", plugin)
                    .accept_trailers(),
            )
            .await
            .unwrap();
        let expected = if plugin == "trailers" {
            "done!"
        } else {
            "done"
        };
        assert_eq!(
            response.trailers.get("x-echo-trailer"),
            Some(expected),
            "{plugin}"
        );
    }
    assert!(gateway.not_zero(r"\.errors\.\w+").unwrap().is_empty());
    gateway.stop().unwrap();
    echo.stop().await;
}
