//! Faults while streams pass: a handler that fails, a callout that gets no answer, a peer that leaves,
//! a plugin that uses too much. One stream gets what the plugin's failure policy says; nobody else
//! notices.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::time::{Duration, Instant};

use outrider_e2e::{Gateway, GatewayOptions, free_address};
use outrider_lab::client::{Abort, ClientError, Request, Response, Target};
use outrider_lab::echo::Echo;
use outrider_lab::steady::SteadyPlan;

const SOON: Duration = Duration::from_secs(10);

const GATEWAY: &str = "
gateway:
  listeners: [{name: main, address: '{listen}'}]
  admin: '{admin}'
  workers: 1
  access_log: {path: access.log, format: '%REQ(:PATH)% %RESPONSE_CODE% %RESPONSE_CODE_DETAILS%'}
plugins:
  closed: {source: moody.lua, budgets: {time_ms: 100, share: 100}}
  own: {source: moody.lua, budgets: {share: 100}, failure_policy: {status: 418}}
  open: {source: moody.lua, budgets: {share: 100}, failure_policy: open}
  mixed: {source: moody.lua, budgets: {time_ms: 50, memory_mib: 8, share: 100}, failure_policy: {default: open, status: 429, causes: {error: closed}}}
  witness: {source: witness.lua, priority: -1}
  asking: {source: asking.lua, allow: all}
projects:
  - name: shop
    hosts: ['*']
    use: [witness]
    routes:
      - {match: {prefix: /closed}, to: echo, use: [closed]}
      - {match: {prefix: /own}, to: echo, use: [own]}
      - {match: {prefix: /open}, to: echo, use: [open]}
      - {match: {prefix: /mixed}, to: echo, use: [mixed]}
      - {match: {prefix: /asking}, to: echo, use: [asking]}
      - {match: {prefix: /}, to: echo}
upstreams:
  echo: {endpoints: ['ECHO']}
  ask: {endpoints: ['ASK']}
  refusing: {endpoints: ['NOBODY']}
  empty: {endpoints: ['no-such-host.invalid:80']}
";

/// `x-mood` says in which phase it fails, and how.
const MOODY: &str = "
local handler = { version = 'v2' }

local function act(phase)
  local mood = envoy.req.get_header('x-mood')
  if mood == phase .. '-error' then error('bad mood') end
  if mood == phase .. '-table' then error({ code = 7 }) end
  if mood == phase .. '-nil' then local nothing; return nothing.field end
  if mood == phase .. '-late' then
    envoy.sleep(5)
    error('bad mood after a while')
  end
  if mood == phase .. '-loop' then while true do end end
  if mood == phase .. '-stubborn' then
    while true do pcall(function() while true do end end) end
  end
  if mood == phase .. '-hog' then
    local hoard = {}
    for i = 1, 1e9 do hoard[i] = ('x'):rep(10000) .. i end
  end
end

function handler:on_request_header() act('request-header') end
function handler:on_request_body() if envoy.req.get_body_size() then act('request-body') end end
function handler:on_response_header() act('response-header') end
function handler:on_response_body() if envoy.resp.get_body_size() then act('response-body') end end
function handler:on_log() act('log') end
return handler
";

/// Says that it was there.
const WITNESS: &str = "
local handler = { version = 'v2' }
function handler:on_request_header() envoy.req.set_header('x-witness', 'was here') end
function handler:on_response_header() envoy.resp.set_header('x-witness', 'was here') end
return handler
";

const ASKING: &str = "
local handler = { version = 'v2' }
function handler:on_request_header()
  local cluster = envoy.req.get_header('x-cluster')
  if not cluster then return end
  local headers, rest = envoy.httpCall(cluster, {
    [':method'] = 'GET', [':path'] = envoy.req.get_header('x-ask') or '/status/200',
    [':authority'] = 'ask', ['x-echo-delay-ms'] = envoy.req.get_header('x-ask-delay') or '0',
  }, '', 300)
  envoy.req.set_header('x-answer', headers and headers[':status'] or 'nil')
  envoy.req.set_header('x-reason', headers and 'none' or tostring(rest))
end
return handler
";

struct World {
    echo: Echo,
    ask: Echo,
    gateway: Gateway,
}

impl World {
    async fn start() -> Self {
        let echo = Echo::start("echo").await.unwrap();
        let ask = Echo::start("ask").await.unwrap();
        let yaml = GATEWAY
            .replace("ECHO", &echo.address().to_string())
            .replace("ASK", &ask.address().to_string())
            .replace("NOBODY", &free_address().unwrap().to_string());
        let files = [
            ("moody.lua", MOODY),
            ("witness.lua", WITNESS),
            ("asking.lua", ASKING),
        ];
        let gateway = Gateway::start_with(&yaml, &files, GatewayOptions::default()).unwrap();
        Self { echo, ask, gateway }
    }

    async fn send(&self, path: &str, mood: &str) -> Response {
        // With a body both ways, so that every phase comes about.
        let request = Request::post(path, "hello")
            .header("x-mood", mood)
            .header("x-echo-path", "/echo?whole");
        self.gateway.send(request).await.unwrap()
    }

    /// The counter of a plugin, whatever namespace Envoy puts before it.
    fn errors(&self, plugin: &str, cause: &str) -> u64 {
        let found = self
            .gateway
            .admin
            .stats(&format!(r"outrider\.plugin\.{plugin}\.errors\.{cause}$"))
            .unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        found.into_values().sum()
    }

    /// Ends it all; returns the access log, line by line.
    async fn stop(self) -> Vec<String> {
        let log = self.gateway.folder().join("access.log");
        self.gateway.interrupt().unwrap();
        // Envoy has written its log out when it has ended.
        self.gateway
            .output
            .wait("stopped", Duration::from_secs(20))
            .unwrap();
        let lines = std::fs::read_to_string(log).unwrap();
        self.gateway.wait_end().unwrap();
        self.echo.stop().await;
        self.ask.stop().await;
        lines.lines().map(ToOwned::to_owned).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_handler_costs_its_stream_what_the_policy_says() {
    let world = World::start().await;
    for phase in [
        "request-header",
        "request-body",
        "response-header",
        "response-body",
    ] {
        for way in ["error", "table", "nil", "late"] {
            let mood = format!("{phase}-{way}");
            assert_eq!(world.send("/closed", &mood).await.status, 500, "{mood}");
            assert_eq!(world.send("/own", &mood).await.status, 418, "{mood}");
            assert_eq!(world.send("/mixed", &mood).await.status, 429, "{mood}");
            let response = world.send("/open", &mood).await;
            assert_eq!(response.status, 200, "{mood}");
            assert_eq!(response.text(), "hello", "{mood}");
            assert_eq!(
                response.headers.get("x-witness"),
                Some("was here"),
                "{mood}"
            );
        }
    }
    // In the log phase there is nothing left to reply to.
    for path in ["/closed", "/open"] {
        assert_eq!(world.send(path, "log-error").await.status, 200);
    }
    for plugin in ["closed", "own", "mixed", "open"] {
        let logged = u64::from(plugin == "closed" || plugin == "open");
        assert_eq!(world.errors(plugin, "error"), 16 + logged, "{plugin}");
        assert_eq!(world.errors(plugin, "time"), 0, "{plugin}");
    }
    assert_eq!(world.send("/closed", "fine").await.status, 200);
    let lines = world.stop().await;
    let with = |begin: &str| lines.iter().filter(|line| line.starts_with(begin)).count();
    assert_eq!(with("/closed 500 outrider.closed.error"), 16, "{lines:#?}");
    assert_eq!(with("/own 418 outrider.own.error"), 16, "{lines:#?}");
    assert_eq!(with("/mixed 429 outrider.mixed.error"), 16, "{lines:#?}");
    assert_eq!(with("/open 200 via_upstream"), 17, "{lines:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fault_is_told_once_with_plugin_phase_file_and_line() {
    let world = World::start().await;
    let line_of = |text: &str| MOODY.lines().position(|line| line.contains(text)).unwrap() + 1;
    let mark = world.gateway.output.mark();
    // Not as many as would open the circuit, which has a line of its own.
    for _ in 0..15 {
        assert_eq!(
            world.send("/closed", "request-header-error").await.status,
            500
        );
    }
    let told = world
        .gateway
        .output
        .wait_after(mark, "plugin closed: failed", SOON)
        .unwrap();
    for part in [
        "request headers",
        "(error)",
        &format!("moody.lua:{}: bad mood", line_of("'bad mood'")),
        "the stream gets a 500",
    ] {
        assert!(told.contains(part), "no {part:?} in {told:?}");
    }
    // Another plugin's faults have their own line, with the phase in which it failed.
    world.send("/open", "response-body-nil").await;
    let other = world
        .gateway
        .output
        .wait_after(mark, "plugin open: failed", SOON)
        .unwrap();
    for part in [
        "response body",
        &format!("moody.lua:{}:", line_of("nothing.field")),
        "goes on without it",
    ] {
        assert!(other.contains(part), "no {part:?} in {other:?}");
    }
    let lines = world.gateway.output.lines().split_off(mark);
    assert_eq!(lines.len(), 2, "15 failures are one line: {lines:#?}");
    assert_eq!(world.errors("closed", "error"), 15);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_streams_of_the_same_plugin_notice_nothing() {
    let world = World::start().await;
    let fine = |target: Target| {
        SteadyPlan::new(
            target,
            8,
            Request::get("/closed/fine").header("x-echo-path", "/bytes/100"),
        )
        .check(|_, response| {
            let witness = response.headers.get("x-witness") == Some("was here");
            let whole = response.status == 200 && response.body.len() == 100 && witness;
            if whole {
                Ok(())
            } else {
                Err(format!("status {}", response.status))
            }
        })
    };
    let steady = [
        fine(world.gateway.http1()).start().await.unwrap(),
        fine(world.gateway.http2()).start().await.unwrap(),
    ];
    for _ in 0..10 {
        for mood in [
            "request-header-error",
            "request-body-late",
            "response-header-table",
            "response-body-nil",
            "log-error",
        ] {
            let status = if mood == "log-error" { 200 } else { 500 };
            assert_eq!(world.send("/closed", mood).await.status, status, "{mood}");
        }
    }
    for steady in steady {
        assert!(steady.advance(50, SOON).await);
        let summary = steady.stop().await;
        assert!(summary.is_clean(), "{summary}");
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loops_and_hoards_end_within_their_budgets_and_the_worker_goes_on() {
    let world = World::start().await;
    for mood in [
        "request-header-loop",
        "request-body-stubborn",
        "response-header-loop",
        "response-body-stubborn",
    ] {
        let began = Instant::now();
        assert_eq!(world.send("/closed", mood).await.status, 500, "{mood}");
        assert!(
            began.elapsed() < Duration::from_secs(2),
            "{mood}: {:?}",
            began.elapsed()
        );
        assert_eq!(
            world.send("/closed", "fine").await.status,
            200,
            "after {mood}"
        );
        assert_eq!(
            world.send("/other", "fine").await.status,
            200,
            "after {mood}"
        );
    }
    assert_eq!(world.errors("closed", "time"), 4);
    assert_eq!(world.errors("closed", "error"), 0);
    // The causes have their own policies: time and memory let this one pass.
    for mood in [
        "request-header-loop",
        "request-header-hog",
        "response-header-hog",
        "request-body-hog",
    ] {
        let response = world.send("/mixed", mood).await;
        assert_eq!(response.status, 200, "{mood}");
        assert_eq!(response.text(), "hello", "{mood}");
        assert_eq!(
            world.send("/mixed", "fine").await.status,
            200,
            "after {mood}"
        );
    }
    let (time, memory) = (
        world.errors("mixed", "time"),
        world.errors("mixed", "memory"),
    );
    assert_eq!(time + memory, 4);
    assert!(time >= 1, "the loop counts as time");
    assert!(
        memory >= 1,
        "the hoard counts as memory ({time} counted as time)"
    );
    assert_eq!(world.errors("mixed", "error"), 0);
    world
        .gateway
        .output
        .wait("plugin mixed: failed", SOON)
        .unwrap();
    let lines = world.stop().await;
    let timed_out = lines
        .iter()
        .filter(|line| line.ends_with("500 outrider.closed.time"))
        .count();
    assert_eq!(timed_out, 4, "{lines:#?}");
}

/// What the plugin that asks got, as the upstream saw it: the answer's status, and the reason why
/// there is none.
async fn answer(world: &World, request: Request) -> (String, String) {
    let response = world.gateway.send(request).await.unwrap();
    assert_eq!(response.status, 200, "the stream goes on");
    let seen = response.json();
    let header = |name: &str| {
        seen["headers"][name][0]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    (header("x-answer"), header("x-reason"))
}

fn ask(cluster: &str, path: &str) -> Request {
    Request::get("/asking")
        .header("x-cluster", cluster)
        .header("x-ask", path)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_callout_without_an_answer_gives_nil_and_the_reason() {
    let world = World::start().await;
    for (cluster, path, status, reason) in [
        ("ask", "/status/200", "200", "none"),
        // What the service itself answers is an answer, whatever it is.
        ("ask", "/status/503", "503", "none"),
        ("ask", "/status/504", "504", "none"),
        ("nowhere", "/", "nil", "no upstream of that name"),
        ("refusing", "/", "nil", "reset"),
        ("empty", "/", "nil", "no healthy"),
        ("ask", "/delay/2000", "nil", "timeout"),
        ("ask", "/reset", "nil", "reset"),
        ("ask", "/cut/10", "nil", "reset"),
    ] {
        let began = Instant::now();
        let (got, why) = answer(&world, ask(cluster, path)).await;
        assert_eq!(got, status, "{cluster} {path}: {why}");
        assert!(why.contains(reason), "{cluster} {path}: {why}");
        assert!(began.elapsed() < Duration::from_secs(2), "{cluster} {path}");
    }
    assert_eq!(world.errors("asking", "error"), 0);
    world.stop().await;
}

/// Nothing is under way any more, neither of clients nor of callouts.
fn assert_idle(gateway: &Gateway) {
    for name in [
        "http.main.downstream_rq_active",
        "cluster.ask/callouts.upstream_rq_active",
        "cluster.echo.upstream_rq_active",
    ] {
        gateway.wait_stat(name, |value| value == 0).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_leaves_during_a_callout_leaves_nothing_behind() {
    let world = World::start().await;
    let mut memory = Vec::new();
    for round in 0..3 {
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..100 {
            // Clients leave, in each way, while the callout is under way.
            let (target, abort) = match number % 3 {
                0 => (world.gateway.http1(), Abort::Connection),
                1 => (world.gateway.http2(), Abort::Connection),
                _ => (world.gateway.http2(), Abort::Stream),
            };
            let request = Request::post("/asking", "body")
                .header("x-cluster", "ask")
                .header("x-ask-delay", "150")
                .abort_after(0, abort);
            tasks.spawn(async move { target.send(request).await });
        }
        while let Some(result) = tasks.join_next().await {
            assert_eq!(result.unwrap().unwrap_err(), ClientError::Aborted);
        }
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..100 {
            // The service that is asked leaves.
            let target = if number % 2 == 0 {
                world.gateway.http1()
            } else {
                world.gateway.http2()
            };
            let request = ask("ask", "/reset").header("x-ask-delay", "50");
            tasks.spawn(async move { target.send(request).await });
        }
        while let Some(result) = tasks.join_next().await {
            let response = result.unwrap().unwrap();
            assert_eq!(response.status, 200);
            assert_eq!(response.json()["headers"]["x-answer"][0], "nil");
        }
        assert_idle(&world.gateway);
        assert_eq!(answer(&world, ask("ask", "/status/200")).await.0, "200");
        memory.push(world.gateway.memory().unwrap());
        assert!(
            memory[round] < memory[0] + 2_000_000,
            "memory grows: {memory:?}"
        );
    }
    assert_eq!(world.errors("asking", "error"), 0);
    world.stop().await;
}
