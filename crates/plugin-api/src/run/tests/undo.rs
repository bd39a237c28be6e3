//! A handler that fails under an open policy leaves the message as it was.

use proptest::prelude::*;

use super::wire::{Asked, Wire, error, link, streaming, whole};
use crate::{
    Decision, Direction, FailureAction, Fault, HeaderMap, Interest, Link, Pause, Phase, Stream,
};

const POST: &[(&str, &str)] = &[
    (":method", "POST"),
    (":path", "/"),
    (":authority", "a.test"),
    ("content-length", "7"),
    ("x-two", "a"),
    ("x-two", "b"),
];

fn set(stream: &mut dyn Stream, name: &str, value: &str) {
    stream
        .set_header(HeaderMap::RequestHeaders, name.as_bytes(), value.as_bytes())
        .unwrap();
}

/// A plugin that changes what it can in one phase, pauses if it is told to, and fails.
fn failing(phase: Phase, interest: Interest, pauses: bool) -> Link {
    let fails = move |stream: &mut dyn Stream| -> Result<Decision, Fault> {
        set(stream, "x-new", "1");
        set(stream, "x-two", "1");
        set(stream, ":path", "/other");
        let map = HeaderMap::RequestHeaders;
        stream.remove_header(map, b":path").unwrap_err();
        stream.add_header(map, b"x-two", b"2").unwrap();
        set(stream, "content-length", "3");
        let _ = stream.set_body(Direction::Request, b"half");
        let _ = stream.splice_body(Direction::Request, 1..3, b"abcdef");
        if pauses {
            stream
                .start_timer(std::time::Duration::from_millis(1))
                .unwrap();
            return Ok(Decision::Pause(Pause::Event));
        }
        Err(error("on purpose"))
    };
    link(
        FailureAction::Open,
        interest,
        move |asked, stream| match asked {
            Asked::Call(call) if call.phase == phase => fails(stream),
            Asked::Resume(..) => {
                set(stream, "x-later", "1");
                let _ = stream.set_body(Direction::Request, b"");
                Err(error("on purpose, later"))
            }
            _ => Ok(Decision::Continue),
        },
    )
}

fn sorted(wire: &Wire) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let sent = wire.sent(Direction::Request).headers.clone().unwrap();
    let mut headers: Vec<_> = sent
        .iter()
        .map(|(name, value)| (text(name), text(value)))
        .collect();
    headers.sort();
    headers
}

#[test]
fn changes_of_a_handler_that_fails_are_undone() {
    for phase in [Phase::RequestHeaders, Phase::RequestBody] {
        for interest in [streaming(), whole()] {
            for pauses in [false, true] {
                for body in [&b"goodbye"[..], b""] {
                    let mut wire = Wire::new(vec![failing(phase, interest, pauses)]);
                    let headers = if body.is_empty() {
                        POST.iter()
                            .filter(|(name, _)| *name != "content-length")
                            .copied()
                            .collect()
                    } else {
                        POST.to_vec()
                    };
                    wire.headers(Direction::Request, &headers, body.is_empty());
                    while wire.fire() {}
                    if !body.is_empty() {
                        wire.body(Direction::Request, body, true);
                    }
                    while wire.fire() {}
                    let mut expected: Vec<_> = headers
                        .iter()
                        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                        .collect();
                    expected.sort();
                    assert_eq!(sorted(&wire), expected, "{phase} {interest:?} {pauses}");
                    let sent = wire.sent(Direction::Request);
                    assert_eq!(sent.body, body, "{phase} {interest:?} {pauses}");
                    assert!(sent.ended);
                }
            }
        }
    }
}

#[test]
fn route_is_chosen_anew_when_the_path_is_undone() {
    let plugin = link(FailureAction::Open, streaming(), |_, stream| {
        set(stream, ":path", "/other");
        stream.clear_route_cache();
        Err(error("on purpose"))
    });
    let mut wire = Wire::new(vec![plugin]);
    wire.headers(Direction::Request, POST, false);
    assert_eq!(wire.host.routed, 2);
    assert_eq!(wire.sent(Direction::Request).header(":path"), Some("/"));
}

#[test]
fn what_a_handler_changed_that_came_to_its_end_stays() {
    let plugin = link(FailureAction::Open, whole(), |asked, stream| {
        if let Asked::Call(call) = asked
            && call.phase == Phase::RequestHeaders
        {
            set(stream, "x-new", "1");
            return Ok(Decision::Continue);
        }
        set(stream, "x-new", "2");
        Err(error("on purpose"))
    });
    let mut wire = Wire::new(vec![plugin]);
    wire.headers(Direction::Request, POST, false);
    wire.body(Direction::Request, b"goodbye", true);
    assert_eq!(wire.sent(Direction::Request).header("x-new"), Some("1"));
}

proptest! {
    /// However a body is changed before the failure, it leaves as it came.
    #[test]
    fn splices_of_a_handler_that_fails_are_undone(
        chunks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..6), 1..4),
        splices in proptest::collection::vec(
            (0..9_usize, 0..9_usize, proptest::collection::vec(any::<u8>(), 0..9)),
            0..6,
        ),
        is_whole in any::<bool>(),
    ) {
        let interest = if is_whole { whole() } else { streaming() };
        let plugin = link(FailureAction::Open, interest, move |asked, stream| {
            match asked {
                Asked::Call(call) if call.phase == Phase::RequestBody => {
                    for (start, length, bytes) in &splices {
                        let _ = stream.splice_body(Direction::Request, *start..start + length, bytes);
                    }
                    Err(error("on purpose"))
                }
                _ => Ok(Decision::Continue),
            }
        });
        let mut wire = Wire::new(vec![plugin]);
        let headers = [(":method", "POST"), (":path", "/"), (":authority", "a")];
        wire.headers(Direction::Request, &headers, false);
        for (index, chunk) in chunks.iter().enumerate() {
            wire.body(Direction::Request, chunk, index + 1 == chunks.len());
        }
        prop_assert_eq!(&wire.sent(Direction::Request).body, &chunks.concat());
    }
}
