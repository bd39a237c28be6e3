//! One Outrider filter with two plugins does to every byte what two Outrider filters with one plugin
//! each do.
//!
//! Pairs of plugins are made at random (from fixed seeds), of Lua, of Wasm, and of one and the other: they
//! read, change, buffer, stream, pause and reply. Each pair stands in one chain behind one listener, and in two filters behind another, of
//! one Envoy. The same requests go to both: bodies of 0 bytes to 8 MiB, in pieces or whole, with and
//! without trailers, over HTTP/1.1 and HTTP/2. What the upstream got and what the client got has to be
//! the same, but for dates and durations.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use outrider_e2e::{Direct, FilterPlugin, Guest, direct_config};
use outrider_lab::client::{Request, Target};
use outrider_lab::echo::{Echo, RecordedRequest, pattern};
use serde_json::json;
use tempfile::TempDir;

/// How many pairs of plugins.
const PAIRS: u64 = 16;
/// The status of the plugins' own replies.
const TEAPOT: u16 = 418;
/// So many of them are of Lua plugins alone.
const OF_LUA: u64 = 10;

/// A small generator of numbers (xorshift64*), so that a seed means the same plugins for good.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// Lua statements of one handler. `side` is `req` or `resp`.
fn headers_handler(random: &mut Random, name: &str, phase: &str, side: &str) -> String {
    let mut code = String::new();
    if random.chance(60) {
        writeln!(
            code,
            "    envoy.{side}.set_header('x-{name}-{side}', 'set')"
        )
        .unwrap();
    }
    if random.chance(60) {
        // What the other plugin left behind shows in what this one sees.
        writeln!(
            code,
            "    local n, seen = 0, ''\n    for key, value in pairs(envoy.{side}.get_headers()) do\n      \
             if key:sub(1, 2) == 'x-' and not key:find('envoy') then n = n + 1 end\n    end\n    \
             envoy.{side}.set_header('x-{name}-{side}-count', tostring(n))"
        )
        .unwrap();
    }
    if random.chance(40) {
        writeln!(code, "    envoy.{side}.add_header('x-list', '{name}')").unwrap();
    }
    if random.chance(30) {
        writeln!(
            code,
            "    envoy.{side}.clear_header('x-remove-{}')",
            random.below(3)
        )
        .unwrap();
    }
    if random.chance(35) {
        writeln!(code, "    envoy.sleep({})", random.below(30)).unwrap();
        writeln!(
            code,
            "    envoy.{side}.set_header('x-{name}-{side}-slept', '1')"
        )
        .unwrap();
    }
    reply(&mut code, name, phase);
    code
}

fn reply(code: &mut String, name: &str, phase: &str) {
    writeln!(
        code,
        "    if envoy.req.get_header('x-reply') == '{name}-{phase}' then\n      \
         envoy.respond({{[':status'] = '418', ['x-by'] = '{name}'}}, 'teapot by {name}')\n    end"
    )
    .unwrap();
}

fn whole_body_handler(random: &mut Random, name: &str, phase: &str, side: &str) -> String {
    let mut code = format!("    local body = envoy.{side}.get_body() or ''\n");
    if random.chance(50) {
        writeln!(
            code,
            "    envoy.{side}.set_header('x-{name}-{side}-length', tostring(#body))"
        )
        .unwrap();
    }
    if random.chance(30) {
        writeln!(code, "    envoy.sleep({})", random.below(30)).unwrap();
    }
    match random.below(4) {
        0 => writeln!(
            code,
            "    envoy.{side}.set_body('<{name}>' .. body .. '</{name}>')"
        )
        .unwrap(),
        1 => writeln!(
            code,
            "    envoy.{side}.set_body(body:sub(1, math.floor(#body / 2)))"
        )
        .unwrap(),
        2 => writeln!(code, "    envoy.{side}.set_body(body:upper())").unwrap(),
        _ => {}
    }
    reply(&mut code, name, phase);
    code
}

fn stream_body_handler(random: &mut Random, name: &str, side: &str) -> String {
    // What a streaming plugin does must not depend on where chunks are cut.
    let mut code = format!("    local chunk = envoy.{side}.get_body() or ''\n");
    if random.chance(40) {
        // At each chunk, so a large body would take long: only at the first few.
        writeln!(
            code,
            "    local shared = envoy.stream.shared\n    shared.{side} = (shared.{side} or 0) + 1\n    \
             if shared.{side} < 4 then envoy.sleep({}) end",
            1 + random.below(10)
        )
        .unwrap();
    }
    match random.below(3) {
        0 => writeln!(code, "    envoy.{side}.set_body((chunk:gsub('a', 'A')))").unwrap(),
        1 => writeln!(
            code,
            "    envoy.{side}.set_body((chunk:gsub('b', '{}')))",
            &name[..1]
        )
        .unwrap(),
        _ => {}
    }
    code
}

/// A plugin made from a seed.
fn plugin(seed: u64, name: &str, priority: i32) -> FilterPlugin {
    let mut random = Random::new(seed);
    let streams = random.chance(50);
    let mut code = String::from("local handler = { version = 'v2' }\n");
    for (direction, side) in [("request", "req"), ("response", "resp")] {
        if random.chance(85) {
            let body = headers_handler(&mut random, name, &format!("{direction}-headers"), side);
            write!(
                code,
                "function handler:on_{direction}_header()\n{body}end\n"
            )
            .unwrap();
        }
        if random.chance(70) {
            let body = if streams {
                stream_body_handler(&mut random, name, side)
            } else {
                whole_body_handler(&mut random, name, &format!("{direction}-body"), side)
            };
            write!(code, "function handler:on_{direction}_body()\n{body}end\n").unwrap();
        }
    }
    code.push_str("return handler\n");
    FilterPlugin {
        name: name.to_owned(),
        code,
        module: None,
        body: if streams { "stream" } else { "whole" },
        priority,
        config: json!({}),
    }
}

/// Functions of a guest for the headers of one direction.
fn wasm_headers(
    random: &mut Random,
    guest: &mut Guest,
    name: &str,
    direction: &str,
    changes_length: bool,
) -> String {
    let (map, side) = if direction == "request" {
        (0, "req")
    } else {
        (2, "resp")
    };
    let mut code = String::new();
    if random.chance(60) {
        let key = guest.text(&format!("x-{name}-{side}"));
        let value = guest.text("set");
        writeln!(
            code,
            "    (drop (call $set_header (i32.const {map}) {key} {value}))"
        )
        .unwrap();
    }
    if random.chance(60) {
        // What the other plugin left behind shows in what this one sees.
        let key = guest.text(&format!("x-{name}-{side}-count"));
        writeln!(
            code,
            "    (drop (call $get_headers (i32.const {map}) (i32.const 16) (i32.const 20)))\n    \
             (local.set $count (i32.load (i32.load (i32.const 16))))\n    \
             (i32.store8 (i32.const 32) (i32.add (i32.const 48) (i32.div_u (local.get $count) (i32.const 10))))\n    \
             (i32.store8 (i32.const 33) (i32.add (i32.const 48) (i32.rem_u (local.get $count) (i32.const 10))))\n    \
             (drop (call $set_header (i32.const {map}) {key} (i32.const 32) (i32.const 2)))"
        )
        .unwrap();
    }
    if random.chance(40) {
        let key = guest.text("x-list");
        let value = guest.text(name);
        writeln!(
            code,
            "    (drop (call $add_header (i32.const {map}) {key} {value}))"
        )
        .unwrap();
    }
    if random.chance(30) {
        let key = guest.text(&format!("x-remove-{}", random.below(3)));
        writeln!(
            code,
            "    (drop (call $clear_header (i32.const {map}) {key}))"
        )
        .unwrap();
    }
    if changes_length {
        let key = guest.text("content-length");
        writeln!(
            code,
            "    (drop (call $clear_header (i32.const {map}) {key}))"
        )
        .unwrap();
    }
    if direction == "request" {
        let key = guest.text("x-reply");
        let wanted = guest.text(&format!("{name}-request-headers"));
        let body = guest.text(&format!("teapot by {name}"));
        writeln!(
            code,
            "    (if (call $has_header (i32.const 0) {key}) (then (if (call $is {wanted}) (then\n      \
             (drop (call $reply (i32.const 418) (i32.const 0) (i32.const 0) {body}\n        \
             (i32.const 0) (i32.const 0) (i32.const -1)))\n      (return (i32.const 1))))))"
        )
        .unwrap();
    }
    format!(
        "  (func (export \"proxy_on_{direction}_headers\") (param $context i32) (param i32) (param $end i32) \
         (result i32)\n    (local $count i32)\n{code}    (i32.const 0))\n"
    )
}

/// A guest's function for the body of one direction: chunk by chunk it changes letters; whole, it puts its
/// name before and behind.
fn wasm_body(
    random: &mut Random,
    guest: &mut Guest,
    name: &str,
    direction: &str,
    streams: bool,
) -> String {
    let buffer = i32::from(direction == "response");
    let code = if streams {
        let (from, to) = (97 + random.below(3), 65 + random.below(26));
        format!(
            "    (if (i32.eqz (local.get $size)) (then (return (i32.const 0))))
    (drop (call $get_buffer (i32.const {buffer}) (i32.const 0) (local.get $size) (i32.const 16) (i32.const 20)))
    (local.set $at (i32.load (i32.const 16)))
    (local.set $last (i32.add (local.get $at) (i32.load (i32.const 20))))
    (loop $next
      (if (i32.eq (i32.load8_u (local.get $at)) (i32.const {from}))
        (then (i32.store8 (local.get $at) (i32.const {to}))))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $at) (local.get $last))))
    (drop (call $set_buffer (i32.const {buffer}) (i32.const 0) (local.get $size)
      (i32.load (i32.const 16)) (i32.load (i32.const 20))))
"
        )
    } else {
        let before = guest.text(&format!("<{name}>"));
        let behind = guest.text(&format!("</{name}>"));
        format!(
            "    (if (i32.eqz (local.get $end)) (then (return (i32.const 1))))
    (drop (call $set_buffer (i32.const {buffer}) (i32.const 0) (i32.const 0) {before}))
    (drop (call $set_buffer (i32.const {buffer}) (i32.const 2147483647) (i32.const 0) {behind}))
"
        )
    };
    format!(
        "  (func (export \"proxy_on_{direction}_body\") (param $context i32) (param $size i32) (param $end i32) \
         (result i32)\n    (local $at i32) (local $last i32)\n{code}    (i32.const 0))\n"
    )
}

/// A Wasm plugin made from a seed, its module in `folder`.
fn wasm_plugin(seed: u64, name: &str, priority: i32, folder: &Path) -> FilterPlugin {
    let mut random = Random::new(seed);
    let streams = random.chance(50);
    let mut guest = Guest::default();
    let mut code = String::new();
    for direction in ["request", "response"] {
        let has_body = random.chance(70);
        if has_body {
            code += &wasm_body(&mut random, &mut guest, name, direction, streams);
        }
        let changes_length = has_body && !streams;
        if changes_length || random.chance(85) {
            code += &wasm_headers(&mut random, &mut guest, name, direction, changes_length);
        }
    }
    let file = folder.join(format!("{seed}.wasm"));
    std::fs::write(&file, guest.function(&code).module().unwrap()).unwrap();
    FilterPlugin {
        name: name.to_owned(),
        code,
        module: Some(file),
        body: "stream",
        priority,
        config: json!({}),
    }
}

fn pair(number: u64, folder: &Path) -> (FilterPlugin, FilterPlugin) {
    let (left, right) = (number * 2 + 101, number * 2 + 102);
    let is_wasm = match number.checked_sub(OF_LUA) {
        None => (false, false),
        Some(mixed) => [(true, false), (false, true), (true, true)][mixed as usize % 3],
    };
    let plugin = |is_wasm: bool, seed: u64, name: &str, priority: i32| {
        if is_wasm {
            wasm_plugin(seed, name, priority, folder)
        } else {
            plugin(seed, name, priority)
        }
    };
    (
        plugin(is_wasm.0, left, "left", 2),
        plugin(is_wasm.1, right, "right", 1),
    )
}

/// What one request led to, with what differs by nature left out.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    upstream: Vec<String>,
    response: Vec<String>,
}

fn header_lines<'a>(headers: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    // `connection: close` tells whether a reply came before the request's last byte: a race.
    let by_nature = [
        "date",
        "x-envoy-upstream-service-time",
        "x-request-id",
        "connection",
    ];
    headers
        .filter(|(name, _)| !by_nature.contains(name))
        .map(|(name, value)| format!("{name}: {value}"))
        .collect()
}

fn upstream_lines(requests: &[RecordedRequest]) -> Vec<String> {
    let mut lines = Vec::new();
    for request in requests {
        lines.push(format!("{} {}", request.method, request.path));
        lines.extend(header_lines(request.headers.iter()));
        lines.push(format!(
            "body of {} bytes, {}, complete: {}",
            request.body.length, request.body.sha256, request.body.complete
        ));
        lines.extend(
            request
                .trailers
                .iter()
                .map(|(name, value)| format!("trailer {name}: {value}")),
        );
    }
    lines
}

/// Sends a request and says what it led to. The upstream serves one request at a time here, so what
/// it recorded since is this request's.
async fn outcome(echo: &Echo, target: &Target, request: &Request) -> Outcome {
    echo.forget_requests();
    let before = echo.request_count();
    let response = match target.send(request.clone()).await {
        Ok(response) => {
            let mut lines = vec![format!("status {}", response.status)];
            // The proxy frames a plugin's reply when the chain is done with it, and tells its length: a
            // filter that comes later may take that header away again, a plugin of the same chain may not.
            let is_framing = |name: &str| {
                response.status == TEAPOT && ["content-length", "transfer-encoding"].contains(&name)
            };
            lines.extend(header_lines(
                response
                    .headers
                    .iter()
                    .filter(|(name, _)| !is_framing(name)),
            ));
            lines.push(format!("body of {} bytes", response.body.len()));
            lines.push(format!("{:x}", hash(&response.body)));
            lines.extend(
                response
                    .trailers
                    .iter()
                    .map(|(name, value)| format!("trailer {name}: {value}")),
            );
            lines
        }
        Err(error) => vec![format!("no response: {error}")],
    };
    // What reached the upstream is recorded when it is over there, a moment later.
    let reached = usize::try_from(echo.request_count() - before).unwrap();
    let requests = echo
        .wait_for_requests(reached, Duration::from_secs(10))
        .await
        .unwrap();
    Outcome {
        upstream: upstream_lines(&requests),
        response,
    }
}

/// FNV-1a, for telling bodies apart in messages.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The requests of one pair: every body size, whole or in pieces, trailers or none, and a reply asked
/// of each plugin in each phase.
fn requests(number: u64) -> Vec<(String, Request)> {
    let mut requests = Vec::new();
    let with = |request: Request| {
        request
            .header("x-remove-0", "0")
            .header("x-remove-1", "1")
            .header("x-remove-2", "2")
            .accept_trailers()
    };
    let sizes: &[usize] = &[0, 1, 1_000, 70_000, 1_200_000, 8 * 1024 * 1024];
    for (index, &size) in sizes.iter().enumerate() {
        let body = pattern(size);
        requests.push((
            format!("{size} bytes whole"),
            with(Request::post("/echo?whole", body.clone())),
        ));
        // The largest is sent in pieces by half of the pairs only: it takes its time.
        if size > 1 && (size < 2_000_000 || number.is_multiple_of(2)) {
            let pieces: Vec<(Duration, Vec<u8>)> = body
                .chunks(size.div_ceil(5))
                .map(|piece| (Duration::from_millis(3), piece.to_vec()))
                .collect();
            requests.push((
                format!("{size} bytes in pieces"),
                with(Request::post("/echo?whole", "").delayed_pieces(pieces.clone())),
            ));
            requests.push((
                format!("{size} bytes in pieces with trailers"),
                with(
                    Request::post("/echo?whole", "")
                        .delayed_pieces(pieces)
                        .trailer("x-check", &index.to_string()),
                ),
            ));
        }
    }
    for name in ["left", "right"] {
        for phase in [
            "request-headers",
            "request-body",
            "response-headers",
            "response-body",
        ] {
            requests.push((
                format!("reply by {name} in {phase}"),
                with(Request::post("/echo?whole", pattern(5_000)))
                    .header("x-reply", &format!("{name}-{phase}")),
            ));
        }
    }
    requests.push(("no body".into(), with(Request::get("/bytes/3000"))));
    requests.push((
        "response in chunks".into(),
        with(Request::get("/bytes/300000?chunked")),
    ));
    requests.push((
        "response with trailers".into(),
        with(Request::get("/trailers")),
    ));
    requests.push(("an empty answer".into(), with(Request::get("/bytes/0"))));
    requests
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_chain_of_two_does_what_two_filters_of_one_do() {
    let echo = Echo::start("echo").await.unwrap();
    let guests = TempDir::new().unwrap();
    let pairs: Vec<_> = (0..PAIRS)
        .map(|number| pair(number, guests.path()))
        .collect();
    let chains: Vec<Vec<Vec<FilterPlugin>>> = pairs
        .iter()
        .flat_map(|(left, right)| {
            [
                vec![vec![left.clone(), right.clone()]],
                vec![vec![left.clone()], vec![right.clone()]],
            ]
        })
        .collect();
    let envoy = Direct::start(&direct_config(&chains, echo.address()), 2).unwrap();
    let mut compared = 0;
    for (number, (left, right)) in (0..PAIRS).zip(&pairs) {
        for (what, request) in requests(number) {
            // A guest sees its own reply, as in Envoy. In a filter of its own it sees it before the others,
            // because Envoy shows no module what it sends itself: the chain has Envoy's order, two filters
            // have not.
            if left.module.is_some() && what.starts_with("reply by left in request") {
                continue;
            }
            for protocol in ["HTTP/1.1", "HTTP/2"] {
                let one = format!("listener-{}", number * 2);
                let two = format!("listener-{}", number * 2 + 1);
                let (one, two, request) = if protocol == "HTTP/2" {
                    let request = request.clone().header("x-upstream-protocol", "2");
                    (
                        envoy.http2(&one).unwrap(),
                        envoy.http2(&two).unwrap(),
                        request,
                    )
                } else {
                    (
                        envoy.http1(&one).unwrap(),
                        envoy.http1(&two).unwrap(),
                        request.clone(),
                    )
                };
                let in_one = outcome(&echo, &one, &request).await;
                let in_two = outcome(&echo, &two, &request).await;
                assert_eq!(
                    in_one,
                    in_two,
                    "pair {number}, {what}, {protocol}: left is one filter, right is two\n\
                     --- left plugin ({})\n{}\n--- right plugin ({})\n{}\n--- log\n{}",
                    left.body,
                    left.code,
                    right.body,
                    right.code,
                    envoy
                        .log
                        .lines()
                        .iter()
                        .rev()
                        .take(20)
                        .rev()
                        .cloned()
                        .collect::<Vec<_>>()
                        .join("\n"),
                );
                compared += 1;
            }
        }
    }
    assert!(compared > 400, "only {compared} requests were compared");
    envoy.stop().unwrap();
    echo.stop().await;
}
