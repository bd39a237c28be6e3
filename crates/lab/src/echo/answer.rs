//! Carries out a plan: from a request to the response that the echo service gives.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, TRAILER};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::{Body as _, Frame};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use super::plan::{Answer, Framing, PIECE, Plan, Timing, pattern};
use super::record::{BodyDigest, RecordedRequest, RecordingBody, Shared};
use crate::body::{BodyError, FedBody};
use crate::{Headers, Protocol};

/// Bodies up to this many bytes are part of the description.
const DESCRIBED: usize = 64 * 1024;

/// Bodies up to this many bytes are echoed whole.
const ECHOED: usize = 64 * 1024 * 1024;

/// Bytes that were written are with the client after this long, on loopback.
const FLUSH: Duration = Duration::from_millis(30);

type AnswerBody = UnsyncBoxBody<Bytes, BodyError>;

/// Answers one request. `cut` closes the connection; an error resets the stream.
pub(super) async fn answer(
    shared: Arc<Shared>,
    cut: Arc<Notify>,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, BodyError> {
    shared.started.fetch_add(1, Ordering::Relaxed);
    let (head, incoming) = request.into_parts();
    let path = head
        .uri
        .path_and_query()
        .map_or("/", |path| path.as_str())
        .to_owned();
    let plan = Plan::of(&path, &head.headers);
    let recorded = RecordedRequest {
        method: head.method.to_string(),
        path,
        host: host(&head),
        protocol: match head.version {
            Version::HTTP_2 => Protocol::Http2,
            _ => Protocol::Http1,
        },
        headers: Headers::from(&head.headers),
        body: BodyDigest {
            length: 0,
            sha256: String::new(),
            complete: false,
        },
        trailers: Headers::default(),
    };
    let body = RecordingBody::new(incoming, Arc::clone(&shared), recorded);
    let mut response = match plan {
        Err(problem) => plain(StatusCode::BAD_REQUEST, format!("echo: {problem}\n")),
        Ok(plan) => {
            tokio::time::sleep(plan.delay).await;
            let mut response =
                carry_out(plan.answer, &shared.name, &cut, &head.headers, body).await?;
            *response.status_mut() = plan.status;
            response
        }
    };
    if let Ok(name) = HeaderValue::try_from(&shared.name) {
        response.headers_mut().insert("x-upstream", name);
    }
    if head.version == Version::HTTP_2 {
        response = without_forbidden_body(&head.method, response);
    }
    Ok(response)
}

/// Removes the body of a response that may not have one, and the length from a 204 (RFC 9110, 8.6).
///
/// hyper does so in HTTP/1.1 only. In HTTP/2 it sends what it is given, and a client such as Envoy answers the stray
/// DATA with a reset of the stream, and the length with the end of the connection and of all other streams on it.
fn without_forbidden_body(method: &Method, response: Response<AnswerBody>) -> Response<AnswerBody> {
    let is_head = method == Method::HEAD;
    let is_empty_by_status = matches!(
        response.status(),
        StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
    );
    if !is_head && !is_empty_by_status {
        return response;
    }
    let (mut head, body) = response.into_parts();
    if is_empty_by_status {
        head.headers.remove(CONTENT_LENGTH);
    } else if let Some(length) = body.size_hint().exact() {
        head.headers
            .entry(CONTENT_LENGTH)
            .or_insert_with(|| HeaderValue::from(length));
    }
    let empty = FedBody::pieces([], HeaderMap::new());
    Response::from_parts(head, empty.boxed_unsync())
}

fn host(head: &http::request::Parts) -> String {
    match head.uri.authority() {
        Some(authority) => authority.to_string(),
        None => head
            .headers
            .get(HOST)
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
            .unwrap_or_default(),
    }
}

async fn carry_out(
    answer: Answer,
    name: &str,
    cut: &Arc<Notify>,
    asked: &HeaderMap,
    body: RecordingBody,
) -> Result<Response<AnswerBody>, BodyError> {
    match answer {
        Answer::Describe(headers) => {
            let (content, request) = finish(body).await?;
            let mut response = describe(name, content, &request);
            response.headers_mut().extend(headers);
            Ok(response)
        }
        Answer::Bytes { length, framing } => {
            finish(body).await?;
            let content = pattern(length);
            if framing == Framing::Chunked {
                let body = FedBody::pieces(pieces(content), HeaderMap::new());
                return Ok(Response::new(body.boxed_unsync()));
            }
            let mut response = Response::new(FedBody::whole(content).boxed_unsync());
            // Said by us, because HTTP/2 would leave it out of an empty one.
            response
                .headers_mut()
                .insert(CONTENT_LENGTH, HeaderValue::from(length));
            Ok(response)
        }
        Answer::Echo(Timing::Streamed) => Ok(echo_headers(asked, body)),
        Answer::Echo(Timing::Whole) => {
            let Some((Some(content), request)) = body.finish(ECHOED).await else {
                return Err("the body did not arrive, or is longer than can be held".into());
            };
            let trailers = request.trailers.to_map()?;
            Ok(echo_headers(
                asked,
                FedBody::pieces(pieces(content.into()), trailers),
            ))
        }
        Answer::Trailers(trailers) => {
            finish(body).await?;
            let mut response = Response::new(
                FedBody::pieces(
                    [Bytes::from_static(b"the trailers follow\n")],
                    trailers.clone(),
                )
                .boxed_unsync(),
            );
            for field in trailers.keys() {
                let announced = HeaderValue::from(field.clone());
                response.headers_mut().append(TRAILER, announced);
            }
            Ok(response)
        }
        Answer::SlowBody {
            pieces,
            interval,
            size,
        } => {
            finish(body).await?;
            Ok(Response::new(
                slow_body(pieces, interval, size).boxed_unsync(),
            ))
        }
        Answer::Cut(None) => {
            drop(body);
            cut.notify_one();
            // The connection goes away with this future in it.
            std::future::pending().await
        }
        Answer::Cut(Some(length)) => {
            finish(body).await?;
            Ok(Response::new(cut_body(length, cut).boxed_unsync()))
        }
        Answer::ResetStream => Err("the request asked for a reset".into()),
    }
}

async fn finish(body: RecordingBody) -> Result<(Option<Vec<u8>>, RecordedRequest), BodyError> {
    body.finish(DESCRIBED)
        .await
        .ok_or_else(|| "the client went away".into())
}

fn describe(
    name: &str,
    content: Option<Vec<u8>>,
    request: &RecordedRequest,
) -> Response<AnswerBody> {
    let mut body = json!({
        "length": request.body.length,
        "sha256": request.body.sha256,
    });
    if let (Some(text), Some(fields)) = (
        content.and_then(|content| String::from_utf8(content).ok()),
        body.as_object_mut(),
    ) {
        fields.insert("text".to_owned(), Value::String(text));
    }
    let description = json!({
        "upstream": name,
        "method": request.method,
        "path": request.path,
        "host": request.host,
        "protocol": request.protocol.to_string(),
        "headers": lists(&request.headers),
        "body": body,
        "trailers": lists(&request.trailers),
    });
    let mut response =
        Response::new(FedBody::whole(format!("{description}\n").into()).boxed_unsync());
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Each name with the list of its values.
fn lists(headers: &Headers) -> Value {
    let mut lists = Map::new();
    for (name, value) in headers.iter() {
        let list = lists
            .entry(name)
            .or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(values) = list {
            values.push(value.into());
        }
    }
    Value::Object(lists)
}

/// A response that echoes, with what the request said of its body.
fn echo_headers<B>(asked: &HeaderMap, body: B) -> Response<AnswerBody>
where
    B: http_body::Body<Data = Bytes, Error = BodyError> + Send + 'static,
{
    let empty = body.is_end_stream();
    let mut response = Response::new(body.boxed_unsync());
    let headers = response.headers_mut();
    // A length and trailers exclude each other in HTTP/1.1.
    let framing = if asked.contains_key(TRAILER) {
        TRAILER
    } else {
        CONTENT_LENGTH
    };
    for name in [CONTENT_TYPE, framing] {
        for value in asked.get_all(&name) {
            headers.append(&name, value.clone());
        }
    }
    if empty {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(0));
    }
    response
}

fn slow_body(pieces: usize, interval: Duration, size: usize) -> FedBody {
    let (feed, body) = FedBody::fed(None);
    tokio::spawn(async move {
        let piece = pattern(size);
        for index in 0..pieces {
            if index > 0 {
                tokio::time::sleep(interval).await;
            }
            if feed.send(Ok(Frame::data(piece.clone()))).await.is_err() {
                return;
            }
        }
    });
    body
}

fn cut_body(length: usize, cut: &Arc<Notify>) -> FedBody {
    let (feed, body) = FedBody::fed(None);
    let cut = Arc::clone(cut);
    tokio::spawn(async move {
        for piece in pieces(pattern(length)) {
            if feed.send(Ok(Frame::data(piece))).await.is_err() {
                return;
            }
        }
        tokio::time::sleep(FLUSH).await;
        cut.notify_one();
        // Held until the connection is gone: its drop would end the body in good order.
        feed.closed().await;
    });
    body
}

/// Cuts a body into pieces without copying.
fn pieces(mut content: Bytes) -> impl Iterator<Item = Bytes> {
    std::iter::from_fn(move || {
        (!content.is_empty()).then(|| content.split_to(PIECE.min(content.len())))
    })
}

fn plain(status: StatusCode, text: String) -> Response<AnswerBody> {
    let mut response = Response::new(FedBody::whole(text.into()).boxed_unsync());
    *response.status_mut() = status;
    response
}
