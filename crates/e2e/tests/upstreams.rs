//! Upstreams and listeners beyond the plain: TLS on both sides, ALPN, load balancing, health checks,
//! names that are looked up.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use outrider_e2e::{Gateway, GatewayOptions};
use outrider_lab::client::{Request, Target};
use outrider_lab::echo::{Echo, EchoOptions};
use outrider_lab::tls::{Identity, Trust};

const SOON: Duration = Duration::from_secs(10);

const STAMP: &str = "
local handler = { version = 'v2' }
function handler:on_request_header() envoy.req.set_header('x-stamp', envoy.streaminfo.protocol()) end
return handler
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_on_both_sides() {
    let identity = Identity::generate(&["shop.example.com", "localhost"]).unwrap();
    let other = Identity::generate(&["other.example.com"]).unwrap();
    let secure = |name: &str, identity: &Identity| EchoOptions {
        tls: Some(identity.clone()),
        ..EchoOptions::named(name)
    };
    let good = Echo::start_with(secure("good", &identity)).await.unwrap();
    let wrong = Echo::start_with(secure("wrong", &other)).await.unwrap();
    let yaml = "
gateway:
  listeners:
    - {name: both, address: '{listen}', tls: {certificate: certs/gateway.pem, private_key: certs/gateway.key}}
    - {name: old, address: 'OLD', protocols: [http1], tls: {certificate: certs/gateway.pem, private_key: certs/gateway.key}}
  admin: '{admin}'
  use: [stamp]
plugins: {stamp: {source: stamp.lua}}
projects:
  - name: shop
    hosts: ['*']
    routes:
      - {match: {prefix: /wrong-name}, to: wrong-name}
      - {match: {prefix: /wrong-authority}, to: wrong-authority}
      - {match: {prefix: /unchecked}, to: unchecked}
      - {match: {prefix: /}, to: good}
upstreams:
  good: {endpoints: ['GOOD'], protocol: http2, tls: {sni: shop.example.com, ca: certs/gateway.pem}}
  wrong-name: {endpoints: ['GOOD'], tls: {sni: elsewhere.example.com, ca: certs/gateway.pem}}
  wrong-authority: {endpoints: ['WRONG'], tls: {sni: other.example.com, ca: certs/gateway.pem}}
  unchecked: {endpoints: ['WRONG'], tls: {sni: other.example.com, ca: none}}
";
    let old = outrider_e2e::free_address().unwrap();
    let yaml = yaml
        .replace("OLD", &old.to_string())
        .replace("GOOD", &good.address().to_string())
        .replace("WRONG", &wrong.address().to_string());
    let files = [
        ("stamp.lua", STAMP),
        ("certs/gateway.pem", identity.certificate.as_str()),
        ("certs/gateway.key", identity.private_key.as_str()),
    ];
    let gateway = Gateway::start_with(&yaml, &files, GatewayOptions::default()).unwrap();
    let trust = || Trust::Authority(identity.certificate.clone());
    let tls = |target: Target| target.with_tls("shop.example.com", trust());
    for (target, protocol) in [
        (tls(gateway.http1()), "HTTP/1.1"),
        (tls(gateway.http2()), "HTTP/2"),
        (tls(Target::http1(old)), "HTTP/1.1"),
    ] {
        let response = target.send(Request::get("/status/200")).await.unwrap();
        assert_eq!(response.status, 200, "{}", response.text());
        let seen = response.json();
        assert_eq!(seen["headers"]["x-stamp"][0], protocol);
        assert_eq!(seen["headers"]["x-forwarded-proto"][0], "https");
        assert_eq!(seen["protocol"], "HTTP/2");
        assert_eq!(response.headers.get("x-upstream"), Some("good"));
        // The other end's certificate has to be of the right name, and of the right authority.
        for path in ["/wrong-name", "/wrong-authority"] {
            let response = target.send(Request::get(path)).await.unwrap();
            assert_eq!(response.status, 503, "{path}");
        }
        let unchecked = Request::get("/unchecked").header("x-echo-path", "/status/200");
        assert_eq!(target.send(unchecked).await.unwrap().status, 200);
    }
    // HTTP/2 is not offered where the listener does not speak it.
    tls(Target::http2(old))
        .send(Request::get("/status/200"))
        .await
        .unwrap_err();
    gateway.stop().unwrap();
    good.stop().await;
    wrong.stop().await;
}

/// Answers every request with what it knows of the client.
const WHO: &str = "
local handler = { version = 'v2' }
function handler:on_request_header()
    local who = envoy.connection.tls()
    who.forwarded = envoy.req.get_header('x-forwarded-client-cert')
    envoy.respond({ [':status'] = 200 }, envoy.json.encode(who))
end
return handler
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_show_certificates() {
    let server = Identity::generate(&["shop.example.com"]).unwrap();
    let cart = Identity::for_client("cart", &["spiffe://shop/cart"]).unwrap();
    let till = Identity::for_client("till", &["spiffe://shop/till"]).unwrap();
    let stranger = Identity::for_client("cart", &["spiffe://shop/cart"]).unwrap();
    let yaml = "
gateway:
  listeners:
    - address: '{listen}'
      tls: {certificate: certs/a.pem, private_key: certs/a.key, client_ca: certs/clients.pem}
    - address: 'OPTIONAL'
      tls: {certificate: certs/a.pem, private_key: certs/a.key, client_ca: certs/clients.pem, client_certificate: optional}
  admin: '{admin}'
  use: [who]
plugins: {who: {source: who.lua}}
projects: [{name: shop, hosts: ['*'], routes: [{match: {prefix: /}, respond: {status: 404}}]}]
";
    let optional = outrider_e2e::free_address().unwrap();
    let yaml = yaml.replace("OPTIONAL", &optional.to_string());
    let authorities = format!("{}{}", cart.certificate, till.certificate);
    let files = [
        ("who.lua", WHO),
        ("certs/a.pem", server.certificate.as_str()),
        ("certs/a.key", server.private_key.as_str()),
        ("certs/clients.pem", authorities.as_str()),
    ];
    let gateway = Gateway::start_with(&yaml, &files, GatewayOptions::default()).unwrap();
    let trust = || Trust::Authority(server.certificate.clone());
    let tls = |target: Target| target.with_tls("shop.example.com", trust());
    let ask = || Request::get("/").header("x-forwarded-client-cert", "Subject=\"CN=boss\"");
    // A client that is refused between its hello and its request may not notice and wait.
    let refused = || ask().timeout(Duration::from_secs(3));
    for target in [
        tls(gateway.http1()),
        tls(gateway.http2()),
        tls(Target::http2(optional)),
    ] {
        for (client, name) in [(&cart, "cart"), (&till, "till")] {
            let known = target.clone().with_identity(client);
            let response = known.send(ask()).await.unwrap();
            assert_eq!(response.status, 200, "{}", response.text());
            let who = response.json();
            assert_eq!(who["peer_presented"], true, "{who}");
            assert_eq!(who["subject"], format!("CN={name}"), "{who}");
            assert_eq!(who["uri_san"], format!("spiffe://shop/{name}"), "{who}");
            assert_eq!(who["server_name"], "shop.example.com", "{who}");
            assert_eq!(who.get("forwarded"), None, "{who}");
        }
        // The names are right, the authority is not: refused where certificates are optional too.
        let unknown = target.clone().with_identity(&stranger);
        unknown.send(refused()).await.unwrap_err();
    }
    tls(gateway.http1()).send(refused()).await.unwrap_err();
    tls(gateway.http2()).send(refused()).await.unwrap_err();
    let anonymous = tls(Target::http1(optional)).send(ask()).await.unwrap();
    assert_eq!(anonymous.status, 200, "{}", anonymous.text());
    let who = anonymous.json();
    assert_eq!(who["peer_presented"], false, "{who}");
    assert_eq!(who.get("subject"), None, "{who}");
    assert_eq!(who["server_name"], "shop.example.com", "{who}");
    // Envoy's own count says why it refused, and that it refused nobody else.
    let counted = gateway
        .admin
        .stats("listener.*ssl.(fail_verify_no_cert|fail_verify_error|no_certificate)$")
        .unwrap();
    let sum = |name: &str| {
        counted
            .iter()
            .filter(|(counter, _)| counter.ends_with(name))
            .map(|(_, count)| *count)
            .sum::<u64>()
    };
    assert_eq!(sum("fail_verify_no_cert"), 2, "{counted:?}");
    assert_eq!(sum("fail_verify_error"), 3, "{counted:?}");
    assert_eq!(sum("no_certificate"), 1, "{counted:?}");
    gateway.stop().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_share_the_requests_as_the_file_says() {
    let one = Echo::start("one").await.unwrap();
    let two = Echo::start("two").await.unwrap();
    let yaml = "
gateway:
  listeners: [{address: '{listen}'}]
  admin: '{admin}'
  workers: 1
projects:
  - name: shop
    hosts: ['*']
    routes:
      - {match: {prefix: /robin}, to: robin}
      - {match: {prefix: /weighted}, to: weighted}
      - {match: {prefix: /ring}, to: ring}
      - {match: {prefix: /maglev}, to: maglev}
      - {match: {prefix: /least}, to: least}
      - {match: {prefix: /random}, to: random}
      - {match: {prefix: /named}, to: named}
upstreams:
  robin: {endpoints: ['ONE', 'TWO']}
  weighted: {endpoints: [{address: 'ONE', weight: 3}, {address: 'TWO', weight: 1}]}
  ring: {endpoints: ['ONE', 'TWO'], load_balancing: ring_hash}
  maglev: {endpoints: ['ONE', 'TWO'], load_balancing: maglev}
  least: {endpoints: ['ONE', 'TWO'], load_balancing: least_request}
  random: {endpoints: ['ONE', 'TWO'], load_balancing: random}
  named: {endpoints: ['localhost:PORT']}
"
    .replace("ONE", &one.address().to_string())
    .replace("TWO", &two.address().to_string())
    .replace("PORT", &one.address().port().to_string());
    let gateway = Gateway::start(&yaml).unwrap();
    let shares = async |path: &str| {
        let mut shares = BTreeMap::from([("one".to_owned(), 0), ("two".to_owned(), 0)]);
        for _ in 0..80 {
            let request = Request::get(path).header("x-echo-path", "/status/200");
            let response = gateway.send(request).await.unwrap();
            assert_eq!(response.status, 200, "{path}");
            let upstream = response.headers.get("x-upstream").unwrap();
            *shares.get_mut(upstream).unwrap() += 1;
        }
        (shares["one"], shares["two"])
    };
    assert_eq!(shares("/robin").await, (40, 40));
    assert_eq!(shares("/weighted").await, (60, 20));
    for hashed in ["/ring", "/maglev"] {
        let (one, two) = shares(hashed).await;
        assert!(
            one == 80 || two == 80,
            "one client, one endpoint: {hashed} {one} {two}"
        );
    }
    for by_chance in ["/least", "/random"] {
        let (one, two) = shares(by_chance).await;
        assert!(one > 5 && two > 5, "{by_chance} {one} {two}");
    }
    assert_eq!(shares("/named").await, (80, 0));
    gateway.stop().unwrap();
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_fails_its_health_check_gets_nothing_until_it_is_well() {
    let well = Echo::start("well").await.unwrap();
    let mut ill = outrider_e2e::Scripted::start().await.unwrap();
    ill.refuse().await;
    let yaml = "
gateway:
  listeners: [{address: '{listen}'}]
  admin: '{admin}'
  workers: 1
projects: [{name: shop, hosts: ['*'], routes: [{match: {prefix: /}, to: checked}]}]
upstreams:
  checked:
    endpoints: ['WELL', 'ILL']
    health_check: {path: /status/200, interval: 100ms, timeout: 1s, healthy_threshold: 1, unhealthy_threshold: 1}
"
    .replace("WELL", &well.address().to_string())
    .replace("ILL", &ill.address().to_string());
    let gateway = Gateway::start(&yaml).unwrap();
    gateway
        .wait_stat("cluster.checked.membership_healthy", |count| count == 1)
        .unwrap();
    for _ in 0..20 {
        let response = gateway.send(Request::get("/status/200")).await.unwrap();
        assert_eq!(response.status, 200);
    }
    // It comes back, and answers its checks with 200.
    ill.script(std::iter::repeat_n(outrider_e2e::Answer::default(), 10_000));
    ill.accept().await.unwrap();
    gateway
        .wait_stat("cluster.checked.membership_healthy", |count| count == 2)
        .unwrap();
    let began = Instant::now();
    while !ill.received().iter().any(|request| request.path == "/ask") {
        assert!(began.elapsed() < SOON, "it gets no request");
        let request = Request::get("/ask").header("x-echo-path", "/status/200");
        assert_eq!(gateway.send(request).await.unwrap().status, 200);
    }
    gateway.stop().unwrap();
    well.stop().await;
}

const FORWARDED: &str = "
gateway:
  listeners: [{name: main, address: '{listen}'}]
  admin: '{admin}'
  workers: 1
  trusted_hops: 1
  use: [client]
plugins:
  client: {source: client.lua}
projects:
  - name: shop
    hosts: ['*']
    routes:
      - {match: {prefix: /hash}, to: ring, hash: [{header: x-user}, {cookie: session}, {query: user}]}
      - {match: {prefix: /mirror}, to: one, mirror: {upstream: shadow}}
      - {match: {prefix: /half}, to: half}
      - {match: {prefix: /}, to: one}
upstreams:
  ring: {endpoints: ['ONE', 'TWO'], load_balancing: maglev}
  one: {endpoints: ['ONE']}
  shadow: {endpoints: ['TWO']}
  half:
    endpoints: ['ONE', 'BAD']
    outlier_detection: {consecutive_5xx: 2, base_ejection_time: 60s, max_ejection_percent: 50}
";

const CLIENT: &str = "
local handler = { version = 'v2' }
function handler:on_response_header()
  envoy.resp.set_header('x-client', envoy.streaminfo.downstream_remote_address())
end
return handler
";

/// Makes a request of a user.
type Make = fn(u32) -> Request;

/// Answers each request with 503.
fn failing_upstream() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            read_until(&mut stream, "\r\n\r\n");
            let answer = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_go_where_the_route_says() {
    let one = Echo::start("one").await.unwrap();
    let two = Echo::start("two").await.unwrap();
    let text = FORWARDED
        .replace("ONE", &one.address().to_string())
        .replace("TWO", &two.address().to_string())
        .replace("BAD", &failing_upstream().to_string());
    let files = [("client.lua", CLIENT)];
    let gateway = Gateway::start_with(&text, &files, GatewayOptions::default()).unwrap();
    let upstream_of = async |request: Request| {
        let response = gateway
            .send(request.header("x-echo-path", "/status/200"))
            .await;
        let response = response.unwrap();
        response.headers.get("x-upstream").unwrap().to_owned()
    };
    // By header, by cookie, by query: the same value leads to the same machine, and some values to each.
    let makes: [Make; 3] = [
        |user| Request::get("/hash").header("x-user", &user.to_string()),
        |user| Request::get("/hash").header("cookie", &format!("a=b; session=s{user}")),
        |user| Request::get(&format!("/hash?user={user}")),
    ];
    for make in makes {
        let mut seen = BTreeMap::new();
        for user in 0..20 {
            let first = upstream_of(make(user)).await;
            for _ in 0..3 {
                assert_eq!(upstream_of(make(user)).await, first);
            }
            *seen.entry(first).or_insert(0) += 1;
        }
        assert_eq!(seen.len(), 2, "{seen:?}");
    }
    two.forget_requests();
    for number in 0..5 {
        let request = Request::post("/mirror", format!("body {number}"));
        assert_eq!(upstream_of(request).await, "one");
    }
    let mirrored = two.wait_for_requests(5, SOON).await.unwrap();
    assert_eq!(mirrored.len(), 5);
    // Of two machines the bad one is left out after two bad answers.
    let mut bad = 0;
    for _ in 0..40 {
        let request = Request::get("/half").header("x-echo-path", "/status/200");
        bad += usize::from(gateway.send(request).await.unwrap().status == 503);
    }
    assert_eq!(bad, 2);
    // The proxy in front wrote the last entry.
    let request = Request::get("/status/200").header("x-forwarded-for", "9.9.9.9, 8.8.8.8");
    let response = gateway.send(request).await.unwrap();
    let client = response.headers.get("x-client").unwrap();
    assert!(client.starts_with("8.8.8.8"), "{client}");
    gateway.stop().unwrap();
    one.stop().await;
    two.stop().await;
}

const SLOW: &str = "
gateway:
  listeners: [{name: main, address: '{listen}'}]
  admin: '{admin}'
  workers: 1
  timeouts: {request_headers: 500ms, request: 1s, idle: 700ms, stream_idle: 1s}
  limits: {connections: 4, concurrent_streams: 3, heap_mib: 4096}
projects:
  - name: shop
    hosts: ['*']
    routes:
      - {match: {prefix: /delay}, to: echo, idle_timeout: 20s}
      - {match: {prefix: /}, to: echo}
upstreams:
  echo: {endpoints: ['ECHO']}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_have_the_time_and_the_room_that_the_file_says() {
    let echo = Echo::start("echo").await.unwrap();
    let gateway = Gateway::start(&SLOW.replace("ECHO", &echo.address().to_string())).unwrap();
    let send = |text: &str| {
        let mut stream = TcpStream::connect(gateway.address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        stream
    };
    // Headers, and a body, that do not come.
    let head = "GET / HTTP/1.1\r\nhost: shop.test\r\n";
    let answer = read_until(&mut send(head), "\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    let head = "POST / HTTP/1.1\r\nhost: shop.test\r\ncontent-length: 9\r\n\r\nfour";
    let answer = read_until(&mut send(head), "\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    // A connection without a request ends.
    assert_eq!(read_until(&mut send(""), "\r\n\r\n"), "");
    // Without a byte for longer than others may.
    let response = gateway.send(Request::get("/delay/2000")).await.unwrap();
    assert_eq!(response.status, 200);
    // One more connection than there may be is closed at once; the test's own count.
    gateway
        .wait_stat("http.main.downstream_cx_active", |count| count == 0)
        .unwrap();
    let held: Vec<TcpStream> = (0..4)
        .map(|_| send("GET /delay/600 HTTP/1.1\r\n"))
        .collect();
    let began = Instant::now();
    while !read_until(&mut send(""), "\r\n\r\n").is_empty() {
        assert!(began.elapsed() < SOON);
    }
    let refused = gateway
        .admin
        .stats(r"downstream_global_cx_overflow$")
        .unwrap();
    assert!(refused.values().sum::<u64>() > 0, "{refused:?}");
    drop(held);
    gateway.stop().unwrap();
    echo.stop().await;
}

const LIMITED: &str = "
gateway:
  listeners: [{name: main, address: '{listen}', http10_default_host: old.test}]
  admin: '{admin}'
  workers: 1
projects:
  - name: shop
    hosts: ['*']
    routes:
      - {match: {prefix: /delay}, to: narrow}
      - {match: {prefix: /status}, to: echo, retries: {attempts: 1, on: [5xx]}}
      - {match: {prefix: /}, to: echo}
upstreams:
  narrow: {endpoints: ['ECHO'], limits: {connections: 1, pending_requests: 1}}
  echo: {endpoints: ['ECHO'], limits: {retry_budget: BUDGET}}
";

/// Sends requests at once, and returns how many were answered with this status.
async fn at_once(gateway: &Gateway, count: usize, path: &str, status: u16) -> usize {
    let answers = (0..count).map(|_| {
        let (target, request) = (gateway.http1(), Request::get(path));
        tokio::spawn(async move { target.send(request).await.unwrap().status })
    });
    let mut found = 0;
    for answer in answers.collect::<Vec<_>>() {
        found += usize::from(answer.await.unwrap() == status);
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_gets_as_much_at_a_time_as_its_limits_say() {
    let echo = Echo::start("echo").await.unwrap();
    let text = LIMITED.replace("ECHO", &echo.address().to_string());
    let with = |budget: &str| text.replace("BUDGET", budget);
    let gateway = Gateway::start(&with("{}")).unwrap();
    // While there is no connection yet, the request that it is made for waits, too.
    assert_eq!(at_once(&gateway, 1, "/delay/1", 200).await, 1);
    // One has the connection, one waits for it.
    assert_eq!(at_once(&gateway, 8, "/delay/1000", 200).await, 2);
    let overflow = gateway.stat("cluster.narrow.upstream_rq_pending_overflow");
    assert_eq!(overflow.unwrap(), 6);
    let retries = |ending: &str| {
        let name = format!("cluster.echo.upstream_rq_retry{ending}");
        gateway.stat(&name).unwrap()
    };
    // Fifty retries in any case.
    assert_eq!(at_once(&gateway, 8, "/status/503", 503).await, 8);
    assert_eq!((retries(""), retries("_overflow")), (8, 0));
    gateway
        .update(&with("{percent: 0, min_concurrency: 0}"))
        .unwrap();
    let before = (retries(""), retries("_overflow"));
    assert_eq!(at_once(&gateway, 8, "/status/503", 503).await, 8);
    assert_eq!(
        (retries("") - before.0, retries("_overflow") - before.1),
        (0, 8)
    );
    gateway.update(&with("{min_concurrency: 100}")).unwrap();
    let before = (retries(""), retries("_overflow"));
    assert_eq!(at_once(&gateway, 100, "/status/503", 503).await, 100);
    assert_eq!(
        (retries("") - before.0, retries("_overflow") - before.1),
        (100, 0)
    );
    gateway.stop().unwrap();
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_1_0_is_served_where_the_listener_says_so() {
    let echo = Echo::start("echo").await.unwrap();
    let text = LIMITED
        .replace("ECHO", &echo.address().to_string())
        .replace("BUDGET", "{}");
    let gateway = Gateway::start(&text).unwrap();
    let ask = || {
        let mut stream = TcpStream::connect(gateway.address).unwrap();
        stream.write_all(b"GET /plain HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        // HTTP/1.0: the connection ends with the response.
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let answer = ask();
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    assert!(answer.contains("old.test"), "{answer}");
    gateway
        .update(&text.replace(", http10_default_host: old.test", ""))
        .unwrap();
    let began = Instant::now();
    while !ask().contains(" 426 ") {
        assert!(began.elapsed() < Duration::from_secs(10), "{}", ask());
    }
    gateway.stop().unwrap();
    echo.stop().await;
}

/// Answers each connection with 101 and then sends back, in capitals, what comes; until the connection ends.
fn shouting_upstream() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let head = read_until(&mut stream, "\r\n\r\n");
                assert!(head.to_lowercase().contains("upgrade: websocket"), "{head}");
                let answer = "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\
                              connection: upgrade\r\n\r\n";
                stream.write_all(answer.as_bytes()).unwrap();
                let mut bytes = [0; 1024];
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    let came = bytes.get_mut(..count).unwrap();
                    came.make_ascii_uppercase();
                    if stream.write_all(came).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// Reads byte by byte until what came ends so, or nothing comes any more.
fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut text = String::new();
    let mut byte = [0];
    while !text.ends_with(end) && matches!(stream.read(&mut byte), Ok(1)) {
        text.extend(byte.map(char::from));
    }
    text
}

const CHAT: &str = "
gateway:
  listeners: [{name: main, address: '{listen}'}]
  admin: '{admin}'
  use: [stamp, counter]
plugins:
  stamp: {source: stamp.lua}
  counter: {source: counter}
projects:
  - name: shop
    hosts: ['*']
    routes:
      - {match: {prefix: /chat}, to: chat, upgrades: [websocket]}
      - {match: {prefix: /plain}, to: chat}
upstreams:
  chat: {endpoints: ['CHAT']}
";

/// Streams bodies, and marks each chunk of the response.
const COUNTER: &str = "
local handler = { version = 'v2' }
function handler:on_response_body()
  local chunk = envoy.resp.get_body()
  if chunk and #chunk > 0 then envoy.resp.set_body(chunk .. '!') end
end
return handler
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgraded_connection_passes_plugins_that_stream() {
    let text = CHAT.replace("CHAT", &shouting_upstream().to_string());
    let files = [
        ("stamp.lua", STAMP),
        (
            "counter/plugin.yaml",
            "name: counter\nruntime: lua\nbody: stream\n",
        ),
        ("counter/main.lua", COUNTER),
    ];
    let gateway = Gateway::start_with(&text, &files, GatewayOptions::default()).unwrap();
    let open = |path: &str| {
        let mut stream = TcpStream::connect(gateway.address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: shop.test\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
             sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let head = read_until(&mut stream, "\r\n\r\n");
        (stream, head)
    };
    let (mut chat, head) = open("/chat");
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    for word in ["one", "two"] {
        chat.write_all(word.as_bytes()).unwrap();
        let told = read_until(&mut chat, "!");
        assert_eq!(told, format!("{}!", word.to_uppercase()));
    }
    // A change does not end it.
    gateway
        .update(&text.replace("match: {prefix: /plain}", "match: {prefix: /other}"))
        .unwrap();
    chat.write_all(b"three").unwrap();
    assert_eq!(read_until(&mut chat, "!"), "THREE!");
    let (_, head) = open("/other");
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    drop(chat);
    gateway.stop().unwrap();
}
