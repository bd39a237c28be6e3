//! An external processor for Envoy's `ext_proc` filter: gRPC over a Unix socket, on a thread of its own.
//!
//! It is the modern form of an external plugin process. It does the work that a stream's [`WORK_HEADER`] names; without one
//! every message of Envoy is answered with "continue", so what is measured is the way to another process and back. Messages: `envoy/service/ext_proc/v3/external_processor.proto`.

use std::path::Path;

use bytes::{Buf as _, Bytes, BytesMut};
use h2::server;
use prost::Message as _;

use crate::grpc_server::{GrpcServer, begin, finish, framed};

/// Longest message that is taken, in bytes.
const LONGEST: usize = 4 * 1024 * 1024;

/// Request header of the gRPC stream that names the work; without it every part is answered with "continue".
pub(crate) const WORK_HEADER: &str = "x-work";

/// Text of the body rewrite, its replacement, and the token that may pass.
const SECRET: &[u8] = b"secret";
const HIDDEN: &[u8] = b"******";

/// `envoy.service.ext_proc.v3.ProcessingRequest`: which part of a request or response it is about.
#[derive(Clone, PartialEq, prost::Message)]
struct ProcessingRequest {
    #[prost(message, optional, tag = "2")]
    request_headers: Option<HttpHeaders>,
    #[prost(bytes = "bytes", optional, tag = "3")]
    response_headers: Option<Bytes>,
    #[prost(message, optional, tag = "4")]
    request_body: Option<HttpBody>,
    #[prost(bytes = "bytes", optional, tag = "5")]
    response_body: Option<Bytes>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HttpHeaders {
    #[prost(message, optional, tag = "1")]
    headers: Option<HeaderMap>,
}

/// `envoy.config.core.v3.HeaderMap`.
#[derive(Clone, PartialEq, prost::Message)]
struct HeaderMap {
    #[prost(message, repeated, tag = "1")]
    headers: Vec<HeaderValue>,
}

/// `envoy.config.core.v3.HeaderValue`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct HeaderValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
    #[prost(bytes = "bytes", tag = "3")]
    raw_value: Bytes,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct HttpBody {
    #[prost(bytes = "bytes", tag = "1")]
    body: Bytes,
}

/// `envoy.service.ext_proc.v3.ProcessingResponse`: the answer for that part. An empty one means "continue".
#[derive(Clone, PartialEq, prost::Message)]
struct ProcessingResponse {
    #[prost(bytes = "bytes", optional, tag = "1")]
    request_headers: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    response_headers: Option<Bytes>,
    #[prost(message, optional, tag = "3")]
    request_body: Option<BodyResponse>,
    #[prost(bytes = "bytes", optional, tag = "4")]
    response_body: Option<Bytes>,
    #[prost(message, optional, tag = "7")]
    immediate_response: Option<ImmediateResponse>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct BodyResponse {
    #[prost(message, optional, tag = "1")]
    response: Option<CommonResponse>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct CommonResponse {
    #[prost(message, optional, tag = "3")]
    body_mutation: Option<HttpBody>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ImmediateResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<HttpStatus>,
    #[prost(bytes = "bytes", tag = "3")]
    body: Bytes,
}

/// `envoy.type.v3.HttpStatus`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct HttpStatus {
    #[prost(int32, tag = "1")]
    code: i32,
}

/// Work of the processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Nothing,
    BasicAuth,
    FaultInjection,
    BodyRewrite,
}

impl Work {
    fn of(headers: &http::HeaderMap) -> Self {
        match headers.get(WORK_HEADER).map(http::HeaderValue::as_bytes) {
            Some(b"basic-auth") => Self::BasicAuth,
            Some(b"fault-injection") => Self::FaultInjection,
            Some(b"body-rewrite") => Self::BodyRewrite,
            _ => Self::Nothing,
        }
    }
}

/// Starts an external processor on a Unix socket; it accepts connections when this returns.
///
/// # Errors
///
/// The socket cannot be made.
pub(crate) fn start_ext_proc(socket: &Path) -> anyhow::Result<GrpcServer> {
    GrpcServer::start("ext-proc", socket, |request, respond| async move {
        let work = Work::of(request.headers());
        // A stream that breaks off is Envoy's to report.
        let _ = process(work, request.into_body(), respond).await;
    })
}

async fn process(
    work: Work,
    mut body: h2::RecvStream,
    mut respond: server::SendResponse<Bytes>,
) -> Result<(), h2::Error> {
    let mut stream = begin(&mut respond)?;
    let mut received = BytesMut::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        received.extend_from_slice(&data);
        while let Some(message) = take_message(&mut received) {
            match answer(work, message) {
                Some(answer) => stream.send_data(answer, false)?,
                None => return finish(&mut stream, "3"),
            }
        }
        if received.len() > LONGEST {
            return finish(&mut stream, "8");
        }
    }
    finish(&mut stream, "0")
}

/// Takes a whole message of gRPC off the front: a flag, four bytes of length, the message.
fn take_message(received: &mut BytesMut) -> Option<Bytes> {
    let mut prefix = received.get(1..5)?;
    let length = prefix.get_u32() as usize;
    if received.len() < 5 + length {
        return None;
    }
    received.advance(5);
    Some(received.split_to(length).freeze())
}

/// The answer to a message, framed; `None` if it is none of Envoy's.
fn answer(work: Work, message: Bytes) -> Option<Bytes> {
    let request = ProcessingRequest::decode(message).ok()?;
    let empty = |part: Option<Bytes>| part.map(|_| Bytes::new());
    let mut response = ProcessingResponse {
        request_headers: request.request_headers.as_ref().map(|_| Bytes::new()),
        response_headers: empty(request.response_headers),
        request_body: request
            .request_body
            .as_ref()
            .map(|_| BodyResponse::default()),
        response_body: empty(request.response_body),
        immediate_response: None,
    };
    match (work, request.request_headers, request.request_body) {
        (Work::BasicAuth, Some(headers), _) if !may_pass(&headers) => {
            response = refusal(Bytes::from_static(b"forbidden"));
        }
        (Work::FaultInjection, Some(_), _) => {
            response = refusal(Bytes::from_static(b"fault"));
        }
        (Work::BodyRewrite, _, Some(body)) => {
            response.request_body = Some(BodyResponse {
                response: rewritten(&body.body).map(|body| CommonResponse {
                    body_mutation: Some(HttpBody { body }),
                }),
            });
        }
        _ => {}
    }
    framed(&response)
}

fn may_pass(headers: &HttpHeaders) -> bool {
    headers
        .headers
        .iter()
        .flat_map(|map| &map.headers)
        .any(|header| {
            header.key == "x-token"
                && (header.raw_value == SECRET || header.value.as_bytes() == SECRET)
        })
}

fn refusal(body: Bytes) -> ProcessingResponse {
    ProcessingResponse {
        immediate_response: Some(ImmediateResponse {
            status: Some(HttpStatus { code: 403 }),
            body,
        }),
        ..ProcessingResponse::default()
    }
}

/// The body with the word replaced. `None` where it does not have it.
fn rewritten(body: &Bytes) -> Option<Bytes> {
    let place = body.windows(SECRET.len()).position(|part| part == SECRET)?;
    let mut changed = BytesMut::from(body.as_ref());
    changed
        .get_mut(place..place + SECRET.len())?
        .copy_from_slice(HIDDEN);
    Some(changed.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_refuses_and_rewrites() {
        let message = |request: ProcessingRequest| Bytes::from(request.encode_to_vec());
        let decoded = |work, request| {
            let framed = answer(work, message(request)).unwrap();
            ProcessingResponse::decode(framed.slice(5..)).unwrap()
        };
        let headers = |value: &'static [u8]| ProcessingRequest {
            request_headers: Some(HttpHeaders {
                headers: Some(HeaderMap {
                    headers: vec![HeaderValue {
                        key: "x-token".to_owned(),
                        value: String::new(),
                        raw_value: Bytes::from_static(value),
                    }],
                }),
            }),
            ..ProcessingRequest::default()
        };
        let right = decoded(Work::BasicAuth, headers(b"secret"));
        assert!(right.immediate_response.is_none() && right.request_headers.is_some());
        for (work, request) in [
            (Work::BasicAuth, headers(b"guess")),
            (Work::FaultInjection, headers(b"secret")),
        ] {
            let refused = decoded(work, request).immediate_response.unwrap();
            assert_eq!(refused.status.unwrap().code, 403, "{work:?}");
        }
        let body = ProcessingRequest {
            request_body: Some(HttpBody {
                body: Bytes::from_static(b"a secret b"),
            }),
            ..ProcessingRequest::default()
        };
        let changed = decoded(Work::BodyRewrite, body).request_body.unwrap();
        let changed = changed.response.unwrap().body_mutation.unwrap();
        assert_eq!(changed.body.as_ref(), b"a ****** b");
        assert_eq!(rewritten(&Bytes::from_static(b"nothing")), None);
    }

    #[test]
    fn each_part_gets_its_answer() {
        // request_headers, empty: field 2, length 0. The answer is field 1, empty.
        assert_eq!(
            answer(Work::Nothing, Bytes::from_static(&[0x12, 0]))
                .unwrap()
                .as_ref(),
            [0, 0, 0, 0, 2, 0x0a, 0]
        );
        assert_eq!(
            answer(Work::Nothing, Bytes::from_static(&[0x1a, 5, 8])),
            None
        );
        assert_eq!(
            answer(Work::Nothing, Bytes::from_static(&[0x1a, 0]))
                .unwrap()
                .as_ref(),
            [0, 0, 0, 0, 2, 0x12, 0]
        );
    }

    #[test]
    fn messages_are_taken_whole() {
        let mut received = BytesMut::from(&[0, 0, 0, 0, 2, 0x12, 0, 0, 0][..]);
        assert_eq!(take_message(&mut received).unwrap().as_ref(), [0x12, 0]);
        assert_eq!(take_message(&mut received), None);
        received.extend_from_slice(&[0, 0, 0]);
        assert!(take_message(&mut received).unwrap().is_empty());
        assert!(received.is_empty());
    }
}
