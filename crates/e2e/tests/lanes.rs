//! Lanes along a chain of services: an edge gateway and a sidecar for each version of each service, all of them real Envoys.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use outrider_e2e::Gateway;
use outrider_lab::chain::{Chain, ChainOptions, Mode, Service};
use outrider_lab::client::Request;
use outrider_lab::echo::Echo;

const FR: &[(&str, &str)] = &[("user", "fr")];
const EN: &[(&str, &str)] = &[("user", "en")];

fn line(length: usize) -> ChainOptions {
    let path = |path: std::path::PathBuf| path.to_string_lossy().into_owned();
    ChainOptions {
        arguments: vec![
            "--envoy".to_owned(),
            path(outrider_e2e::envoy().unwrap()),
            "--module".to_owned(),
            path(outrider_e2e::module().unwrap()),
        ],
        ..ChainOptions::line(outrider_e2e::command().unwrap(), length)
    }
}

/// The answer of a chain whose services greet with these words.
fn answer(words: &[&str]) -> String {
    let parts = words
        .iter()
        .enumerate()
        .map(|(index, word)| format!("{word} eric@hello{}:", index + 1));
    parts.collect::<Vec<_>>().join("<")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lane_holds_along_the_chain_and_a_missing_version_is_the_baseline_s() {
    let mut chain = Chain::start(line(3)).await.unwrap();
    let french = answer(&["Bonjour"; 3]);

    // Article 000's check: five requests, fifteen `Bonjour`.
    let mut bonjours = 0;
    for _ in 0..5 {
        let text = chain.get("/hello/eric", FR).await.unwrap();
        assert_eq!(text, french);
        bonjours += text.matches("Bonjour").count();
    }
    assert_eq!(bonjours, 15);
    assert_eq!(
        chain.get("/hello/eric", EN).await.unwrap(),
        answer(&["Hello"; 3])
    );
    assert_eq!(
        chain.get("/hello/eric", &[]).await.unwrap(),
        answer(&["Hello"; 3])
    );

    // Clients do not choose a lane themselves.
    let forged = [("x-outrider-lane", "fr")];
    assert_eq!(
        chain.get("/hello/eric", &forged).await.unwrap(),
        answer(&["Hello"; 3])
    );

    let mixed = answer(&["Bonjour", "Hello", "Bonjour"]);
    chain
        .remove_version(("hello2", "fr"), ("/hello/eric", FR), &mixed)
        .await
        .unwrap();
    assert_eq!(
        chain.get("/hello/eric", EN).await.unwrap(),
        answer(&["Hello"; 3])
    );

    assert!(chain.counter("edge", "entered").await.unwrap() >= 6);
    assert!(chain.counter("hello1-fr", "restored").await.unwrap() >= 6);
    assert_eq!(chain.counter("hello1-fr", "unmatched").await.unwrap(), 0);
    assert_eq!(chain.counter("hello2-en", "ambiguous").await.unwrap(), 0);
    chain.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strict_lanes_need_nothing_of_the_services() {
    let options = ChainOptions {
        mode: Mode::Strict,
        passes: Vec::new(),
        ..line(3)
    };
    let chain = Chain::start(options).await.unwrap();
    for _ in 0..5 {
        assert_eq!(
            chain.get("/hello/eric", FR).await.unwrap(),
            answer(&["Bonjour"; 3])
        );
        assert_eq!(
            chain.get("/hello/eric", EN).await.unwrap(),
            answer(&["Hello"; 3])
        );
    }
    assert!(chain.counter("hello1-fr", "stamped").await.unwrap() >= 5);
    chain.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_requests_of_two_lanes_do_not_cross_over() {
    let mut options = line(1);
    // hello1 calls hello2 and hello3 at once, each of them in two versions.
    options.services = [
        ("hello1", vec!["hello2", "hello3"]),
        ("hello2", vec![]),
        ("hello3", vec![]),
    ]
    .into_iter()
    .map(|(name, next)| Service {
        name: name.to_owned(),
        next: next.into_iter().map(str::to_owned).collect(),
    })
    .collect();
    let chain = std::sync::Arc::new(Chain::start(options).await.unwrap());
    let workers = (0..20).map(|worker| {
        let chain = std::sync::Arc::clone(&chain);
        tokio::spawn(async move {
            for number in 0..500 {
                let (lane, word) = if (worker + number) % 2 == 0 {
                    (FR, "Bonjour")
                } else {
                    (EN, "Hello")
                };
                let text = chain.get("/hello/eric", lane).await.unwrap();
                assert_eq!(text, answer(&[word; 3]));
            }
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.unwrap();
    }
    for version in ["hello1-fr", "hello1-en"] {
        assert_eq!(chain.counter(version, "unmatched").await.unwrap(), 0);
        assert_eq!(chain.counter(version, "conflict").await.unwrap(), 0);
    }
    std::sync::Arc::into_inner(chain)
        .unwrap()
        .stop()
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_are_carried_along_past_services_that_drop_them() {
    let mut options = line(3);
    options.group = "    carry: [title]\n".to_owned();
    let chain = Chain::start(options).await.unwrap();
    for (title, lane, word) in [
        ("Dr.", FR, "Bonjour"),
        ("Prof.", EN, "Hello"),
        ("", EN, "Hello"),
    ] {
        let mut headers = lane.to_vec();
        headers.extend((!title.is_empty()).then_some(("title", title)));
        let text = chain.get("/hello/eric", &headers).await.unwrap();
        let expected = answer(&[word; 3]);
        let titled = format!("{word} {title} eric");
        let expected = if title.is_empty() {
            expected
        } else {
            expected.replace(&format!("{word} eric"), &titled)
        };
        assert_eq!(text, expected);
    }
    for proxy in ["hello1-fr", "hello2-fr", "hello1-en", "hello2-en"] {
        assert_eq!(chain.counter(proxy, "carried").await.unwrap(), 1, "{proxy}");
    }
    chain.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mirrored_lane_gets_a_copy_at_each_service_and_the_baseline_answers() {
    const REQUESTS: u64 = 5;
    let mut options = line(3);
    options.mirror = true;
    let chain = Chain::start(options).await.unwrap();
    let mut before = BTreeMap::new();
    for service in ["hello1", "hello2", "hello3"] {
        for lane in ["fr", "en"] {
            let proxy = format!("{service}-{lane}");
            let count = chain.counter(&proxy, "remembered").await.unwrap();
            before.insert(proxy, count);
        }
    }
    for _ in 0..REQUESTS {
        let text = chain.get("/hello/eric", FR).await.unwrap();
        assert_eq!(text, answer(&["Hello"; 3]));
        // Requests that are not mirrored.
        let text = chain.get("/hello/eric", EN).await.unwrap();
        assert_eq!(text, answer(&["Hello"; 3]));
    }
    assert_eq!(chain.counter("edge", "entered").await.unwrap(), REQUESTS);
    // Copies are sent, and nobody waits for their answers.
    let end = Instant::now() + Duration::from_secs(20);
    let last = "hello3-fr";
    while chain.counter(last, "remembered").await.unwrap() < before[last] + REQUESTS {
        assert!(
            Instant::now() < end,
            "copies do not come to the last service"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for (proxy, before) in before {
        let expected = if proxy.ends_with("-fr") { 1 } else { 2 } * REQUESTS;
        let count = chain.counter(&proxy, "remembered").await.unwrap();
        assert_eq!(count - before, expected, "{proxy}");
    }
    chain.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_after_the_response_have_the_lane_for_a_while() {
    let mut options = line(2);
    options.calls_later = Some(Duration::from_millis(300));
    let chain = Chain::start(options).await.unwrap();
    assert_eq!(
        chain.get("/hello/eric", FR).await.unwrap(),
        "Bonjour eric@hello1:"
    );
    tokio::time::sleep(Duration::from_millis(900)).await;
    assert!(chain.counter("hello2-fr", "remembered").await.unwrap() >= 1);
    chain.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lane_is_restored_by_the_trace_id_of_each_format() {
    // Clients and tracing libraries at the edge begin the trace.
    let traces: [&[(&str, &str)]; 4] = [
        &[(
            "traceparent",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        )],
        &[("b3", "80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-1")],
        &[
            ("x-b3-traceid", "463ac35c9f6413ad48485a3953bb6124"),
            ("x-b3-spanid", "a2fb4a1d1a96d312"),
        ],
        &[("uber-trace-id", "7ad5a4a1c1e4f5b6:1:0:1")],
    ];
    for trace in traces {
        let mut options = line(2);
        options.passes = trace.iter().map(|(name, _)| (*name).to_owned()).collect();
        let chain = Chain::start(options).await.unwrap();
        let with = |user: &'static str| [&[("user", user)][..], trace].concat();
        assert_eq!(
            chain.get("/hello/eric", &with("fr")).await.unwrap(),
            answer(&["Bonjour"; 2])
        );
        // The same trace in the other lane: its id does not move it.
        assert_eq!(
            chain.get("/hello/eric", &with("en")).await.unwrap(),
            answer(&["Hello"; 2])
        );
        chain.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn baseline_stands_in_for_a_version_without_a_healthy_machine() {
    let baseline = Echo::start("v1").await.unwrap();
    let version = Echo::start("v2").await.unwrap();
    let yaml = "
gateway:
  listeners: [{address: '{listen}'}]
  admin: '{admin}'
lanes:
  shop:
    baseline: v1
    enter: {v2: {when: {headers: [{name: user, exact: fr}]}}}
    services: {cart: {v1: cart-v1, v2: cart-v2}}
projects:
  - name: edge
    hosts: ['*']
    lane: {group: shop, role: edge}
    routes:
      - {match: {prefix: /}, to: {lanes: shop, service: cart}, upgrades: [websocket]}
upstreams:
  cart-v1: {endpoints: ['BASELINE'], protocol: http2}
  cart-v2: {endpoints: ['VERSION'], health_check: {path: /, interval: 100ms, unhealthy_threshold: 1}}
"
    .replace("BASELINE", &baseline.address().to_string())
    .replace("VERSION", &version.address().to_string());
    let gateway = Gateway::start(&yaml).unwrap();
    let french = || Request::get("/").host("shop.test").header("user", "fr");
    for target in [gateway.http1(), gateway.http2()] {
        let response = target.send(french()).await.unwrap();
        assert_eq!(response.json()["upstream"], "v2");
        assert_eq!(response.json()["headers"]["x-outrider-lane"][0], "v2");
    }

    version.stop().await;
    let began = Instant::now();
    let response = loop {
        let response = gateway.http1().send(french()).await.unwrap();
        if response.status == 200 {
            break response;
        }
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{}",
            response.text()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    // The lane goes on: services behind this one may have a version for it.
    assert_eq!(response.json()["upstream"], "v1");
    assert_eq!(response.json()["headers"]["x-outrider-lane"][0], "v2");
    gateway.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sidecar_that_is_started_anew_forgets_and_the_baseline_serves() {
    let mut options = line(2);
    options.calls_later = Some(Duration::from_secs(8));
    let mut chain = Chain::start(options).await.unwrap();
    // What the wait for readiness caused comes later, too.
    tokio::time::sleep(Duration::from_secs(9)).await;
    let french = chain.counter("hello2-fr", "remembered").await.unwrap();
    let english = chain.counter("hello2-en", "remembered").await.unwrap();

    let began = Instant::now();
    let answered = chain.get("/hello/eric", FR).await.unwrap();
    assert_eq!(answered, "Bonjour eric@hello1:");
    chain.restart("hello1-fr").await.unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(7),
        "the start took too long for this test"
    );
    let deadline = Instant::now() + Duration::from_secs(20);
    while chain.counter("hello1-fr", "unmatched").await.unwrap() == 0 {
        assert!(Instant::now() < deadline, "the service's call did not come");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(
        chain.counter("hello2-fr", "remembered").await.unwrap(),
        french
    );
    assert!(chain.counter("hello2-en", "remembered").await.unwrap() > english);
    chain.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retries_and_timeouts_stay_in_their_lane() {
    let service = Echo::start("v2").await.unwrap();
    let next = Echo::start("stock-v2").await.unwrap();
    let yaml = "
gateway:
  listeners: [{address: '{listen}'}]
  admin: '{admin}'
lanes:
  shop:
    baseline: v1
    remember: 1s
    services:
      cart: {v1: nowhere, v2: cart}
      stock: {v1: nowhere, v2: stock}
projects:
  - name: inbound
    hosts: [cart]
    lane: {group: shop, role: inbound}
    routes: [{match: {prefix: /}, to: cart, timeout: 10s}]
  - name: outbound
    hosts: [stock]
    lane: {group: shop, role: outbound}
    routes:
      - match: {prefix: /}
        to: {lanes: shop, service: stock}
        retries: {attempts: 2, on: [5xx]}
        timeout: 500ms
upstreams:
  cart: {endpoints: ['CART']}
  stock: {endpoints: ['STOCK']}
  nowhere: {endpoints: ['127.0.0.1:1']}
"
    .replace("CART", &service.address().to_string())
    .replace("STOCK", &next.address().to_string());
    let gateway = Gateway::start(&yaml).unwrap();
    let call = |id: &str, path: &str| Request::get(path).host("stock").header("x-request-id", id);
    let inbound = |id: &str, path: &str| {
        Request::get(path)
            .host("cart")
            .header("x-request-id", id)
            .header("x-outrider-lane", "v2")
    };
    let target = gateway.http2();
    let held = tokio::spawn(async move { target.send(inbound("a", "/delay/2500")).await });
    let began = Instant::now();
    while gateway.http1().send(call("a", "/")).await.unwrap().status != 200 {
        assert!(
            began.elapsed() < Duration::from_secs(2),
            "the lane is not restored"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    for target in [gateway.http1(), gateway.http2()] {
        next.forget_requests();
        let before = next.request_count();
        assert_eq!(
            target.send(call("a", "/status/503")).await.unwrap().status,
            503
        );
        assert_eq!(
            next.request_count() - before,
            3,
            "the first time, and two retries"
        );
        let tries = next
            .wait_for_requests(3, Duration::from_secs(5))
            .await
            .unwrap();
        for one in tries {
            assert_eq!(one.headers.get("x-outrider-lane"), Some("v2"));
        }
    }
    let late = gateway.http1().send(call("a", "/delay/900")).await.unwrap();
    assert_eq!(late.status, 504);
    // Nobody knows this trace: the baseline, which is nowhere.
    let before = next.request_count();
    assert_eq!(
        gateway.http1().send(call("b", "/")).await.unwrap().status,
        503
    );
    assert_eq!(next.request_count(), before);

    assert_eq!(held.await.unwrap().unwrap().status, 200);
    assert_eq!(
        gateway.http1().send(call("a", "/")).await.unwrap().status,
        200
    );
    // `remember` is over at last.
    let ended = Instant::now();
    while gateway.http1().send(call("a", "/")).await.unwrap().status == 200 {
        assert!(
            ended.elapsed() < Duration::from_secs(20),
            "the trace is remembered for ever"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    gateway.stop().unwrap();
}

#[test]
fn websocket_holds_its_lane_as_long_as_it_is_open() {
    let version = TcpListener::bind("127.0.0.1:0").unwrap();
    let yaml = "
gateway:
  listeners: [{address: '{listen}'}]
  admin: '{admin}'
lanes:
  shop:
    baseline: v1
    remember: 1s
    enter: {v2: {when: {query: [{name: lang, exact: fr}]}}}
    services: {chat: {v1: nowhere, v2: chat}}
projects:
  - name: edge
    hosts: [shop.test]
    lane: {group: shop, role: edge}
    routes: [{match: {prefix: /}, to: {lanes: shop, service: chat}, upgrades: [websocket]}]
  - name: inbound
    hosts: [chat]
    lane: {group: shop, role: inbound}
    routes: [{match: {prefix: /}, to: chat, upgrades: [websocket]}]
  - name: outbound
    hosts: [next]
    lane: {group: shop, role: outbound}
    routes: [{match: {prefix: /}, to: {lanes: shop, service: chat}}]
upstreams:
  chat: {endpoints: ['CHAT']}
  nowhere: {endpoints: ['127.0.0.1:1']}
"
    .replace("CHAT", &version.local_addr().unwrap().to_string());
    let gateway = Gateway::start(&yaml).unwrap();
    let (heads, received) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in version.incoming() {
            let mut stream = stream.unwrap();
            let head = head_of(&mut stream);
            let answer = if head.contains("upgrade: websocket") {
                "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
            } else {
                "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            };
            stream.write_all(answer.as_bytes()).unwrap();
            open.push(stream);
            if heads.send(head).is_err() {
                return;
            }
        }
    });
    let ask = |host: &str, path: &str, headers: &str| {
        let mut stream = TcpStream::connect(gateway.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let answer = head_of(&mut stream);
        (answer, stream)
    };
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\n";
    let soon = Duration::from_secs(10);

    let (answer, _open) = ask("shop.test", "/?lang=fr", upgrade);
    assert!(answer.starts_with("HTTP/1.1 101"), "{answer}");
    assert!(
        received
            .recv_timeout(soon)
            .unwrap()
            .contains("x-outrider-lane: v2")
    );

    let with_lane = format!("{upgrade}x-outrider-lane: v2\r\nx-request-id: a\r\n");
    let (answer, open) = ask("chat", "/", &with_lane);
    assert!(answer.starts_with("HTTP/1.1 101"), "{answer}");
    assert!(
        received
            .recv_timeout(soon)
            .unwrap()
            .contains("x-outrider-lane: v2")
    );
    // Longer than `remember`: it counts from the end of the connection.
    std::thread::sleep(Duration::from_millis(3500));
    let (answer, _) = ask("next", "/", "x-request-id: a\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(
        received
            .recv_timeout(soon)
            .unwrap()
            .contains("x-outrider-lane: v2")
    );

    drop(open);
    let ended = Instant::now();
    while ask("next", "/", "x-request-id: a\r\n")
        .0
        .starts_with("HTTP/1.1 200")
    {
        assert!(
            ended.elapsed() < Duration::from_secs(20),
            "the trace is remembered for ever"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    gateway.stop().unwrap();
}

/// The head of a message: Envoy writes names of headers in lower case.
fn head_of(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
        head.extend_from_slice(&byte);
    }
    String::from_utf8_lossy(&head).into_owned()
}

/// The command's report on a chain, as JSON.
fn lanes(chain: &Chain, arguments: &[&str]) -> serde_json::Value {
    let mut command = std::process::Command::new(outrider_e2e::command().unwrap());
    command.arg("lanes").args(arguments).arg("--json");
    for admin in chain.admins() {
        command.args(["--admin", &admin.to_string()]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The hops of a trace, each as its proxy, lane, outcome and, if so, fallback; those that it caused are behind it.
fn path(hops: &serde_json::Value) -> Vec<String> {
    let mut path = Vec::new();
    for hop in hops.as_array().unwrap() {
        let text = |key: &str| hop[key].as_str().unwrap_or("-").to_owned();
        let mut words = vec![
            text("role"),
            text("service"),
            text("version"),
            text("lane"),
            text("outcome"),
        ];
        if hop["fallback"] == true {
            words.push("fallback".to_owned());
        }
        path.push(words.join(" "));
        path.extend(self::path(&hop["next"]));
    }
    path
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trace_and_status_show_each_hop_the_fallback_and_where_a_lane_is_lost() {
    let options = ChainOptions {
        passes: ["x-request-id", "traceparent"].map(str::to_owned).to_vec(),
        ..line(3)
    };
    let mut chain = Chain::start(options).await.unwrap();
    let mixed = answer(&["Bonjour", "Hello", "Bonjour"]);
    chain
        .remove_version(("hello2", "fr"), ("/hello/eric", FR), &mixed)
        .await
        .unwrap();
    let url = format!("http://{}/hello/eric", chain.edge());
    let trace = lanes(&chain, &["trace", &url, "-H", "user: fr"]);
    assert_eq!(trace["status"], 200);
    assert_eq!(
        path(&trace["hops"]),
        [
            "edge - - fr entered",
            "inbound hello1 fr fr remembered",
            "outbound hello1 fr fr restored",
            "inbound hello2 en fr remembered fallback",
            "outbound hello2 en fr restored",
            "inbound hello3 fr fr remembered",
        ],
        "{trace:#}"
    );
    assert_eq!(trace["lost"].as_array().unwrap().len(), 0, "{trace:#}");

    let status = lanes(&chain, &["status"]);
    let services = status["groups"][0]["services"].as_array().unwrap();
    let of = |name: &str| services.iter().find(|row| row["service"] == name).unwrap();
    assert!(of("(edge)")["lanes"]["fr"]["requests"].as_u64() >= Some(1));
    let hello2 = &of("hello2")["lanes"]["fr"];
    assert!(hello2["fallbacks"].as_u64() >= Some(1), "{status:#}");
    assert_eq!(of("hello3")["lanes"]["fr"]["fallbacks"], 0, "{status:#}");
    assert_eq!(of("hello1")["lost"], 0, "{status:#}");
    chain.stop().await.unwrap();

    // Services that pass on nothing.
    let options = ChainOptions {
        passes: Vec::new(),
        ..line(2)
    };
    let chain = Chain::start(options).await.unwrap();
    let url = format!("http://{}/hello/eric", chain.edge());
    let trace = lanes(&chain, &["trace", &url, "-H", "user: fr"]);
    assert_eq!(
        path(&trace["hops"]),
        ["edge - - fr entered", "inbound hello1 fr fr remembered"],
        "{trace:#}"
    );
    assert_eq!(trace["lost"][0]["at"], "hello1 fr", "{trace:#}");
    assert_eq!(trace["lost"][0]["requests"], 1, "{trace:#}");
    chain.stop().await.unwrap();
}

/// gRPC is HTTP/2 with a body and trailers; the service holds its call while it makes another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_calls_keep_their_lane_and_their_trailers() {
    let service = Echo::start("v2").await.unwrap();
    let baseline = Echo::start("v1").await.unwrap();
    let yaml = "
gateway:
  listeners: [{address: '{listen}'}]
  admin: '{admin}'
lanes:
  shop:
    baseline: v1
    enter: {v2: {when: {headers: [{name: user, exact: fr}]}}}
    services: {cart: {v1: cart-v1, v2: cart-v2}}
projects:
  - name: edge
    hosts: [shop.test]
    lane: {group: shop, role: edge}
    routes: [{match: {prefix: /}, to: {lanes: shop, service: cart}, timeout: 0s}]
  - name: inbound
    hosts: [cart]
    lane: {group: shop, role: inbound}
    routes: [{match: {prefix: /}, to: cart-v2, timeout: 0s}]
  - name: outbound
    hosts: [stock]
    lane: {group: shop, role: outbound}
    routes: [{match: {prefix: /}, to: {lanes: shop, service: cart}, timeout: 0s}]
upstreams:
  cart-v1: {endpoints: ['V1'], protocol: http2}
  cart-v2: {endpoints: ['V2'], protocol: http2}
"
    .replace("V1", &baseline.address().to_string())
    .replace("V2", &service.address().to_string());
    let gateway = Gateway::start(&yaml).unwrap();
    let target = gateway.http2();
    let call = |host: &str, path: &str, headers: &[(&str, &str)]| {
        let mut request = Request::post(path, vec![0; 5])
            .host(host)
            .accept_trailers()
            .header("content-type", "application/grpc");
        for (name, value) in headers {
            request = request.header(name, value);
        }
        target.send(request)
    };
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let path = "/trailers?grpc-status=0";

    for (headers, echo, lane) in [
        (vec![("user", "fr")], &service, Some("v2")),
        (vec![("user", "en")], &baseline, None),
        (vec![("x-outrider-lane", "v2")], &baseline, None),
    ] {
        echo.forget_requests();
        let answer = call("shop.test", path, &headers).await.unwrap();
        assert_eq!(answer.status, 200, "{headers:?}");
        assert_eq!(answer.trailers.get("grpc-status"), Some("0"), "{headers:?}");
        let seen = echo
            .wait_for_requests(1, Duration::from_secs(5))
            .await
            .unwrap();
        let seen = seen.first().unwrap();
        assert_eq!(seen.headers.get("x-outrider-lane"), lane, "{headers:?}");
    }

    // While the service's own call is under way, what it calls is in the lane.
    let in_lane = [("x-outrider-lane", "v2"), ("traceparent", trace)];
    let held = call("cart", "/delay/1500", &in_lane);
    let calls = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        service.forget_requests();
        let answer = call("stock", path, &[("traceparent", trace)])
            .await
            .unwrap();
        assert_eq!(answer.trailers.get("grpc-status"), Some("0"));
        let seen = service
            .wait_for_requests(1, Duration::from_secs(5))
            .await
            .unwrap();
        let lane = seen
            .first()
            .and_then(|one| one.headers.get("x-outrider-lane"));
        assert_eq!(lane, Some("v2"));
    };
    let (held, ()) = tokio::join!(held, calls);
    assert_eq!(held.unwrap().status, 200);
    gateway.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lane_holds_over_one_hop_and_over_five() {
    for length in [1, 5] {
        let chain = Chain::start(line(length)).await.unwrap();
        for _ in 0..5 {
            for (lane, word) in [(FR, "Bonjour"), (EN, "Hello")] {
                let text = chain.get("/hello/eric", lane).await.unwrap();
                assert_eq!(text, answer(&vec![word; length]));
            }
        }
        chain.stop().await.unwrap();
    }
}
