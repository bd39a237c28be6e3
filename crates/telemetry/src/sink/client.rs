//! One connection to a receiver, HTTP/1.1 or HTTP/2, with TLS where its address says so.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::{http1, http2};
use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, Request, StatusCode, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use outrider_plugin_formats::{OtlpProtocol, OtlpSink};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Where Debian, and most others, have the machine's authorities.
const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Largest answer that is read.
const LARGEST_ANSWER: usize = 64 * 1024;
/// Method of gRPC for log records.
const GRPC_PATH: &str = "/opentelemetry.proto.collector.logs.v1.LogsService/Export";

/// What a receiver made of a batch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It has it, but for as many records.
    Accepted { rejected: u64, message: String },
    /// It will never take it.
    Refused(String),
    /// It may take it later, at the earliest after the time that it named.
    Later(String, Option<Duration>),
}

#[derive(Debug)]
enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// A receiver, and the connection to it.
#[derive(Debug)]
pub(super) struct Client {
    sink: OtlpSink,
    sender: Option<Sender>,
}

fn other(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

impl Client {
    pub(super) fn new(sink: OtlpSink) -> Self {
        Self { sink, sender: None }
    }

    /// Sends a batch. An error is one of the connection, which is closed then.
    pub(super) async fn send(&mut self, body: Bytes) -> io::Result<Answer> {
        let timeout = Duration::from_millis(self.sink.timeout_ms.unwrap_or(10_000).into());
        let sent = tokio::time::timeout(timeout, self.exchange(body)).await;
        let answer = sent.unwrap_or_else(|_elapsed| {
            Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no answer within {} ms", timeout.as_millis()),
            ))
        });
        if answer.is_err() {
            self.sender = None;
        }
        answer
    }

    async fn exchange(&mut self, body: Bytes) -> io::Result<Answer> {
        let uri: Uri = self.sink.endpoint.parse().map_err(other)?;
        let is_grpc = self.sink.protocol == OtlpProtocol::Grpc;
        let request = self.request(&uri, body)?;
        let mut sender = match self.sender.take() {
            Some(sender) if !sender.is_closed() => sender,
            _ => self.connect(&uri).await?,
        };
        let response = match &mut sender {
            Sender::Http1(sender) => {
                sender.ready().await.map_err(other)?;
                sender.send_request(request).await
            }
            Sender::Http2(sender) => {
                sender.ready().await.map_err(other)?;
                sender.send_request(request).await
            }
        };
        let (parts, body) = response.map_err(other)?.into_parts();
        let collected = Limited::new(body, LARGEST_ANSWER).collect().await;
        let collected = collected.map_err(|error| io::Error::other(error.to_string()))?;
        let trailers = collected.trailers().cloned();
        let content = collected.to_bytes();
        self.sender = Some(sender);
        Ok(if is_grpc {
            grpc_answer(parts.status, &parts.headers, trailers.as_ref(), &content)
        } else {
            http_answer(parts.status, &parts.headers, &content)
        })
    }

    fn request(&self, uri: &Uri, body: Bytes) -> io::Result<Request<Full<Bytes>>> {
        let is_grpc = self.sink.protocol == OtlpProtocol::Grpc;
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let mut request = Request::post(if is_grpc {
            // HTTP/2 wants scheme and authority in the request's own line.
            let scheme = uri.scheme_str().unwrap_or("http");
            format!("{scheme}://{authority}{GRPC_PATH}")
        } else {
            uri.path().to_owned()
        });
        let headers = request.headers_mut();
        let Some(headers) = headers else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let value = HeaderValue::from_static;
        if is_grpc {
            headers.insert("content-type", value("application/grpc"));
            headers.insert("te", value("trailers"));
            if self.sink.gzip {
                headers.insert("grpc-encoding", value("gzip"));
            }
        } else {
            headers.insert("host", HeaderValue::from_str(authority).map_err(other)?);
            headers.insert("content-type", value("application/x-protobuf"));
            if self.sink.gzip {
                headers.insert("content-encoding", value("gzip"));
            }
        }
        headers.insert("user-agent", value("outrider"));
        for (name, content) in &self.sink.headers {
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(other)?;
            headers.insert(name, HeaderValue::from_str(content).map_err(other)?);
        }
        request.body(Full::new(body)).map_err(other)
    }

    async fn connect(&self, uri: &Uri) -> io::Result<Sender> {
        let host = uri.host().unwrap_or_default();
        let is_tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        // An IPv6 address stands in brackets in an address of the web.
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((host, port)).await?;
        stream.set_nodelay(true)?;
        if !is_tls {
            return self.handshake(stream).await;
        }
        let name = ServerName::try_from(host.to_owned()).map_err(other)?;
        let connector = TlsConnector::from(Arc::new(self.tls()?));
        self.handshake(connector.connect(name, stream).await?).await
    }

    fn tls(&self) -> io::Result<rustls::ClientConfig> {
        let path = self.sink.ca.as_deref().unwrap_or(SYSTEM_AUTHORITIES);
        let mut roots = rustls::RootCertStore::empty();
        let unread = |error| io::Error::other(format!("{path}: {error}"));
        for certificate in CertificateDer::pem_file_iter(path).map_err(unread)? {
            roots
                .add(certificate.map_err(unread)?)
                .map_err(|error| io::Error::other(format!("{path}: {error}")))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![match self.sink.protocol {
            OtlpProtocol::Http => b"http/1.1".to_vec(),
            OtlpProtocol::Grpc => b"h2".to_vec(),
        }];
        Ok(config)
    }

    async fn handshake(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> io::Result<Sender> {
        let stream = TokioIo::new(stream);
        // The connection's task ends with the connection, whose end the sender tells.
        match self.sink.protocol {
            OtlpProtocol::Http => {
                let (sender, connection) = http1::handshake(stream).await.map_err(other)?;
                tokio::spawn(async move {
                    let _ended = connection.await;
                });
                Ok(Sender::Http1(sender))
            }
            OtlpProtocol::Grpc => {
                let (sender, connection) = http2::handshake(TokioExecutor::new(), stream)
                    .await
                    .map_err(other)?;
                tokio::spawn(async move {
                    let _ended = connection.await;
                });
                Ok(Sender::Http2(sender))
            }
        }
    }
}

impl Sender {
    fn is_closed(&self) -> bool {
        match self {
            Self::Http1(sender) => sender.is_closed(),
            Self::Http2(sender) => sender.is_closed(),
        }
    }
}

/// The time of a `retry-after` in seconds. Dates are not read: the back-off holds then.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get("retry-after")?.to_str().ok()?.trim();
    Some(Duration::from_secs(seconds.parse().ok()?))
}

fn http_answer(status: StatusCode, headers: &HeaderMap, content: &[u8]) -> Answer {
    match status.as_u16() {
        200..=299 => {
            let (rejected, message) = crate::otlp::rejected(content);
            Answer::Accepted { rejected, message }
        }
        429 | 502..=504 => Answer::Later(format!("status {status}"), retry_after(headers)),
        _ => {
            let text: String = String::from_utf8_lossy(content).chars().take(200).collect();
            Answer::Refused(format!("status {status} {text}"))
        }
    }
}

fn grpc_answer(
    status: StatusCode,
    headers: &HeaderMap,
    trailers: Option<&HeaderMap>,
    content: &[u8],
) -> Answer {
    // A response without a body has its status among the headers.
    let find = |name: &str| {
        let of_trailers = trailers.and_then(|trailers| trailers.get(name));
        let value = of_trailers.or_else(|| headers.get(name))?;
        Some(value.to_str().ok()?.to_owned())
    };
    let Some(code) = find("grpc-status").and_then(|code| code.parse::<u32>().ok()) else {
        // A proxy in between answered.
        return match http_answer(status, headers, &[]) {
            Answer::Accepted { .. } => Answer::Later("no gRPC status".to_owned(), None),
            other => other,
        };
    };
    let message = find("grpc-message").unwrap_or_default();
    match code {
        0 => {
            // The message behind its prefix; a compressed one was not asked for.
            let (rejected, message) = crate::otlp::rejected(content.get(5..).unwrap_or_default());
            Answer::Accepted { rejected, message }
        }
        // Those that the protocol's specification calls retryable.
        1 | 4 | 8 | 10 | 11 | 14 | 15 => {
            let text = format!("gRPC status {code} {message}");
            Answer::Later(text, retry_after(headers))
        }
        _ => Answer::Refused(format!("gRPC status {code} {message}")),
    }
}
