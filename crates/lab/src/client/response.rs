//! What a client got: a whole response, or one that is still arriving.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::Instant;

use super::ClientError;
use super::connect::chain;
use crate::Headers;

/// A whole response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Its headers.
    pub headers: Headers,
    /// Its body.
    pub body: Bytes,
    /// Its trailers.
    pub trailers: Headers,
}

impl Response {
    /// The body as text; bytes that are not UTF-8 show as U+FFFD.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON, `Null` when it is none.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// A response whose head is there.
#[derive(Debug)]
pub struct StreamedResponse {
    /// The status code.
    pub status: u16,
    /// Its headers.
    pub headers: Headers,
    incoming: Incoming,
    received: usize,
    trailers: Headers,
    deadline: Instant,
    timeout: std::time::Duration,
}

impl StreamedResponse {
    pub(super) fn new(
        response: http::Response<Incoming>,
        deadline: Instant,
        timeout: std::time::Duration,
    ) -> Self {
        let (head, incoming) = response.into_parts();
        Self {
            status: head.status.as_u16(),
            headers: Headers::from(&head.headers),
            incoming,
            received: 0,
            trailers: Headers::default(),
            deadline,
            timeout,
        }
    }

    /// The next bytes of the body, as they arrive; `None` at its end.
    pub async fn next_piece(&mut self) -> Result<Option<Bytes>, ClientError> {
        loop {
            let frame = tokio::time::timeout_at(self.deadline, self.incoming.frame())
                .await
                .map_err(|_| ClientError::Timeout(self.timeout))?;
            let frame = match frame {
                None => return Ok(None),
                Some(Err(error)) => {
                    return Err(ClientError::Cut {
                        status: self.status,
                        received: self.received,
                        detail: chain(&error),
                    });
                }
                Some(Ok(frame)) => frame,
            };
            match frame.into_data() {
                Ok(data) => {
                    self.received += data.len();
                    return Ok(Some(data));
                }
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        self.trailers = Headers::from(&trailers);
                    }
                }
            }
        }
    }

    /// Reads on to the end; the body is what had not been read before.
    pub async fn finish(mut self) -> Result<Response, ClientError> {
        let mut body = BytesMut::new();
        while let Some(piece) = self.next_piece().await? {
            body.extend_from_slice(&piece);
        }
        Ok(Response {
            status: self.status,
            headers: self.headers,
            body: body.freeze(),
            trailers: self.trailers,
        })
    }
}
