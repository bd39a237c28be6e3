//! The load generator over HTTP/2, gRPC and TLS, against the echo service.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::time::Duration;

use bytes::Bytes;
use outrider_lab::echo::{Echo, EchoOptions};
use outrider_lab::tls::Identity;
use outrider_load::{
    ErrorKind, Load, Outcome, Pacing, Protocol, RequestTemplate, Schedule, Session, SessionOptions,
    Target, Trust,
};

/// Runs a load on a thread of its own; the echo service keeps the others.
async fn run(
    url: String,
    options: SessionOptions,
    pacing: Pacing,
    requests: Vec<RequestTemplate>,
) -> Outcome {
    tokio::task::spawn_blocking(move || {
        let target = Target::parse(&url).unwrap();
        let mut session = Session::open(&target, &options).unwrap();
        session.run(&Load { pacing, requests }).unwrap()
    })
    .await
    .unwrap()
}

fn options(protocol: Protocol) -> SessionOptions {
    SessionOptions {
        protocol,
        connections: 2,
        timeout: Duration::from_secs(5),
        ..SessionOptions::default()
    }
}

fn second(rate: f64) -> Pacing {
    Pacing::Open(Schedule::uniform(rate, Duration::from_secs(1)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_open_and_closed_loop_count_every_request() {
    let echo = Echo::start("echo").await.unwrap();
    let url = format!("http://{}/", echo.address());
    let requests = vec![
        RequestTemplate::get("/"),
        RequestTemplate::get("/status/404"),
    ];
    let total = run(
        url.clone(),
        options(Protocol::Http2),
        second(200.0),
        requests.clone(),
    )
    .await
    .total();
    assert_eq!((total.due, total.succeeded), (200, 100));
    assert_eq!(total.errors[&ErrorKind::Status], 100);
    let total = run(
        url,
        options(Protocol::Http2),
        Pacing::closed(Duration::from_millis(300)),
        requests,
    )
    .await
    .total();
    assert!(total.sent > 100, "{}", total.sent);
    assert_eq!(total.sent, total.succeeded + total.failed());
    assert_eq!(echo.connection_count(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_answers_are_late_by_the_schedule_over_http2_too() {
    let echo = Echo::start("echo").await.unwrap();
    let url = format!("http://{}/", echo.address());
    let options = SessionOptions {
        connections: 1,
        streams: 1,
        ..options(Protocol::Http2)
    };
    let total = run(
        url,
        options,
        second(40.0),
        vec![RequestTemplate::get("/delay/100")],
    )
    .await
    .total();
    assert_eq!(total.due, 40);
    // One stream serves ten a second: the last one waits for three seconds.
    assert!(
        total.latency.max() > 2_500_000_000,
        "{}",
        total.latency.max()
    );
    assert!(total.service.value_at_quantile(0.5) < 200_000_000);
    assert!(total.late > 30, "{}", total.late);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_calls_succeed_by_their_grpc_status() {
    let echo = Echo::start("echo").await.unwrap();
    let url = format!("http://{}/", echo.address());
    let call = |path: &str| RequestTemplate {
        body: Bytes::from_static(b"abc"),
        ..RequestTemplate::get(path)
    };
    let requests = vec![
        call("/trailers?grpc-status=0"),
        call("/trailers?grpc-status=14"),
        call("/echo"),
    ];
    let total = run(url, options(Protocol::Grpc), second(150.0), requests)
        .await
        .total();
    assert_eq!((total.due, total.succeeded), (150, 50));
    assert_eq!(total.errors[&ErrorKind::GrpcStatus], 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_carries_both_protocols_and_checks_certificates() {
    let identity = Identity::generate(&["127.0.0.1"]).unwrap();
    let tls = Some(identity.clone());
    let echo = Echo::start_with(EchoOptions {
        tls,
        ..EchoOptions::named("echo")
    })
    .await
    .unwrap();
    let url = format!("https://{}/", echo.address());
    let authority = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(authority.path(), &identity.certificate).unwrap();
    for protocol in [Protocol::Http1, Protocol::Http2] {
        for trust in [Trust::Anything, Trust::File(authority.path().to_owned())] {
            let options = SessionOptions {
                trust,
                ..options(protocol)
            };
            let requests = vec![
                RequestTemplate::get("/bytes/100000"),
                RequestTemplate::get("/"),
            ];
            let total = run(url.clone(), options, second(50.0), requests)
                .await
                .total();
            assert_eq!(
                (total.due, total.succeeded),
                (50, 50),
                "{protocol:?} {:?}",
                total.errors
            );
        }
    }
    let refused = tokio::task::spawn_blocking(move || {
        Session::open(&Target::parse(&url).unwrap(), &SessionOptions::default())
            .unwrap_err()
            .to_string()
    });
    let refused = refused.await.unwrap();
    assert!(
        refused.contains("TLS handshake") && refused.contains("certificate"),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn target_that_speaks_no_http2_is_one_clear_sentence() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        use std::io::Write as _;
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    let opened = tokio::task::spawn_blocking(move || {
        let target = Target::parse(&format!("http://{address}/")).unwrap();
        Session::open(&target, &options(Protocol::Http2))
            .unwrap_err()
            .to_string()
    });
    let error = opened.await.unwrap();
    assert!(error.contains("does not speak HTTP/2"), "{error}");
}
