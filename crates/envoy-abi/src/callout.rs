//! Telling what became of a callout or an HTTP stream.
//!
//! Envoy's HTTP client for filters reports most failures as responses that it makes up itself
//! (`source/common/router/router.cc` and `async_client_impl.cc`): 504 when the time is over, 503 when
//! no connection could be had. Plugins should not have to know that.

use std::collections::BTreeMap;

use outrider_plugin_api::{
    CalloutFailure, CalloutId, CalloutResponse, HttpStreamEvent, HttpStreamId, OwnedHeaders,
    OwnedHttpStreamEvent, Wake, WakeId, lend_headers, own_headers,
};

use smallvec::SmallVec;

use crate::hooks::{fields, pieces_of};
use crate::raw::{EnvoyBuffer, EnvoyHeader, callout_result, callout_start};

/// What Envoy said when it was asked to start one.
pub(crate) fn started(result: u32) -> Result<(), CalloutFailure> {
    match result {
        callout_start::SUCCESS => Ok(()),
        callout_start::MISSING_HEADERS => Err(CalloutFailure::MissingHeaders),
        callout_start::CLUSTER_NOT_FOUND => Err(CalloutFailure::ClusterNotFound),
        callout_start::CANNOT_CREATE => Err(CalloutFailure::CannotStart),
        _ => Err(CalloutFailure::StreamOver),
    }
}

/// What Envoy tells of the end of a callout, for the time of its hook.
pub(crate) struct Ended<'a> {
    result: u32,
    headers: SmallVec<[(&'a [u8], &'a [u8]); 16]>,
    body: SmallVec<[&'a [u8]; 8]>,
}

impl Ended<'_> {
    /// Reads the arguments of a hook of the kind `http_callout_done`.
    ///
    /// # Safety
    /// The arrays have these lengths, or are null when they are empty; they and what they point at outlive the
    /// value.
    pub(crate) unsafe fn new(
        result: u32,
        headers: *const EnvoyHeader,
        headers_length: usize,
        chunks: *const EnvoyBuffer,
        chunks_length: usize,
    ) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Self {
                result,
                headers: fields(headers, headers_length),
                body: pieces_of(chunks, chunks_length),
            }
        }
    }

    /// What came of the callout.
    pub(crate) fn outcome(&self) -> Result<CalloutResponse<'_>, CalloutFailure> {
        match self.result {
            callout_result::SUCCESS => match made_up(&self.headers, &self.body) {
                Some(failure) => Err(failure),
                None => Ok(CalloutResponse {
                    headers: &self.headers,
                    body: &self.body,
                }),
            },
            callout_result::RESET => Err(CalloutFailure::Reset),
            _ => Err(CalloutFailure::TooLarge),
        }
    }
}

/// The failure that a response made up by Envoy stands for, or `None` for a response that an upstream
/// sent. A made-up response has no headers but these three, and one of these texts as its body.
pub(crate) fn made_up(headers: &[(&[u8], &[u8])], body: &[&[u8]]) -> Option<CalloutFailure> {
    let [text] = body else { return None };
    if !may_be_made_up(headers) {
        return None;
    }
    let status = status(headers)?;
    match status {
        b"504" if *text == b"upstream request timeout" => Some(CalloutFailure::Timeout),
        b"503" if *text == b"no healthy upstream" => Some(CalloutFailure::CannotStart),
        b"503"
            if text.starts_with(b"upstream connect error or disconnect/reset before headers") =>
        {
            Some(CalloutFailure::Reset)
        }
        _ => None,
    }
}

fn status<'a>(headers: &[(&[u8], &'a [u8])]) -> Option<&'a [u8]> {
    headers
        .iter()
        .find(|(name, _)| *name == b":status")
        .map(|(_, value)| *value)
}

fn may_be_made_up(headers: &[(&[u8], &[u8])]) -> bool {
    matches!(status(headers), Some(b"503" | b"504"))
        && headers
            .iter()
            .all(|(name, _)| matches!(*name, b":status" | b"content-length" | b"content-type"))
}

/// An event whose bytes are its own.
#[derive(Debug)]
pub(crate) enum OwnedWake {
    Callout(
        CalloutId,
        Result<(OwnedHeaders, Vec<Vec<u8>>), CalloutFailure>,
    ),
    HttpStream(HttpStreamId, OwnedHttpStreamEvent),
    Timer(u64),
}

impl OwnedWake {
    /// None for what only a chain raises.
    pub(crate) fn new(wake: &Wake<'_>) -> Option<Self> {
        match wake {
            Wake::Callout(id, outcome) => Some(Self::Callout(
                *id,
                outcome.map(|response| {
                    let body = response.body.iter().map(|piece| piece.to_vec()).collect();
                    (own_headers(response.headers), body)
                }),
            )),
            Wake::HttpStream(id, event) => {
                Some(Self::HttpStream(*id, OwnedHttpStreamEvent::new(event)))
            }
            Wake::Timer(id) => Some(Self::Timer(*id)),
            Wake::Body => None,
        }
    }

    /// The operation that it is about.
    pub(crate) fn id(&self) -> WakeId {
        match self {
            Self::Callout(id, _) => WakeId::Callout(*id),
            Self::HttpStream(id, _) => WakeId::HttpStream(*id),
            Self::Timer(id) => WakeId::Timer(*id),
        }
    }

    /// Calls `tell` with the event.
    pub(crate) fn with(&self, tell: impl FnOnce(Wake<'_>)) {
        match self {
            Self::Callout(id, Ok((headers, body))) => {
                let body: Vec<&[u8]> = body.iter().map(Vec::as_slice).collect();
                let response = CalloutResponse {
                    headers: &lend_headers(headers),
                    body: &body,
                };
                tell(Wake::Callout(*id, Ok(response)));
            }
            Self::Callout(id, Err(failure)) => tell(Wake::Callout(*id, Err(*failure))),
            Self::HttpStream(id, event) => event.with(|event| tell(Wake::HttpStream(*id, event))),
            Self::Timer(id) => tell(Wake::Timer(*id)),
        }
    }
}

/// Headers of HTTP streams that may be the beginning of a response that Envoy makes up. What follows
/// them tells.
#[derive(Debug, Default)]
pub(crate) struct Doubtful {
    headers: BTreeMap<HttpStreamId, OwnedHeaders>,
}

/// What an event of an HTTP stream turned out to be.
#[derive(Debug)]
pub(crate) enum Judged {
    /// The next one will tell.
    Wait,
    /// What it says; before it these headers, which were in doubt.
    Real(Option<OwnedHttpStreamEvent>),
    /// The stream has come to nothing.
    MadeUp(CalloutFailure),
}

impl Doubtful {
    /// A stream is over.
    pub(crate) fn forget(&mut self, id: HttpStreamId) {
        self.headers.remove(&id);
    }

    pub(crate) fn judge(&mut self, id: HttpStreamId, event: &HttpStreamEvent<'_>) -> Judged {
        if let HttpStreamEvent::Headers {
            headers,
            end_of_stream: false,
        } = event
            && may_be_made_up(headers)
        {
            self.headers.insert(id, own_headers(headers));
            return Judged::Wait;
        }
        let Some(headers) = self.headers.remove(&id) else {
            return Judged::Real(None);
        };
        if let HttpStreamEvent::Data { pieces, .. } = event
            && let Some(failure) = made_up(&lend_headers(&headers), pieces)
        {
            return Judged::MadeUp(failure);
        }
        Judged::Real(Some(OwnedHttpStreamEvent::Headers(headers, false)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Headers<'a> = &'a [(&'a [u8], &'a [u8])];

    #[test]
    fn responses_that_envoy_makes_up_are_failures() {
        let bare: Headers<'_> = &[
            (b":status", b"504"),
            (b"content-length", b"24"),
            (b"content-type", b"text/plain"),
        ];
        assert_eq!(
            made_up(bare, &[b"upstream request timeout"]),
            Some(CalloutFailure::Timeout)
        );
        let bare: Headers<'_> = &[(b":status", b"503")];
        assert_eq!(
            made_up(bare, &[b"no healthy upstream"]),
            Some(CalloutFailure::CannotStart)
        );
        let text = b"upstream connect error or disconnect/reset before headers. reset reason: x";
        assert_eq!(made_up(bare, &[text]), Some(CalloutFailure::Reset));
    }

    #[test]
    fn an_upstream_s_own_errors_are_responses() {
        let own: Headers<'_> = &[(b":status", b"503"), (b"server", b"nginx")];
        assert_eq!(made_up(own, &[b"no healthy upstream"]), None);
        let bare: Headers<'_> = &[(b":status", b"503")];
        assert_eq!(made_up(bare, &[b"overloaded"]), None);
        assert_eq!(made_up(bare, &[]), None);
    }

    #[test]
    fn a_stream_that_begins_like_a_made_up_one_is_judged_by_what_follows() {
        let id = HttpStreamId(1);
        let bare: Headers<'_> = &[(b":status", b"503"), (b"content-type", b"text/plain")];
        let begin = HttpStreamEvent::Headers {
            headers: bare,
            end_of_stream: false,
        };
        let data = |text: &'static [u8]| [text];
        let mut doubtful = Doubtful::default();
        assert!(matches!(doubtful.judge(id, &begin), Judged::Wait));
        let pieces = data(b"no healthy upstream");
        let made_up = HttpStreamEvent::Data {
            pieces: &pieces,
            end_of_stream: true,
        };
        assert!(matches!(
            doubtful.judge(id, &made_up),
            Judged::MadeUp(CalloutFailure::CannotStart)
        ));
        assert!(matches!(doubtful.judge(id, &begin), Judged::Wait));
        let pieces = data(b"busy");
        let own = HttpStreamEvent::Data {
            pieces: &pieces,
            end_of_stream: true,
        };
        assert!(matches!(doubtful.judge(id, &own), Judged::Real(Some(_))));
        assert!(matches!(doubtful.judge(id, &own), Judged::Real(None)));
    }

    #[test]
    fn events_survive_being_kept() {
        let headers: Headers<'_> = &[(b":status", b"200")];
        let pieces: [&[u8]; 2] = [b"a", b"b"];
        let id = HttpStreamId(7);
        let events = [
            Wake::Callout(
                CalloutId(1),
                Ok(CalloutResponse {
                    headers,
                    body: &pieces,
                }),
            ),
            Wake::Callout(CalloutId(2), Err(CalloutFailure::Reset)),
            Wake::Timer(3),
            Wake::HttpStream(
                id,
                HttpStreamEvent::Headers {
                    headers,
                    end_of_stream: true,
                },
            ),
            Wake::HttpStream(
                id,
                HttpStreamEvent::Data {
                    pieces: &pieces,
                    end_of_stream: false,
                },
            ),
            Wake::HttpStream(id, HttpStreamEvent::Trailers(headers)),
            Wake::HttpStream(id, HttpStreamEvent::Complete),
            Wake::HttpStream(id, HttpStreamEvent::Failed(CalloutFailure::Timeout)),
        ];
        for event in events {
            let mut told = String::new();
            OwnedWake::new(&event)
                .unwrap()
                .with(|again| told = format!("{again:?}"));
            assert_eq!(told, format!("{event:?}"));
        }
        assert!(OwnedWake::new(&Wake::Body).is_none());
    }
}
