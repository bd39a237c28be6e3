//! Ten thousand routes with plugin configuration cost their configuration and nothing else: not a VM,
//! not a copy of the plugin.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use outrider_e2e::{Gateway, GatewayOptions};
use outrider_lab::client::{Connection, Request};
use outrider_lab::echo::Echo;

const ROUTES: usize = 10_000;

const STAMP: &str = "
local handler = { version = 'v2' }
function handler:on_request_header()
  local config = envoy.config()
  envoy.req.set_header('x-stamp', config.stamp)
  envoy.req.set_header('x-shared', config.shared)
end
return handler
";

fn yaml(echo: &Echo, with_configuration: bool) -> String {
    let mut yaml = "
gateway:
  listeners: [{name: main, address: '{listen}'}]
  admin: '{admin}'
  workers: 2
  use: [{plugin: stamp, config: {stamp: none, shared: by-all}}]
plugins:
  stamp: {source: stamp.lua}
upstreams:
  echo: {endpoints: ['ECHO']}
projects:
  - name: shop
    hosts: ['*']
    routes:
"
    .replace("ECHO", &echo.address().to_string());
    for number in 0..ROUTES {
        write!(yaml, "      - {{match: {{path: /r/{number}}}, to: echo").unwrap();
        if with_configuration {
            write!(
                yaml,
                ", use: [{{plugin: stamp, config: {{stamp: route-{number}}}}}]"
            )
            .unwrap();
        }
        yaml.push_str("}\n");
    }
    yaml
}

/// Starts it; returns the memory that Envoy has allocated once it serves.
fn start(yaml: &str) -> (Gateway, u64) {
    let gateway =
        Gateway::start_with(yaml, &[("stamp.lua", STAMP)], GatewayOptions::default()).unwrap();
    let memory = gateway.memory().unwrap();
    (gateway, memory)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_routes_cost_their_configuration_and_nothing_else() {
    let echo = Echo::start("echo").await.unwrap();
    let (plain, without) = start(&yaml(&echo, false));
    plain.stop().unwrap();
    let began = Instant::now();
    let (gateway, with) = start(&yaml(&echo, true));
    let took = began.elapsed();

    let per_route = with.saturating_sub(without) / ROUTES as u64;
    // Envoy's own part of a route's `typed_per_filter_config` is about 2 KiB (the message and its
    // parsed form); a VM would be 200 KiB.
    assert!(
        per_route > 100,
        "the routes have no configuration? {with} against {without}"
    );
    assert!(
        per_route < 6 * 1024,
        "{per_route} bytes for each route: {with} against {without}"
    );
    assert!(took < Duration::from_secs(30), "it took {took:?} to start");

    // Each route has its own configuration, also when asked for the first time.
    let mut connections = [
        Connection::open(&gateway.http1()).await.unwrap(),
        Connection::open(&gateway.http2()).await.unwrap(),
    ];
    let before = gateway.memory().unwrap();
    for turn in 0..2_000usize {
        // A walk that meets routes from all over the list.
        let number = turn * 7_919 % ROUTES;
        let connection = &mut connections[turn % 2];
        let response = connection
            .send(Request::get(&format!("/r/{number}")))
            .await
            .unwrap();
        let seen = response.json();
        assert_eq!(seen["headers"]["x-stamp"][0], format!("route-{number}"));
        assert_eq!(seen["headers"]["x-shared"][0], "by-all");
    }
    let grown = gateway.memory().unwrap().saturating_sub(before);
    // Decoded configurations of 2,000 routes in the VMs' own budget.
    assert!(grown < 16 * 1024 * 1024, "{grown} bytes for 2,000 requests");
    assert!(gateway.not_zero(r"\.errors\.\w+").unwrap().is_empty());
    gateway.stop().unwrap();
    echo.stop().await;
}
