//! Variants of hostile plugins: random programs over the Lua SDK and over the host functions of Proxy-Wasm, on a real
//! Envoy, with another tenant's requests as the judge: each of them is answered right, and in time.
//!
//! Seeds are fixed, so a failure can be repeated; `VARIANTS_SEED` takes others. `make chaos` does more of it, with
//! faulty clients and upstreams and changes of the configuration.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::fmt::Write as _;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use outrider_e2e::{Gateway, GatewayOptions};
use outrider_lab::client::{Connection, Request};
use outrider_lab::echo::{Echo, pattern};
use outrider_lab::programs::{lua, wasm};
use outrider_lab::random::Random;
use outrider_lab::steady::SteadyPlan;
use tempfile::TempDir;
use tokio::task::JoinSet;

/// How many programs run at once, each as a plugin of a route of its own.
const PROGRAMS: u64 = 10;
/// How long they run.
const ATTACK: Duration = Duration::from_secs(8);
/// A request of the other tenant takes no longer, on a machine that is busy with other tests, too.
const LONGEST: Duration = Duration::from_secs(3);

fn seed() -> u64 {
    std::env::var("VARIANTS_SEED").map_or(1, |text| text.parse().unwrap())
}

fn yaml(sources: &[String], echo: &Echo) -> String {
    let mut plugins = String::new();
    let mut routes = String::new();
    for (number, source) in sources.iter().enumerate() {
        let _ = writeln!(plugins, "  random-{number}: {{source: '{source}'}}");
        let _ = writeln!(
            routes,
            "      - {{match: {{prefix: /{number}/}}, to: echo, timeout: 2s, use: [random-{number}]}}"
        );
    }
    format!(
        "
gateway:
  listeners: [{{name: main, address: '{{listen}}'}}]
  admin: '{{admin}}'
  workers: 2
plugins:
  sound: {{source: sound.lua}}
{plugins}projects:
  - name: tenant
    hosts: [tenant.test]
    routes: [{{match: {{prefix: /}}, to: echo, use: [sound]}}]
  - name: random
    hosts: ['*']
    routes:
{routes}
upstreams:
  echo: {{endpoints: ['{0}']}}
  other: {{endpoints: ['{0}']}}
",
        echo.address()
    )
}

/// Sends requests of many kinds to one program until the time is over; nothing that comes of them is judged.
async fn attack(gateway: outrider_lab::client::Target, number: usize, mut random: Random) {
    let end = Instant::now() + ATTACK;
    let mut connection = None;
    while Instant::now() < end {
        let mut open = match connection.take() {
            Some(open) => open,
            None => match Connection::open(&gateway).await {
                Ok(open) => open,
                Err(_) => continue,
            },
        };
        let path = format!("/{number}/x?a=1&a=2");
        let request = match random.below(4) {
            0 => Request::post(&path, pattern(3000)).header("x-echo-path", "/echo"),
            1 => Request::post(&path, "")
                .pieces([pattern(500), pattern(20)])
                .trailer("x-trailer", "yes")
                .header("x-echo-path", "/echo"),
            2 => Request::get(&path)
                .header("x-echo-path", "/trailers")
                .accept_trailers(),
            _ => Request::get(&path).header("x-echo-path", "/bytes/5000"),
        };
        if open
            .send(request.timeout(Duration::from_secs(1)))
            .await
            .is_ok()
        {
            connection = Some(open);
        }
    }
}

/// Runs the programs in these files, and judges by the other tenant's requests.
async fn judge(sources: Vec<String>) {
    let echo = Echo::start("echo").await.unwrap();
    let sound = "return { version = 'v2', on_response_header = function() envoy.resp.set_header('x-seen', 'yes') end }";
    let gateway = Gateway::start_with(
        &yaml(&sources, &echo),
        &[("sound.lua", sound)],
        GatewayOptions::default(),
    )
    .unwrap();
    let longest = Arc::new(AtomicU64::new(0));
    let sent = Arc::new(std::sync::Mutex::new(vec![Instant::now(); 4]));
    let (slowest, began) = (Arc::clone(&longest), Arc::clone(&sent));
    let tenant = SteadyPlan::new(gateway.http1(), 4, Request::get("/"))
        .requests(move |turn| {
            sent.lock().unwrap()[turn.connection] = Instant::now();
            Request::get("/")
                .host("tenant.test")
                .header("x-echo-path", "/bytes/700")
                .timeout(LONGEST)
        })
        .check(move |turn, response| {
            let took = began.lock().unwrap()[turn.connection].elapsed().as_millis();
            slowest.fetch_max(u64::try_from(took).unwrap(), Ordering::Relaxed);
            let is_right = response.status == 200
                && response.body == pattern(700)
                && response.headers.get("x-seen") == Some("yes");
            if is_right {
                Ok(())
            } else {
                Err(format!("status {}: {}", response.status, response.text()))
            }
        })
        .pause(Duration::from_millis(5))
        .start()
        .await
        .unwrap();
    let mut attackers = JoinSet::new();
    let mut random = Random::new(seed());
    for number in 0..sources.len() {
        for _ in 0..2 {
            attackers.spawn(attack(gateway.http1(), number, random.fork()));
        }
    }
    attackers.join_all().await;
    let summary = tenant.stop().await;
    let longest = longest.load(Ordering::Relaxed);
    assert!(
        summary.is_clean() && summary.requests > 100,
        "seed {}: {summary}; the longest took {longest} ms\n{}",
        seed(),
        last_lines(&gateway)
    );
    let output = gateway.stop().unwrap();
    for word in ["panicked", "critical", "re-entered"] {
        let text = output.text();
        // Guests log these words, too, at all levels; such lines name their plugin.
        let mut lines = text.lines().filter(|line| !line.contains("plugin random-"));
        let line = lines.find(|line| line.contains(word));
        assert_eq!(line, None, "seed {}", seed());
    }
}

fn last_lines(gateway: &Gateway) -> String {
    let text = gateway.output.text();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..]
        .iter()
        .map(|line| line.chars().take(300).collect::<String>() + "\n")
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_lua_programs_leave_another_tenant_alone() {
    let folder = TempDir::new().unwrap();
    let mut random = Random::new(seed());
    let sources = (0..PROGRAMS)
        .map(|number| {
            let file = folder.path().join(format!("random-{number}.lua"));
            fs::write(&file, lua::program(&mut random)).unwrap();
            file.display().to_string()
        })
        .collect();
    judge(sources).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_wasm_guests_leave_another_tenant_alone() {
    let folder = TempDir::new().unwrap();
    let mut random = Random::new(seed());
    let sources = (0..PROGRAMS)
        .map(|number| {
            let file = folder.path().join(format!("random-{number}.wasm"));
            fs::write(&file, wasm::program(&mut random).unwrap()).unwrap();
            file.display().to_string()
        })
        .collect();
    judge(sources).await;
}
