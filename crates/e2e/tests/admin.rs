//! What there is to see of a running gateway: the module's pages on Envoy's admin port, and the time of
//! plugins' calls as histograms in Envoy's statistics.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use outrider_e2e::{Gateway, GatewayOptions};
use outrider_lab::client::Request;
use outrider_lab::echo::Echo;
use serde_json::{Value, json};

const GATEWAY: &str = "
gateway:
  listeners: [{name: main, address: '{listen}'}]
  admin: '{admin}'
  workers: 2
  plugin_time: TIMES
plugins:
  moody: {source: moody, failure_policy: {default: closed}, budgets: {time_ms: 50, memory_mib: 4}}
  quiet: {source: quiet.lua}
projects:
  - name: shop
    hosts: ['*']
    use: [{plugin: moody, config: {token: t0p-s3cret}}]
    routes:
      - {name: own, match: {prefix: /own}, to: echo, use: [{plugin: moody, config: {token: r0ute-s3cret}}, quiet]}
      - {name: rest, match: {prefix: /}, to: echo}
upstreams:
  echo: {endpoints: ['ECHO']}
";

const MANIFEST: &str = "name: moody\nruntime: lua\nversion: 1.2.3\n";

const MOODY: &str = "
local handler = { version = 'v2' }
function handler:on_request_header()
  local mood = envoy.req.get_header('x-mood')
  if mood == 'error' then error('bad mood\\27[31m') end
  if mood == 'loop' then while true do end end
  if mood == 'reply' then envoy.respond({[':status'] = '418'}, 'no') end
end
function handler:on_log() end
return handler
";

const QUIET: &str = "
local handler = { version = 'v2' }
function handler:on_response_header() end
return handler
";

async fn start(times: &str) -> (Echo, Gateway, String) {
    let echo = Echo::start("echo").await.unwrap();
    let yaml = GATEWAY
        .replace("ECHO", &echo.address().to_string())
        .replace("TIMES", times);
    let files = [
        ("moody/plugin.yaml", MANIFEST),
        ("moody/main.lua", MOODY),
        ("quiet.lua", QUIET),
    ];
    let gateway = Gateway::start_with(&yaml, &files, GatewayOptions::default()).unwrap();
    (echo, gateway, yaml)
}

fn page(gateway: &Gateway, path: &str) -> Value {
    let answer = gateway.admin.get(path).unwrap();
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    serde_json::from_str(&answer.body).unwrap()
}

fn plugin<'p>(page: &'p Value, name: &str) -> &'p Value {
    let plugins = page["plugins"].as_array().unwrap();
    let newest = plugins.iter().find(|plugin| plugin["name"] == name);
    newest.unwrap_or_else(|| panic!("no plugin {name}: {page:#}"))
}

async fn send(gateway: &Gateway, path: &str, mood: &str) -> u16 {
    let request = Request::get(path).header("x-mood", mood);
    gateway.send(request).await.unwrap().status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pages_tell_what_lives_and_what_failed() {
    let (_echo, gateway, yaml) = start("off").await;
    for _ in 0..6 {
        assert_eq!(send(&gateway, "/own/status/200", "fine").await, 200);
    }
    assert_eq!(send(&gateway, "/status/200", "reply").await, 418);
    assert_eq!(send(&gateway, "/status/200", "loop").await, 500);
    for _ in 0..2 {
        assert_eq!(send(&gateway, "/status/200", "error").await, 500);
    }

    let all = page(&gateway, "/outrider?format=json");
    let keys: Vec<&String> = all.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "version",
            "abi",
            "metrics",
            "file",
            "generations",
            "plugins"
        ]
    );
    assert_eq!(all["abi"], "v0.2.0");
    let used = all["metrics"]["used"].as_u64().unwrap();
    assert!((10..200).contains(&used), "{used}");

    let [generation] = all["generations"].as_array().unwrap().as_slice() else {
        panic!("{all:#}");
    };
    assert_eq!(generation["filter"], "outrider");
    assert_eq!(generation["age"], "newest");
    assert_eq!(generation["plugins"], json!(["moody", "quiet"]));
    assert_eq!(generation["plugin_time"], "off");
    // The project's, and that of the route which says more.
    assert_eq!(generation["routes"], 2, "{all:#}");

    let moody = plugin(&all, "moody");
    assert_eq!(moody["version"], "1.2.3");
    assert_eq!(moody["runtime"], "lua");
    let digest = moody["digest"].as_str().unwrap();
    assert!(
        digest.starts_with("sha256:") && digest.len() == 71,
        "{digest}"
    );
    assert_eq!(moody["generation"], generation["id"]);
    assert_eq!(moody["replies"], 1);
    // Ten requests, and the log phases of those that the plugin did not fail on.
    assert_eq!(moody["calls"], 10 + 7, "{moody:#}");
    assert_eq!(moody["failures"]["error"], 2);
    assert_eq!(moody["failures"]["time"], 1);
    assert_eq!(moody["failures"]["memory"], 0);
    let last = &moody["last_failure"];
    assert_eq!(
        (&last["phase"], &last["cause"]),
        (&json!("request headers"), &json!("error"))
    );
    let message = last["message"].as_str().unwrap();
    assert!(message.contains("main.lua:5: bad mood"), "{message}");
    assert_eq!(moody["time_budget_ms"], 50);
    assert_eq!(moody["memory_budget_bytes"], 4 << 20);
    let vms = moody["vms"].as_array().unwrap();
    assert_eq!(vms.len(), 2);
    for vm in vms {
        let memory = vm["memory_bytes"].as_u64().unwrap();
        assert!((10_000..4 << 20).contains(&memory), "{vm:#}");
    }
    let quiet = plugin(&all, "quiet");
    assert_eq!(
        (&quiet["version"], &quiet["last_failure"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(quiet["calls"], 6);
    assert_eq!(
        page(&gateway, "/outrider/plugins?format=json")["plugins"]
            .as_array()
            .unwrap()
            .len(),
        2
    );

    // For people: nothing that a terminal would obey, and never a configuration.
    let text = gateway.admin.get("/outrider").unwrap().body;
    assert!(text.contains("1.2.3, lua, sha256:"), "{text}");
    assert!(text.contains(r"bad mood\u{1b}[31m"), "{text}");
    for secret in ["t0p-s3cret", "r0ute-s3cret"] {
        assert!(!text.contains(secret) && !all.to_string().contains(secret));
    }
    assert_eq!(gateway.admin.get("/outrider/nothing").unwrap().status, 404);
    assert_eq!(
        gateway.admin.get("/outrider?format=xml").unwrap().status,
        400
    );
    assert!(
        gateway
            .admin
            .get("/help")
            .unwrap()
            .body
            .contains("/outrider/plugins: ")
    );
    assert!(
        gateway.output.text().contains("/outrider"),
        "the banner names the page"
    );

    // An update: another generation, and what failed before is not forgotten.
    gateway
        .update(&yaml.replace("memory_mib: 4", "memory_mib: 5"))
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    let after = loop {
        // The old one goes with its last stream, on a thread of its own.
        let now = page(&gateway, "/outrider?format=json");
        let generations = now["generations"].as_array().unwrap();
        if generations.len() == 1 && generations[0]["id"] != generation["id"] {
            break now;
        }
        assert!(Instant::now() < deadline, "{now:#}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(
        plugin(&after, "moody")["last_failure"],
        moody["last_failure"]
    );
    assert_eq!(plugin(&after, "moody")["failures"], moody["failures"]);
    gateway.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pages_answer_under_load_and_fail_no_request() {
    let (_echo, gateway, yaml) = start("histograms").await;
    let gateway = Arc::new(gateway);
    let done = Arc::new(AtomicBool::new(false));
    let served = Arc::new(AtomicU64::new(0));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (gateway, done, served) =
                (Arc::clone(&gateway), Arc::clone(&done), Arc::clone(&served));
            tokio::spawn(async move {
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(send(&gateway, "/own/status/200", "fine").await, 200);
                    served.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let reader = {
        let gateway = Arc::clone(&gateway);
        let served = Arc::clone(&served);
        tokio::task::spawn_blocking(move || {
            let mut last = 0;
            for round in 0..60 {
                if round % 20 == 10 {
                    gateway
                        .update(
                            &yaml
                                .replace("t0p-s3cret", &format!("s3cret-{round}"))
                                .replace("memory_mib: 4", &format!("memory_mib: {round}")),
                        )
                        .unwrap();
                }
                let before = served.load(Ordering::Relaxed);
                let all = page(&gateway, "/outrider?format=json");
                assert!(
                    gateway
                        .admin
                        .get("/outrider")
                        .unwrap()
                        .body
                        .contains("plugin moody")
                );
                let calls = plugin(&all, "moody")["calls"].as_u64().unwrap();
                assert!(calls >= last && calls >= before, "{calls} {last} {before}");
                last = calls;
            }
        })
    };
    let read = reader.await;
    done.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    read.unwrap();
    assert!(served.load(Ordering::Relaxed) > 100);
    Arc::into_inner(gateway).unwrap().stop().unwrap();
}

/// The histograms of plugins' time in Prometheus' form, by plugin and phase: how many values each has,
/// and their sum.
fn times(gateway: &Gateway) -> Vec<(String, u64, u64)> {
    let page = gateway
        .admin
        .get("/stats/prometheus?usedonly")
        .unwrap()
        .body;
    let value = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap();
    page.lines()
        .filter(|line| line.contains("_time_ns_") && line.contains("_count{"))
        .map(|line| {
            let phase = line
                .split_once("_time_ns_")
                .unwrap()
                .1
                .split_once("_count{")
                .unwrap()
                .0;
            let plugin = line
                .split_once("outrider_plugin=\"")
                .unwrap()
                .1
                .split_once('"')
                .unwrap()
                .0;
            let sum_line = line.split_once(' ').unwrap().0.replace("_count{", "_sum{");
            let sum = page
                .lines()
                .find(|other| other.starts_with(&sum_line))
                .unwrap();
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "counts"
            )]
            (
                format!("{plugin} {phase}"),
                value(line) as u64,
                value(sum) as u64,
            )
        })
        .collect()
}

/// How many requests Envoy's own histogram of their time holds.
fn requests(gateway: &Gateway) -> u64 {
    let page = gateway
        .admin
        .get("/stats/prometheus?usedonly")
        .unwrap()
        .body;
    let line = page.lines().find(|line| {
        line.starts_with("envoy_http_downstream_rq_time_count{") && line.contains("\"main\"")
    });
    line.map_or(0, |line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_of_calls_is_recorded_by_plugin_and_phase_when_it_is_asked_for() {
    let (_echo, gateway, yaml) = start("off").await;
    for _ in 0..5 {
        assert_eq!(send(&gateway, "/own/status/200", "fine").await, 200);
    }
    let off = yaml;
    let on = off.replace("plugin_time: off", "plugin_time: histograms");
    gateway.update(&on).unwrap();
    for _ in 0..8 {
        assert_eq!(send(&gateway, "/own/status/200", "fine").await, 200);
    }
    assert_eq!(send(&gateway, "/status/200", "loop").await, 500);
    // Envoy merges histograms every five seconds.
    let deadline = Instant::now() + Duration::from_secs(20);
    let recorded = loop {
        let recorded = times(&gateway);
        if recorded
            .iter()
            .any(|(name, count, _)| name == "moody log" && *count == 8)
        {
            break recorded;
        }
        assert!(Instant::now() < deadline, "{recorded:?}");
        std::thread::sleep(Duration::from_millis(50));
    };
    let mut counts: Vec<(&str, u64)> = recorded
        .iter()
        .map(|(name, count, _)| (name.as_str(), *count))
        .collect();
    counts.sort_unstable();
    assert_eq!(
        counts,
        [
            ("moody log", 8),
            ("moody request_headers", 9),
            ("quiet response_headers", 8)
        ],
        "nothing of the time before it was on"
    );
    // The endless loop took its whole budget, 50 ms of the worker's time.
    let (_, _, sum) = recorded
        .iter()
        .find(|(name, _, _)| name == "moody request_headers")
        .unwrap();
    assert!((45_000_000..2_000_000_000).contains(sum), "{sum} ns");
    // The limits are those that fit.
    let prometheus = gateway
        .admin
        .get("/stats/prometheus?usedonly")
        .unwrap()
        .body;
    let limits = prometheus.lines().filter(|line| {
        line.contains("outrider_plugin=\"quiet\"")
            && line.contains("_time_ns_response_headers_bucket{")
    });
    assert_eq!(
        limits
            .filter(|line| line.contains("le=\"250\"") || line.contains("le=\"25000000\""))
            .count(),
        2
    );

    // Off again: nothing is added.
    gateway.update(&off).unwrap();
    for _ in 0..4 {
        assert_eq!(send(&gateway, "/own/status/200", "fine").await, 200);
    }
    // Envoy's own histogram of requests, which it merges together with these, says when to look.
    let deadline = Instant::now() + Duration::from_secs(20);
    while requests(&gateway) < 5 + 8 + 1 + 4 {
        assert!(Instant::now() < deadline, "{}", requests(&gateway));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(times(&gateway), recorded);
    gateway.stop().unwrap();
}
