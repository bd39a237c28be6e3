//! Streams: the order of callbacks, what they answer, headers, bodies, replies, logs, properties.

use std::time::Duration;

use outrider_plugin_api::{
    Audience, Decision, Direction, HeaderMap, LogLevel, Pause, Phase, Slot, Wake,
};

use super::fake::{FakeStream, clock, guest, load, probe, source};

const EVENT: Decision = Decision::Pause(Pause::Event);
const MORE: Decision = Decision::Pause(Pause::MoreBody);

#[test]
fn contexts_live_as_in_envoy() {
    let on = |name: &str, sign: char| {
        format!(
            r#"(func (export "proxy_on_{name}") (param i32 i32 i32) (result i32)
              (i32.store8 (i32.const 20) (i32.const {})) (call $told (local.get 0)) (i32.const 0))"#,
            sign as u32
        )
    };
    let probe = probe(&format!(
        r#"(func $told (param $id i32)
             (i32.store8 (i32.const 21) (i32.add (i32.const 48) (local.get $id)))
             (call $say (i32.const 20) (i32.const 2)))
           (func (export "proxy_on_context_create") (param i32 i32)
             (i32.store8 (i32.const 20) (i32.const 99)) (call $told (local.get 0)))
           {} {} {}
           (func (export "proxy_on_log") (param i32)
             (i32.store8 (i32.const 20) (i32.const 108)) (call $told (local.get 0)))
           (func (export "proxy_on_done") (param i32) (result i32)
             (i32.store8 (i32.const 20) (i32.const 100)) (call $told (local.get 0)) (i32.const 1))
           (func (export "proxy_on_delete") (param i32)
             (i32.store8 (i32.const 20) (i32.const 120)) (call $told (local.get 0)))"#,
        on("request_headers", 'h'),
        on("request_body", 'b'),
        on("response_headers", 'r'),
    ));
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    stream.bodies.insert(Direction::Request, b"x".to_vec());
    for phase in [
        Phase::RequestHeaders,
        Phase::RequestBody,
        Phase::ResponseHeaders,
        Phase::Log,
    ] {
        let decision = probe.call(phase, &mut slot, &mut stream);
        assert_eq!(decision, Ok(Decision::Continue), "{phase}");
    }
    probe.configured.end(slot, 0);
    // What was said without a stream is said on the next, also of the root.
    let (mut next, mut other) = (Slot::default(), FakeStream::new());
    probe
        .call(Phase::RequestHeaders, &mut next, &mut other)
        .unwrap();
    assert_eq!(
        stream.logged(),
        ["c1", "c2", "h2", "b2", "r2", "l2", "d2", "x2"]
    );
    assert_eq!(
        (slot, other.logged().join(" ")),
        (Slot::default(), "c3 h3".to_owned())
    );
}

#[test]
fn headers_are_read_and_changed_while_the_callback_has_them() {
    let probe = probe(
        r#"(data (i32.const 100) "x-one") (data (i32.const 110) "x-two") (data (i32.const 120) "nothing")
           (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
             (call $say_number (local.get 1))
             (call $say_number (call $get (i32.const 0) (i32.const 100) (i32.const 5) (i32.const 0) (i32.const 4)))
             (call $say_given)
             (call $say_number (call $get (i32.const 0) (i32.const 120) (i32.const 7) (i32.const 0) (i32.const 4)))
             (call $say_number (call $get (i32.const 2) (i32.const 100) (i32.const 5) (i32.const 0) (i32.const 4)))
             (call $say_number (call $get (i32.const 9) (i32.const 100) (i32.const 5) (i32.const 0) (i32.const 4)))
             (drop (call $add (i32.const 0) (i32.const 110) (i32.const 5) (i32.const 100) (i32.const 5)))
             (drop (call $replace (i32.const 0) (i32.const 100) (i32.const 5) (i32.const 110) (i32.const 5)))
             (i32.const 0))
           (func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
             ;; The request's headers have gone on.
             (call $say_number (call $get (i32.const 0) (i32.const 100) (i32.const 5) (i32.const 0) (i32.const 4)))
             (call $say_number (call $remove (i32.const 0) (i32.const 100) (i32.const 5)))
             (call $say_number (call $pairs (i32.const 0) (i32.const 0) (i32.const 4)))
             (call $say_number (i32.load (i32.const 4)))
             (call $say_number (call $set_pairs (i32.const 2) (i32.const 0) (i32.const 0)))
             (i32.const 0))
           (func (export "proxy_on_log") (param i32)
             (call $say_number (call $get (i32.const 0) (i32.const 110) (i32.const 5) (i32.const 0) (i32.const 4)))
             (call $say_given)
             (call $say_number (call $add (i32.const 0) (i32.const 110) (i32.const 5) (i32.const 100) (i32.const 5))))"#,
    );
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    for phase in [Phase::RequestHeaders, Phase::ResponseHeaders, Phase::Log] {
        probe.call(phase, &mut slot, &mut stream).unwrap();
    }
    assert_eq!(
        stream.logged(),
        [
            "04", "00", "1", "01", "02", "02", "02", "02", "00", "00", "00", "00", "x-one", "02"
        ]
    );
    let one = stream.get(HeaderMap::RequestHeaders, "x-one");
    assert_eq!(one.as_deref(), Some("x-two"));
    // Of all that are replaced, pseudo headers stay.
    let status = (b":status".to_vec(), b"200".to_vec());
    assert_eq!(stream.maps[&HeaderMap::ResponseHeaders], [status]);
    assert_eq!(
        stream.route_cleared, 1,
        "once, when the callback has returned"
    );
}

#[test]
fn relaxed_mode_shows_request_headers_with_the_response() {
    let body = r#"(data (i32.const 100) "x-one")
      (func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
        (drop (call $get (i32.const 0) (i32.const 100) (i32.const 5) (i32.const 0) (i32.const 4)))
        (call $say_given) (i32.const 0))"#;
    let mut source = source(&guest(body));
    source.options.relaxed = true;
    let probe = load(source, "{}").unwrap();
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    probe
        .call(Phase::ResponseHeaders, &mut slot, &mut stream)
        .unwrap();
    assert_eq!(stream.logged(), ["1"]);
}

#[test]
fn bodies_are_read_changed_and_kept() {
    let probe = probe(
        r#"(data (i32.const 100) "HELLO")
           (func (export "proxy_on_request_body") (param i32 i32 i32) (result i32)
             (drop (call $buffer (i32.const 0) (i32.const 1) (i32.const 3) (i32.const 0) (i32.const 4)))
             (call $say_given)
             (if (i32.eqz (local.get 2)) (then (return (i32.const 1))))
             (call $say_number
               (call $set_buffer (i32.const 0) (i32.const 2) (i32.const 1) (i32.const 100) (i32.const 5)))
             (drop (call $set_buffer (i32.const 0) (i32.const 0) (i32.const 4) (i32.const 100) (i32.const 5)))
             (i32.const 0))"#,
    );
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    stream.bodies.insert(Direction::Request, b"abcd".to_vec());
    let kept = probe.call(Phase::RequestBody, &mut slot, &mut stream);
    assert_eq!(kept, Ok(MORE));
    assert_eq!(
        stream.timers,
        [Duration::ZERO; 0],
        "more of the body wakes it"
    );
    stream.bodies.insert(Direction::Request, b"abcdef".to_vec());
    let done = probe.call_with(Phase::RequestBody, true, &mut slot, &mut stream);
    assert_eq!(done, Ok(Decision::Continue));
    assert_eq!(stream.logged(), ["bcd", "bcd", "02"]);
    assert_eq!(stream.body(Direction::Request), "HELLOef");
}

#[test]
fn stop_iteration_stops_all_but_where_the_option_says_otherwise() {
    let module = guest(
        r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) (i32.const 1))"#,
    );
    for (allow, expected) in [(false, EVENT), (true, MORE)] {
        let mut source = source(&module);
        source.options.allow_on_headers_stop_iteration = allow;
        let probe = load(source, "{}").unwrap();
        let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
        let decision = probe.call(Phase::RequestHeaders, &mut slot, &mut stream);
        assert_eq!(decision, Ok(expected));
    }
}

#[test]
fn a_reply_ends_the_stream_whatever_the_callback_answers() {
    let probe = probe(
        r#"(data (i32.const 100) "go away") (data (i32.const 110) "not you")
           (data (i32.const 120) "\02\00\00\00\05\00\00\00\01\00\00\00\07\00\00\00\01\00\00\00X-Why\001\00:status\002\00")
           (func $deny (param i32)
             (drop (call $reply (local.get 0) (i32.const 110) (i32.const 7) (i32.const 100) (i32.const 7)
               (i32.const 120) (i32.const 38) (i32.const -1))))
           (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
             (call $deny (i32.const 403)) (call $deny (i32.const 404)) (i32.const 0))
           (func (export "proxy_on_log") (param i32)
             (call $say_number (call $reply (i32.const 500) (i32.const 0) (i32.const 0) (i32.const 0)
               (i32.const 0) (i32.const 0) (i32.const 0) (i32.const -1)))
             (call $say_number (call $continue (i32.const 0)))
             (call $say_number (call $continue (i32.const 3)))
             (call $say_number (call $close (i32.const 9))))"#,
    );
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    let Ok(Decision::Reply(reply)) = probe.call(Phase::RequestHeaders, &mut slot, &mut stream)
    else {
        panic!("no reply");
    };
    assert_eq!(
        (reply.status, reply.body.as_slice()),
        (403, &b"go away"[..])
    );
    assert_eq!(reply.details, "not_you");
    assert_eq!(reply.audience, Audience::Everyone);
    assert_eq!(reply.headers, [(b"x-why".to_vec(), b"1".to_vec())]);
    let log = probe.call(Phase::Log, &mut slot, &mut stream);
    assert_eq!(log, Ok(Decision::Continue));
    assert_eq!(stream.logged(), ["10", "00", "12", "02"]);
}

#[test]
fn a_pause_that_nothing_wakes_is_looked_at() {
    let (clock, now) = clock();
    let mut source = source(&guest(
        r#"(global $waits (mut i32) (i32.const 0))
           (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
             (global.set $waits (local.get 0))
             (drop (call $tick (i32.const 30)))
             (i32.const 1))
           (func (export "proxy_on_tick") (param i32)
             (call $say_number (local.get 0))
             (drop (call $effective (global.get $waits)))
             (drop (call $continue (i32.const 0)))
             (drop (call $continue (i32.const 1))))"#,
    ));
    source.clock = clock;
    let probe = load(source, "{}").unwrap();
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    let paused = probe.call(Phase::RequestHeaders, &mut slot, &mut stream);
    assert_eq!((paused, stream.timers.len()), (Ok(EVENT), 1));
    let look = |timer, slot: &mut Slot, stream: &mut FakeStream| {
        probe
            .configured
            .event(slot, Wake::Timer(timer), stream)
            .unwrap()
    };
    let reaction = look(1, &mut slot, &mut stream);
    assert!(!reaction.continue_request);
    assert_eq!((stream.timers.len(), stream.logged().len()), (2, 0));
    now.fetch_add(31, std::sync::atomic::Ordering::Relaxed);
    let reaction = look(2, &mut slot, &mut stream);
    assert!(reaction.continue_request && !reaction.continue_response);
    assert_eq!(stream.logged(), ["01"]);
    assert_eq!(stream.timers.len(), 2, "nothing is waited for any more");
}

#[test]
fn properties_have_their_encodings() {
    let probe = probe(
        r#"(data (i32.const 100) "request\00path") (data (i32.const 120) "source\00port\00")
           (data (i32.const 140) "connection\00mtls") (data (i32.const 160) "plugin_name")
           (data (i32.const 180) "request\00time") (data (i32.const 200) "mine") (data (i32.const 210) "request\00nothing")
           (func $read (param i32 i32)
             (call $say_number (call $property (local.get 0) (local.get 1) (i32.const 0) (i32.const 4)))
             (call $say_number (i32.load (i32.const 4))))
           (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
             (call $read (i32.const 100) (i32.const 12))
             (call $say_given)
             (call $read (i32.const 120) (i32.const 12))
             (call $say_number (i32.wrap_i64 (i64.sub (i64.load (i32.load (i32.const 0))) (i64.const 4700))))
             (call $read (i32.const 140) (i32.const 15))
             (call $say_number (i32.load8_u (i32.load (i32.const 0))))
             (call $read (i32.const 160) (i32.const 11))
             (call $say_given)
             (call $read (i32.const 180) (i32.const 12))
             (call $say_number (i32.wrap_i64 (i64.div_u (i64.load (i32.load (i32.const 0))) (i64.const 100000))))
             (call $say_number (call $set_property (i32.const 200) (i32.const 4) (i32.const 160) (i32.const 11)))
             (call $read (i32.const 200) (i32.const 4))
             (call $say_given)
             (call $say_number (call $property (i32.const 210) (i32.const 15) (i32.const 0) (i32.const 4)))
             (call $say_number (call $property (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 4)))
             (i32.const 0))"#,
    );
    assert_eq!(
        probe.said(),
        [
            "00",
            "12",
            "/cart?item=1",
            "00",
            "08",
            "11",
            "00",
            "01",
            "01",
            "00",
            "05",
            "probe",
            "00",
            "08",
            "15",
            "00",
            "00",
            "11",
            "plugin_name",
            "01",
            "03"
        ]
    );
}

#[test]
fn lines_that_are_no_text_and_levels_that_are_none() {
    let probe = probe(
        r#"(data (i32.const 100) "a\ffb")
           (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
             (call $say_number (call $log (i32.const 5) (i32.const 100) (i32.const 3)))
             (call $say_number (call $log (i32.const 6) (i32.const 100) (i32.const 3)))
             (call $say_number (call $log (i32.const 0) (i32.const 100) (i32.const 3)))
             (i32.const 0))"#,
    );
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    probe
        .call(Phase::RequestHeaders, &mut slot, &mut stream)
        .unwrap();
    assert_eq!(stream.logged(), ["a\u{fffd}b", "00", "02", "00"]);
    assert_eq!(stream.logs.borrow()[0].0, LogLevel::Critical);
}

#[test]
fn tracing_shows_each_call_across_the_boundary() {
    let mut source = source(&guest(
        r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
             (drop (call $continue (i32.const 9))) (i32.const 0))"#,
    ));
    source.options.trace = true;
    let probe = load(source, "{}").unwrap();
    assert_eq!(
        probe.said(),
        [
            "[host->vm] proxy_on_request_headers(2, 4, 0)",
            "[vm->host] env.proxy_continue_stream(9) -> 2",
            "[host<-vm] proxy_on_request_headers -> 0",
        ]
    );
}

#[test]
fn a_reply_has_the_status_of_a_final_response() {
    for (status, answer) in [
        (103, "02"),
        (0, "02"),
        (199, "02"),
        (600, "02"),
        (65_736, "02"),
        (200, "00"),
        (599, "00"),
    ] {
        let probe = probe(&format!(
            r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
              (call $say_number (call $reply (i32.const {status}) (i32.const 0) (i32.const 0) (i32.const 0)
                (i32.const 0) (i32.const 0) (i32.const 0) (i32.const -1)))
              (i32.const 0))"#
        ));
        let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
        let decision = probe.call(Phase::RequestHeaders, &mut slot, &mut stream);
        assert_eq!(stream.logged(), [answer], "{status}");
        let replies = matches!(decision, Ok(Decision::Reply(_)));
        assert_eq!(replies, answer == "00", "{status}");
    }
}
