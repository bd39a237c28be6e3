//! What has come of a plugin's callouts, timers and HTTP streams that no handler has taken yet.
//!
//! A response may come before it is waited for, and a part of an HTTP stream before it is read. It is kept
//! here, outside of the Lua VM, within bounds of its own: what does not fit is dropped, and who asks for it
//! later is told why. So a plugin that never asks cannot fill the proxy's memory.

use std::collections::{BTreeMap, VecDeque};

use outrider_plugin_api::{CalloutFailure, HttpStreamEvent, HttpStreamId, Wake, WakeId};

/// Names and values.
pub(crate) type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Why there is no outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Missing {
    /// The proxy said so.
    #[error(transparent)]
    Failed(#[from] CalloutFailure),
    /// It was dropped.
    #[error(
        "more came before it was asked for than is kept: {0} bytes for one stream, an eighth of the \
         plugin's memory budget"
    )]
    NotKept(usize),
}

/// What came of a callout.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) headers: Pairs,
    pub(crate) body: Vec<u8>,
}

/// What came on an HTTP stream and was not read.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    pub(crate) headers: Option<Pairs>,
    pub(crate) chunks: VecDeque<Vec<u8>>,
    pub(crate) trailers: Option<Pairs>,
    /// No more chunks and no trailers follow.
    pub(crate) ended: bool,
    pub(crate) missing: Option<Missing>,
}

#[derive(Debug)]
enum Kept {
    Response(Result<Response, Missing>),
    Fired,
    Parts(Parts),
}

/// What is kept for one stream.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    kept: BTreeMap<WakeId, Kept>,
    bytes: usize,
}

/// How much may be kept, and how much is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// Bytes kept for all streams of the VM.
    pub(crate) used: usize,
    /// The VM's memory budget.
    pub(crate) budget: usize,
}

/// What the keeper has to do about an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing.
    Fine,
    /// To cancel the HTTP stream: more came than is kept.
    Cancel(WakeId),
}

impl Room {
    /// For one stream.
    fn of_stream(self) -> usize {
        self.budget / 8
    }

    fn has(self, bytes: usize, more: usize) -> bool {
        bytes + more <= self.of_stream() && self.used + more <= self.budget / 2
    }
}

fn own(headers: &[(&[u8], &[u8])]) -> Pairs {
    headers
        .iter()
        .map(|(name, value)| (name.to_vec(), value.to_vec()))
        .collect()
}

fn size(headers: &[(&[u8], &[u8])]) -> usize {
    // What the two vectors of a pair cost beside their bytes.
    const PAIR: usize = 64;
    headers
        .iter()
        .map(|(name, value)| name.len() + value.len() + PAIR)
        .sum()
}

fn size_of(pairs: &Pairs) -> usize {
    pairs
        .iter()
        .map(|(name, value)| name.len() + value.len() + 64)
        .sum()
}

impl Outcomes {
    /// How many bytes are kept.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps what an event says.
    pub(crate) fn keep(&mut self, wake: &Wake<'_>, room: Room) -> Verdict {
        match wake {
            Wake::Body => {}
            Wake::Timer(id) => {
                self.kept.insert(WakeId::Timer(*id), Kept::Fired);
            }
            Wake::Callout(id, outcome) => {
                let outcome = match outcome {
                    Err(failure) => Err(Missing::Failed(*failure)),
                    Ok(response) => {
                        let length: usize = response.body.iter().map(|piece| piece.len()).sum();
                        let bytes = length + size(response.headers);
                        if room.has(self.bytes, bytes) {
                            self.bytes += bytes;
                            Ok(Response {
                                headers: own(response.headers),
                                body: response.body.concat(),
                            })
                        } else {
                            Err(Missing::NotKept(room.of_stream()))
                        }
                    }
                };
                self.kept
                    .insert(WakeId::Callout(*id), Kept::Response(outcome));
            }
            Wake::HttpStream(id, event) => return self.keep_part(*id, event, room),
        }
        Verdict::Fine
    }

    fn keep_part(&mut self, id: HttpStreamId, event: &HttpStreamEvent<'_>, room: Room) -> Verdict {
        let name = WakeId::HttpStream(id);
        let bytes = match event {
            HttpStreamEvent::Headers { headers, .. } | HttpStreamEvent::Trailers(headers) => {
                size(headers)
            }
            HttpStreamEvent::Data { pieces, .. } => pieces.iter().map(|piece| piece.len()).sum(),
            HttpStreamEvent::Complete | HttpStreamEvent::Failed(_) => 0,
        };
        let fits = room.has(self.bytes, bytes);
        let kept = self
            .kept
            .entry(name)
            .or_insert_with(|| Kept::Parts(Parts::default()));
        let Kept::Parts(parts) = kept else {
            return Verdict::Fine;
        };
        if parts.missing.is_some() {
            return Verdict::Fine;
        }
        if !fits {
            parts.missing = Some(Missing::NotKept(room.of_stream()));
            return Verdict::Cancel(name);
        }
        self.bytes += bytes;
        match event {
            HttpStreamEvent::Headers {
                headers,
                end_of_stream,
            } => {
                parts.headers = Some(own(headers));
                parts.ended |= *end_of_stream;
            }
            HttpStreamEvent::Data {
                pieces,
                end_of_stream,
            } => {
                if bytes > 0 {
                    parts.chunks.push_back(pieces.concat());
                }
                parts.ended |= *end_of_stream;
            }
            HttpStreamEvent::Trailers(trailers) => {
                parts.trailers = Some(own(trailers));
                parts.ended = true;
            }
            HttpStreamEvent::Complete => parts.ended = true,
            // What has ended well is not undone by a reset of what was still to be sent.
            HttpStreamEvent::Failed(failure) if !parts.ended => {
                parts.missing = Some(Missing::Failed(*failure));
            }
            HttpStreamEvent::Failed(_) => {}
        }
        Verdict::Fine
    }

    /// Takes what came of a callout; none: nothing yet.
    pub(crate) fn take_response(&mut self, id: WakeId) -> Option<Result<Response, Missing>> {
        let Some(Kept::Response(outcome)) = self.kept.remove(&id) else {
            return None;
        };
        if let Ok(response) = &outcome {
            self.give_back(response.body.len() + size_of(&response.headers));
        }
        Some(outcome)
    }

    /// Whether a timer was due and nobody noticed; it is noticed with this.
    pub(crate) fn take_timer(&mut self, id: WakeId) -> bool {
        matches!(self.kept.remove(&id), Some(Kept::Fired))
    }

    /// Whether something came that was not taken.
    pub(crate) fn has(&self, id: WakeId) -> bool {
        match self.kept.get(&id) {
            None => false,
            Some(Kept::Response(_) | Kept::Fired) => true,
            Some(Kept::Parts(parts)) => {
                parts.headers.is_some()
                    || !parts.chunks.is_empty()
                    || parts.ended
                    || parts.missing.is_some()
            }
        }
    }

    /// What is there of an HTTP stream, to take from with `take`.
    pub(crate) fn parts<T>(
        &mut self,
        id: HttpStreamId,
        take: impl FnOnce(&mut Parts) -> T,
    ) -> Option<T> {
        let Some(Kept::Parts(parts)) = self.kept.get_mut(&WakeId::HttpStream(id)) else {
            return None;
        };
        let before = parts.bytes();
        let taken = take(parts);
        let given_back = before.saturating_sub(parts.bytes());
        self.give_back(given_back);
        Some(taken)
    }

    /// Drops what was kept under a name.
    pub(crate) fn drop_kept(&mut self, id: WakeId) {
        match self.kept.remove(&id) {
            Some(Kept::Response(Ok(response))) => {
                self.give_back(response.body.len() + size_of(&response.headers));
            }
            Some(Kept::Parts(parts)) => self.give_back(parts.bytes()),
            Some(Kept::Response(Err(_)) | Kept::Fired) | None => {}
        }
    }

    fn give_back(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

impl Parts {
    fn bytes(&self) -> usize {
        let chunks: usize = self.chunks.iter().map(Vec::len).sum();
        let pairs = [&self.headers, &self.trailers];
        chunks + pairs.into_iter().flatten().map(size_of).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outrider_plugin_api::{CalloutId, CalloutResponse};

    const ROOM: Room = Room {
        used: 0,
        budget: 8 * 1024,
    };

    fn response(body: &[u8], outcomes: &mut Outcomes) -> Verdict {
        let response = CalloutResponse {
            headers: &[(b":status", b"200")],
            body: &[body, b""],
        };
        outcomes.keep(&Wake::Callout(CalloutId(1), Ok(response)), ROOM)
    }

    #[test]
    fn a_response_is_kept_until_it_is_taken() {
        let mut outcomes = Outcomes::default();
        assert_eq!(response(b"hello", &mut outcomes), Verdict::Fine);
        let id = WakeId::Callout(CalloutId(1));
        assert!(outcomes.has(id) && outcomes.bytes() > 5);
        let taken = outcomes.take_response(id).unwrap().unwrap();
        assert_eq!(taken.body, b"hello");
        assert_eq!((outcomes.bytes(), outcomes.take_response(id)), (0, None));
    }

    #[test]
    fn a_response_that_does_not_fit_is_missing() {
        let mut outcomes = Outcomes::default();
        response(&[b'x'; 2000], &mut outcomes);
        let id = WakeId::Callout(CalloutId(1));
        assert_eq!(
            outcomes.take_response(id),
            Some(Err(Missing::NotKept(1024)))
        );
        assert_eq!(outcomes.bytes(), 0);
    }

    #[test]
    fn a_stream_nobody_reads_is_cancelled_and_what_came_stays() {
        let mut outcomes = Outcomes::default();
        let id = HttpStreamId(4);
        let data = [b'x'; 600];
        let event = Wake::HttpStream(
            id,
            HttpStreamEvent::Data {
                pieces: &[&data],
                end_of_stream: false,
            },
        );
        assert_eq!(outcomes.keep(&event, ROOM), Verdict::Fine);
        let name = WakeId::HttpStream(id);
        assert_eq!(outcomes.keep(&event, ROOM), Verdict::Cancel(name));
        assert_eq!(outcomes.keep(&event, ROOM), Verdict::Fine);
        let (first, second, why) = outcomes
            .parts(id, |parts| {
                (
                    parts.chunks.pop_front(),
                    parts.chunks.pop_front(),
                    parts.missing,
                )
            })
            .unwrap();
        assert_eq!((first.map(|chunk| chunk.len()), second), (Some(600), None));
        assert_eq!(why, Some(Missing::NotKept(1024)));
        assert_eq!(outcomes.bytes(), 0);
    }

    #[test]
    fn all_streams_of_a_vm_together_are_bounded() {
        let mut outcomes = Outcomes::default();
        let response = CalloutResponse {
            headers: &[],
            body: &[b"hello"],
        };
        let full = Room {
            used: ROOM.budget / 2,
            ..ROOM
        };
        outcomes.keep(&Wake::Callout(CalloutId(2), Ok(response)), full);
        assert!(matches!(
            outcomes.take_response(WakeId::Callout(CalloutId(2))),
            Some(Err(Missing::NotKept(_)))
        ));
    }
}
