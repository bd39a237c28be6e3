use std::time::Duration;

use super::*;
use crate::echo::{Echo, EchoOptions};
use crate::tls::Identity;

const BOTH: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

#[tokio::test]
async fn one_connection_carries_many_requests() {
    let echo = Echo::start("echo").await.unwrap();
    for protocol in BOTH {
        let before = echo.connection_count();
        let target = Target::plain(protocol, echo.address());
        let mut connection = Connection::open(&target).await.unwrap();
        for index in 0..50 {
            let request = Request::post(&format!("/{index}"), format!("body {index}"));
            let description = connection.send(request).await.unwrap().json();
            assert_eq!(description["path"], format!("/{index}"));
            assert_eq!(description["body"]["text"], format!("body {index}"));
        }
        assert!(!connection.is_closed());
        assert_eq!(connection.end(), None);
        assert_eq!(echo.connection_count() - before, 1);
    }
}

#[tokio::test]
async fn a_close_by_the_peer_is_seen() {
    for protocol in BOTH {
        let echo = Echo::start("echo").await.unwrap();
        let target = Target::plain(protocol, echo.address());
        let mut connection = Connection::open(&target).await.unwrap();
        connection.send(Request::get("/")).await.unwrap();
        assert!(!connection.closed_within(Duration::from_millis(20)).await);
        drop(echo);
        assert!(connection.closed_within(Duration::from_secs(5)).await);
        assert!(connection.is_closed() && connection.end().is_some());
        let error = connection.send(Request::get("/")).await.unwrap_err();
        assert!(
            matches!(error, ClientError::NotSent(_)),
            "{protocol}: {error:?}"
        );
    }
}

#[tokio::test]
async fn pieces_carry_no_length() {
    let echo = Echo::start("echo").await.unwrap();
    for protocol in BOTH {
        let target = Target::plain(protocol, echo.address());
        let request = Request::new("PUT", "/").pieces(["ab", "", "cd"]);
        let description = target.send(request).await.unwrap().json();
        assert_eq!(description["body"]["text"], "abcd");
        assert_eq!(description["headers"].get("content-length"), None);
        let request = Request::new("PUT", "/").body("abcd");
        let description = target.send(request).await.unwrap().json();
        assert_eq!(description["headers"]["content-length"][0], "4");
    }
}

#[tokio::test]
async fn trailers_of_requests_arrive() {
    let echo = Echo::start("echo").await.unwrap();
    for protocol in BOTH {
        let target = Target::plain(protocol, echo.address());
        let request = Request::post("/", "abc")
            .trailer("x-t", "1")
            .trailer("x-t", "2");
        let description = target.send(request).await.unwrap().json();
        assert_eq!(description["body"]["text"], "abc");
        assert_eq!(
            description["trailers"]["x-t"],
            serde_json::json!(["1", "2"]),
            "{protocol}"
        );
    }
}

#[tokio::test]
async fn tls_is_spoken_and_checked() {
    let identity = Identity::generate(&["gateway.test"]).unwrap();
    let echo = Echo::start_with(EchoOptions {
        tls: Some(identity.clone()),
        ..EchoOptions::named("echo")
    })
    .await
    .unwrap();
    let authority = Trust::Authority(identity.certificate);
    for protocol in BOTH {
        let plain = Target::plain(protocol, echo.address());
        for trust in [authority.clone(), Trust::Anything] {
            let target = plain.clone().with_tls("gateway.test", trust);
            let response = target.send(Request::get("/")).await.unwrap();
            assert_eq!(response.json()["protocol"], protocol.to_string());
        }
        let other = Identity::generate(&["gateway.test"]).unwrap();
        for (name, trust) in [
            ("other.test", authority.clone()),
            ("gateway.test", Trust::Authority(other.certificate)),
        ] {
            let target = plain.clone().with_tls(name, trust);
            let error = target.send(Request::get("/")).await.unwrap_err();
            assert!(matches!(error, ClientError::Connect { .. }), "{error:?}");
        }
    }
}

#[tokio::test]
async fn patience_ends() {
    let echo = Echo::start("echo").await.unwrap();
    let patience = Duration::from_millis(50);
    for protocol in BOTH {
        let target = Target::plain(protocol, echo.address());
        for path in ["/delay/5000", "/slow-body?chunks=2&interval_ms=5000"] {
            let error = target
                .send(Request::get(path).timeout(patience))
                .await
                .unwrap_err();
            assert_eq!(error, ClientError::Timeout(patience));
        }
    }
}

#[tokio::test]
async fn what_http_cannot_carry_is_refused() {
    let echo = Echo::start("echo").await.unwrap();
    let target = Target::http1(echo.address());
    for request in [
        Request::get("/a b"),
        Request::get("/").header("x y", "1"),
        Request::new("G T", "/"),
        Request::get("/").host("a\nb"),
    ] {
        let error = target.send(request).await.unwrap_err();
        assert!(matches!(error, ClientError::Invalid(_)), "{error:?}");
    }
    assert_eq!(echo.request_count(), 0);
}
