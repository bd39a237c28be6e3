//! Plugins in one chain do to a message what as many separate filters do.

use std::time::Duration;

use proptest::prelude::*;

use super::wire::{Asked, Sent, Wire, error, link, streaming, whole};
use crate::{Decision, Direction, FailureAction, HeaderMap, Interest, Link, Pause, Phase, Stream};

/// What a plugin does to a request, whatever the chunks are in which its body comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Changes each byte, chunk by chunk.
    Shift,
    /// Adds at the end, chunk by chunk, without a length.
    Append,
    /// Reverses the whole body.
    Reverse,
    /// Writes a length that is wrong, and doubles the whole body.
    Double,
    /// Makes a body where there is none.
    Make,
    /// Adds headers that say what it saw.
    See,
    /// Waits with the headers.
    Sleep,
    /// Waits with each chunk.
    SleepInBody,
    /// Changes the headers and fails, and the stream goes on.
    Fail,
}

impl Kind {
    fn interest(self) -> Interest {
        match self {
            Self::Reverse | Self::Double => whole(),
            _ => streaming(),
        }
    }

    fn link(self, number: usize) -> Link {
        link(
            FailureAction::Open,
            self.interest(),
            move |asked, stream| match asked {
                Asked::Call(call) => self.call(call.phase, call.end_of_stream, number, stream),
                _ => Ok(Decision::Continue),
            },
        )
    }

    fn call(
        self,
        phase: Phase,
        end: bool,
        number: usize,
        stream: &mut dyn Stream,
    ) -> Result<Decision, crate::Fault> {
        let request = Direction::Request;
        let map = HeaderMap::RequestHeaders;
        let mut body = Vec::new();
        stream.body_pieces(request, &mut |piece| body.extend_from_slice(piece));
        match (self, phase) {
            (Self::Shift, Phase::RequestBody) => {
                for byte in &mut body {
                    *byte = byte.wrapping_add(1);
                }
                stream.set_body(request, &body).unwrap();
            }
            (Self::Append, Phase::RequestHeaders) => {
                stream.remove_header(map, b"content-length").unwrap();
            }
            (Self::Append, Phase::RequestBody) if end => {
                stream
                    .splice_body(request, body.len()..body.len(), b"+")
                    .unwrap();
            }
            (Self::Reverse, Phase::RequestBody) => {
                body.reverse();
                stream.set_body(request, &body).unwrap();
            }
            (Self::Double, Phase::RequestBody) => {
                stream.set_header(map, b"content-length", b"1").unwrap();
                stream.set_body(request, &body.repeat(2)).unwrap();
            }
            (Self::Make, Phase::RequestHeaders) if end => {
                stream.set_body(request, b"made").unwrap();
            }
            (Self::See, Phase::RequestHeaders) => {
                let mut seen = format!("{number} {end}").into_bytes();
                stream.headers(map, &mut |name, value| {
                    if name != b"x-seen" {
                        seen.extend([name, b"=", value, b" "].concat());
                    }
                });
                stream.add_header(map, b"x-seen", &seen).unwrap();
            }
            (Self::Sleep, Phase::RequestHeaders) | (Self::SleepInBody, Phase::RequestBody) => {
                stream.start_timer(Duration::from_millis(1)).unwrap();
                return Ok(Decision::Pause(Pause::Event));
            }
            (Self::Fail, Phase::RequestHeaders) => {
                stream.set_header(map, b"content-length", b"99").unwrap();
                stream.set_header(map, b":path", b"/failed").unwrap();
                return Err(error("on purpose"));
            }
            _ => {}
        }
        Ok(Decision::Continue)
    }
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Shift),
        Just(Kind::Append),
        Just(Kind::Reverse),
        Just(Kind::Double),
        Just(Kind::Make),
        Just(Kind::See),
        Just(Kind::Sleep),
        Just(Kind::SleepInBody),
        Just(Kind::Fail),
    ]
}

/// A part of a message on its way from filter to filter.
enum Part {
    Headers(Vec<(String, String)>, bool),
    Body(Vec<u8>, bool),
    Trailers,
}

fn feed(wire: &mut Wire, part: &Part) {
    let request = Direction::Request;
    match part {
        Part::Headers(headers, end) => {
            let headers: Vec<_> = headers
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str()))
                .collect();
            wire.headers(request, &headers, *end);
        }
        Part::Body(bytes, end) => wire.body(request, bytes, *end),
        Part::Trailers => wire.trailers(request, &[("x-end", "1")]),
    }
}

/// What left a filter since the last time, as it enters the next one.
fn news(sent: &Sent, before: &Sent) -> Vec<Part> {
    let mut parts = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let bytes = &sent.body[before.body.len()..];
    let has_trailers = sent.trailers.is_some();
    if let (Some(headers), None) = (&sent.headers, &before.headers) {
        let headers = headers
            .iter()
            .map(|(name, value)| (text(name), text(value)));
        let alone = sent.ended && bytes.is_empty() && !has_trailers;
        parts.push(Part::Headers(headers.collect(), alone));
        if alone {
            return parts;
        }
    }
    let ends = sent.ended && !before.ended;
    if !bytes.is_empty() || (ends && !has_trailers) {
        parts.push(Part::Body(bytes.to_vec(), ends && !has_trailers));
    }
    if ends && has_trailers {
        parts.push(Part::Trailers);
    }
    parts
}

fn separately(kinds: &[Kind], parts: Vec<Part>) -> Sent {
    let mut left = parts;
    let mut last = Sent::default();
    for (number, kind) in kinds.iter().enumerate() {
        let mut wire = Wire::new(vec![kind.link(number)]);
        let mut out = Vec::new();
        let mut before = Sent::default();
        for part in left {
            feed(&mut wire, &part);
            while wire.fire() {}
            out.extend(news(wire.sent(Direction::Request), &before));
            before = wire.sent(Direction::Request).clone();
        }
        last = before;
        left = out;
    }
    last
}

fn message(chunks: &[Vec<u8>], announced: bool, trailers: bool) -> Vec<Part> {
    let pair = |name: &str, value: String| (name.to_owned(), value);
    let mut headers = vec![
        pair(":method", "POST".into()),
        pair(":path", "/".into()),
        pair(":authority", "a".into()),
    ];
    let trailers = trailers && !chunks.is_empty();
    if announced && !trailers && !chunks.is_empty() {
        let length: usize = chunks.iter().map(Vec::len).sum();
        headers.push(pair("content-length", length.to_string()));
    }
    let mut parts = vec![Part::Headers(headers, chunks.is_empty())];
    for (index, chunk) in chunks.iter().enumerate() {
        let last = index + 1 == chunks.len();
        parts.push(Part::Body(chunk.clone(), last && !trailers));
    }
    if trailers {
        parts.push(Part::Trailers);
    }
    parts
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn plugins_of_one_chain_do_what_separate_filters_do(
        kinds in proptest::collection::vec(kinds(), 1..5),
        chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..5), 0..4),
        announced in any::<bool>(),
        trailers in any::<bool>(),
    ) {
        let links = kinds.iter().enumerate().map(|(number, kind)| kind.link(number));
        let mut chain = Wire::new(links.collect());
        for part in message(&chunks, announced, trailers) {
            feed(&mut chain, &part);
            while chain.fire() {}
        }
        let expected = separately(&kinds, message(&chunks, announced, trailers));
        prop_assert_eq!(chain.sent(Direction::Request), &expected);
    }
}
