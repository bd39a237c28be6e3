//! Plugins that keep a body until more of it comes, or headers while its chunks pass, and events that let a
//! stream go on: in every way in which messages can arrive.

use std::time::Duration;

use outrider_plugin_api::{
    BodyMode, Cause, Decision, Direction, Fault, HeaderMap, Interest, Pause, Phase, Reaction, Wake,
};
use outrider_plugin_testkit::{Arrival, Headers, Message, Outcome, ScriptedHost, play};

use crate::scripted::{Build, Notes, body, chain};

fn post(chunks: &[&str], trailers: bool) -> Message {
    Message {
        headers: Headers::new()
            .with(":method", "POST")
            .with(":path", "/")
            .with(":authority", "shop"),
        chunks: chunks
            .iter()
            .map(|chunk| chunk.as_bytes().to_vec())
            .collect(),
        trailers: trailers.then(|| Headers::new().with("x-t", "1")),
    }
}

fn ok() -> Message {
    Message {
        headers: Headers::new().with(":status", "200"),
        chunks: vec![b"hello".to_vec()],
        trailers: None,
    }
}

fn in_every_way(plugins: impl Fn() -> Vec<Build>, request: &Message, check: impl Fn(&Outcome)) {
    for arrival in Arrival::ALL {
        let outcome = play(
            chain(plugins()),
            request,
            &ok(),
            arrival,
            ScriptedHost::default(),
        );
        assert_eq!(outcome.problems, Vec::<String>::new(), "{arrival:?}");
        check(&outcome);
    }
}

fn upstream_body(outcome: &Outcome) -> String {
    let request = outcome.upstream_request.as_ref().unwrap();
    assert!(request.complete);
    String::from_utf8(request.body.clone()).unwrap()
}

const STREAMS: Interest = Interest {
    request_headers: false,
    request_body: BodyMode::Stream,
    request_trailers: false,
    response_headers: false,
    response_body: BodyMode::None,
    response_trailers: false,
    log: false,
};

/// Keeps the body until its end, or its trailers, and puts its name around what it has then.
fn keeping(name: &'static str) -> Build {
    let interest = Interest {
        request_trailers: true,
        ..STREAMS
    };
    Build::new(name, interest, move |_, call, stream| {
        if call.phase == Phase::RequestTrailers {
            return Ok(Decision::Continue);
        }
        if !call.end_of_stream {
            return Ok(Decision::Pause(Pause::MoreBody));
        }
        let whole = format!("{name}({})", body(stream, Direction::Request));
        stream
            .set_body(Direction::Request, whole.as_bytes())
            .unwrap();
        Ok(Decision::Continue)
    })
}

#[test]
fn a_kept_body_is_given_again_with_what_has_come() {
    let request = post(&["one", "two", "three"], false);
    in_every_way(
        || vec![keeping("a")],
        &request,
        |outcome| {
            assert_eq!(upstream_body(outcome), "a(onetwothree)");
        },
    );
    in_every_way(
        || vec![keeping("a"), keeping("b")],
        &request,
        |outcome| {
            assert_eq!(upstream_body(outcome), "b(a(onetwothree))");
        },
    );
}

#[test]
fn trailers_let_a_kept_body_go_on() {
    in_every_way(
        || vec![keeping("a"), keeping("b")],
        &post(&["one", "two"], true),
        |outcome| {
            assert_eq!(upstream_body(outcome), "onetwo");
            let trailers = &outcome.upstream_request.as_ref().unwrap().trailers;
            assert_eq!(trailers.as_ref().unwrap().text("x-t"), "1");
        },
    );
}

#[test]
fn a_link_that_keeps_every_second_chunk_is_followed_by_others() {
    let notes = Notes::default();
    let plugins = || {
        let seen = notes.clone();
        let every_second = Build::new("second", STREAMS, |slot, call, _| {
            slot.0 += 1;
            Ok(if slot.0 % 2 == 1 && !call.end_of_stream {
                Decision::Pause(Pause::MoreBody)
            } else {
                Decision::Continue
            })
        });
        let last = Build::new("last", STREAMS, move |_, call, stream| {
            seen.add(body(stream, Direction::Request));
            Ok(if call.end_of_stream {
                Decision::Continue
            } else {
                Decision::Pause(Pause::MoreBody)
            })
        });
        vec![every_second, last]
    };
    in_every_way(plugins, &post(&["a", "b", "c", "d"], false), |outcome| {
        assert_eq!(upstream_body(outcome), "abcd");
        let seen = notes.take();
        assert_eq!(seen.last().map(String::as_str), Some("abcd"), "{seen:?}");
    });
}

/// Stops its headers while chunks come, up to one that has an `!`.
fn stopping_headers() -> Build {
    let interest = Interest {
        request_headers: true,
        ..STREAMS
    };
    Build::new("stopping", interest, |_, call, stream| {
        if call.phase == Phase::RequestHeaders {
            return Ok(Decision::Pause(Pause::MoreBody));
        }
        let seen = body(stream, Direction::Request);
        if !seen.contains('!') && !call.end_of_stream {
            return Ok(Decision::Pause(Pause::MoreBody));
        }
        // Its headers have not gone on: they can follow the body.
        stream
            .set_header(HeaderMap::RequestHeaders, b"x-seen", seen.as_bytes())
            .unwrap();
        Ok(Decision::Continue)
    })
}

#[test]
fn headers_wait_while_chunks_come() {
    let behind = || {
        let interest = Interest {
            request_headers: true,
            ..Interest::default()
        };
        Build::new("behind", interest, |_, _, stream| {
            let seen = stream
                .header(HeaderMap::RequestHeaders, b"x-seen", 0)
                .is_some();
            assert!(seen, "the headers came before they were let go");
            Ok(Decision::Continue)
        })
    };
    let request = post(&["one", "two!", "three"], false);
    in_every_way(
        || vec![stopping_headers(), behind()],
        &request,
        |outcome| {
            assert_eq!(upstream_body(outcome), "onetwo!three");
            let headers = &outcome.upstream_request.as_ref().unwrap().headers;
            assert!(headers.text("x-seen").starts_with("onetwo!"));
        },
    );
}

/// Keeps the body until a timer is due, whose event lets it go on.
fn until_a_timer(interest: Interest) -> Build {
    Build::new("timer", interest, |slot, _, stream| {
        if slot.0 == 0 {
            slot.0 = 1;
            stream.start_timer(Duration::from_millis(20)).unwrap();
        }
        Ok(if slot.0 == 2 {
            Decision::Continue
        } else {
            Decision::Pause(Pause::MoreBody)
        })
    })
    .on_event(|slot, wake, stream| {
        assert!(matches!(wake, Wake::Timer(_)));
        slot.0 = 2;
        if let Some(length) = stream.body_len(Direction::Request) {
            stream
                .splice_body(Direction::Request, length..length, b".")
                .unwrap();
        }
        Ok(Reaction {
            continue_request: true,
            ..Reaction::default()
        })
    })
}

#[test]
fn an_event_lets_what_is_kept_go_on() {
    for interest in [
        STREAMS,
        Interest {
            request_headers: true,
            ..STREAMS
        },
    ] {
        in_every_way(
            || vec![until_a_timer(interest), keeping("b")],
            &post(&["one", "two"], false),
            |outcome| {
                let seen = upstream_body(outcome);
                assert!(seen.starts_with("b(one") && seen.ends_with(')'), "{seen}");
                assert_eq!(seen.matches('.').count(), 1, "{seen}");
            },
        );
    }
}

#[test]
fn a_link_that_fails_open_gives_back_what_it_kept() {
    let failing = || {
        Build::new("failing", STREAMS, |slot, _, _| {
            slot.0 += 1;
            if slot.0 == 1 {
                return Ok(Decision::Pause(Pause::MoreBody));
            }
            Err(Fault {
                cause: Cause::Error,
                message: "no more".to_owned(),
            })
        })
        .open()
    };
    in_every_way(
        || vec![failing(), keeping("b")],
        &post(&["one", "two", "three"], false),
        |outcome| assert_eq!(upstream_body(outcome), "b(onetwothree)"),
    );
}
