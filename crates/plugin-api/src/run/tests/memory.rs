//! Memory accounts: bytes that the proxy keeps for a plugin over all streams stay within its limit.

use std::sync::{Arc, Mutex};

use super::wire::{Asked, Wire, link, streaming};
use crate::{
    BodyError, CalloutFailure, CalloutId, CalloutRequest, Decision, Direction, FailureAction,
    FilterStateKind, HeaderMap, HttpStreamEvent, HttpStreamId, HttpStreamRequest, Link,
    MemoryAccount, MetadataTree, Phase, Reply, Scalar, Stream, Wake, WakeId,
};

const LIMIT: usize = 1 << 20;

const GET: [(&str, &str); 3] = [(":method", "GET"), (":path", "/"), (":authority", "a")];

type Calls = Arc<Mutex<Vec<String>>>;

fn is_in(asked: Asked<'_>, phase: Phase) -> bool {
    matches!(asked, Asked::Call(call) if call.phase == phase)
}

/// A plugin that calls `act` with each stream's request headers, and records what it returns.
fn plugin(
    account: &Arc<MemoryAccount>,
    act: impl Fn(&mut dyn Stream) -> (String, Decision) + Send + Sync + 'static,
) -> (Link, Calls) {
    let calls = Calls::default();
    let recorded = Arc::clone(&calls);
    let link = link(FailureAction::Closed, streaming(), move |asked, stream| {
        if !is_in(asked, Phase::RequestHeaders) {
            return Ok(Decision::Continue);
        }
        let (call, decision) = act(stream);
        recorded.lock().unwrap().push(call);
        Ok(decision)
    });
    let memory = Arc::clone(account);
    (Link { memory, ..link }, calls)
}

fn text<E: ToString>(result: Result<(), E>) -> String {
    result.map_or_else(|error| error.to_string(), |()| "done".to_owned())
}

fn request(body: &[u8]) -> CalloutRequest<'_> {
    CalloutRequest {
        cluster: b"up",
        headers: &[
            (b":method", b"POST"),
            (b":path", b"/"),
            (b":authority", b"a"),
        ],
        body,
        timeout: None,
    }
}

/// Streams of the plugin, until one is refused.
fn streams(link: &Link, calls: &Calls) -> Vec<Wire> {
    let mut open = Vec::new();
    for _ in 0..1000 {
        let mut wire = Wire::new(vec![link.clone()]);
        wire.headers(Direction::Request, &GET, true);
        open.push(wire);
        let is_refused = |call: &String| call != "done";
        if calls.lock().unwrap().last().is_some_and(is_refused) {
            break;
        }
    }
    open
}

/// Runs streams that each keep about `kept` bytes: they are refused when the account is full, and nothing is left of
/// them when they end.
fn check(kept: usize, act: impl Fn(&mut dyn Stream) -> (String, Decision) + Send + Sync + 'static) {
    let account = Arc::new(MemoryAccount::new(LIMIT));
    let (link, calls) = plugin(&account, act);
    for _ in 0..2 {
        let mut open = streams(&link, &calls);
        let expected = LIMIT / kept;
        let count = open.len() - 1;
        assert!((expected / 2..=expected + 1).contains(&count), "{count}");
        let last = calls.lock().unwrap().last().cloned().unwrap();
        assert!(last.contains("`budgets.memory_mib`"), "{last}");
        assert!(account.used() <= LIMIT && account.used() > LIMIT / 2);
        for wire in &mut open {
            wire.log();
        }
        assert_eq!(account.used(), 0);
    }
}

#[test]
fn bodies_of_callouts_count_until_their_streams_end() {
    check(100_000, |stream| {
        let started = stream.start_callout(&request(&vec![b'x'; 100_000]));
        (text(started.map(|_| ())), Decision::Continue)
    });
}

#[test]
fn bodies_put_into_messages_count_until_their_streams_end() {
    check(100_000, |stream| {
        let set = stream.set_body(Direction::Request, &vec![b'x'; 100_000]);
        (text(set), Decision::Continue)
    });
}

#[test]
fn metadata_filter_state_and_headers_count_until_their_streams_end() {
    let large = || vec![b'x'; 50_000];
    check(50_000, move |stream| {
        let set = stream.set_metadata(b"p", b"k", Scalar::String(&large()));
        (text(set), Decision::Continue)
    });
    check(64 * 1000, |stream| {
        let tree = MetadataTree::List(vec![MetadataTree::Null; 1000]);
        let set = stream.set_metadata_tree(b"p", b"k", &tree);
        (text(set), Decision::Continue)
    });
    check(50_000, move |stream| {
        let set = stream.set_filter_state(b"k", &large(), FilterStateKind::Bytes);
        (text(set), Decision::Continue)
    });
    check(50_000, move |stream| {
        let set = stream.set_header(HeaderMap::RequestHeaders, b"x-large", &large());
        (text(set), Decision::Continue)
    });
}

#[test]
fn parts_sent_on_http_streams_count_until_they_end() {
    check(100_000, |stream| {
        let request = HttpStreamRequest {
            cluster: b"up",
            headers: request(b"").headers,
            body: b"",
            end_of_stream: false,
            timeout: None,
        };
        let id = stream.start_http_stream(&request).unwrap();
        let sent =
            (0..10).try_for_each(|_| stream.send_http_stream_data(id, &vec![b'x'; 10_000], false));
        (text(sent), Decision::Continue)
    });
}

#[test]
fn replies_count_until_their_streams_end_and_are_bounded_by_the_body_limit() {
    let account = Arc::new(MemoryAccount::new(LIMIT));
    let reply = |length: usize| Reply {
        status: 200,
        body: vec![b'x'; length],
        ..Reply::default()
    };
    let of = |length: usize| {
        plugin(&account, move |_| {
            let reply = Box::new(reply(length));
            ("done".to_owned(), Decision::Reply(reply))
        })
        .0
    };
    let large = of(300_000);
    let mut open = Vec::new();
    for number in 0..5 {
        let mut wire = Wire::new(vec![large.clone()]);
        wire.headers(Direction::Request, &GET, true);
        let sent = wire.reply.as_ref().unwrap();
        if number < 3 {
            assert_eq!((sent.status, sent.body.len()), (200, 300_000));
        } else {
            assert_eq!((sent.status, sent.body.len()), (500, 0));
            let fault = &wire.host.faults[0].2;
            assert!(fault.message.contains("`budgets.memory_mib`"), "{fault:?}");
        }
        open.push(wire);
    }
    for wire in &mut open {
        wire.log();
    }
    assert_eq!(account.used(), 0);
    let mut wire = Wire::new(vec![of((1 << 20) + 1)]);
    wire.headers(Direction::Request, &GET, true);
    assert_eq!(wire.reply.as_ref().unwrap().status, 500);
    let fault = &wire.host.faults[0].2;
    assert!(fault.message.contains("raise `body_limit`"), "{fault:?}");
}

#[test]
fn callout_that_is_over_or_cancelled_frees_its_memory_while_its_stream_goes_on() {
    let account = Arc::new(MemoryAccount::new(LIMIT));
    let ids = Arc::new(Mutex::new(Vec::new()));
    let started = Arc::clone(&ids);
    let (link, calls) = plugin(&account, move |stream| {
        let body = vec![b'x'; LIMIT + 1];
        let too_large = stream.start_callout(&request(&body)).unwrap_err();
        assert_eq!(too_large, CalloutFailure::BodyTooLarge(1 << 20));
        let id = stream
            .start_callout(&request(&vec![b'x'; 400_000]))
            .unwrap();
        started.lock().unwrap().push(id);
        let whole = HttpStreamRequest {
            cluster: b"up",
            headers: request(b"").headers,
            body: &vec![b'x'; 400_000],
            end_of_stream: false,
            timeout: None,
        };
        let other = stream.start_http_stream(&whole).unwrap();
        let refused = stream.send_http_stream_data(other, &vec![b'x'; 400_000], true);
        assert!(matches!(refused, Err(CalloutFailure::Memory(_))));
        // What was refused did not complete the request.
        stream.send_http_stream_data(other, b"end", true).unwrap();
        let over = stream.send_http_stream_data(other, b"more", true);
        assert_eq!(over, Err(CalloutFailure::StreamOver));
        stream.cancel(WakeId::HttpStream(other));
        ("done".to_owned(), Decision::Continue)
    });
    let mut wire = Wire::new(vec![link]);
    wire.headers(Direction::Request, &GET, true);
    assert_eq!(*calls.lock().unwrap(), ["done"]);
    assert!((400_000..410_000).contains(&account.used()));
    let id: CalloutId = ids.lock().unwrap()[0];
    wire.wake(Wake::Callout(id, Err(CalloutFailure::Timeout)));
    assert_eq!(account.used(), 0);
}

#[test]
fn growth_of_chunks_is_freed_when_another_window_has_passed() {
    let account = Arc::new(MemoryAccount::new(6 << 20));
    let memory = Arc::clone(&account);
    let grows = link(FailureAction::Closed, streaming(), move |asked, stream| {
        if is_in(asked, Phase::ResponseBody) {
            let chunk = vec![b'y'; 100_000];
            // What is taken out again in the same call costs nothing.
            for _ in 0..100 {
                stream.set_body(Direction::Response, &chunk).unwrap();
                stream.set_body(Direction::Response, b"").unwrap();
            }
            stream.set_body(Direction::Response, &chunk).unwrap();
            let too_large = stream.set_body(Direction::Response, &vec![b'y'; (1 << 20) + 1]);
            assert_eq!(too_large, Err(BodyError::TooLarge(1 << 20)));
        }
        Ok(Decision::Continue)
    });
    let grows = Link {
        memory: Arc::clone(&memory),
        ..grows
    };
    let mut wire = Wire::new(vec![grows]);
    wire.headers(Direction::Request, &GET, true);
    wire.headers(Direction::Response, &[(":status", "200")], false);
    for number in 0..1000 {
        wire.body(Direction::Response, &vec![b'x'; 50_000], number == 999);
        assert!(account.used() <= 5 << 20, "{}", account.used());
    }
    assert_eq!(wire.sent(Direction::Response).body.len(), 100_000_000);
    wire.log();
    assert_eq!(account.used(), 0);
}

#[test]
fn parts_recorded_for_undoing_count_until_the_handler_is_done() {
    let account = Arc::new(MemoryAccount::new(LIMIT));
    let open = link(FailureAction::Open, streaming(), |asked, stream| {
        if is_in(asked, Phase::RequestBody) {
            let refused = (0..10_000).find_map(|number: u32| {
                let half = vec![number as u8; 50_000];
                stream.set_body(Direction::Request, &half).err()
            });
            assert!(matches!(refused, Some(BodyError::Memory(_))));
        }
        Ok(Decision::Continue)
    });
    let open = Link {
        memory: Arc::clone(&account),
        ..open
    };
    let mut wire = Wire::new(vec![open]);
    wire.headers(Direction::Request, &GET, false);
    wire.body(Direction::Request, &vec![b'x'; 50_000], true);
    assert_eq!(wire.sent(Direction::Request).body.len(), 50_000);
    assert_eq!(account.used(), 0);
}

#[test]
fn events_count_in_the_account_of_the_plugin_that_waits_for_them() {
    let account = Arc::new(MemoryAccount::new(LIMIT));
    let ids = Arc::new(Mutex::new(Vec::new()));
    let started = Arc::clone(&ids);
    let (link, _) = plugin(&account, move |stream| {
        let id = stream.start_callout(&request(b"")).unwrap();
        started.lock().unwrap().push(id);
        ("done".to_owned(), Decision::Continue)
    });
    let mut wire = Wire::new(vec![link]);
    wire.headers(Direction::Request, &GET, true);
    let id = WakeId::Callout(ids.lock().unwrap()[0]);
    let held = wire.run.reserve_event(id, 900_000).unwrap();
    assert!(held.is_some());
    assert!(wire.run.reserve_event(id, 900_000).is_err());
    drop(held);
    assert!(wire.run.reserve_event(id, 900_000).unwrap().is_some());
    let nobody = WakeId::HttpStream(HttpStreamId(77));
    assert!(wire.run.reserve_event(nobody, LIMIT * 2).unwrap().is_none());
    wire.wake(Wake::HttpStream(
        HttpStreamId(77),
        HttpStreamEvent::Complete,
    ));
}
