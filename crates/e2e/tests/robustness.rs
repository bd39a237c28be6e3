//! Streams in the middle of something: plugins that wait, fail and reply in every phase while bodies,
//! early responses, replies of Envoy's own, resets, updates and Envoy's end come upon them. Nothing
//! hangs, no byte is lost or doubled, nothing crashes, nothing is left behind.
//!
//! All chains have two plugins, `upper` before `lower`, which do in each phase what the request header
//! of their name says.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::future::Future;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use outrider_e2e::{
    Direct, FilterPlugin, Gateway, GatewayOptions, Verdict, direct_config, inline_lua,
    resident_memory,
};
use outrider_lab::Protocol;
use outrider_lab::client::{Abort, ClientError, Request, Response, Target};
use outrider_lab::echo::{Echo, EchoOptions, pattern};
use outrider_lab::steady::SteadyPlan;
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// `x-upper: sh=sleep50,sb=error` is "in the response's headers sleep for 50 ms, in its body fail".
const ACTOR: &str = "
local handler = { version = 'v2' }
local function act(phase, side)
  for at, what in (envoy.req.get_header('x-NAME') or ''):gmatch('(%w+)=(%w+)') do
    if at == phase then
      local pause = what:match('^sleep(%d+)$')
      if pause then envoy.sleep(tonumber(pause)) end
      local delay = what:match('^call(%d+)$')
      if delay then
        local headers, why = envoy.httpCall('upstream', {
          [':method'] = 'GET', [':path'] = '/delay/' .. delay, [':authority'] = 'ask',
        }, '', 20000)
        if not headers then error('no answer: ' .. why) end
      end
      if what == 'error' then error('as asked') end
      if what == 'reply' then envoy.respond({ [':status'] = 418 }, 'NAME') end
      if what == 'deny' then envoy.respond({ [':status'] = 403 }) end
      if what == 'own' then envoy.respond({ [':status'] = 403, ['grpc-status'] = '9' }) end
      if what == 'hide' then
        envoy.req.clear_header('content-type')
        envoy.respond({ [':status'] = 403 })
      end
      if what == 'route' then envoy.req.clear_route_cache() end
      local body = side.get_body()
      if body and what == 'same' then side.set_body(body) end
      if body and what == 'double' then side.set_body(body .. body) end
    end
  end
end
function handler:on_request_header() act('qh', envoy.req) end
BODIES
function handler:on_request_trailer() act('qt', envoy.req) end
function handler:on_response_header() act('sh', envoy.resp) end
function handler:on_response_trailer() act('st', envoy.resp) end
function handler:on_log() act('log', envoy.req) end
return handler
";

const BODIES: &str = "
function handler:on_request_body() if envoy.req.get_body_size() then act('qb', envoy.req) end end
function handler:on_response_body() if envoy.resp.get_body_size() then act('sb', envoy.resp) end end
";

const PHASES: [&str; 6] = ["qh", "qb", "qt", "sh", "sb", "st"];

/// How `upper` and `lower` want bodies, by listener.
const KINDS: [[&str; 2]; 5] = [
    ["stream", "stream"],
    ["whole", "whole"],
    ["stream", "whole"],
    ["whole", "stream"],
    ["none", "none"],
];

/// How many requests are under way at once.
const AT_ONCE: usize = 32;

fn actor(name: &str, body: &'static str, priority: i32) -> FilterPlugin {
    let bodies = if body == "none" { "" } else { BODIES };
    FilterPlugin {
        name: name.to_owned(),
        code: ACTOR.replace("BODIES", bodies).replace("NAME", name),
        module: None,
        body: if body == "none" { "stream" } else { body },
        priority,
        config: json!({}),
    }
}

struct World {
    echo: Echo,
    envoy: Direct,
}

impl World {
    /// `change` changes the configuration of each listener.
    async fn start(change: impl Fn(&mut Value)) -> Self {
        let options = EchoOptions {
            keep: 0,
            ..EchoOptions::named("echo")
        };
        let echo = Echo::start_with(options).await.unwrap();
        let chains: Vec<_> = KINDS
            .iter()
            .map(|[upper, lower]| vec![vec![actor("upper", upper, 2), actor("lower", lower, 1)]])
            .collect();
        let mut config = direct_config(&chains, echo.address());
        for listener in config["static_resources"]["listeners"]
            .as_array_mut()
            .unwrap()
        {
            change(listener);
        }
        let envoy = Direct::start(&config, 2).unwrap();
        Self { echo, envoy }
    }

    /// Every listener, over each protocol, with what to call it.
    fn targets(&self) -> Vec<(String, Target)> {
        let mut targets = Vec::new();
        for (number, kind) in KINDS.iter().enumerate() {
            let address = self.envoy.listener(&format!("listener-{number}")).unwrap();
            for protocol in [Protocol::Http1, Protocol::Http2] {
                let name = format!("{}+{} {protocol}", kind[0], kind[1]);
                targets.push((name, Target::plain(protocol, address)));
            }
        }
        targets
    }

    /// Nothing is under way any more, and Envoy has found nothing to complain of.
    async fn stop(self) {
        let clients = (0..KINDS.len()).map(|n| format!("http.listener-{n}.downstream_rq_active"));
        let upstreams =
            ["upstream", "upstream-2"].map(|n| format!("cluster.{n}.upstream_rq_active"));
        for name in clients.chain(upstreams) {
            let deadline = Instant::now() + Duration::from_secs(5);
            while self.envoy.stat(&name).unwrap() > 0 {
                assert!(Instant::now() < deadline, "{name} does not go to 0");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        assert_eq!(self.envoy.stat("server.envoy_bug_failures").unwrap(), 0);
        self.envoy.stop().unwrap();
        self.echo.stop().await;
    }
}

/// The HTTP connection manager of a listener.
fn manager(listener: &mut Value) -> &mut Value {
    &mut listener["filter_chains"][0]["filters"][0]["typed_config"]
}

/// The document of a listener's only Outrider filter.
fn document(listener: &mut Value) -> &mut Value {
    &mut manager(listener)["http_filters"][0]["typed_config"]["filter_config"]["value"]
}

/// Requests under way, and what was wrong with those that are over.
#[derive(Default)]
struct Batch {
    tasks: JoinSet<Option<String>>,
    wrong: Vec<String>,
    sent: usize,
}

impl Batch {
    /// Sends a request once there is room; `judge` says what is wrong with what came.
    async fn send(
        &mut self,
        label: String,
        target: &Target,
        request: Request,
        judge: impl FnOnce(Result<Response, ClientError>) -> Result<(), String> + Send + 'static,
    ) {
        while self.tasks.len() >= AT_ONCE {
            self.finish_one().await;
        }
        self.sent += 1;
        let target = target.clone();
        let request = request.timeout(Duration::from_secs(10));
        self.tasks.spawn(async move {
            let wrong = judge(target.send(request).await).err()?;
            Some(format!("{label}: {wrong}"))
        });
    }

    async fn finish_one(&mut self) -> bool {
        let Some(done) = self.tasks.join_next().await else {
            return false;
        };
        self.wrong.extend(done.unwrap());
        true
    }

    async fn finish(&mut self) {
        while self.finish_one().await {}
        self.wrong.truncate(20);
        assert!(self.wrong.is_empty(), "of {}: {:#?}", self.sent, self.wrong);
    }
}

fn said(response: &Response) -> String {
    let length = response.body.len();
    format!(
        "{} with {length} bytes, {:?}",
        response.status, response.headers
    )
}

/// It ends, however it does.
fn ends(result: Result<Response, ClientError>) -> Result<(), String> {
    match result {
        Err(error @ ClientError::Timeout(_)) => Err(error.to_string()),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// It brings back the body that was sent, and the trailer if one was sent.
fn brings_back(
    body: Bytes,
    trailer: bool,
) -> impl FnOnce(Result<Response, ClientError>) -> Result<(), String> + Send {
    move |result| {
        let response = result.map_err(|error| error.to_string())?;
        let trailer_is_right = !trailer || response.trailers.get("x-check") == Some("1");
        if response.status == 200 && response.body == body && trailer_is_right {
            return Ok(());
        }
        Err(format!("{}, {:?}", said(&response), response.trailers))
    }
}

fn in_pieces(request: Request, body: &Bytes) -> Request {
    let pieces = body
        .chunks(body.len().div_ceil(4).max(1))
        .map(|piece| (Duration::from_millis(1), piece.to_vec()));
    request.delayed_pieces(pieces).trailer("x-check", "1")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_in_whatever_phase_loses_no_byte() {
    let world = World::start(|_| {}).await;
    let mut batch = Batch::default();
    for (kind, target) in world.targets() {
        for phase in PHASES {
            for action in ["sleep5", "call5", "same"] {
                for who in [&["x-upper"][..], &["x-lower"], &["x-upper", "x-lower"]] {
                    for size in [0, 5_000, 700_000] {
                        for trailer in [false, true] {
                            let body = pattern(size);
                            let mut request = Request::post("/echo?whole", body.clone());
                            if trailer {
                                request = in_pieces(request, &body).accept_trailers();
                            }
                            for who in who {
                                request = request.header(who, &format!("{phase}={action}"));
                            }
                            if target.protocol == Protocol::Http2 {
                                request = request.header("x-upstream-protocol", "2");
                            }
                            let label = format!("{kind} {phase}={action} {who:?} {size} {trailer}");
                            let judge = brings_back(body, trailer);
                            batch.send(label, &target, request, judge).await;
                        }
                    }
                }
            }
        }
    }
    batch.finish().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_fails_open_takes_nobody_with_it() {
    let world = World::start(|listener| {
        for plugin in document(listener)["plugins"].as_array_mut().unwrap() {
            plugin["failure_policy"] = json!("open");
        }
    })
    .await;
    let mut batch = Batch::default();
    let body = pattern(6_000);
    for (kind, target) in world.targets() {
        for first in PHASES {
            for second in PHASES {
                for path in ["/echo", "/echo?whole"] {
                    let fails = format!("{first}=sleep5,{first}=error");
                    for (upper, lower) in [
                        (format!("{first}=sleep5,{second}=error"), String::new()),
                        (fails.clone(), format!("{second}=call5")),
                        (format!("{second}=sleep5,{second}=error"), fails.clone()),
                    ] {
                        let request = in_pieces(Request::post(path, ""), &body)
                            .accept_trailers()
                            .header("x-upper", &upper)
                            .header("x-lower", &lower);
                        let label = format!("{kind} {path} {upper} {lower}");
                        let judge = brings_back(body.clone(), true);
                        batch.send(label, &target, request, judge).await;
                    }
                }
            }
        }
    }
    batch.finish().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_to_a_body_stands_though_the_upstream_has_answered_already() {
    let world = World::start(|_| {}).await;
    let mut batch = Batch::default();
    for (kind, target) in world.targets() {
        if kind.starts_with("none") {
            continue;
        }
        for (upper, lower, status) in [
            ("sh=sleep3", "qb=reply", 418),
            ("sh=call1", "qb=sleep1,qb=reply", 418),
            ("sh=sleep3", "qb=error", 500),
        ] {
            for upstream in ["1", "2"] {
                for size in [10, 3_000, 40_000] {
                    for trailer in [false, true] {
                        let body = pattern(size);
                        // The upstream answers as soon as it has the headers.
                        let mut request = Request::post("/echo", body.clone());
                        if trailer {
                            request = in_pieces(request, &body);
                        }
                        let request = request
                            .header("x-upper", upper)
                            .header("x-lower", lower)
                            .header("x-upstream-protocol", upstream);
                        let label = format!("{kind} {upper} {lower} {upstream} {size} {trailer}");
                        let judge = move |result: Result<Response, ClientError>| match result {
                            Ok(response) if response.status != status => Err(said(&response)),
                            other => ends(other),
                        };
                        batch.send(label, &target, request, judge).await;
                    }
                }
            }
        }
    }
    batch.finish().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoys_own_timeouts_end_streams_whose_plugins_wait() {
    let world = World::start(|listener| {
        manager(listener)["stream_idle_timeout"] = json!("0.1s");
        let routes = &mut manager(listener)["route_config"]["virtual_hosts"][0]["routes"];
        for route in routes.as_array_mut().unwrap() {
            route["route"]["timeout"] = json!("0.25s");
        }
    })
    .await;
    let mut batch = Batch::default();
    for (kind, target) in world.targets() {
        for first in PHASES {
            for second in [
                "sh=sleep200",
                "sb=call200",
                "sh=reply",
                "sb=error",
                "sh=sleep50",
            ] {
                for (one, other) in [("x-upper", "x-lower"), ("x-lower", "x-upper")] {
                    let request = Request::post("/echo", pattern(3_000))
                        .trailer("x-check", "1")
                        .header(one, &format!("{first}=sleep150,{second}"))
                        .header(other, second);
                    let label = format!("{kind} {one}: {first}, {other}: {second}");
                    batch.send(label, &target, request, ends).await;
                }
            }
        }
    }
    batch.finish().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_around_the_limit_pass_whole_or_are_refused() {
    const LIMIT: usize = 65_536;
    let world = World::start(|listener| {
        document(listener)["body_limit"] = json!(LIMIT);
        listener["per_connection_buffer_limit_bytes"] = json!(LIMIT);
    })
    .await;
    let mut batch = Batch::default();
    for (kind, target) in world.targets() {
        for (upper, lower) in [
            ("qh=sleep10,sh=sleep10", ""),
            ("qb=sleep10,sb=sleep10", ""),
            ("qb=sleep10,sb=sleep10", "qb=double,sb=double"),
            ("qb=double,sb=double", "qb=sleep10,sb=sleep10"),
            ("qb=double,sb=double", "qb=double,sb=double"),
            ("qt=sleep10,st=sleep10", "qb=double,sb=double"),
        ] {
            for size in [
                LIMIT / 2,
                LIMIT - 1,
                LIMIT,
                LIMIT + 1,
                3 * LIMIT,
                20 * LIMIT,
            ] {
                for way in 0..4 {
                    let body = pattern(size);
                    let request = match way {
                        0 => Request::post("/echo?whole", body.clone()),
                        1 => in_pieces(Request::post("/echo?whole", ""), &body),
                        2 => Request::get(&format!("/bytes/{size}")),
                        _ => Request::get(&format!("/bytes/{size}?chunked")),
                    };
                    let request = request.header("x-upper", upper).header("x-lower", lower);
                    let label = format!("{kind} {upper} {lower} {size} way {way}");
                    let doubled = lower.contains("double") || upper.contains("double");
                    let judge = move |result: Result<Response, ClientError>| match result {
                        Ok(response) => match response.status {
                            200 if doubled || response.body == body => Ok(()),
                            413 | 500 => Ok(()),
                            _ => Err(said(&response)),
                        },
                        // A chunk of another length, where a length was announced.
                        Err(ClientError::Timeout(after)) => Err(format!("nothing in {after:?}")),
                        Err(_) if doubled => Ok(()),
                        Err(error) => Err(error.to_string()),
                    };
                    batch.send(label, &target, request, judge).await;
                }
            }
        }
    }
    batch.finish().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_route_is_chosen_anew_only_while_the_request_is_held() {
    let world = World::start(|_| {}).await;
    for (kind, target) in world.targets() {
        for phase in PHASES {
            let request = in_pieces(Request::post("/echo?whole", ""), &pattern(100))
                .accept_trailers()
                .header("x-lower", &format!("{phase}=route"));
            let held = phase == "qh"
                || (phase == "qb" && kind.contains("+whole"))
                || (phase.ends_with('b') && kind.starts_with("none"));
            // With the headers on their way to the client, the response breaks off.
            let status = target
                .send(request)
                .await
                .map_or(500, |response| response.status);
            assert_eq!(status, if held { 200 } else { 500 }, "{kind} {phase}");
        }
    }
    let line = "its route cannot change any more";
    world.envoy.log.wait(line, Duration::from_secs(1)).unwrap();
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grpc_client_is_told_that_it_was_turned_away() {
    let world = World::start(|_| {}).await;
    let targets = world.targets();
    for (kind, target) in targets
        .iter()
        .filter(|(_, target)| target.protocol == Protocol::Http2)
    {
        for (act, status) in [
            ("qh=deny", "7"),
            ("sh=deny", "7"),
            ("qh=reply", "2"),
            ("qh=error", "2"),
            ("qh=own", "9"),
            // The plugin has taken away what says that it is gRPC.
            ("qh=hide", "7"),
        ] {
            let request = Request::post("/shop.Cart/Add", vec![0; 5])
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .header("x-lower", act);
            let response = target.send(request).await.unwrap();
            let headers = &response.headers;
            assert_eq!(headers.get("grpc-status"), Some(status), "{kind} {act}");
            assert_eq!(
                headers.get("content-type"),
                Some("application/grpc"),
                "{kind} {act}"
            );
        }
    }
    world.stop().await;
}

/// One stream of many on one connection.
async fn on_connection(
    mut sender: hyper::client::conn::http2::SendRequest<Full<Bytes>>,
    body: Bytes,
) -> bool {
    let request = http::Request::post("http://localhost/echo?whole")
        .header("x-upper", "qh=sleep20,qb=call5,sb=sleep20,sh=call10")
        .header("x-lower", "sh=sleep20,qb=sleep3,sb=call5")
        .body(Full::new(body.clone()))
        .unwrap();
    sender.ready().await.unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), 200, "{:?}", response.headers());
    assert_eq!(
        response.into_body().collect().await.unwrap().to_bytes(),
        body
    );
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_streams_of_one_connection_wait_and_some_are_reset() {
    let world = World::start(|_| {}).await;
    for (number, kind) in KINDS.iter().enumerate() {
        let address = world.envoy.listener(&format!("listener-{number}")).unwrap();
        let socket = TokioIo::new(tokio::net::TcpStream::connect(address).await.unwrap());
        let executor = TokioExecutor::new();
        let (sender, connection) = hyper::client::conn::http2::handshake(executor, socket)
            .await
            .unwrap();
        tokio::spawn(connection);
        for round in 0..3 {
            let mut tasks = JoinSet::new();
            for stream in 0..100_usize {
                let exchange = on_connection(sender.clone(), pattern(10_000 + 100 * stream));
                tasks.spawn(async move {
                    if stream % 4 != round {
                        return exchange.await;
                    }
                    // The client changes its mind: dropping the exchange resets the stream.
                    let patience = Duration::from_millis(stream as u64 / 4);
                    tokio::time::timeout(patience, exchange).await.is_ok()
                });
            }
            let done = within(Duration::from_secs(20), tasks.join_all()).await;
            let done = done.into_iter().filter(|done| *done).count();
            assert!(done >= 75, "{kind:?}: only {done} of 75");
        }
    }
    world.stop().await;
}

async fn within<T>(time: Duration, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(time, future).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoy_ends_well_while_hundreds_of_streams_wait() {
    let world = World::start(|_| {}).await;
    let targets = world.targets();
    let mut tasks = JoinSet::new();
    for number in 0..400 {
        let (_, target) = targets[number % targets.len()].clone();
        // Some are due just as Envoy ends.
        let acts = [
            "qh=sleep9000",
            "sh=sleep9000",
            "qb=call9000",
            "sb=call9000",
            "qt=call9000",
            "qh=sleep300",
            "sh=call300",
            "qh=sleep320",
            "sb=sleep280",
            "qh=call310",
        ];
        let request = Request::post("/echo", "abc")
            .trailer("x-check", "1")
            .header("x-upper", acts[number / targets.len() % acts.len()]);
        tasks.spawn(async move { target.send(request).await.is_ok() });
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let active: u64 = (0..KINDS.len())
        .map(|number| format!("http.listener-{number}.downstream_rq_active"))
        .map(|name| world.envoy.stat(&name).unwrap())
        .sum();
    assert!(active >= 100, "only {active} streams wait");
    world.envoy.terminate().unwrap();
    within(Duration::from_secs(10), tasks.join_all()).await;
    world.echo.stop().await;
}

/// A random walk; always the same one.
struct Walk(u64);

impl Walk {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    fn one_of<'t>(&mut self, texts: &[&'t str]) -> &'t str {
        texts[self.below(texts.len())]
    }

    /// A request of any kind, which the plugins do anything to.
    fn request(&mut self) -> Request {
        let path = self.one_of(&[
            "/echo",
            "/echo?whole",
            "/bytes/30000",
            "/bytes/0",
            "/bytes/9000?chunked",
            "/reset",
            "/reset-stream",
            "/cut/2000",
            "/trailers",
            "/status/204",
            "/status/304",
        ]);
        let method = self.one_of(&["POST", "POST", "POST", "GET", "HEAD"]);
        let mut request = Request::new(method, path).accept_trailers();
        if method == "POST" {
            let body = pattern([0, 10, 3_000, 40_000][self.below(4)]);
            request = match self.below(2) {
                0 => request.body(body),
                _ => request.pieces([body.clone(), body]).trailer("x-check", "1"),
            };
        }
        for name in ["x-upper", "x-lower"] {
            let acts: Vec<String> = (0..self.below(4))
                .map(|_| {
                    let phase = self.one_of(&["qh", "qb", "qt", "sh", "sb", "st", "log"]);
                    let act = self.one_of(&[
                        "sleep1", "sleep3", "call1", "error", "reply", "same", "double", "route",
                    ]);
                    format!("{phase}={act}")
                })
                .collect();
            request = request.header(name, &acts.join(","));
        }
        match self.below(12) {
            0 => request = request.abort_after(self.below(2) * 5, Abort::Stream),
            1 => request = request.abort_after(0, Abort::Connection),
            _ => {}
        }
        request.header("x-upstream-protocol", self.one_of(&["1", "2"]))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_comes_every_stream_ends_and_memory_stays() {
    let world = World::start(|_| {}).await;
    let targets = world.targets();
    let mut walk = Walk(1);
    let mut memory = Vec::new();
    for _ in 0..4 {
        let mut batch = Batch::default();
        for _ in 0..2_500 {
            let (_, target) = &targets[walk.below(targets.len())];
            let request = walk.request();
            batch
                .send(format!("{request:.300?}"), target, request, ends)
                .await;
        }
        batch.finish().await;
        memory.push(resident_memory(world.envoy.process_id()).unwrap() / 1024 / 1024);
    }
    // The first round fills pools.
    assert!(
        memory[3] <= memory[0] + 12,
        "MiB after each round: {memory:?}"
    );
    world.stop().await;
}

const GATEWAY: &str = "
gateway:
  listeners: [{name: main, address: '{listen}'}]
  admin: '{admin}'
  workers: 2
plugins:
  waiting: {source: waiting.lua, allow: all}
projects:
  - {name: shop, hosts: ['*'], use: [waiting], routes: [{match: {prefix: /}, to: upstream}]}
upstreams:
  upstream: {endpoints: ['ECHO']}
";

/// Waits in every phase, and knows at the end of each wait what it knew before.
const WAITING: &str = "
local handler = { version = 'v2' }
local number = NUMBER
local function wait(phase)
  local shared = envoy.stream.shared
  shared.number = shared.number or number
  if phase == 'header' then
    envoy.sleep(30)
  else
    local headers = envoy.httpCall('upstream', {
      [':method'] = 'GET', [':path'] = '/delay/20', [':authority'] = 'ask' }, '', 9000)
    if not headers then error('no answer') end
  end
  if envoy.stream.shared.number ~= number then error('another version') end
end
function handler:on_request_header() wait('header') end
function handler:on_request_body() wait('body') end
function handler:on_response_header()
  wait('header')
  envoy.resp.set_header('x-number', tostring(number))
end
function handler:on_response_body() wait('body') end
function handler:on_log()
  if envoy.stream.shared.number ~= number then error('another version') end
end
return handler
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_leave_streams_that_wait_to_their_own_version() {
    let echo = Echo::start("echo").await.unwrap();
    let yaml = GATEWAY.replace("ECHO", &echo.address().to_string());
    let first = WAITING.replace("NUMBER", "0");
    let files = [("waiting.lua", first.as_str())];
    let gateway = Gateway::start_with(&yaml, &files, GatewayOptions::default()).unwrap();
    let request = Request::post("/echo?whole", pattern(2_000));
    let mut loads = Vec::new();
    for target in [gateway.http1(), gateway.http2()] {
        let plan = SteadyPlan::new(target, 32, request.clone());
        loads.push(plan.start().await.unwrap());
    }
    let mut document = gateway.state("ecds.json").unwrap();
    let mut memory = Vec::new();
    for number in 1..=150 {
        let (source, digest) = inline_lua(&WAITING.replace("NUMBER", &number.to_string()));
        let filter = &mut document["resources"][0]["typed_config"]["filter_config"]["value"];
        let plugin = &mut filter["plugins"][0];
        plugin["source"] = source;
        plugin["digest"] = digest.into();
        plugin["entry"] = "main.lua".into();
        let verdict = gateway.hand_over("ecds.json", &document).unwrap();
        assert_eq!(verdict, Verdict::Taken, "{}", gateway.output.text());
        if number % 50 == 0 {
            for load in &loads {
                assert!(load.advance(64, Duration::from_secs(20)).await);
            }
            memory.push(gateway.memory().unwrap());
        }
    }
    for load in loads {
        let summary = load.stop().await;
        assert!(summary.is_clean(), "{summary}\n{}", gateway.output.text());
    }
    let response = gateway.send(request).await.unwrap();
    assert_eq!(response.headers.get("x-number"), Some("150"));
    assert!(gateway.not_zero(r"\.errors\.\w+").unwrap().is_empty());
    assert!(memory[2] < memory[0] + memory[0] / 4, "{memory:?}");
    gateway.stop().unwrap();
    echo.stop().await;
}
