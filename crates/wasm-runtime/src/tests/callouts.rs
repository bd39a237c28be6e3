//! HTTP callouts.

use std::time::Duration;

use outrider_plugin_api::{
    CalloutFailure, CalloutId, CalloutResponse, Decision, Pause, Phase, Slot, Wake,
};

use super::fake::{FakeStream, Probe, probe};

const CALLS: &str = r#"
  (data (i32.const 100) "auth")
  (data (i32.const 110) "\01\00\00\00\05\00\00\00\02\00\00\00:path\00/a\00")
  (data (i32.const 140) "body")
  (global $own (mut i32) (i32.const 0))
  (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
    (global.set $own (local.get 0))
    (call $say_number (call $http_call (i32.const 100) (i32.const 4) (i32.const 110) (i32.const 21)
      (i32.const 140) (i32.const 4) (i32.const 0) (i32.const 0) (i32.const 1500) (i32.const 8)))
    (i32.const 1))
  (func (export "proxy_on_http_call_response") (param i32 i32 i32 i32 i32)
    (call $say_number (local.get 0)) (call $say_number (local.get 1))
    (call $say_number (local.get 2)) (call $say_number (local.get 3))
    (drop (call $buffer (i32.const 4) (i32.const 0) (i32.const 99) (i32.const 0) (i32.const 4)))
    (call $say_given)
    (drop (call $status (i32.const 24) (i32.const 0) (i32.const 4)))
    (call $say_given)
    (drop (call $effective (global.get $own)))
    (drop (call $continue (i32.const 0))))"#;

fn begun(probe: &Probe) -> (Slot, FakeStream) {
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    let decision = probe.call(Phase::RequestHeaders, &mut slot, &mut stream);
    assert_eq!(decision, Ok(Decision::Pause(Pause::Event)));
    (slot, stream)
}

#[test]
fn a_response_comes_to_the_root_and_lets_the_stream_go_on() {
    let probe = probe(CALLS);
    let (mut slot, mut stream) = begun(&probe);
    let headers = vec![(":path".to_owned(), "/a".to_owned())];
    let asked = (
        "auth".to_owned(),
        headers,
        "body".to_owned(),
        Duration::from_millis(1500),
    );
    assert_eq!(stream.callouts, [asked]);
    assert_eq!(stream.timers, [Duration::ZERO; 0], "the callout wakes it");
    let response = CalloutResponse {
        headers: &[(b":status", b"200"), (b"a", b"b")],
        body: &[b"wel", b"come"],
    };
    let reaction = probe
        .configured
        .event(
            &mut slot,
            Wake::Callout(CalloutId(1), Ok(response)),
            &mut stream,
        )
        .unwrap();
    assert!(reaction.continue_request && reaction.reply.is_none());
    assert_eq!(
        stream.logged(),
        ["00", "01", "04", "02", "07", "welcome", ""]
    );
}

#[test]
fn failures_are_told_as_envoy_tells_them() {
    for (failure, expected) in [
        (
            CalloutFailure::TooLarge,
            ["00", "01", "04", "00", "00", "", "reset"],
        ),
        (
            CalloutFailure::Reset,
            [
                "00",
                "01",
                "04",
                "03",
                "57",
                "upstream connect error or disconnect/reset before headers",
                "",
            ],
        ),
        (
            CalloutFailure::Timeout,
            ["00", "01", "04", "03", "24", "upstream request timeout", ""],
        ),
    ] {
        let probe = probe(CALLS);
        let (mut slot, mut stream) = begun(&probe);
        let wake = Wake::Callout(CalloutId(1), Err(failure));
        probe
            .configured
            .event(&mut slot, wake, &mut stream)
            .unwrap();
        assert_eq!(stream.logged(), expected);
    }
}

#[test]
fn what_cannot_be_called_is_refused_at_once() {
    for (failure, status) in [
        (CalloutFailure::ClusterNotFound, "02"),
        (CalloutFailure::MissingHeaders, "02"),
        (CalloutFailure::CannotStart, "10"),
        (CalloutFailure::TooMany, "10"),
    ] {
        let probe = probe(CALLS);
        let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
        stream.refuse_callouts = Some(failure);
        probe
            .call(Phase::RequestHeaders, &mut slot, &mut stream)
            .unwrap();
        assert_eq!(stream.logged(), [status], "{failure}");
    }
}

#[test]
fn an_outcome_that_nobody_waits_for_is_passed_over() {
    let probe = probe(CALLS);
    let (mut slot, mut stream) = begun(&probe);
    for id in [7, 8] {
        let wake = Wake::Callout(CalloutId(id), Err(CalloutFailure::Reset));
        let reaction = probe
            .configured
            .event(&mut slot, wake, &mut stream)
            .unwrap();
        assert!(!reaction.continue_request);
    }
    assert_eq!(stream.logged(), ["00"]);
}
