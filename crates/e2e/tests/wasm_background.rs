//! What Wasm plugins do on workers without any stream: ticks, notices of queues, callouts of their roots, and
//! what becomes of them when a guest fails, is configured anew, or Envoy ends.
//!
//! The guest is the probe, which does what its configuration says and reports it with the name of its VM.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test, its helpers included, fails by panicking"
)]

#[allow(
    clippy::redundant_pub_crate,
    dead_code,
    reason = "it is included by tests of several crates, and each uses a part"
)]
#[path = "../../wasm-runtime/guests/building.rs"]
mod building;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use outrider_e2e::{Gateway, GatewayOptions};
use outrider_lab::client::Request;
use outrider_lab::echo::Echo;

const PATIENCE: Duration = Duration::from_secs(30);

/// A gateway on two workers with plugins of which each does what its script says.
fn yaml(plugins: &[(&str, &str)], echo: &Echo) -> String {
    let probe = building::probe("0.2.1");
    let uses: Vec<String> = plugins
        .iter()
        .map(|(name, script)| format!("{{plugin: {name}, config: {script:?}}}"))
        .collect();
    let sources: Vec<String> = plugins
        .iter()
        .map(|(name, _)| {
            format!(
                "  {name}: {{source: '{}', allow: all, wasm: {{vm_id: shared, shared: together}}}}",
                probe.display()
            )
        })
        .collect();
    format!(
        "
gateway:
  listeners: [{{name: main, address: '{{listen}}'}}]
  admin: '{{admin}}'
  workers: 2
  use: [{}]
plugins:
{}
projects:
  - name: shop
    hosts: ['*']
    routes: [{{match: {{prefix: /}}, to: echo}}]
upstreams:
  echo: {{endpoints: ['{}']}}
",
        uses.join(", "),
        sources.join("\n"),
        echo.address()
    )
}

fn start(plugins: &[(&str, &str)], echo: &Echo) -> Gateway {
    let options = GatewayOptions {
        verbose: true,
        ..GatewayOptions::default()
    };
    Gateway::start_with(&yaml(plugins, echo), &[], options).unwrap()
}

/// How often each VM of a plugin reported a line that holds `what`, in what was said after `mark`.
fn reports(gateway: &Gateway, mark: usize, plugin: &str, what: &str) -> BTreeMap<String, usize> {
    let marker = format!("plugin {plugin}: probe ");
    let mut counts = BTreeMap::new();
    for line in gateway.output.text().lines().skip(mark) {
        if let Some((_, report)) = line.split_once(&marker)
            && let Some((vm, report)) = report.split_once(' ')
            && report.contains(what)
        {
            *counts.entry(vm.to_owned()).or_default() += 1;
        }
    }
    counts
}

fn lines(gateway: &Gateway) -> usize {
    gateway.output.text().lines().count()
}

/// Waits until so many VMs of a plugin have each reported `what` so often.
fn wait_for(gateway: &Gateway, mark: usize, plugin: &str, what: &str, vms: usize, times: usize) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let reports = reports(gateway, mark, plugin, what);
        if reports.values().filter(|count| **count >= times).count() >= vms {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{plugin}: {what}: {reports:?} in:\n{}",
            gateway.output.text()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_without_streams_tick_and_their_callouts_are_answered() {
    let echo = Echo::start("echo").await.unwrap();
    let calls = r#"
on configure
  call set_tick_period_milliseconds 20
on tick
  call http_call "echo" [ ":method" "GET" ":path" "/status/207" ":authority" "echo" ] "" "" 5000
on tick #1
  call http_call "echo" [ ":method" "GET" ":path" "/" ] "" "" 5000
  call http_call "nobody" [ ":method" "GET" ":path" "/" ":authority" "echo" ] "" "" 5000
on http_call_response
  call get_header_map_value 6 ":status"
"#;
    let gateway = start(&[("caller", calls)], &echo);
    // Both workers' VMs are there from the start, and no request ever came.
    wait_for(&gateway, 0, "caller", "root tick()", 2, 5);
    wait_for(&gateway, 0, "caller", ":status\" = 0 \"207\"", 2, 3);
    // What is no request is refused at once; that there is no such upstream is told as a failure, without headers.
    wait_for(
        &gateway,
        0,
        "caller",
        "\":path\" \"/\" ] \"\" \"\" 5000 = 2",
        2,
        1,
    );
    wait_for(&gateway, 0, "caller", ", 0, 0, 0)", 2, 1);
    assert_eq!(gateway.stat("http.main.downstream_rq_total").unwrap(), 0);
    let answer = gateway.send(Request::get("/")).await.unwrap();
    assert_eq!(answer.status, 200);
    gateway.stop().unwrap();
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_between_two_plugins_needs_no_stream() {
    let echo = Echo::start("echo").await.unwrap();
    let listener = r#"
on configure
  let queue = register_shared_queue "letters"
on queue_ready
  call dequeue_shared_queue $1
"#;
    let sender = r#"
on configure
  call set_tick_period_milliseconds 20
on tick
  let queue = resolve_shared_queue "shared" "letters"
  call enqueue_shared_queue $queue "a letter"
"#;
    let gateway = start(&[("listener", listener), ("sender", sender)], &echo);
    // One VM listens: the last that registered.
    wait_for(
        &gateway,
        0,
        "listener",
        "dequeue_shared_queue $1 = 0 \"a letter\"",
        1,
        5,
    );
    gateway.stop().unwrap();
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_that_fails_in_a_tick_is_replaced_and_ticks_on() {
    let echo = Echo::start("echo").await.unwrap();
    let failing = r"
on configure
  call set_tick_period_milliseconds 20
on tick #3
  trap unreachable
";
    let steady = "on configure\n  call set_tick_period_milliseconds 20\n";
    let gateway = start(&[("failing", failing), ("steady", steady)], &echo);
    // Each VM ticks thrice and fails; on two workers, each third VM was there after two failures.
    wait_for(&gateway, 0, "failing", "root tick()", 6, 3);
    wait_for(&gateway, 0, "steady", "root tick()", 2, 10);
    assert_eq!(reports(&gateway, 0, "steady", "root tick()").len(), 2);
    assert!(gateway.output.text().contains("unreachable"));
    gateway.stop().unwrap();
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_configuration_ticks_in_the_place_of_the_first() {
    let echo = Echo::start("echo").await.unwrap();
    let ticking = |word: &str| {
        format!(
            "on configure\n  call set_tick_period_milliseconds 20\non tick\n  call get_shared_data \"{word}\"\n"
        )
    };
    let gateway = start(&[("ticker", &ticking("first"))], &echo);
    wait_for(&gateway, 0, "ticker", "first", 2, 2);
    gateway
        .update(&yaml(&[("ticker", &ticking("second"))], &echo))
        .unwrap();
    wait_for(&gateway, 0, "ticker", "second", 2, 2);
    // The first goes with its generation.
    wait_for(&gateway, 0, "ticker", "root delete()", 2, 1);
    let mark = lines(&gateway);
    wait_for(&gateway, mark, "ticker", "second", 2, 3);
    assert_eq!(reports(&gateway, mark, "ticker", "first"), BTreeMap::new());
    gateway.stop().unwrap();
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoy_ends_while_callouts_are_under_way() {
    let echo = Echo::start("echo").await.unwrap();
    let calls = r#"
on configure
  call set_tick_period_milliseconds 5
on tick
  call http_call "echo" [ ":method" "GET" ":path" "/delay/20000" ":authority" "echo" ] "" "" 60000
"#;
    let gateway = start(&[("caller", calls)], &echo);
    let deadline = Instant::now() + PATIENCE;
    while gateway
        .stat("cluster.echo/callouts.upstream_rq_active")
        .unwrap()
        < 8
    {
        assert!(Instant::now() < deadline, "{}", gateway.output.text());
        std::thread::sleep(Duration::from_millis(10));
    }
    gateway.stop().unwrap();
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_without_a_stream_ends_with_its_configuration_and_with_envoy() {
    let echo = Echo::start("echo").await.unwrap();
    // The upstream answers when the request is complete, which it never is.
    let asking = |word: &str| {
        format!(
            "on configure
  call set_tick_period_milliseconds 20
on tick #1
  call grpc_stream \"echo\" \"the.Service\" \"{word}\" \"\"
  call grpc_call \"nobody\" \"the.Service\" \"{word}\" \"\" \"message\" 5000
"
        )
    };
    let gateway = start(&[("asker", &asking("First"))], &echo);
    let active = "cluster.echo/callouts.upstream_rq_active";
    let wait_for_two = || {
        let deadline = Instant::now() + PATIENCE;
        while gateway.stat(active).unwrap() != 2 {
            assert!(Instant::now() < deadline, "{}", gateway.output.text());
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    wait_for(&gateway, 0, "asker", "root grpc_close(5, 14)", 2, 1);
    wait_for_two();
    let mark = lines(&gateway);
    gateway
        .update(&yaml(&[("asker", &asking("Second"))], &echo))
        .unwrap();
    // What was under way would keep the first generation alive.
    wait_for(&gateway, mark, "asker", "root grpc_close(6, 14)", 2, 1);
    wait_for(&gateway, mark, "asker", "root delete()", 2, 1);
    wait_for(&gateway, mark, "asker", "\"Second\" \"\" = 0", 2, 1);
    wait_for_two();
    assert_eq!(
        gateway
            .stat("cluster.echo/callouts.upstream_rq_total")
            .unwrap(),
        4
    );
    gateway.stop().unwrap();
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_without_a_stream_fails_when_the_listener_that_carries_it_is_removed() {
    let echo = Echo::start("echo").await.unwrap();
    let asking = |word: &str| {
        format!(
            "on configure
  call set_tick_period_milliseconds 50
on tick #1
  call grpc_stream \"echo\" \"the.Service\" \"{word}\" \"\"
  call grpc_call \"nobody\" \"the.Service\" \"{word}\" \"\" \"message\" 5000
on tick
  call grpc_send 6 \"x\" 0
"
        )
    };
    let one = yaml(&[("asker", &asking("First"))], &echo);
    let second = outrider_e2e::free_address().unwrap();
    let two = one.replace(
        "address: '{listen}'}",
        &format!("address: '{{listen}}'}}, {{name: two, address: '{second}'}}"),
    );
    assert_ne!(one, two);
    let options = GatewayOptions {
        verbose: true,
        ..GatewayOptions::default()
    };
    let gateway = Gateway::start_with_short_drain(&two, &[], options).unwrap();
    wait_for(&gateway, 0, "asker", "\"First\" \"\" = 0", 2, 1);
    let active = "cluster.echo/callouts.upstream_rq_active";
    let wait_for_active = |is_there: fn(u64) -> bool| {
        let deadline = Instant::now() + PATIENCE;
        while !is_there(gateway.stat(active).unwrap()) {
            assert!(Instant::now() < deadline, "{}", gateway.output.text());
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    // One for each worker; more where the listeners' configurations came before one was shared.
    wait_for_active(|count| count >= 2);
    let envoy = gateway.envoy_process().unwrap();
    let mark = lines(&gateway);
    gateway.update(&one).unwrap();
    // When it has drained, what its configuration carried fails, and the roots hear of it.
    wait_for(&gateway, mark, "asker", "root grpc_close(6, 14)", 2, 1);
    wait_for_active(|count| count == 0);
    // Ticks go on to send on it; then a new configuration comes.
    let mark = lines(&gateway);
    wait_for(&gateway, mark, "asker", "root tick()", 2, 3);
    gateway
        .update(&yaml(&[("asker", &asking("Second"))], &echo))
        .unwrap();
    wait_for(&gateway, mark, "asker", "\"Second\" \"\" = 0", 2, 1);
    wait_for_active(|count| count == 2);
    assert_eq!(gateway.envoy_process().unwrap(), envoy);
    gateway.stop().unwrap();
    echo.stop().await;
}
