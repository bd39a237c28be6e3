//! What plugins start beside their stream, on the real Envoy: several callouts at once, callouts in parts,
//! timers with functions; and what becomes of them when the stream ends first.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::time::{Duration, Instant};

use outrider_e2e::{
    Answer, AnswerBody, AnswerFailure, Gateway, GatewayOptions, Scripted, free_address,
};
use outrider_lab::client::{Request, Response};
use outrider_lab::echo::Echo;
use outrider_lab::steady::SteadyPlan;

const SOON: Duration = Duration::from_secs(10);

const GATEWAY: &str = "
gateway:
  listeners: [{name: main, address: '{listen}'}]
  admin: '{admin}'
  workers: 1
plugins:
  talker: {source: talker.lua, allow: all, budgets: {time_ms: 500, memory_mib: 4, share: 100}}
projects:
  - name: shop
    hosts: ['*']
    routes:
      - {match: {prefix: /}, to: echo, use: [talker]}
upstreams:
  echo: {endpoints: ['ECHO']}
  one: {endpoints: ['ONE']}
  two: {endpoints: ['TWO'], protocol: http2}
  refusing: {endpoints: ['NOBODY']}
  empty: {endpoints: ['no-such-host.invalid:80']}
";

const TALKER: &str = r#"
local handler = { version = "v2" }
local shared = envoy.stream.shared
local function say(name, value) envoy.req.set_header(name, tostring(value)) end
local ways = {}

function ways.both()
    local one = envoy.callout.start{ cluster = "one", path = "/a", timeout_ms = 5000 }
    local two = envoy.callout.start{ cluster = "two", path = "/b", body = "ask", timeout_ms = 5000 }
    local _, first = one:wait()
    local _, second = two:wait()
    say("x-heard", first .. second)
end

function ways.any()
    local one = envoy.callout.start{ cluster = "one", timeout_ms = 5000 }
    local two = envoy.callout.start{ cluster = "two", timeout_ms = 5000 }
    local first, index = envoy.callout.wait_any({ one, two })
    say("x-heard", index .. select(2, first:wait()))
end

function ways.timeout()
    local one = envoy.callout.start{ cluster = "one", timeout_ms = 30000 }
    local done, why = envoy.callout.wait_all({ one }, 50)
    say("x-heard", tostring(done) .. why)
end

function ways.send()
    say("x-heard", envoy.callout.send{ cluster = "one", path = "/audit", body = "seen", timeout_ms = 5000 })
end

function ways.ahead()
    shared.call = envoy.callout.start{ cluster = "one", path = "/ahead", timeout_ms = 5000 }
end

function ways.many()
    local calls = {}
    for i = 1, 100 do
        calls[i] = envoy.callout.start{ cluster = "echo", path = "/status/200", timeout_ms = 5000 }
    end
    local done, failed = 0, nil
    for i = 1, 100 do
        local headers, why = calls[i]:wait()
        if headers then done = done + 1 else failed = why end
    end
    say("x-heard", done .. " " .. failed)
end

function ways.parts()
    local cluster = envoy.req.get_header("x-cluster")
    local s = envoy.callout.stream{ cluster = cluster, method = "POST", path = "/talk", body = "a",
        timeout_ms = 5000 }
    local sent, reason = s:send("b")
    say("x-sent", sent or reason)
    s:send_trailers{ ["x-sum"] = "2" }
    local headers, why = s:headers()
    say("x-status", headers and headers[":status"] or why)
    local parts, count = {}, 0
    for chunk in s:chunks() do
        count = count + 1
        parts[count] = chunk
    end
    say("x-heard", table.concat(parts) .. " " .. tostring(s.broken))
    say("x-parts", count)
    local trailers = s:trailers()
    say("x-trailer", trailers and trailers["x-count"] or "none")
end

-- Reads nothing of what comes, and then all of it.
function ways.flood()
    local s = envoy.callout.stream{ cluster = "one", path = "/flood", end_stream = true, timeout_ms = 9000 }
    assert(s:headers())
    local flooded = envoy.callout.start{ cluster = "two", path = "/later", timeout_ms = 9000 }
    flooded:wait()
    local bytes, why = 0, nil
    while true do
        local chunk
        chunk, why = s:read()
        if not chunk then break end
        bytes = bytes + #chunk
    end
    -- A first part that is larger than all that is kept leaves nothing.
    say("x-heard", bytes <= 524288 and "bounded" or bytes)
    say("x-why", why)
end

function ways.close()
    local s = envoy.callout.stream{ cluster = "one", path = "/close", end_stream = true }
    assert(s:headers())
    assert(s:read())
    s:close()
    local chunk, why = s:read()
    say("x-heard", tostring(chunk) .. why)
end

function ways.impatient()
    envoy.timer.after(50, function()
        envoy.respond({ [":status"] = 504 }, "too slow")
    end)
    envoy.callout.start{ cluster = "one", timeout_ms = 30000 }:wait()
end

function ways.ticking()
    local ticks = 0
    local timer
    timer = envoy.timer.every(10, function()
        ticks = ticks + 1
        local _, body = envoy.httpCall("two", { [":method"] = "GET", [":path"] = "/", [":authority"] = "t" },
            "", 5000)
        say("x-heard", ticks .. body)
        if ticks == 3 then
            timer:cancel()
            shared.enough = true
        end
    end)
    while not shared.enough do envoy.sleep(5) end
end

function ways.faulty()
    envoy.timer.after(5, function() error("broken timer") end)
    envoy.sleep(30000)
end

function handler:on_request_header()
    local way = ways[envoy.req.get_header("x-way") or ""]
    if way then way() end
end

function handler:on_response_header()
    if shared.call then
        local headers, body = shared.call:wait()
        envoy.resp.set_header("x-ahead", headers and body or "nothing: " .. body)
    end
end

return handler
"#;

struct World {
    one: Scripted,
    two: Scripted,
    /// Lives as long as the others.
    _echo: Echo,
    gateway: Gateway,
}

impl World {
    async fn start() -> Self {
        let echo = Echo::start("echo").await.unwrap();
        let (one, two) = (
            Scripted::start().await.unwrap(),
            Scripted::start().await.unwrap(),
        );
        let yaml = GATEWAY
            .replace("ECHO", &echo.address().to_string())
            .replace("ONE", &one.address().to_string())
            .replace("TWO", &two.address().to_string())
            .replace("NOBODY", &free_address().unwrap().to_string());
        let files = [("talker.lua", TALKER)];
        let gateway = Gateway::start_with(&yaml, &files, GatewayOptions::default()).unwrap();
        Self {
            one,
            two,
            _echo: echo,
            gateway,
        }
    }

    async fn send(&self, request: Request) -> Response {
        self.gateway.send(request).await.unwrap()
    }

    async fn way(&self, way: &str) -> Response {
        self.send(Request::get("/seen").header("x-way", way)).await
    }

    fn finish(self) {
        self.gateway.stop().unwrap();
    }
}

fn text(body: &str) -> Answer {
    Answer {
        body: AnswerBody::Whole(body.to_owned().into()),
        ..Answer::default()
    }
}

fn late(body: &str, milliseconds: u64) -> Answer {
    Answer {
        after: Duration::from_millis(milliseconds),
        ..text(body)
    }
}

/// What the upstream got under a name.
fn heard(response: &Response, name: &str) -> String {
    assert_eq!(response.status, 200, "{}", response.text());
    let headers = &response.json()["headers"][name];
    headers[0].as_str().unwrap_or("none").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_callouts_run_at_once() {
    let world = World::start().await;
    // In turn these would take 1.2 s.
    world.one.script([late("first ", 600)]);
    world.two.script([late("second", 600)]);
    let began = Instant::now();
    let response = world.way("both").await;
    let took = began.elapsed();
    assert_eq!(heard(&response, "x-heard"), "first second");
    assert!(took >= Duration::from_millis(600), "{took:?}");
    assert!(took < Duration::from_millis(1150), "{took:?}");
    assert_eq!(world.one.received()[0].path, "/a");
    let asked = &world.two.received()[0];
    assert_eq!(
        (asked.method.as_str(), &asked.body[..]),
        ("POST", &b"ask"[..])
    );

    world.one.script([late("slow", 5000)]);
    world.two.script([text("fast")]);
    assert_eq!(heard(&world.way("any").await, "x-heard"), "2fast");
    world.one.script([late("slow", 5000)]);
    assert_eq!(heard(&world.way("timeout").await, "x-heard"), "niltimeout");
    world.finish();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_callout_begun_with_the_request_is_waited_for_with_the_response() {
    let world = World::start().await;
    world.one.script([text("early")]);
    let response = world.way("ahead").await;
    assert_eq!(response.headers.get("x-ahead"), Some("early"));
    world.one.script([late("late", 200)]);
    let response = world.way("ahead").await;
    assert_eq!(response.headers.get("x-ahead"), Some("late"));
    world.one.script([Answer {
        failure: Some(AnswerFailure::Close),
        ..text("")
    }]);
    let response = world.way("ahead").await;
    assert_eq!(
        response.headers.get("x-ahead"),
        Some("nothing: reset before the response was complete")
    );
    world.finish();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_sent_is_not_waited_for_and_too_much_is_refused() {
    let world = World::start().await;
    world.one.script([late("whatever", 100)]);
    let began = Instant::now();
    assert_eq!(heard(&world.way("send").await, "x-heard"), "true");
    assert!(began.elapsed() < Duration::from_secs(4));
    assert_eq!(
        heard(&world.way("many").await, "x-heard"),
        "64 too many are under way: a plugin may have 64 callouts, timers and streaming callouts at once on \
         one stream"
    );
    world.finish();
}

fn parts(cluster: &str) -> Request {
    Request::get("/seen")
        .header("x-way", "parts")
        .header("x-cluster", cluster)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_and_its_response_go_in_parts() {
    let world = World::start().await;
    let pieces = || Answer {
        body: AnswerBody::Pieces(
            vec!["he".into(), "ll".into(), "o".into()],
            vec![("x-count".to_owned(), "3".to_owned())],
        ),
        every: Duration::from_millis(50),
        ..Answer::default()
    };
    for (cluster, service) in [("one", &world.one), ("two", &world.two)] {
        service.script([pieces()]);
        let response = world.send(parts(cluster)).await;
        assert_eq!(heard(&response, "x-sent"), "true", "{cluster}");
        assert_eq!(heard(&response, "x-status"), "200", "{cluster}");
        assert_eq!(heard(&response, "x-heard"), "hello nil", "{cluster}");
        assert_eq!(heard(&response, "x-parts"), "3", "{cluster}");
        let received = &service.received()[0];
        assert_eq!(&received.body[..], b"ab", "{cluster}");
        if cluster == "two" {
            assert_eq!(heard(&response, "x-trailer"), "3");
            assert_eq!(received.trailers, [("x-sum".to_owned(), "2".to_owned())]);
        }
    }
    world.finish();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_talked_to_is_told() {
    let world = World::start().await;
    let reset = "reset before the response was complete";
    for (cluster, sent, why) in [
        (
            "nowhere",
            "no upstream of that name",
            "no upstream of that name",
        ),
        ("refusing", "true", reset),
        (
            "empty",
            "no request could be made: no healthy endpoint",
            "no request could be made: no healthy endpoint",
        ),
    ] {
        let response = world.send(parts(cluster)).await;
        assert_eq!(heard(&response, "x-status"), why, "{cluster}");
        assert_eq!(heard(&response, "x-sent"), sent, "{cluster}");
        assert_eq!(heard(&response, "x-heard"), why, "{cluster}");
    }
    world.one.script([Answer {
        failure: Some(AnswerFailure::Close),
        ..text("")
    }]);
    let response = world.send(parts("one")).await;
    assert_eq!(heard(&response, "x-status"), reset);
    // An upstream's own 503 is a response.
    world.one.script([Answer {
        status: 503,
        ..text("busy")
    }]);
    let response = world.send(parts("one")).await;
    assert_eq!(heard(&response, "x-status"), "503");
    assert_eq!(heard(&response, "x-heard"), "busy nil");
    world.finish();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_reads_is_bounded() {
    let world = World::start().await;
    let flood: Vec<bytes::Bytes> = vec![vec![b'x'; 64 * 1024].into(); 64];
    world.one.script([Answer {
        body: AnswerBody::Pieces(flood, Vec::new()),
        ..Answer::default()
    }]);
    world.two.script([late("later", 1000)]);
    let response = world.way("flood").await;
    assert_eq!(heard(&response, "x-heard"), "bounded");
    assert_eq!(
        heard(&response, "x-why"),
        "more came before it was asked for than is kept: 524288 bytes for one stream, an eighth of the \
         plugin's memory budget"
    );
    world.one.script([Answer {
        body: AnswerBody::Pieces(vec!["a".into(), "b".into()], Vec::new()),
        every: Duration::from_secs(5),
        ..Answer::default()
    }]);
    assert_eq!(
        heard(&world.way("close").await, "x-heard"),
        "nilthe stream is closed"
    );
    world.finish();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timers_run_functions_while_the_stream_lives() {
    let world = World::start().await;
    world.one.script([late("late", 5000)]);
    let response = world.way("impatient").await;
    assert_eq!(
        (response.status, response.text().as_ref()),
        (504, "too slow")
    );
    world.two.script([text("a"), text("b"), text("c")]);
    assert_eq!(heard(&world.way("ticking").await, "x-heard"), "3c");
    let mark = world.gateway.output.mark();
    let response = world.way("faulty").await;
    assert_eq!(response.status, 500);
    let told = world
        .gateway
        .output
        .wait_after(mark, "plugin talker: failed", SOON)
        .unwrap();
    assert!(told.contains("broken timer"), "{told}");
    assert_eq!(world.way("none").await.status, 200);
    world.finish();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_end_first_take_all_of_it_with_them() {
    let world = World::start().await;
    for way in ["ahead", "timeout", "impatient", "both", "flood"] {
        for _ in 0..8 {
            // Nobody answers; the client leaves while everything is under way.
            world.one.script([late("late", 3000)]);
            world.two.script([late("late", 3000)]);
            let request = Request::get("/seen")
                .header("x-way", way)
                .timeout(Duration::from_millis(30));
            let _left = world.gateway.send(request).await;
        }
    }
    world
        .gateway
        .wait_stat("http.main.downstream_rq_active", |active| active == 0)
        .unwrap();
    for cluster in ["one", "two"] {
        world
            .gateway
            .wait_stat(&format!("cluster.{cluster}.upstream_rq_active"), |active| {
                active == 0
            })
            .unwrap();
    }
    assert_eq!(world.way("none").await.status, 200);
    world.finish();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_every_stream_gets_its_own_answers() {
    let world = World::start().await;
    // Together they stay below the 1024 requests that Envoy allows an upstream at once.
    let plan = SteadyPlan::new(world.gateway.http2(), 8, Request::get("/seen"))
        .requests(|_| Request::get("/seen").header("x-way", "many"))
        .check(|_, response| {
            let heard = response.json()["headers"]["x-heard"][0].to_string();
            if heard.starts_with("\"64 too many") {
                Ok(())
            } else {
                Err(heard)
            }
        });
    let steady = plan.start().await.unwrap();
    assert!(steady.advance(100, Duration::from_mins(1)).await);
    let summary = steady.stop().await;
    assert!(
        summary.is_clean(),
        "{summary}\n{}",
        world.gateway.output.text()
    );
    world.finish();
}
