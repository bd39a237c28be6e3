use std::time::{Duration, Instant};

use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::*;
use crate::Protocol;
use crate::client::{Abort, ClientError, Connection, Request, Target};

const BOTH: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];
const SOON: Duration = Duration::from_secs(5);

async fn send(echo: &Echo, protocol: Protocol, request: Request) -> crate::client::Response {
    Target::plain(protocol, echo.address())
        .send(request)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_request_is_described() {
    let echo = Echo::start("shop").await.unwrap();
    for protocol in BOTH {
        let request = Request::post("/a/b?c=d", "hello")
            .host("shop.example.com")
            .header("x-a", "1")
            .header("x-a", "2");
        let response = send(&echo, protocol, request).await;
        assert_eq!(response.status, 200);
        assert_eq!(response.headers.get("x-upstream"), Some("shop"));
        let description = response.json();
        assert_eq!(description["method"], "POST");
        assert_eq!(description["path"], "/a/b?c=d");
        assert_eq!(description["host"], "shop.example.com");
        assert_eq!(description["protocol"], protocol.to_string());
        assert_eq!(description["headers"]["x-a"], json!(["1", "2"]));
        assert_eq!(description["body"]["length"], 5);
        assert_eq!(description["body"]["text"], "hello");
        assert_eq!(
            description["body"]["sha256"],
            "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
        );
    }
    assert_eq!(echo.request_count(), 2);
}

#[tokio::test]
async fn statuses_headers_and_delays_are_as_asked() {
    let echo = Echo::start("echo").await.unwrap();
    for protocol in BOTH {
        let response = send(&echo, protocol, Request::get("/status/503")).await;
        assert_eq!(response.status, 503);
        let response = send(&echo, protocol, Request::get("/headers?x-b=1&x-b=a%20b")).await;
        assert_eq!(response.headers.all("x-b"), ["1", "a b"]);
        let began = Instant::now();
        let request = Request::get("/anything").header("x-echo-delay-ms", "60");
        send(&echo, protocol, request).await;
        assert!(began.elapsed() >= Duration::from_millis(60));
        let response = send(&echo, protocol, Request::get("/delay/never")).await;
        assert_eq!(response.status, 400);
        assert_eq!(
            response.text(),
            "echo: /delay takes a number, not \"never\"\n"
        );
    }
}

#[tokio::test]
async fn responses_that_may_not_have_a_body_have_none() {
    let echo = Echo::start("echo").await.unwrap();
    for protocol in BOTH {
        // The next request on the connection is answered, so nothing stray followed the head.
        let mut connection = Connection::open(&Target::plain(protocol, echo.address()))
            .await
            .unwrap();
        for (method, path, status, length) in [
            ("GET", "/status/204", 204, None),
            ("POST", "/status/304", 304, None),
            ("HEAD", "/bytes/9", 200, Some("9")),
            ("HEAD", "/status/204", 204, None),
        ] {
            let response = connection.send(Request::new(method, path)).await.unwrap();
            let described = format!("{protocol} {method} {path}");
            assert_eq!(response.status, status, "{described}");
            assert_eq!(response.body, "", "{described}");
            // hyper says the length of a 304 in HTTP/1.1, which is allowed.
            if status != 304 {
                assert_eq!(
                    response.headers.get("content-length"),
                    length,
                    "{described}"
                );
            }
        }
        let response = connection.send(Request::get("/bytes/5")).await.unwrap();
        assert_eq!(response.body.len(), 5, "{protocol}");
    }
}

/// What hyper's client hides: it drops DATA that answers a HEAD.
#[tokio::test]
async fn http2_head_is_answered_by_one_frame() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use crate::chaos::frames::{
        DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, block, frame, parse,
    };

    let echo = Echo::start("echo").await.unwrap();
    let mut stream = TcpStream::connect(echo.address()).await.unwrap();
    let asked = block(&[
        (":method", "HEAD"),
        (":path", "/bytes/9"),
        (":scheme", "http"),
        (":authority", "echo"),
    ]);
    let bytes = [
        PREFACE.to_vec(),
        frame(SETTINGS, 0, 0, &[]),
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &asked),
    ];
    stream.write_all(&bytes.concat()).await.unwrap();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let (length, kind, flags, _) = parse(head);
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload).await.unwrap();
        assert_ne!(kind, DATA);
        if kind == HEADERS {
            assert_eq!(flags & END_STREAM, END_STREAM);
            break;
        }
    }
}

#[tokio::test]
async fn bytes_come_with_a_length_or_without() {
    let echo = Echo::start("echo").await.unwrap();
    for protocol in BOTH {
        for length in [0, 1, 100_000, 8 << 20] {
            let response = send(&echo, protocol, Request::get(&format!("/bytes/{length}"))).await;
            let declared = response.headers.get("content-length").map(str::to_owned);
            assert_eq!(declared, Some(length.to_string()), "{protocol}");
            assert!(response.body == pattern(length));
            let path = format!("/bytes/{length}?chunked");
            let response = send(&echo, protocol, Request::get(&path)).await;
            assert!(response.body == pattern(length));
            if length > 0 {
                assert_eq!(response.headers.get("content-length"), None);
            }
        }
    }
}

#[tokio::test]
async fn bodies_and_trailers_are_echoed() {
    let echo = Echo::start("echo").await.unwrap();
    for protocol in BOTH {
        for (path, length) in ["/echo", "/echo?whole"]
            .into_iter()
            .flat_map(|path| [0, 1, 8 << 20].map(|length| (path, length)))
        {
            let case = format!("{protocol}, {path}, {length} bytes");
            let request = Request::post(path, pattern(length)).header("content-type", "a/b");
            let response = send(&echo, protocol, request).await;
            assert!(response.body == pattern(length), "{case}");
            assert_eq!(response.headers.get("content-type"), Some("a/b"));
            let declared = response.headers.get("content-length").map(str::to_owned);
            assert_eq!(declared, Some(length.to_string()), "{case}");

            let request = Request::post(path, pattern(length))
                .trailer("x-t", "1")
                .accept_trailers();
            let response = send(&echo, protocol, request).await;
            assert!(response.body == pattern(length), "{case}");
            assert_eq!(response.trailers.get("x-t"), Some("1"), "{case}");
        }
    }
}

#[tokio::test]
async fn an_echo_streams() {
    let echo = Echo::start("echo").await.unwrap();
    for protocol in BOTH {
        let target = Target::plain(protocol, echo.address());
        let mut connection = Connection::open(&target).await.unwrap();
        let pieces = [
            (Duration::ZERO, "first"),
            (Duration::from_millis(300), "second"),
        ];
        let began = Instant::now();
        let mut response = connection
            .start(Request::new("POST", "/echo").delayed_pieces(pieces))
            .await
            .unwrap();
        assert_eq!(response.next_piece().await.unwrap().unwrap(), "first");
        assert!(began.elapsed() < Duration::from_millis(250));
        assert_eq!(response.finish().await.unwrap().body, "second");
    }
}

#[tokio::test]
async fn trailers_are_sent() {
    let echo = Echo::start("echo").await.unwrap();
    for protocol in BOTH {
        let request = Request::get("/trailers").accept_trailers();
        let response = send(&echo, protocol, request).await;
        assert_eq!(response.trailers.get("x-echo-trailer"), Some("done"));
        let request = Request::get("/trailers?x-a=1&x-b=2").accept_trailers();
        let response = send(&echo, protocol, request).await;
        assert_eq!(response.trailers.len(), 2, "{protocol}");
        assert_eq!(response.text(), "the trailers follow\n");
    }
}

#[tokio::test]
async fn slow_bodies_are_slow() {
    let echo = Echo::start("echo").await.unwrap();
    for protocol in BOTH {
        let began = Instant::now();
        let path = "/slow-body?chunks=3&interval_ms=30&size=10";
        let response = send(&echo, protocol, Request::get(path)).await;
        assert_eq!(response.body.len(), 30);
        assert!(began.elapsed() >= Duration::from_millis(60));
    }
}

#[tokio::test]
async fn connections_are_cut_when_asked() {
    let echo = Echo::start("echo").await.unwrap();
    for protocol in BOTH {
        let target = Target::plain(protocol, echo.address());
        let mut connection = Connection::open(&target).await.unwrap();
        let error = connection.send(Request::get("/reset")).await.unwrap_err();
        assert!(
            matches!(error, ClientError::Closed(_)),
            "{protocol}: {error:?}"
        );
        assert!(connection.closed_within(SOON).await);

        let error = target.send(Request::get("/cut/20000")).await.unwrap_err();
        let ClientError::Cut {
            status: 200,
            received: 20_000,
            ..
        } = error
        else {
            panic!("{protocol}: {error:?}");
        };
    }
    let target = Target::http2(echo.address());
    let mut connection = Connection::open(&target).await.unwrap();
    let error = connection
        .send(Request::get("/reset-stream"))
        .await
        .unwrap_err();
    assert!(matches!(error, ClientError::Reset(_)), "{error:?}");
    connection.send(Request::get("/")).await.unwrap();
}

#[tokio::test]
async fn requests_are_recorded() {
    let echo = Echo::start_with(EchoOptions {
        keep: 3,
        ..EchoOptions::named("echo")
    })
    .await
    .unwrap();
    for path in ["/0", "/1", "/echo", "/bytes/5"] {
        send(&echo, Protocol::Http2, Request::post(path, "abc")).await;
    }
    let recorded = echo.wait_for_requests(3, SOON).await.unwrap();
    let paths: Vec<_> = recorded
        .iter()
        .map(|request| request.path.as_str())
        .collect();
    assert_eq!(paths, ["/1", "/echo", "/bytes/5"]);
    for request in &recorded {
        assert_eq!(request.body.length, 3);
        assert_eq!(
            request.body.sha256,
            record::hexadecimal(Sha256::new_with_prefix("abc"))
        );
        assert!(request.body.complete);
        assert_eq!(request.protocol, Protocol::Http2);
    }
    echo.forget_requests();
    assert!(echo.requests().is_empty());
    assert!(
        echo.wait_for_requests(1, Duration::from_millis(20))
            .await
            .is_none()
    );
    assert_eq!(echo.request_count(), 4);
}

#[tokio::test]
async fn a_broken_request_is_recorded_as_incomplete() {
    let echo = Echo::start("echo").await.unwrap();
    for protocol in BOTH {
        for abort in [Abort::Connection, Abort::Stream] {
            echo.forget_requests();
            let request = Request::post("/", pattern(100_000)).abort_after(10_000, abort);
            let target = Target::plain(protocol, echo.address());
            let mut connection = Connection::open(&target).await.unwrap();
            assert_eq!(
                connection.send(request).await.unwrap_err(),
                ClientError::Aborted
            );
            let survives = protocol == Protocol::Http2 && abort == Abort::Stream;
            assert_eq!(
                !connection.closed_within(Duration::from_millis(100)).await,
                survives
            );
            let recorded = echo.wait_for_requests(1, SOON).await.unwrap();
            assert!(!recorded[0].body.complete);
            assert_eq!(recorded[0].body.length, 10_000, "{protocol} {abort:?}");
        }
    }
}

#[tokio::test]
async fn stopping_lets_requests_finish_and_takes_no_more() {
    for protocol in BOTH {
        let echo = Echo::start("echo").await.unwrap();
        let target = Target::plain(protocol, echo.address());
        let mut idle = Connection::open(&target).await.unwrap();
        idle.send(Request::get("/")).await.unwrap();
        let under_way = tokio::spawn({
            let target = target.clone();
            async move { target.send(Request::get("/delay/200")).await }
        });
        while echo.request_count() < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(echo.open_connections(), 2);
        echo.stop().await;
        assert_eq!(under_way.await.unwrap().unwrap().status, 200);
        assert!(idle.closed_within(SOON).await);
        let refused = target.send(Request::get("/")).await.unwrap_err();
        assert!(
            matches!(refused, ClientError::Connect { .. }),
            "{refused:?}"
        );
    }
}
