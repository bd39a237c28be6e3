//! Plugins whose VMs take long to make, as a web application firewall with its rules does: here a second of
//! processor time for each configuration.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use outrider_e2e::under_load::wait_for_answer;
use outrider_e2e::{Gateway, GatewayOptions, Guest};
use outrider_lab::client::{Connection, Request, Response};
use outrider_lab::echo::Echo;
use outrider_lab::steady::{Steady, SteadyPlan};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const PATIENCE: Duration = Duration::from_mins(2);
const CONNECTIONS: usize = 8;
/// Rounds of the guest's loop at each configuration.
const SECOND: u32 = 1_000_000_000;

fn module(folder: &Path) -> PathBuf {
    let file = folder.join("slow.wasm");
    let module = Guest::telling("1").slow(SECOND).module().unwrap();
    fs::write(&file, module).unwrap();
    file
}

fn yaml(number: u64, workers: usize, module: &Path, echo: &Echo, held: SocketAddr) -> String {
    format!(
        "
gateway:
  listeners: [{{name: main, address: '{{listen}}'}}]
  admin: '{{admin}}'
  workers: {workers}
  use: [{{plugin: slow, config: {{number: {number}}}}}]
plugins:
  slow: {{source: '{}', failure_policy: {{causes: {{unavailable: open}}}}}}
projects:
  - name: shop
    hosts: ['*']
    routes:
      - {{match: {{prefix: /held}}, to: held, timeout: 0s}}
      - {{match: {{prefix: /}}, to: echo, timeout: 0s}}
upstreams:
  echo: {{endpoints: ['{}']}}
  held: {{endpoints: ['{held}']}}
",
        module.display(),
        echo.address()
    )
}

/// An upstream that answers when it is told to.
struct Held {
    address: SocketAddr,
    /// How many requests have come.
    requests: Arc<AtomicU64>,
    answer: watch::Sender<bool>,
}

impl Held {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(AtomicU64::new(0));
        let (answer, told) = watch::channel(false);
        let count = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(hold(stream, Arc::clone(&count), told.clone()));
            }
        });
        Self {
            address,
            requests,
            answer,
        }
    }

    async fn wait_for(&self, requests: u64) {
        let deadline = Instant::now() + PATIENCE;
        while self.requests.load(Ordering::Relaxed) < requests {
            assert!(Instant::now() < deadline);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn hold(mut stream: TcpStream, count: Arc<AtomicU64>, mut told: watch::Receiver<bool>) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
            return;
        }
    }
    count.fetch_add(1, Ordering::Relaxed);
    if told.wait_for(|told| *told).await.is_ok() {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        // Whoever has asked finds out if it does not come.
        drop(stream.write_all(answer).await);
    }
}

/// The number in the configuration that a response was made with; none: the plugin was not called.
fn number(response: &Response) -> Option<u64> {
    let config: Value = serde_json::from_str(response.headers.get("x-config")?).unwrap();
    config["number"].as_u64()
}

/// A load of which each request is answered; those that the plugin did not see are counted.
async fn load(gateway: &Gateway, unseen: &Arc<AtomicU64>) -> Steady {
    let unseen = Arc::clone(unseen);
    SteadyPlan::new(
        gateway.http1(),
        CONNECTIONS,
        Request::get("/status/200").timeout(PATIENCE),
    )
    .pause(Duration::from_millis(2))
    .check(move |_, response| {
        if response.status != 200 {
            return Err(format!("status {}: {}", response.status, response.text()));
        }
        if number(response).is_none() {
            unseen.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    })
    .start()
    .await
    .unwrap()
}

/// Waits until Envoy has a spare VM of the plugin.
async fn wait_for_spare(gateway: &Gateway) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let page = gateway.admin.get("/outrider/plugins?format=json").unwrap();
        let page: Value = serde_json::from_str(&page.body).unwrap();
        let plugin = &page["plugins"][0];
        if plugin["spare_vms_memory_bytes"]
            .as_array()
            .is_some_and(|spares| !spares.is_empty())
        {
            return;
        }
        assert!(Instant::now() < deadline, "no spare VM: {page:#}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trap_costs_a_slow_plugin_no_other_request() {
    const TRAPS: u64 = 4;
    let echo = Echo::start("echo").await.unwrap();
    let folder = TempDir::new().unwrap();
    let held = Held::start().await;
    let yaml = yaml(0, 2, &module(folder.path()), &echo, held.address);
    let gateway = Gateway::start_with(&yaml, &[], GatewayOptions::default()).unwrap();
    let unseen = Arc::new(AtomicU64::new(0));
    let load = load(&gateway, &unseen).await;
    let mut connection = Connection::open(&gateway.http1()).await.unwrap();
    for trap in 0..TRAPS {
        wait_for_spare(&gateway).await;
        assert!(load.advance(100, PATIENCE).await, "{}", load.so_far());
        let request = Request::get("/status/200").header("x-mood", "trap");
        let response = connection.send(request).await.unwrap();
        assert_eq!(response.status, 500, "trap {trap}");
        // The same connection is the same worker, whose VM has just failed.
        for request in 0..50 {
            let response = connection.send(Request::get("/status/200")).await.unwrap();
            assert_eq!(response.status, 200);
            let told = gateway.output.text();
            assert_eq!(number(&response), Some(0), "{trap}, {request}: {told}");
        }
    }
    assert!(load.advance(100, PATIENCE).await, "{}", load.so_far());
    let summary = load.stop().await;
    assert!(summary.is_clean(), "{summary}");
    // Only streams that were under way in the VM that failed.
    let unseen = unseen.load(Ordering::Relaxed);
    assert!(
        unseen <= TRAPS * CONNECTIONS as u64,
        "{unseen} of {summary}"
    );
    let told = gateway.output.text();
    assert!(!told.contains("could not be replaced"), "{told}");
    let sum = |name: &str| -> u64 {
        let counters = gateway
            .admin
            .stats(&format!(r"outrider\.plugin\.slow\.{name}$"));
        counters.unwrap().values().sum()
    };
    assert_eq!(sum("errors.error"), TRAPS);
    assert_eq!(sum("vm_replaced"), TRAPS);
    gateway.stop().unwrap();
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_plugin_is_configured_again_and_again_under_load() {
    const UPDATES: u64 = 6;
    let echo = Echo::start("echo").await.unwrap();
    let held = Held::start().await;
    let folder = TempDir::new().unwrap();
    let module = module(folder.path());
    // One worker, so that all streams are in its VMs.
    let yaml = |number| yaml(number, 1, &module, &echo, held.address);
    let gateway = Gateway::start_with(&yaml(0), &[], GatewayOptions::default()).unwrap();
    let unseen = Arc::new(AtomicU64::new(0));
    let load = load(&gateway, &unseen).await;
    let mut streams = Vec::new();
    for update in 0..=UPDATES {
        if update > 0 {
            let mark = gateway.output.mark();
            gateway.save(&yaml(update)).unwrap();
            let applied = gateway.output.wait_after(mark, "applied in", PATIENCE);
            applied.unwrap();
        }
        let is_it = |response: &Response| number(response) == Some(update);
        wait_for_answer(&gateway, "an update", is_it).await.unwrap();
        assert!(load.advance(100, PATIENCE).await, "{}", load.so_far());
        // One stream of each configuration goes on until all have come.
        let target = gateway.http1();
        let request = Request::get("/held").timeout(PATIENCE * 5);
        streams.push(tokio::spawn(async move { target.send(request).await }));
        held.wait_for(update + 1).await;
    }
    let summary = load.stop().await;
    assert!(summary.is_clean(), "{summary}");
    assert_eq!(unseen.load(Ordering::Relaxed), 0, "{summary}");
    held.answer.send_replace(true);
    for (update, stream) in streams.into_iter().enumerate() {
        let response = stream.await.unwrap().unwrap();
        assert_eq!(response.status, 200);
        assert_eq!(number(&response), Some(update as u64));
    }
    gateway.stop().unwrap();
    echo.stop().await;
}
