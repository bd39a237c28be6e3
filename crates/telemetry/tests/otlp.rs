//! A receiver of the OpenTelemetry protocol, over HTTP and gRPC, that decodes with `opentelemetry-proto`, and answers what
//! each test scripts.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod support;

use std::collections::{BTreeMap, VecDeque};
use std::io::Read as _;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use outrider_plugin_formats::{OtlpProtocol, OtlpSink, Sink};
use outrider_telemetry::exporter;
use outrider_telemetry::stats::{self, Counter};
use prost::Message as _;
use serde_json::json;

use support::{Event, START, json_log, scope, text_log, wait_until};

/// What the receiver answers.
#[derive(Debug, Clone)]
enum Script {
    Accept,
    Partial(i64),
    /// A status of HTTP or of gRPC, with seconds to wait.
    Fail(u16, Option<u64>),
    /// Closes the connection without an answer.
    Reset,
    /// Never answers.
    Hang,
}

#[derive(Debug)]
struct Received {
    at: Instant,
    path: String,
    headers: HeaderMap,
    request: ExportLogsServiceRequest,
}

#[derive(Debug, Clone)]
struct Receiver {
    address: SocketAddr,
    script: Arc<Mutex<VecDeque<Script>>>,
    received: Arc<Mutex<Vec<Received>>>,
}

type Body = http_body_util::combinators::BoxBody<Bytes, std::convert::Infallible>;

impl Receiver {
    fn start(protocol: OtlpProtocol, script: &[Script], tls: Option<rustls::ServerConfig>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let receiver = Self {
            address: listener.local_addr().unwrap(),
            script: Arc::new(Mutex::new(script.iter().cloned().collect())),
            received: Arc::default(),
        };
        let own = receiver.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(own.serve(listener, protocol, tls));
        });
        receiver
    }

    async fn serve(
        self,
        listener: TcpListener,
        protocol: OtlpProtocol,
        tls: Option<rustls::ServerConfig>,
    ) {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let tls = tls.map(|config| tokio_rustls::TlsAcceptor::from(Arc::new(config)));
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let own = self.clone();
            let tls = tls.clone();
            tokio::spawn(async move {
                let service = service_fn(move |request| own.clone().answer(request, protocol));
                // Clients that refuse the certificate, and scripted resets, end connections.
                match (tls, protocol) {
                    (Some(tls), _) => {
                        let Ok(stream) = tls.accept(stream).await else {
                            return;
                        };
                        let _ended = hyper::server::conn::http1::Builder::new()
                            .serve_connection(TokioIo::new(stream), service)
                            .await;
                    }
                    (None, OtlpProtocol::Http) => {
                        let _ended = hyper::server::conn::http1::Builder::new()
                            .serve_connection(TokioIo::new(stream), service)
                            .await;
                    }
                    (None, OtlpProtocol::Grpc) => {
                        let _ended = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                            .serve_connection(TokioIo::new(stream), service)
                            .await;
                    }
                }
            });
        }
    }

    async fn answer(
        self,
        request: Request<Incoming>,
        protocol: OtlpProtocol,
    ) -> Result<Response<Body>, std::io::Error> {
        let (parts, body) = request.into_parts();
        let body = body
            .collect()
            .await
            .map_err(std::io::Error::other)?
            .to_bytes();
        let is_grpc = protocol == OtlpProtocol::Grpc;
        let (is_gzip, message) = if is_grpc {
            let length = u32::from_be_bytes(body[1..5].try_into().unwrap()) as usize;
            assert_eq!(length, body.len() - 5);
            assert_eq!(parts.headers["te"], "trailers");
            (body[0] == 1, &body[5..])
        } else {
            (parts.headers.contains_key("content-encoding"), &body[..])
        };
        let mut plain = message.to_vec();
        if is_gzip {
            plain.clear();
            flate2::read::GzDecoder::new(message)
                .read_to_end(&mut plain)
                .unwrap();
        }
        self.received.lock().unwrap().push(Received {
            at: Instant::now(),
            path: parts.uri.path().to_owned(),
            headers: parts.headers,
            request: ExportLogsServiceRequest::decode(&plain[..]).unwrap(),
        });
        let next = self.script.lock().unwrap().pop_front();
        let partial = match next.unwrap_or(Script::Accept) {
            Script::Accept => None,
            Script::Partial(rejected_log_records) => Some(ExportLogsPartialSuccess {
                rejected_log_records,
                error_message: "too old".to_owned(),
            }),
            Script::Fail(status, after) => {
                let mut response = Response::builder();
                if let Some(seconds) = after {
                    response = response.header("retry-after", seconds.to_string());
                }
                response = if is_grpc {
                    response.header("grpc-status", status.to_string())
                } else {
                    response.status(status)
                };
                return Ok(response.body(Full::new(Bytes::new()).boxed()).unwrap());
            }
            Script::Reset => return Err(std::io::Error::other("scripted")),
            Script::Hang => std::future::pending().await,
        };
        let message = ExportLogsServiceResponse {
            partial_success: partial,
        }
        .encode_to_vec();
        if !is_grpc {
            return Ok(Response::new(Full::new(Bytes::from(message)).boxed()));
        }
        let mut framed = vec![0];
        framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
        framed.extend_from_slice(&message);
        let trailers = HeaderMap::from_iter([(
            hyper::header::HeaderName::from_static("grpc-status"),
            hyper::header::HeaderValue::from_static("0"),
        )]);
        let frames = [Frame::data(Bytes::from(framed)), Frame::trailers(trailers)];
        let stream = futures_stream(frames.into_iter().map(Ok::<_, std::convert::Infallible>));
        Ok(Response::new(BodyExt::boxed(StreamBody::new(stream))))
    }

    fn sink(&self, protocol: OtlpProtocol) -> OtlpSink {
        OtlpSink {
            endpoint: match protocol {
                OtlpProtocol::Http => format!("http://{}/v1/logs", self.address),
                OtlpProtocol::Grpc => format!("http://{}", self.address),
            },
            protocol,
            headers: BTreeMap::from([("x-key".to_owned(), "secret".to_owned())]),
            gzip: false,
            ca: None,
            timeout_ms: None,
            queue: None,
            resource: BTreeMap::from([("service.name".to_owned(), "gateway".to_owned())]),
        }
    }

    /// Attribute `number` of all records that came, in order.
    fn numbers(&self) -> Vec<String> {
        let received = self.received.lock().unwrap();
        let records = received
            .iter()
            .flat_map(|received| records(&received.request));
        records
            .map(|record| match attribute(&record.attributes, "number") {
                Some(any_value::Value::StringValue(text)) => text.clone(),
                other => panic!("{other:?}"),
            })
            .collect()
    }
}

/// An iterator as a stream, without a crate for it.
fn futures_stream<I: Iterator + Unpin>(items: I) -> IterStream<I> {
    IterStream(items)
}

struct IterStream<I>(I);

impl<I: Iterator + Unpin> futures_core::Stream for IterStream<I> {
    type Item = I::Item;
    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<I::Item>> {
        std::task::Poll::Ready(self.0.next())
    }
}

fn records(request: &ExportLogsServiceRequest) -> impl Iterator<Item = &LogRecord> {
    let resources = request.resource_logs.iter();
    let scopes = resources.flat_map(|resource| &resource.scope_logs);
    scopes.flat_map(|scope| &scope.log_records)
}

fn attribute<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a any_value::Value> {
    let found = attributes.iter().find(|pair| pair.key == key)?;
    found.value.as_ref()?.value.as_ref()
}

fn numbered(number: usize) -> Event {
    Event::default().with_header("x-number", number.to_string().as_bytes())
}

fn number_log(name: &str) -> outrider_plugin_formats::AccessLog {
    json_log(name, json!({ "number": "%REQ(X-NUMBER)%" }))
}

fn check_fields(protocol: OtlpProtocol, gzip: bool) {
    let receiver = Receiver::start(protocol, &[], None);
    let sink = Sink::Otlp(OtlpSink {
        gzip,
        ..receiver.sink(protocol)
    });
    let format = json!({
        "text": "%REQ(USER-AGENT)%",
        "int": "%RESPONSE_CODE%",
        "double": "%DYNAMIC_METADATA(shop:ratio)%",
        "bool": "%DYNAMIC_METADATA(shop:guest)%",
        "none": "%REQ(X-NONE)%",
        "mixed": "%RESPONSE_CODE% %PROTOCOL%",
        "nested": { "inner": ["%BYTES_SENT%", 7] },
    });
    let name = format!("fields-{protocol:?}-{gzip}");
    let objects = scope(&json_log(&name, format), &sink);
    let texts = scope(
        &text_log(&format!("{name}-text"), "%REQ(:PATH)% %DURATION%\n"),
        &sink,
    );
    let mut event = Event::default().with_header("user-agent", b"odd \xff\x01 agent");
    objects.save(&mut event);
    texts.save(&mut event);
    assert!(exporter::flush(Duration::from_secs(20)));
    let received = receiver.received.lock().unwrap();
    assert_eq!(received.len(), 1);
    let Received {
        path,
        headers,
        request,
        ..
    } = &received[0];
    assert_eq!(
        path,
        match protocol {
            OtlpProtocol::Http => "/v1/logs",
            OtlpProtocol::Grpc => "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
        }
    );
    assert_eq!(headers["x-key"], "secret");
    let [resource] = request.resource_logs.as_slice() else {
        panic!("{request:?}");
    };
    let text = |text: &str| any_value::Value::StringValue(text.to_owned());
    let of_resource = resource.resource.as_ref().unwrap();
    assert_eq!(
        attribute(&of_resource.attributes, "service.name"),
        Some(&text("gateway"))
    );
    let [objects, texts] = resource.scope_logs.as_slice() else {
        panic!("{resource:?}");
    };
    let scope = objects.scope.as_ref().unwrap();
    assert_eq!(scope.name, "outrider");
    assert_eq!(attribute(&scope.attributes, "log_name"), Some(&text(&name)));
    let [record] = objects.log_records.as_slice() else {
        panic!("{objects:?}");
    };
    assert_eq!(record.time_unix_nano, START as u64);
    assert!(record.observed_time_unix_nano > record.time_unix_nano);
    assert_eq!(record.body, None);
    let get = |key| attribute(&record.attributes, key);
    assert_eq!(record.attributes.len(), 7);
    assert_eq!(get("text"), Some(&text("odd \u{fffd}\u{1} agent")));
    assert_eq!(get("int"), Some(&any_value::Value::IntValue(200)));
    assert_eq!(get("double"), Some(&any_value::Value::DoubleValue(0.25)));
    assert_eq!(get("bool"), Some(&any_value::Value::BoolValue(false)));
    assert_eq!(get("none"), None);
    assert_eq!(get("mixed"), Some(&text("200 HTTP/1.1")));
    let Some(any_value::Value::KvlistValue(nested)) = get("nested") else {
        panic!("{record:?}");
    };
    let Some(any_value::Value::ArrayValue(inner)) = attribute(&nested.values, "inner") else {
        panic!("{nested:?}");
    };
    let numbers: Vec<&AnyValue> = inner.values.iter().collect();
    assert_eq!(numbers[0].value, Some(any_value::Value::IntValue(512)));
    assert_eq!(numbers[1].value, Some(any_value::Value::IntValue(7)));
    let [record] = texts.log_records.as_slice() else {
        panic!("{texts:?}");
    };
    let body = record.body.as_ref().unwrap().value.as_ref();
    assert_eq!(body, Some(&text("/cart?item=17 12")));
}

/// One after the other: the counters are the process's.
#[test]
fn receivers_get_every_record_once_whatever_they_answer() {
    for protocol in [OtlpProtocol::Http, OtlpProtocol::Grpc] {
        for gzip in [false, true] {
            check_fields(protocol, gzip);
        }
        retryable_answers_are_repeated(protocol);
        partial_success_and_refusals_are_counted(protocol);
    }
    hanging_receiver_times_out();
    dead_receiver_bounds_its_queue();
    wrong_certificate_is_never_trusted();
}

fn retryable_answers_are_repeated(protocol: OtlpProtocol) {
    let unavailable = if protocol == OtlpProtocol::Grpc {
        14
    } else {
        503
    };
    let exhausted = if protocol == OtlpProtocol::Grpc {
        8
    } else {
        429
    };
    let receiver = Receiver::start(
        protocol,
        &[
            Script::Fail(exhausted, Some(1)),
            Script::Fail(unavailable, None),
            Script::Reset,
        ],
        None,
    );
    let before = stats::value(Counter::Written);
    let logs = scope(
        &number_log(&format!("retry-{protocol:?}")),
        &Sink::Otlp(receiver.sink(protocol)),
    );
    for number in 0..10 {
        logs.save(&mut numbered(number));
    }
    assert!(exporter::flush(Duration::from_secs(20)));
    let received = receiver.received.lock().unwrap();
    assert_eq!(received.len(), 4);
    assert!(
        received
            .windows(2)
            .all(|pair| pair[0].request == pair[1].request)
    );
    // As it asked for, in the first answer; with a growing pause, after the others.
    let pauses: Vec<Duration> = received
        .windows(2)
        .map(|pair| pair[1].at - pair[0].at)
        .collect();
    assert!(pauses[0] >= Duration::from_secs(1), "{pauses:?}");
    assert!(pauses[1] >= Duration::from_millis(200), "{pauses:?}");
    assert!(pauses[2] >= Duration::from_millis(400), "{pauses:?}");
    assert_eq!(stats::value(Counter::Written) - before, 10);
}

fn partial_success_and_refusals_are_counted(protocol: OtlpProtocol) {
    let refused = if protocol == OtlpProtocol::Grpc {
        3
    } else {
        400
    };
    let receiver = Receiver::start(
        protocol,
        &[
            Script::Partial(3),
            Script::Fail(refused, None),
            Script::Accept,
        ],
        None,
    );
    let logs = scope(
        &number_log(&format!("partial-{protocol:?}")),
        &Sink::Otlp(receiver.sink(protocol)),
    );
    let counted = |records: usize| {
        let counters = || {
            (
                stats::value(Counter::Written),
                stats::value(Counter::Rejected),
            )
        };
        let before = counters();
        for number in 0..records {
            logs.save(&mut numbered(number));
        }
        assert!(exporter::flush(Duration::from_secs(20)));
        let after = counters();
        (after.0 - before.0, after.1 - before.1)
    };
    assert_eq!(counted(10), (7, 3));
    assert_eq!(counted(5), (0, 5));
    assert_eq!(counted(4), (4, 0));
    assert_eq!(receiver.received.lock().unwrap().len(), 3);
}

fn hanging_receiver_times_out() {
    let receiver = Receiver::start(OtlpProtocol::Http, &[Script::Hang], None);
    let sink = OtlpSink {
        timeout_ms: Some(200),
        ..receiver.sink(OtlpProtocol::Http)
    };
    let logs = scope(&number_log("hang"), &Sink::Otlp(sink));
    logs.save(&mut numbered(1));
    assert!(exporter::flush(Duration::from_secs(20)));
    assert_eq!(receiver.numbers(), ["1", "1"]);
}

fn dead_receiver_bounds_its_queue() {
    const QUEUE: usize = 64 * 1024;
    // A port that nobody listens on.
    let address = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let place = format!("http://{address}/v1/logs");
    let sink = OtlpSink {
        endpoint: place.clone(),
        queue: Some(QUEUE as u32),
        ..Receiver::start(OtlpProtocol::Http, &[], None).sink(OtlpProtocol::Http)
    };
    let log = json_log(
        "dead",
        json!({ "number": "%REQ(X-NUMBER)%", "fill": "x".repeat(500) }),
    );
    let logs = scope(&log, &Sink::Otlp(sink));
    let before = stats::value(Counter::QueueFull);
    wait_until("a full queue", || {
        for number in 0..100 {
            logs.save(&mut numbered(number));
        }
        let sinks = stats::sinks();
        let own = sinks.iter().find(|sink| sink.place == place);
        // The queue, and the batch that is being filled.
        assert!(
            own.is_none_or(|sink| sink.waiting <= 2 * QUEUE + 8192),
            "{own:?}"
        );
        stats::value(Counter::QueueFull) > before
    });
    wait_until("the failure to be told", || {
        let sinks = stats::sinks();
        sinks
            .iter()
            .any(|sink| sink.place == place && sink.failure.is_some())
    });
    // A stop waits no longer than it may.
    let begin = Instant::now();
    assert!(!exporter::flush(Duration::from_millis(300)));
    assert!(begin.elapsed() < Duration::from_secs(2));
    drop(logs);
    let abandoned = stats::value(Counter::Abandoned);
    wait_until("the sink to be given up", || {
        stats::value(Counter::Abandoned) > abandoned
    });
}

fn wrong_certificate_is_never_trusted() {
    let certificate = |name: &str| {
        let key = rcgen::KeyPair::generate().unwrap();
        let parameters = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        (parameters.self_signed(&key).unwrap(), key)
    };
    let (right, key) = certificate("localhost");
    let (wrong, _) = certificate("localhost");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![right.der().clone()],
            rustls::pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        )
        .unwrap();
    let receiver = Receiver::start(OtlpProtocol::Http, &[], Some(config));
    let folder = tempfile::tempdir().unwrap();
    let sink = |pem: &str, name: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, pem).unwrap();
        OtlpSink {
            endpoint: format!("https://localhost:{}/v1/logs", receiver.address.port()),
            ca: Some(path.to_str().unwrap().to_owned()),
            ..receiver.sink(OtlpProtocol::Http)
        }
    };
    let logs = scope(
        &number_log("wrong"),
        &Sink::Otlp(sink(&wrong.pem(), "wrong.pem")),
    );
    logs.save(&mut numbered(1));
    wait_until("a refused certificate", || {
        let sinks = stats::sinks();
        let failures = sinks.iter().filter_map(|sink| sink.failure.clone());
        failures
            .into_iter()
            .any(|text| text.contains("certificate"))
    });
    assert!(receiver.received.lock().unwrap().is_empty());
    drop(logs);
    let logs = scope(
        &number_log("right"),
        &Sink::Otlp(sink(&right.pem(), "right.pem")),
    );
    logs.save(&mut numbered(2));
    wait_until("the record", || receiver.numbers() == ["2"]);
}
