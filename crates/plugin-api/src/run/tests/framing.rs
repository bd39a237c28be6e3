//! What leaves a chain is framed right, whatever its plugins do.

use std::sync::Mutex;

use proptest::prelude::*;

use super::wire::{Asked, Wire, error, link, streaming, whole};
use crate::{
    Decision, Direction, FailureAction, HeaderError, HeaderMap, Interest, Link, Pause, Phase,
    Reply, Stream, WakeId,
};

const POST: &[(&str, &str)] = &[
    (":method", "POST"),
    (":path", "/"),
    (":authority", "a.test"),
    ("content-length", "7"),
];
const GET: &[(&str, &str)] = &[(":method", "GET"), (":path", "/"), (":authority", "a.test")];

/// A plugin with a handler for one phase.
fn at(
    phase: Phase,
    interest: Interest,
    handler: impl Fn(&mut dyn Stream) -> Result<Decision, crate::Fault> + Send + Sync + 'static,
) -> Link {
    link(
        FailureAction::Closed,
        interest,
        move |asked, stream| match asked {
            Asked::Call(call) if call.phase == phase => handler(stream),
            _ => Ok(Decision::Continue),
        },
    )
}

fn change(stream: &mut dyn Stream, name: &str, value: &str) -> Result<(), HeaderError> {
    stream.set_header(HeaderMap::RequestHeaders, name.as_bytes(), value.as_bytes())
}

#[test]
fn length_that_a_streaming_plugin_wrote_is_dropped_with_the_headers() {
    let plugin = link(FailureAction::Open, streaming(), |asked, stream| {
        if let Asked::Call(call) = asked {
            if call.phase == Phase::RequestHeaders {
                change(stream, "content-length", "2").unwrap();
                // The plugin reads its own value until the headers go on.
                let seen = stream.header(HeaderMap::RequestHeaders, b"content-length", 0);
                assert_eq!(seen, Some(&b"2"[..]));
            } else if call.phase == Phase::RequestBody {
                let text: &[u8] = if call.end_of_stream { b"ok" } else { b"" };
                stream.set_body(Direction::Request, text).unwrap();
            }
        }
        Ok(Decision::Continue)
    });
    let mut wire = Wire::new(vec![plugin]);
    wire.headers(Direction::Request, POST, false);
    wire.body(Direction::Request, b"good", false);
    wire.body(Direction::Request, b"bye", true);
    let sent = wire.sent(Direction::Request);
    assert_eq!(sent.header("content-length"), None);
    assert_eq!(sent.body, b"ok");
}

#[test]
fn length_that_a_plugin_with_the_whole_body_wrote_becomes_the_bodys() {
    let plugin = at(Phase::RequestBody, whole(), |stream| {
        stream
            .set_body(Direction::Request, b"longer than before")
            .unwrap();
        change(stream, "content-length", "3").unwrap();
        Ok(Decision::Continue)
    });
    let mut wire = Wire::new(vec![plugin]);
    wire.headers(Direction::Request, POST, false);
    wire.body(Direction::Request, b"goodbye", true);
    let sent = wire.sent(Direction::Request);
    assert_eq!(sent.header("content-length"), Some("18"));
    assert_eq!(sent.body, b"longer than before");
}

#[test]
fn length_of_a_message_without_a_body_is_dropped() {
    let plugin = at(Phase::RequestHeaders, streaming(), |stream| {
        change(stream, "content-length", "60").unwrap();
        Ok(Decision::Continue)
    });
    let mut wire = Wire::new(vec![plugin]);
    wire.headers(Direction::Request, GET, true);
    assert_eq!(wire.sent(Direction::Request).header("content-length"), None);
}

#[test]
fn length_does_not_change_once_headers_have_gone_on() {
    let plugin = at(Phase::RequestBody, streaming(), |stream| {
        stream
            .remove_header(HeaderMap::RequestHeaders, b"content-length")
            .unwrap();
        change(stream, "content-length", "1").unwrap();
        let refused = stream.set_body(Direction::Request, b"x");
        assert!(refused.is_err());
        Ok(Decision::Continue)
    });
    let mut wire = Wire::new(vec![plugin]);
    wire.headers(Direction::Request, POST, false);
    wire.body(Direction::Request, b"goodbye", true);
    assert_eq!(wire.sent(Direction::Request).body, b"goodbye");
    let map = wire.host.map(HeaderMap::RequestHeaders).clone().unwrap();
    assert!(map.contains(&(b"content-length".to_vec(), b"7".to_vec())));
}

#[test]
fn body_made_for_a_message_without_one_reaches_the_plugins_behind_it() {
    for behind in [streaming(), whole()] {
        let maker = at(Phase::RequestHeaders, streaming(), |stream| {
            stream.set_body(Direction::Request, b"first").unwrap();
            stream.set_body(Direction::Request, b"made").unwrap();
            assert_eq!(stream.body_len(Direction::Request), Some(4));
            Ok(Decision::Continue)
        });
        let may_grow = behind == whole();
        let reader = at(Phase::RequestBody, behind, move |stream| {
            assert_eq!(stream.body_len(Direction::Request), Some(4));
            let grown = stream.splice_body(Direction::Request, 4..4, b"!");
            assert_eq!(grown.is_ok(), may_grow);
            Ok(Decision::Continue)
        });
        let mut wire = Wire::new(vec![maker, reader]);
        wire.headers(Direction::Request, GET, true);
        let sent = wire.sent(Direction::Request);
        let (body, length) = if may_grow {
            ("made!", "5")
        } else {
            ("made", "4")
        };
        assert_eq!(sent.body, body.as_bytes());
        assert_eq!(sent.header("content-length"), Some(length));
    }
}

#[test]
fn response_whose_status_has_no_body_loses_it() {
    for (interest, phase) in [
        (streaming(), Phase::ResponseHeaders),
        (whole(), Phase::ResponseBody),
    ] {
        for (status, length) in [("204", None), ("304", None), ("205", Some("0"))] {
            let plugin = at(phase, interest, move |stream| {
                let map = HeaderMap::ResponseHeaders;
                stream
                    .set_header(map, b":status", status.as_bytes())
                    .unwrap();
                Ok(Decision::Continue)
            });
            let mut wire = Wire::new(vec![plugin]);
            wire.headers(Direction::Request, GET, true);
            let headers = [(":status", "201"), ("content-length", "10")];
            wire.headers(Direction::Response, &headers, false);
            wire.body(Direction::Response, b"HTTP/", false);
            wire.body(Direction::Response, b"1.1 2", true);
            let sent = wire.sent(Direction::Response);
            assert_eq!(sent.header(":status"), Some(status));
            assert_eq!(sent.header("content-length"), length);
            assert_eq!(sent.body, b"");
            assert!(sent.ended);
        }
    }
}

#[test]
fn response_that_can_have_a_body_again_has_it_and_no_length_of_another_status() {
    fn sets(status: &'static str) -> Link {
        at(Phase::ResponseHeaders, streaming(), move |stream| {
            stream
                .set_header(HeaderMap::ResponseHeaders, b":status", status.as_bytes())
                .unwrap();
            Ok(Decision::Continue)
        })
    }
    for without in ["204", "205", "304"] {
        // Responses pass the last plugin first.
        let mut wire = Wire::new(vec![sets("200"), sets(without)]);
        wire.headers(Direction::Request, GET, true);
        let headers = [(":status", "201"), ("content-length", "4")];
        wire.headers(Direction::Response, &headers, false);
        wire.body(Direction::Response, b"page", true);
        let sent = wire.sent(Direction::Response);
        assert_eq!(sent.header(":status"), Some("200"));
        assert_eq!(sent.header("content-length"), None);
        assert_eq!(sent.body, b"page");
        assert!(sent.ended);
    }
}

/// The upstream's 304 says how long the body is that it does not send.
#[test]
fn response_without_a_body_that_gets_another_status_has_no_length_of_one() {
    for interest in [streaming(), whole()] {
        for (method, length) in [("GET", Some("0")), ("HEAD", Some("231"))] {
            for (status, body) in [("200", ""), ("404", ""), ("200", "made")] {
                let plugin = at(Phase::ResponseHeaders, interest, move |stream| {
                    let map = HeaderMap::ResponseHeaders;
                    stream
                        .set_header(map, b":status", status.as_bytes())
                        .unwrap();
                    if !body.is_empty() {
                        stream
                            .set_body(Direction::Response, body.as_bytes())
                            .unwrap();
                    }
                    Ok(Decision::Continue)
                });
                let mut wire = Wire::new(vec![plugin]);
                let request = [
                    (":method", method),
                    (":path", "/"),
                    (":authority", "a.test"),
                ];
                wire.headers(Direction::Request, &request, true);
                let headers = [(":status", "304"), ("content-length", "231")];
                wire.headers(Direction::Response, &headers, true);
                let sent = wire.sent(Direction::Response);
                let makes = !body.is_empty() && method == "GET";
                let length = if makes { Some("4") } else { length };
                assert_eq!(sent.header("content-length"), length, "{method} {status}");
                assert_eq!(sent.body, if makes { b"made" } else { &b""[..] });
            }
        }
    }
}

#[test]
fn body_for_a_response_to_head_is_not_made() {
    let plugin = at(Phase::ResponseHeaders, streaming(), |stream| {
        stream.set_body(Direction::Response, b"page").unwrap();
        Ok(Decision::Continue)
    });
    let mut wire = Wire::new(vec![plugin]);
    wire.headers(
        Direction::Request,
        &[(":method", "HEAD"), (":path", "/")],
        true,
    );
    wire.headers(Direction::Response, &[(":status", "404")], true);
    assert_eq!(wire.sent(Direction::Response).body, b"");
}

#[test]
fn headers_of_the_connection_and_broken_pseudo_headers_are_refused() {
    let plugin = at(Phase::RequestHeaders, streaming(), |stream| {
        for (name, value) in [
            ("transfer-encoding", "chunked"),
            ("Transfer-Encoding", "identity"),
            ("connection", "close"),
            ("upgrade", "h2c"),
            ("te", "gzip"),
            ("trailer", "x"),
            ("keep-alive", "1"),
            ("proxy-connection", "close"),
            ("content-length", "+5, 7"),
            ("content-length", "-1"),
            (":method", "GET /x HTTP/1.1"),
            (":method", "HEAD"),
            (":path", "/a b"),
            (":path", "/a\u{7f}"),
            (":authority", "a b"),
            ("host", "a b"),
            (":status", "200"),
            (":protocol", "websocket"),
            ("a b", "c"),
            ("a", "b\r\nc: d"),
        ] {
            assert!(change(stream, name, value).is_err(), "{name}: {value}");
            let map = HeaderMap::RequestHeaders;
            let added = stream.add_header(map, name.as_bytes(), value.as_bytes());
            assert!(added.is_err(), "{name}: {value}");
        }
        let removed = stream.remove_header(HeaderMap::RequestHeaders, b":path");
        assert!(removed.is_err());
        change(stream, ":path", "/b?c=d").unwrap();
        change(stream, ":method", "PUT").unwrap();
        Ok(Decision::Continue)
    });
    let mut wire = Wire::new(vec![plugin]);
    wire.headers(Direction::Request, GET, true);
    let sent = wire.sent(Direction::Request);
    assert_eq!(sent.header(":path"), Some("/b?c=d"));
    assert_eq!(sent.headers.as_ref().unwrap().len(), 3);
}

#[test]
fn headers_that_are_forwarded_whole_change_nothing_of_the_connection() {
    let plugin = at(Phase::RequestHeaders, streaming(), |stream| {
        let map = HeaderMap::RequestHeaders;
        let mut all = Vec::new();
        stream.headers(map, &mut |name, value| {
            all.push((name.to_vec(), value.to_vec()));
        });
        all.push((b"x-own".to_vec(), b"1".to_vec()));
        stream
            .replace_headers(map, &crate::lend_headers(&all))
            .unwrap();
        stream.replace_headers(map, &[(b"x-only", b"1")]).unwrap();
        let refused = stream.replace_headers(map, &[(b"upgrade", b"other")]);
        assert_eq!(refused, Err(HeaderError::Connection("upgrade")));
        Ok(Decision::Continue)
    });
    let mut wire = Wire::new(vec![plugin]);
    let mut headers = GET.to_vec();
    headers.extend([
        ("upgrade", "websocket"),
        ("connection", "upgrade"),
        ("x-old", "1"),
    ]);
    wire.headers(Direction::Request, &headers, false);
    let sent = wire.sent(Direction::Request);
    assert_eq!(sent.header("upgrade"), Some("websocket"));
    assert_eq!(sent.header("connection"), Some("upgrade"));
    assert_eq!(sent.header(":path"), Some("/"));
    assert_eq!(sent.header("x-old"), None);
}

#[test]
fn reply_with_a_status_that_is_not_final_fails_the_plugin() {
    for status in [0, 100, 103, 199, 600, 65535] {
        let plugin = at(Phase::RequestHeaders, streaming(), move |_| {
            Ok(Decision::Reply(Box::new(Reply {
                status,
                ..Reply::default()
            })))
        });
        let mut wire = Wire::new(vec![plugin]);
        wire.headers(Direction::Request, GET, true);
        assert_eq!(wire.reply.unwrap().status, 500);
    }
}

#[test]
fn headers_grow_by_a_bounded_number_of_bytes() {
    let plugin = at(Phase::RequestHeaders, streaming(), |stream| {
        let value = vec![b'x'; 1000];
        let map = HeaderMap::RequestHeaders;
        let added = (0..1000)
            .take_while(|_| stream.add_header(map, b"x", &value).is_ok())
            .count();
        assert_eq!(added, crate::MOST_HEADER_BYTES / 1001);
        assert_eq!(
            stream.set_header(map, b"y", &value),
            Err(HeaderError::TooLarge)
        );
        Ok(Decision::Continue)
    });
    let mut wire = Wire::new(vec![plugin]);
    wire.headers(Direction::Request, GET, true);
    assert!(wire.sent(Direction::Request).ended);
}

/// What a random plugin does in one call.
#[derive(Debug, Clone)]
enum Act {
    Nothing,
    SetLength(u8),
    AddLength(u8),
    DropLength,
    SetBody(Vec<u8>),
    Splice(usize, usize, Vec<u8>),
    Status(u16),
    Sleep,
    MoreBody,
    WholeBody,
    Fail,
    Reply(u16, Vec<u8>),
}

fn acts() -> impl Strategy<Value = Act> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..9);
    prop_oneof![
        3 => Just(Act::Nothing),
        3 => any::<u8>().prop_map(Act::SetLength),
        1 => any::<u8>().prop_map(Act::AddLength),
        2 => Just(Act::DropLength),
        4 => bytes().prop_map(Act::SetBody),
        2 => (0..9_usize, 0..9_usize, bytes()).prop_map(|(a, b, c)| Act::Splice(a, b, c)),
        1 => prop_oneof![Just(200), Just(204), Just(205), Just(304)].prop_map(Act::Status),
        2 => Just(Act::Sleep),
        2 => Just(Act::MoreBody),
        1 => Just(Act::WholeBody),
        1 => Just(Act::Fail),
        1 => (prop_oneof![Just(200_u16), Just(204), Just(99)], bytes())
            .prop_map(|(status, body)| Act::Reply(status, body)),
    ]
}

/// A plugin that does what the script says, call after call.
fn random(script: Vec<Vec<Act>>, action: FailureAction, interest: Interest) -> Link {
    let script = Mutex::new(script.into_iter());
    link(action, interest, move |asked, stream| {
        let direction = match asked {
            Asked::Call(call) => call.phase.direction(),
            Asked::Resume(direction, _) => direction,
            Asked::Event(_) => Direction::Request,
        };
        let logs = matches!(asked, Asked::Call(call) if call.phase == Phase::Log);
        let map = direction.headers();
        let acts = script.lock().unwrap().next().unwrap_or_default();
        for act in acts {
            match act {
                Act::SetLength(length) => {
                    let _ =
                        stream.set_header(map, b"content-length", length.to_string().as_bytes());
                }
                Act::AddLength(length) => {
                    let _ =
                        stream.add_header(map, b"content-length", length.to_string().as_bytes());
                }
                Act::DropLength => {
                    let _ = stream.remove_header(map, b"content-length");
                }
                Act::SetBody(bytes) => {
                    let _ = stream.set_body(direction, &bytes);
                }
                Act::Splice(start, length, bytes) => {
                    let _ = stream.splice_body(direction, start..start + length, &bytes);
                }
                Act::Status(status) => {
                    let _ = stream.set_header(map, b":status", status.to_string().as_bytes());
                }
                Act::Sleep if !logs => {
                    if let Ok(id) = stream.start_timer(std::time::Duration::from_millis(1)) {
                        let _ = WakeId::Timer(id);
                        return Ok(Decision::Pause(Pause::Event));
                    }
                }
                Act::MoreBody => return Ok(Decision::Pause(Pause::MoreBody)),
                Act::WholeBody => return Ok(Decision::Pause(Pause::WholeBody)),
                Act::Fail => return Err(error("on purpose")),
                Act::Reply(status, body) => {
                    return Ok(Decision::Reply(Box::new(Reply {
                        status,
                        body,
                        ..Reply::default()
                    })));
                }
                Act::Nothing | Act::Sleep => {}
            }
        }
        Ok(Decision::Continue)
    })
}

/// One direction of a message.
#[derive(Debug, Clone)]
struct Message {
    announced: bool,
    chunks: Vec<Vec<u8>>,
    trailers: bool,
}

fn messages() -> impl Strategy<Value = Message> {
    let chunk = proptest::collection::vec(any::<u8>(), 0..6);
    (
        any::<bool>(),
        proptest::collection::vec(chunk, 0..4),
        any::<bool>(),
    )
        .prop_map(|(announced, chunks, trailers)| Message {
            announced: announced && !trailers,
            trailers: trailers && !chunks.is_empty(),
            chunks,
        })
}

fn feed(wire: &mut Wire, direction: Direction, message: &Message) {
    let mut headers = match direction {
        Direction::Request => GET.to_vec(),
        Direction::Response => vec![(":status", "200")],
    };
    let length = message
        .chunks
        .iter()
        .map(Vec::len)
        .sum::<usize>()
        .to_string();
    if message.announced {
        headers.push(("content-length", &length));
    }
    wire.headers(direction, &headers, message.chunks.is_empty());
    while wire.fire() {}
    for (index, chunk) in message.chunks.iter().enumerate() {
        let last = index + 1 == message.chunks.len();
        wire.body(direction, chunk, last && !message.trailers);
        if index % 2 == 0 {
            while wire.fire() {}
        }
    }
    if message.trailers {
        wire.trailers(direction, &[("x-end", "1")]);
    }
    while wire.fire() {}
}

fn is_framed(wire: &Wire, direction: Direction) {
    let sent = wire.sent(direction);
    let Some(length) = sent.header("content-length") else {
        return;
    };
    let length: usize = length.parse().unwrap();
    // A stream that ends early is reset, so its length says nothing.
    assert!(sent.body.len() <= length, "{sent:?}");
    if sent.ended {
        assert_eq!(sent.body.len(), length, "{sent:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

    /// Whatever plugins do, what leaves has the length that its headers say, and what has no body has none.
    #[test]
    fn what_leaves_a_chain_has_the_length_that_its_headers_say(
        scripts in proptest::collection::vec(
            (
                proptest::collection::vec(proptest::collection::vec(acts(), 0..4), 0..12),
                any::<bool>(),
                any::<bool>(),
            ),
            1..4,
        ),
        request in messages(),
        response in messages(),
    ) {
        let links = scripts
            .into_iter()
            .map(|(script, open, is_whole)| {
                let action = if open { FailureAction::Open } else { FailureAction::Closed };
                random(script, action, if is_whole { whole() } else { streaming() })
            })
            .collect();
        let mut wire = Wire::new(links);
        feed(&mut wire, Direction::Request, &request);
        if wire.reply.is_none() {
            feed(&mut wire, Direction::Response, &response);
        }
        is_framed(&wire, Direction::Request);
        is_framed(&wire, Direction::Response);
        let sent = wire.sent(Direction::Response);
        if matches!(sent.header(":status"), Some("204" | "205" | "304")) {
            prop_assert_eq!(&sent.body, b"");
        }
        if let Some(reply) = &wire.reply {
            prop_assert!((200..=599).contains(&reply.status));
            if matches!(reply.status, 204 | 205 | 304) {
                prop_assert_eq!(&reply.body, b"");
            }
            let length = reply.headers.iter().find(|(name, _)| name == b"content-length");
            if let Some((_, value)) = length {
                prop_assert_eq!(value, &reply.body.len().to_string().into_bytes());
            }
        }
        wire.log();
    }
}

/// The plugin that set the length fails when the headers have passed the chain: another one gave the response a status
/// without a body meanwhile.
#[test]
fn length_that_is_restored_late_is_none_of_a_response_without_a_body() {
    let open = FailureAction::Open;
    let first = vec![vec![], vec![Act::MoreBody], vec![Act::Fail]];
    let second = vec![vec![], vec![Act::Status(204)], vec![]];
    let third = vec![
        vec![Act::SetLength(0), Act::MoreBody],
        vec![],
        vec![Act::MoreBody],
    ];
    let mut wire = Wire::new(vec![
        random(first, open, streaming()),
        random(second, FailureAction::Closed, whole()),
        random(third, open, whole()),
    ]);
    let message = |announced, chunk| Message {
        announced,
        chunks: vec![chunk],
        trailers: false,
    };
    feed(&mut wire, Direction::Request, &message(false, vec![]));
    feed(&mut wire, Direction::Response, &message(true, vec![0]));
    let sent = wire.sent(Direction::Response);
    assert_eq!(sent.header(":status"), Some("204"));
    assert_eq!(sent.header("content-length"), None);
    assert_eq!(sent.body, b"");
}
