//! What an upstream can do wrong, times what a plugin can be doing with it, over HTTP/1.1 and HTTP/2: each request is
//! answered, and the gateway goes on.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use outrider_e2e::{FaultyUpstream, Gateway, GatewayOptions, UpstreamFault};
use outrider_lab::client::Request;
use outrider_lab::echo::Echo;

const SOON: Duration = Duration::from_secs(10);

const CALLER: &str = r#"
local handler = { version = "v2" }
local ways = {}

local function ask(cluster, method)
    return envoy.httpCall(cluster,
        { [":method"] = method or "GET", [":path"] = "/", [":authority"] = "x" }, nil, 300)
end

function ways.waits(cluster)
    ask(cluster)
end

function ways.head(cluster)
    ask(cluster, "HEAD")
    ask(cluster, "HEAD")
end

function ways.tries_again(cluster)
    for _ = 1, 5 do
        ask(cluster)
    end
end

function ways.starts_again(cluster)
    for _ = 1, 5 do
        envoy.callout.start{ cluster = cluster, path = "/", timeout_ms = 300 }:wait()
    end
end

function ways.waits_for_none(cluster)
    for _ = 1, 5 do
        envoy.callout.start{ cluster = cluster, path = "/", timeout_ms = 300 }
    end
end

function ways.waits_for_all(cluster)
    local calls = {}
    for i = 1, 5 do
        calls[i] = envoy.callout.start{ cluster = cluster, path = "/", timeout_ms = 300 }
    end
    envoy.callout.wait_all(calls, 1000)
end

function ways.leaves_open(cluster)
    for _ = 1, 3 do
        envoy.callout.stream{ cluster = cluster, method = "POST", path = "/", body = "a", timeout_ms = 300 }
    end
end

function ways.closes_another(cluster)
    local one = envoy.callout.stream{ cluster = cluster, method = "POST", path = "/", timeout_ms = 300 }
    local two = envoy.callout.stream{ cluster = cluster, method = "POST", path = "/", timeout_ms = 300 }
    one:send("a", true)
    one:headers(300)
    one:read(300)
    two:close()
    envoy.respond({ [":status"] = 202 }, "closed")
end

function ways.sends_afterwards(cluster)
    local one = envoy.callout.stream{ cluster = cluster, method = "POST", path = "/", timeout_ms = 300 }
    one:headers(300)
    one:read_all(300)
    one:send("late")
    one:close()
    ask(cluster)
end

function handler:on_request_header()
    local way = envoy.req.get_header("x-way")
    if way then
        ways[way](envoy.req.get_header("x-cluster"))
    end
end

return handler
"#;

const WAYS: [&str; 9] = [
    "waits",
    "head",
    "tries_again",
    "starts_again",
    "waits_for_none",
    "waits_for_all",
    "leaves_open",
    "closes_another",
    "sends_afterwards",
];

async fn faults_leave_the_gateway_alive(protocol: &str) {
    let echo = Echo::start("echo").await.unwrap();
    let upstreams: Vec<FaultyUpstream> = UpstreamFault::ALL
        .iter()
        .map(|fault| FaultyUpstream::start(*fault).unwrap())
        .collect();
    let mut yaml = format!(
        "
gateway:
  listeners: [{{name: main, address: '{{listen}}'}}]
  admin: '{{admin}}'
  workers: 1
plugins:
  caller: {{source: caller.lua, circuit: off, allow: all}}
projects:
  - name: shop
    hosts: ['*']
    routes:
      - {{match: {{prefix: /}}, to: echo, use: [caller]}}
upstreams:
  echo: {{endpoints: ['{}']}}
",
        echo.address()
    );
    for (fault, upstream) in UpstreamFault::ALL.iter().zip(&upstreams) {
        writeln!(
            yaml,
            "  {}: {{endpoints: ['{}'], protocol: {protocol}}}",
            fault.name(),
            upstream.address()
        )
        .unwrap();
    }
    let files = [("caller.lua", CALLER)];
    let gateway = Gateway::start_with(&yaml, &files, GatewayOptions::default()).unwrap();
    let envoy = gateway.envoy_process().unwrap();
    for fault in UpstreamFault::ALL {
        for way in WAYS {
            let row = format!("{protocol}, {}, {way}", fault.name());
            let request = Request::get("/")
                .header("x-way", way)
                .header("x-cluster", fault.name());
            let answer = tokio::time::timeout(SOON, gateway.send(request)).await;
            let answer = answer.unwrap_or_else(|_| panic!("{row}: no answer"));
            let status = answer
                .unwrap_or_else(|error| panic!("{row}: {error}\n{}", gateway.output.text()))
                .status;
            let expected = if way == "closes_another" { 202 } else { 200 };
            assert_eq!(status, expected, "{row}\n{}", gateway.output.text());
        }
        assert!(upstreams.iter().any(|upstream| upstream.requests() > 0));
    }
    for (fault, upstream) in UpstreamFault::ALL.iter().zip(&upstreams) {
        assert!(upstream.requests() > 0, "{} was never asked", fault.name());
    }
    let plain = gateway.send(Request::get("/")).await.unwrap();
    assert_eq!(plain.status, 200);
    assert_eq!(gateway.envoy_process().unwrap(), envoy);
    gateway.stop().unwrap();
    drop(upstreams);
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_over_http1_leave_the_gateway_alive() {
    faults_leave_the_gateway_alive("http1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_over_http2_leave_the_gateway_alive() {
    faults_leave_the_gateway_alive("http2").await;
}

const BURNER: &str = r#"
local handler = { version = "v2" }
function handler:on_request_header()
    if envoy.req.get_header("x-burn") == nil then return end
    while true do
        local sum = 0
        for i = 1, 10000000 do sum = sum + i % 7 end
        envoy.sleep(1)
    end
end
return handler
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timers_that_burn_leave_a_worker_to_others_and_end_with_their_clients() {
    let echo = Echo::start("echo").await.unwrap();
    let yaml = format!(
        "
gateway:
  listeners: [{{name: main, address: '{{listen}}'}}]
  admin: '{{admin}}'
  workers: 1
plugins:
  burner: {{source: burner.lua, circuit: off, budgets: {{time_ms: 500}}}}
projects:
  - name: shop
    hosts: ['*']
    routes:
      - {{match: {{prefix: /burn}}, to: echo, use: [burner]}}
      - {{match: {{prefix: /}}, to: echo}}
upstreams:
  echo: {{endpoints: ['{}']}}
",
        echo.address()
    );
    let files = [("burner.lua", BURNER)];
    let gateway = Gateway::start_with(&yaml, &files, GatewayOptions::default()).unwrap();
    let before = gateway.send(Request::get("/")).await.unwrap();
    assert_eq!(before.status, 200);
    let target = gateway.http1();
    let burning: Vec<_> = (0..12)
        .map(|_| {
            let target = target.clone();
            tokio::spawn(async move {
                target
                    .send(Request::get("/burn").header("x-burn", "1"))
                    .await
            })
        })
        .collect();
    // They have begun.
    tokio::time::sleep(Duration::from_secs(1)).await;
    for round in 0..5 {
        let began = Instant::now();
        let answer = tokio::time::timeout(SOON, gateway.send(Request::get("/"))).await;
        let answer = answer.unwrap_or_else(|_| panic!("round {round}: no answer while they burn"));
        assert_eq!(answer.unwrap().status, 200);
        println!("answered after {:?}", began.elapsed());
    }
    for task in &burning {
        task.abort();
    }
    let left = Instant::now();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let began = Instant::now();
    let answer =
        tokio::time::timeout(Duration::from_secs(2), gateway.send(Request::get("/"))).await;
    assert_eq!(answer.expect("no answer").unwrap().status, 200);
    println!(
        "{:?} after they left: answered after {:?}",
        left.elapsed(),
        began.elapsed()
    );
    assert_eq!(gateway.stat("http.main.downstream_rq_active").unwrap(), 0);
    gateway.stop().unwrap();
    echo.stop().await;
}
