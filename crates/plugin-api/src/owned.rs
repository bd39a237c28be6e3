//! Copies of what is lent for the time of a call, for whoever tells of it later.

use crate::callout::{CalloutFailure, HttpStreamEvent};

/// Names and values, with bytes of their own.
pub type OwnedHeaders = Vec<(Vec<u8>, Vec<u8>)>;

/// A copy of names and values.
pub fn own_headers(headers: &[(&[u8], &[u8])]) -> OwnedHeaders {
    headers
        .iter()
        .map(|(name, value)| (name.to_vec(), value.to_vec()))
        .collect()
}

/// What a copy holds, as it was lent.
pub fn lend_headers(headers: &OwnedHeaders) -> Vec<(&[u8], &[u8])> {
    headers
        .iter()
        .map(|(name, value)| (name.as_slice(), value.as_slice()))
        .collect()
}

/// [`HttpStreamEvent`], with bytes of its own.
#[derive(Debug)]
pub enum OwnedHttpStreamEvent {
    /// The headers of the response, and whether nothing follows them.
    Headers(OwnedHeaders, bool),
    /// A part of its body, in pieces, and whether nothing follows it.
    Data(Vec<Vec<u8>>, bool),
    /// Its trailers.
    Trailers(OwnedHeaders),
    /// Request and response are complete.
    Complete,
    /// It came to nothing.
    Failed(CalloutFailure),
}

impl OwnedHttpStreamEvent {
    /// A copy of an event.
    pub fn new(event: &HttpStreamEvent<'_>) -> Self {
        match event {
            HttpStreamEvent::Headers {
                headers,
                end_of_stream,
            } => Self::Headers(own_headers(headers), *end_of_stream),
            HttpStreamEvent::Data {
                pieces,
                end_of_stream,
            } => Self::Data(
                pieces.iter().map(|piece| piece.to_vec()).collect(),
                *end_of_stream,
            ),
            HttpStreamEvent::Trailers(trailers) => Self::Trailers(own_headers(trailers)),
            HttpStreamEvent::Complete => Self::Complete,
            HttpStreamEvent::Failed(failure) => Self::Failed(*failure),
        }
    }

    /// Calls `tell` with the event, and answers what it answers.
    pub fn with<T>(&self, tell: impl FnOnce(HttpStreamEvent<'_>) -> T) -> T {
        match self {
            Self::Headers(headers, end_of_stream) => tell(HttpStreamEvent::Headers {
                headers: &lend_headers(headers),
                end_of_stream: *end_of_stream,
            }),
            Self::Data(pieces, end_of_stream) => {
                let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
                tell(HttpStreamEvent::Data {
                    pieces: &pieces,
                    end_of_stream: *end_of_stream,
                })
            }
            Self::Trailers(trailers) => tell(HttpStreamEvent::Trailers(&lend_headers(trailers))),
            Self::Complete => tell(HttpStreamEvent::Complete),
            Self::Failed(failure) => tell(HttpStreamEvent::Failed(*failure)),
        }
    }
}
