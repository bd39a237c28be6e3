//! What a gateway takes from clients: whose word about an address it believes, how long a stream may last, and
//! WebSockets over HTTP/2.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use bytes::Bytes;
use outrider_e2e::{Gateway, GatewayOptions};
use outrider_lab::client::Request;
use outrider_lab::echo::Echo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

const SOON: Duration = Duration::from_secs(20);

const PROXIES: &str = "
gateway:
  listeners: [{name: main, address: '{listen}'}, {name: other, address: 'OTHER'}]
  admin: '{admin}'
  workers: 1
  trusted_proxies: [127.0.0.2, 127.0.1.0/24]
  use: [{plugin: client, config: {a: 1, b: 2, c: {d: 3, e: 4, f: 5}, g: 6, h: 7}}]
plugins:
  client: {source: client.lua}
projects:
  - name: shop
    hosts: ['*']
    routes: [{match: {prefix: /}, to: echo}]
upstreams:
  echo: {endpoints: ['ECHO']}
";

const CLIENT: &str = "
local handler = { version = 'v2' }
function handler:on_response_header()
  envoy.resp.set_header('x-client', envoy.streaminfo.downstream_remote_address())
end
return handler
";

/// The client's address as the gateway sees it, of a request with `x-forwarded-for` that comes from `from`.
async fn client_seen(gateway: &Gateway, from: &str) -> String {
    let socket = TcpSocket::new_v4().unwrap();
    socket
        .bind(SocketAddr::new(from.parse().unwrap(), 0))
        .unwrap();
    let mut stream = socket.connect(gateway.address).await.unwrap();
    let request = "GET /status/200 HTTP/1.1\r\nhost: shop.test\r\nconnection: close\r\n\
                   x-forwarded-for: 9.9.9.9, 8.8.8.8\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let line = answer
        .lines()
        .find_map(|line| line.strip_prefix("x-client: "));
    let line = line.unwrap_or_else(|| panic!("{answer}"));
    line.rsplit_once(':').unwrap().0.to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxies_are_believed_by_the_address_that_they_connect_from() {
    let echo = Echo::start("echo").await.unwrap();
    let other = outrider_e2e::free_address().unwrap();
    let text = PROXIES
        .replace("ECHO", &echo.address().to_string())
        .replace("OTHER", &other.to_string());
    let files = [("client.lua", CLIENT)];
    let gateway = Gateway::start_with(&text, &files, GatewayOptions::default()).unwrap();
    assert_eq!(client_seen(&gateway, "127.0.0.1").await, "127.0.0.1");
    assert_eq!(client_seen(&gateway, "127.0.0.2").await, "8.8.8.8");
    assert_eq!(client_seen(&gateway, "127.0.1.77").await, "8.8.8.8");
    assert_eq!(client_seen(&gateway, "127.0.2.1").await, "127.0.2.1");
    // Another list, and another number of them, while it runs.
    let changed = text.replace(
        "[127.0.0.2, 127.0.1.0/24]",
        "[127.0.2.0/24]\n  trusted_hops: 2",
    );
    gateway.update(&changed).unwrap();
    let began = Instant::now();
    while client_seen(&gateway, "127.0.2.1").await != "9.9.9.9" {
        assert!(began.elapsed() < SOON);
    }
    assert_eq!(client_seen(&gateway, "127.0.0.2").await, "127.0.0.2");
    // However many listeners and chains carry it, one configuration is one generation.
    let page = "/outrider/generations?format=json";
    let began = Instant::now();
    loop {
        let told = gateway.admin.get(page).unwrap().body;
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        if told["generations"].as_array().unwrap().len() == 1 {
            break;
        }
        assert!(began.elapsed() < SOON, "{told}");
    }
    gateway.stop().unwrap();
    echo.stop().await;
}

const LASTING: &str = "
gateway:
  listeners: [{name: main, address: '{listen}'}]
  admin: '{admin}'
  workers: 1
  timeouts: {max_stream_duration: 500ms}
projects:
  - name: shop
    hosts: ['*']
    routes:
      - {match: {prefix: /delay/1}, to: echo}
      - {match: {prefix: /delay/2}, to: echo, max_stream_duration: 0s}
      - {match: {prefix: /delay/3}, to: echo, max_stream_duration: 1s}
      - {match: {prefix: /drops}, to: drops, timeout: 0s}
upstreams:
  echo: {endpoints: ['ECHO']}
  drops: {endpoints: ['DROPS']}
";

/// Answers each connection with a body that never ends, a little at a time.
fn endless_upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                let head = "HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n";
                let mut said = stream.write_all(head.as_bytes());
                while said.is_ok() {
                    std::thread::sleep(Duration::from_millis(20));
                    said = stream.write_all(b".");
                }
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_lasts_as_long_as_the_file_says() {
    let echo = Echo::start("echo").await.unwrap();
    let text = LASTING
        .replace("ECHO", &echo.address().to_string())
        .replace("DROPS", &endless_upstream().to_string());
    let gateway = Gateway::start(&text).unwrap();
    let status = async |path: &str| gateway.send(Request::get(path)).await.unwrap().status;
    assert_eq!(status("/delay/1").await, 200);
    assert_eq!(status("/delay/10000").await, 504);
    assert_eq!(status("/delay/2000").await, 200);
    assert_eq!(status("/delay/3").await, 200);
    assert_eq!(status("/delay/30000").await, 504);
    // The idle timeout does not see this one.
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    let request = "GET /drops HTTP/1.1\r\nhost: shop.test\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let began = Instant::now();
    let whole = stream.read_to_end(&mut answer);
    let _ended = tokio::time::timeout(SOON, whole).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"));
    assert!(began.elapsed() >= Duration::from_millis(500));
    let ended = gateway.stat("http.main.downstream_rq_max_duration_reached");
    assert_eq!(ended.unwrap(), 3);
    gateway.stop().unwrap();
    echo.stop().await;
}

const CHAT: &str = "
gateway:
  listeners: [{name: main, address: '{listen}'}]
  admin: '{admin}'
  use: [method]
plugins:
  method: {source: method.lua}
projects:
  - name: shop
    hosts: ['*']
    routes:
      - {match: {prefix: /chat}, to: chat, upgrades: [websocket]}
      - {match: {prefix: /next}, to: next, upgrades: [websocket]}
      - {match: {prefix: /plain}, to: chat}
upstreams:
  chat: {endpoints: ['CHAT']}
  next: {endpoints: ['NEXT'], protocol: http2}
";

/// Plugins see the request as over HTTP/1.1.
const METHOD: &str = "
local handler = { version = 'v2' }
function handler:on_request_header()
  envoy.req.set_header('x-seen', envoy.req.get_header(':method') .. ' ' .. (envoy.req.get_header('upgrade') or '-'))
end
return handler
";

/// Answers each connection with 101, says what the plugin saw, and sends back what comes.
fn telling_upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let (mut head, mut byte) = (Vec::new(), [0]);
                while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
                    head.extend(byte);
                }
                let head = String::from_utf8(head).unwrap();
                let seen = head.lines().find_map(|line| line.strip_prefix("x-seen: "));
                let answer = format!(
                    "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n{};",
                    seen.unwrap_or("nothing")
                );
                stream.write_all(answer.as_bytes()).unwrap();
                let mut bytes = [0; 1024];
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    let came = bytes.get(..count).unwrap();
                    if stream.write_all(came).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// Reads from a stream until what came ends so.
async fn read_until(body: &mut h2::RecvStream, end: &str) -> String {
    let mut text = String::new();
    while !text.ends_with(end) {
        let chunk = tokio::time::timeout(SOON, body.data()).await.unwrap();
        let chunk = chunk.unwrap().unwrap();
        body.flow_control().release_capacity(chunk.len()).unwrap();
        text.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_websocket_passes_over_http2() {
    // The second gateway is an upstream that speaks HTTP/2.
    let told = telling_upstream().to_string();
    let files = [("method.lua", METHOD)];
    let start = |text: &str| Gateway::start_with(text, &files, GatewayOptions::default()).unwrap();
    let text = CHAT.replace("CHAT", &told);
    let behind = start(
        &text
            .replace("prefix: /chat", "prefix: /next/chat")
            .replace("{match: {prefix: /next}", "{match: {prefix: /other}")
            .replace("NEXT", "127.0.0.1:1"),
    );
    let gateway = start(&text.replace("NEXT", &behind.address.to_string()));

    let connection = TcpStream::connect(gateway.address).await.unwrap();
    let (client, connection) = h2::client::handshake(connection).await.unwrap();
    tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let began = Instant::now();
    while !client.is_extended_connect_protocol_enabled() {
        assert!(began.elapsed() < SOON, "Envoy does not offer it");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut open = async |path: &str| {
        let mut request = http::Request::builder()
            .method("CONNECT")
            .uri(format!("http://shop.test{path}"))
            .header("sec-websocket-version", "13")
            .body(())
            .unwrap();
        let websocket = h2::ext::Protocol::from_static("websocket");
        request.extensions_mut().insert(websocket);
        let (response, sender) = client.send_request(request, false).unwrap();
        (response.await.unwrap(), sender)
    };
    for path in ["/chat", "/next/chat"] {
        let (response, mut sender) = open(path).await;
        assert_eq!(response.status(), 200, "{path}");
        let mut body = response.into_body();
        assert_eq!(read_until(&mut body, ";").await, "GET websocket;", "{path}");
        for word in ["one.", "two."] {
            sender.send_data(Bytes::from(word), false).unwrap();
            assert_eq!(read_until(&mut body, ".").await, word);
        }
    }
    let (response, _sender) = open("/plain").await;
    assert_eq!(response.status(), 403);
    gateway.stop().unwrap();
    behind.stop().unwrap();
}
