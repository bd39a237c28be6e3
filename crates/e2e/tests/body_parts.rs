//! Bodies changed at their ends and read in parts, on the real Envoy: whole and as they stream, in both
//! directions, over HTTP/1.1 and HTTP/2, and behind another filter that has held them back.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::time::Duration;

use outrider_e2e::{Direct, FilterPlugin, direct_config};
use outrider_lab::client::{Request, Target};
use outrider_lab::echo::{Echo, pattern};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

fn plugin(name: &str, priority: i32, body: &'static str, code: &str) -> FilterPlugin {
    FilterPlugin {
        name: name.to_owned(),
        code: format!("local handler = {{ version = 'v2' }}\n{code}\nreturn handler\n"),
        module: None,
        body,
        priority,
        config: json!({}),
    }
}

/// Adds at both ends and takes some away again; tells what it read in parts.
const EDITS: &str = r#"
local function edit(message)
    if not message.get_body_size() then return end
    message.prepend_body("xxhead-")
    message.append_body("-tail")
    message.drain_body(2)
    local size = message.get_body_size()
    local read = message.get_body_bytes(1, 5) .. message.get_body_bytes(-5)
    if size ~= #message.get_body() or read ~= "head--tail" then
        error("read " .. read .. " of " .. size)
    end
end
function handler:on_request_body() edit(envoy.req) end
function handler:on_response_body() edit(envoy.resp) end
"#;

/// Adds to the first and to the last chunk.
const STREAMS: &str = r#"
local function edit(message, seen, end_of_stream)
    if not message.get_body_size() then return end
    local shared = envoy.stream.shared
    if not shared[seen] then
        shared[seen] = true
        message.prepend_body("head-")
    end
    if end_of_stream then
        message.append_body("-tail")
    end
end
function handler:on_request_header() envoy.req.clear_header("content-length") end
function handler:on_request_body(last) edit(envoy.req, "request", last) end
function handler:on_response_header() envoy.resp.clear_header("content-length") end
function handler:on_response_body(last) edit(envoy.resp, "response", last) end
"#;

fn in_pieces(request: Request, body: &[u8]) -> Request {
    let pieces: Vec<(Duration, Vec<u8>)> = body
        .chunks(body.len().div_ceil(3).max(1))
        .map(|piece| (Duration::from_millis(2), piece.to_vec()))
        .collect();
    request.delayed_pieces(pieces)
}

/// The body with `head-` and `-tail` around it, so many times.
fn wrapped(body: &[u8], times: usize) -> Vec<u8> {
    [
        b"head-".repeat(times),
        body.to_vec(),
        b"-tail".repeat(times),
    ]
    .concat()
}

async fn check(target: &Target, times: usize, what: &str) {
    for size in [1, 1_000, 70_000, 1_200_000] {
        for pieces in [false, true] {
            let what = format!(
                "{what}: {size} bytes, in pieces: {pieces}, {}",
                target.protocol
            );
            let body = pattern(size);
            let request = Request::post("/echo?whole", "");
            let request = if pieces {
                in_pieces(request, &body)
            } else {
                request.body(body.clone())
            };
            let response = target.send(request).await.unwrap();
            assert_eq!(response.status, 200, "{what}");
            // Once on the way to the service, and once on the way back.
            let expected = wrapped(&body, 2 * times);
            assert!(
                response.body == expected,
                "{what}: {} bytes for {}",
                response.body.len(),
                expected.len()
            );
            if let Some(length) = response.headers.get("content-length") {
                assert_eq!(length, expected.len().to_string(), "{what}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_ends_of_bodies_change() {
    let echo = Echo::start("echo").await.unwrap();
    let chains = [
        vec![vec![plugin("edits", 0, "whole", EDITS)]],
        vec![vec![
            plugin("first", 2, "whole", EDITS),
            plugin("second", 1, "whole", EDITS),
        ]],
        // Behind a filter that has held the body back.
        vec![
            vec![plugin("outer", 0, "whole", EDITS)],
            vec![plugin("inner", 0, "whole", EDITS)],
        ],
        vec![vec![plugin("streams", 0, "stream", STREAMS)]],
    ];
    let envoy = Direct::start(&direct_config(&chains, echo.address()), 1).unwrap();
    for (chain, times) in [1, 2, 2, 1].into_iter().enumerate() {
        let name = format!("listener-{chain}");
        for target in [envoy.http1(&name).unwrap(), envoy.http2(&name).unwrap()] {
            check(&target, times, &name).await;
        }
    }
    let log = envoy.stop().unwrap().text();
    assert!(!log.contains("failed in"), "{log}");
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_s_body_is_edited_by_the_others() {
    const REPLIES: &str = r#"
        function handler:on_request_header()
            envoy.respond({ [":status"] = 403 }, "no")
        end
    "#;
    let echo = Echo::start("echo").await.unwrap();
    let chains = [vec![vec![
        plugin("edits", 2, "whole", EDITS),
        plugin("replies", 1, "whole", REPLIES),
    ]]];
    let envoy = Direct::start(&direct_config(&chains, echo.address()), 1).unwrap();
    for target in [
        envoy.http1("listener-0").unwrap(),
        envoy.http2("listener-0").unwrap(),
    ] {
        let response = target.send(Request::get("/")).await.unwrap();
        assert_eq!(
            (response.status, response.text().as_str()),
            (403, "head-no-tail")
        );
    }
    envoy.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_cannot_outgrow_the_buffer_in_which_another_filter_held_it() {
    const GROWS: &str = r#"
        function handler:on_response_body()
            local _, problem = pcall(envoy.resp.append_body, ("x"):rep(200000))
            envoy.logWarn(tostring(problem))
        end
    "#;
    const HOLDS: &str = "function handler:on_response_body() end";
    let echo = Echo::start("echo").await.unwrap();
    let chains = [vec![
        vec![plugin("grows", 0, "stream", GROWS)],
        vec![plugin("holds", 0, "whole", HOLDS)],
    ]];
    let mut bootstrap = direct_config(&chains, echo.address());
    if let Some(listener) = bootstrap.pointer_mut("/static_resources/listeners/0") {
        listener["per_connection_buffer_limit_bytes"] = json!(65_536);
    }
    for filter in 0..2 {
        let place = format!(
            "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters/{filter}\
             /typed_config/filter_config/value"
        );
        if let Some(document) = bootstrap.pointer_mut(&place) {
            document["body_limit"] = json!(65_536);
        }
    }
    let envoy = Direct::start(&bootstrap, 1).unwrap();
    for target in [
        envoy.http1("listener-0").unwrap(),
        envoy.http2("listener-0").unwrap(),
    ] {
        // In pieces, so that no length is announced.
        let request = in_pieces(Request::post("/echo?whole", ""), &pattern(1_000));
        // The refusal is an error that the plugin may catch; the stream goes on.
        let response = target.send(request).await.unwrap();
        assert_eq!(response.status, 200);
        assert!(response.body == pattern(1_000));
    }
    let log = envoy.stop().unwrap().text();
    assert!(log.contains("the body would be larger than the"), "{log}");
}

/// What follows a 101 has no end: a plugin that asks for whole bodies does not hold it up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_follows_an_upgrade_passes_as_it_comes() {
    const COLLECTS: &str = r#"
        function handler:on_response_header() envoy.resp.set_header("x-seen", "headers") end
        function handler:on_response_body() envoy.resp.set_body("collected") end
    "#;
    let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let chains = [vec![vec![plugin("collects", 0, "whole", COLLECTS)]]];
    let mut bootstrap = direct_config(&chains, upstream.local_addr().unwrap());
    let manager = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
    let manager = bootstrap.pointer_mut(manager).unwrap();
    manager["upgrade_configs"] = json!([{ "upgrade_type": "websocket" }]);
    let envoy = Direct::start(&bootstrap, 1).unwrap();
    let address = envoy.listener("listener-0").unwrap();
    let talk = async {
        let mut client = TcpStream::connect(address).await.unwrap();
        let request =
            "GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
        client.write_all(request.as_bytes()).await.unwrap();
        let (mut server, _) = upstream.accept().await.unwrap();
        until(&mut server, "\r\n\r\n").await;
        let answer = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nhello";
        server.write_all(answer.as_bytes()).await.unwrap();
        let got = until(&mut client, "hello").await;
        assert!(got.starts_with("HTTP/1.1 101"), "{got}");
        assert!(got.contains("x-seen: headers"), "{got}");
        client.write_all(b"ping").await.unwrap();
        until(&mut server, "ping").await;
        server.write_all(b"pong").await.unwrap();
        until(&mut client, "pong").await;
    };
    tokio::time::timeout(Duration::from_secs(20), talk)
        .await
        .unwrap();
    let log = envoy.stop().unwrap().text();
    assert!(!log.contains("failed in"), "{log}");
}

/// Reads until the text ends with `end`.
async fn until(stream: &mut TcpStream, end: &str) -> String {
    let mut text = Vec::new();
    while !text.ends_with(end.as_bytes()) {
        assert_ne!(stream.read_buf(&mut text).await.unwrap(), 0, "closed");
    }
    String::from_utf8(text).unwrap()
}
