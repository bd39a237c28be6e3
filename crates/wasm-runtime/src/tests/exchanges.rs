//! gRPC, foreign functions, shared queues and metrics.

use std::sync::{Arc, Mutex};

use outrider_plugin_api::{
    Call, CalloutFailure, Decision, HttpStreamEvent, HttpStreamId, LateMetrics, MetadataTree,
    MetricId, MetricKind, Pause, Phase, Slot, Wake,
};

use super::fake::{FakeMetrics, FakeStream, Probe, config, guest, load, probe, source};
use crate::grpc::framed;

/// Begins a call or a stream, and says what comes of it.
fn exchanging(begin: &str) -> Probe {
    probe(&format!(
        r#"           (data (i32.const 100) "auth") (data (i32.const 110) "shop.Auth") (data (i32.const 120) "Check")
           (data (i32.const 130) "hello")
           (data (i32.const 200) "i-") (data (i32.const 202) "m-") (data (i32.const 204) "t-") (data (i32.const 206) "c-")
           (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
             {begin} (i32.const 1))
           (func (export "proxy_on_grpc_receive_initial_metadata") (param i32 i32 i32)
             (call $say (i32.const 200) (i32.const 2)) (call $say_number (local.get 2)))
           (func (export "proxy_on_grpc_receive") (param i32 i32 i32)
             (call $say (i32.const 202) (i32.const 2)) (call $say_number (local.get 2))
             (drop (call $buffer (i32.const 5) (i32.const 0) (i32.const 99) (i32.const 0) (i32.const 4)))
             (call $say_given))
           (func (export "proxy_on_grpc_receive_trailing_metadata") (param i32 i32 i32)
             (call $say (i32.const 204) (i32.const 2)) (call $say_number (local.get 2)))
           (func (export "proxy_on_grpc_close") (param i32 i32 i32)
             (call $say (i32.const 206) (i32.const 2)) (call $say_number (local.get 2))
             (drop (call $status (i32.const 24) (i32.const 0) (i32.const 4)))
             (call $say_given))"#
    ))
}

const CALL: &str = "(call $say_number (call $grpc_call (i32.const 100) (i32.const 4) (i32.const 110)
    (i32.const 9) (i32.const 120) (i32.const 5) (i32.const 0) (i32.const 0) (i32.const 130) (i32.const 5)
    (i32.const 2000) (i32.const 8)))";

const STREAM: &str = "(call $say_number (call $grpc_stream (i32.const 100) (i32.const 4) (i32.const 110)
    (i32.const 9) (i32.const 120) (i32.const 5) (i32.const 0) (i32.const 0) (i32.const 8)))
  (call $say_number (call $grpc_send (i32.load (i32.const 8)) (i32.const 130) (i32.const 5) (i32.const 0)))
  (call $say_number (call $grpc_close (i32.load (i32.const 8))))
  (call $say_number (call $grpc_send (i32.const 5) (i32.const 130) (i32.const 5) (i32.const 0)))
  (call $say_number (call $grpc_cancel (i32.const 98)))";

fn begun(probe: &Probe) -> (Slot, FakeStream) {
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    let decision = probe.call(Phase::RequestHeaders, &mut slot, &mut stream);
    assert_eq!(decision, Ok(Decision::Pause(Pause::Event)));
    (slot, stream)
}

fn tell(probe: &Probe, slot: &mut Slot, stream: &mut FakeStream, event: HttpStreamEvent<'_>) {
    let wake = Wake::HttpStream(HttpStreamId(1), event);
    probe.configured.event(slot, wake, stream).unwrap();
}

const OK_HEADERS: HttpStreamEvent<'_> = HttpStreamEvent::Headers {
    headers: &[(b":status", b"200")],
    end_of_stream: false,
};

#[test]
fn a_call_brings_its_message_or_its_status() {
    let probe = exchanging(CALL);
    let (mut slot, mut stream) = begun(&probe);
    let (upstream, headers, body, timeout) = stream.callouts.remove(0);
    assert_eq!((upstream.as_str(), timeout.as_secs()), ("auth", 2));
    assert_eq!(body.as_bytes(), framed(b"hello"));
    let header = |name: &str| {
        let found = headers.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value.as_str())
    };
    assert_eq!(header(":path"), "/shop.Auth/Check");
    assert_eq!(header(":authority"), "auth");
    assert_eq!(header("content-type"), "application/grpc");
    assert_eq!(header("te"), "trailers");
    assert_eq!(header("grpc-timeout"), "2000m");
    tell(&probe, &mut slot, &mut stream, OK_HEADERS);
    let answer = framed(b"yes");
    for piece in answer.chunks(3) {
        let event = HttpStreamEvent::Data {
            pieces: &[piece],
            end_of_stream: false,
        };
        tell(&probe, &mut slot, &mut stream, event);
    }
    assert_eq!(stream.logged(), ["00"]);
    let trailers = HttpStreamEvent::Trailers(&[(b"grpc-status", b"0")]);
    tell(&probe, &mut slot, &mut stream, trailers);
    tell(&probe, &mut slot, &mut stream, HttpStreamEvent::Complete);
    assert_eq!(stream.logged(), ["00", "m-", "03", "yes"]);

    let (mut slot, mut stream) = begun(&probe);
    let refusal = HttpStreamEvent::Headers {
        headers: &[
            (b":status", b"200"),
            (b"grpc-status", b"7"),
            (b"grpc-message", b"no"),
        ],
        end_of_stream: true,
    };
    tell(&probe, &mut slot, &mut stream, refusal);
    assert_eq!(stream.logged(), ["00", "c-", "07", "no"]);

    let (mut slot, mut stream) = begun(&probe);
    let failed = HttpStreamEvent::Failed(CalloutFailure::Timeout);
    tell(&probe, &mut slot, &mut stream, failed);
    assert_eq!(
        stream.logged(),
        [
            "00",
            "c-",
            "14",
            "upstream request timeout{response_timeout}"
        ]
    );
}

#[test]
fn a_stream_brings_all_that_comes_in_order() {
    let probe = exchanging(STREAM);
    let (mut slot, mut stream) = begun(&probe);
    assert_eq!(stream.logged(), ["00", "00", "00", "02", "01"]);
    assert_eq!(
        stream.sent,
        [(1, framed(b"hello"), false), (1, Vec::new(), true)]
    );
    tell(&probe, &mut slot, &mut stream, OK_HEADERS);
    let both = [framed(b"one"), framed(b"")].concat();
    let event = HttpStreamEvent::Data {
        pieces: &[&both],
        end_of_stream: false,
    };
    tell(&probe, &mut slot, &mut stream, event);
    let trailers = HttpStreamEvent::Trailers(&[(b"grpc-status", b"3"), (b"grpc-message", b"bad")]);
    tell(&probe, &mut slot, &mut stream, trailers);
    assert_eq!(
        stream.logged()[5..],
        [
            "i-", "01", "m-", "03", "one", "m-", "00", "", "t-", "02", "c-", "03", "bad"
        ]
    );
}

#[test]
fn an_upstream_that_is_not_there_cannot_be_called() {
    let probe = exchanging(CALL);
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    stream.refuse_callouts = Some(CalloutFailure::ClusterNotFound);
    probe
        .call(Phase::RequestHeaders, &mut slot, &mut stream)
        .unwrap();
    assert_eq!(stream.logged(), ["04"]);
}

#[test]
fn what_is_under_way_when_the_stream_ends_is_told_once() {
    let probe = exchanging(CALL);
    let (slot, _) = begun(&probe);
    probe.configured.end(slot, 0);
    let (_, stream) = begun(&probe);
    assert_eq!(stream.logged(), ["c-", "14", "the stream is over", "00"]);
}

#[test]
fn foreign_functions() {
    let probe = probe(
        r#"        (data (i32.const 100) "compress") (data (i32.const 110) "uncompress") (data (i32.const 120) "nothing")
        (data (i32.const 130) "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
        (data (i32.const 200) "set_dynamic_metadata")
        (data (i32.const 230) "{\"namespace\":\"n\",\"key\":\"k\",\"value\":[1,\"a\"]}")
        (data (i32.const 300) "set_envoy_filter_state") (data (i32.const 330) "\0a\01p\12\01v")
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
          (call $say_number (call $foreign (i32.const 100) (i32.const 8) (i32.const 130) (i32.const 40)
            (i32.const 0) (i32.const 4)))
          (call $say_number (i32.load (i32.const 4)))
          (call $say_number (call $foreign (i32.const 110) (i32.const 10) (i32.load (i32.const 0))
            (i32.load (i32.const 4)) (i32.const 0) (i32.const 4)))
          (call $say_given)
          (call $say_number (call $foreign (i32.const 110) (i32.const 10) (i32.const 130) (i32.const 9)
            (i32.const 0) (i32.const 4)))
          (call $say_number (i32.load (i32.const 4)))
          (call $say_number (call $foreign (i32.const 120) (i32.const 7) (i32.const 0) (i32.const 0)
            (i32.const 0) (i32.const 4)))
          (call $say_number (call $foreign (i32.const 200) (i32.const 20) (i32.const 230) (i32.const 43)
            (i32.const 0) (i32.const 4)))
          (call $say_number (call $foreign (i32.const 300) (i32.const 22) (i32.const 330) (i32.const 6)
            (i32.const 0) (i32.const 4)))
          (i32.const 0))"#,
    );
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    probe
        .call(Phase::RequestHeaders, &mut slot, &mut stream)
        .unwrap();
    let a = "a".repeat(40);
    assert_eq!(
        stream.logged(),
        ["00", "12", "00", a.as_str(), "03", "00", "01", "00", "00"]
    );
    assert_eq!(
        stream.metadata[&("n".to_owned(), "k".to_owned())],
        MetadataTree::List(vec![MetadataTree::Number(1.0), "a".into()])
    );
    assert_eq!(stream.filter_state[&b"p"[..]], b"v");
}

#[test]
fn a_queue_tells_the_root_that_registered_it() {
    let body = r#"      (data (i32.const 100) "jobs") (data (i32.const 110) "one")
      (func (export "proxy_on_configure") (param i32 i32) (result i32)
        (drop (call $register (i32.const 100) (i32.const 4) (i32.const 40))) (i32.const 1))
      (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
        (call $say_number (call $enqueue (i32.load (i32.const 40)) (i32.const 110) (i32.const 3))) (i32.const 0))
      (func (export "proxy_on_queue_ready") (param i32 i32)
        (call $say_number (local.get 0))
        (drop (call $dequeue (local.get 1) (i32.const 0) (i32.const 4)))
        (call $say_given))"#;
    let mut source = source(&guest(body));
    source.options.vm_id = "a queue of a test".to_owned();
    let probe = load(source, "{}").unwrap();
    assert_eq!(probe.said(), ["00"]);
    assert_eq!(probe.said(), ["01", "one", "00"]);
}

/// Names that were defined while streams were served.
#[derive(Debug, Default)]
struct LateNames(Mutex<Vec<String>>);

impl LateMetrics for LateNames {
    fn define_late(&self, _kind: MetricKind, name: &str) -> Option<MetricId> {
        let mut names = self.0.lock().unwrap();
        names.push(name.to_owned());
        Some(MetricId(1000))
    }
}

#[test]
fn late_metric_is_defined_once_and_counted_by_the_proxy_at_once() {
    let late = Arc::new(LateNames::default());
    let module = guest(
        r#"           (data (i32.const 110) "late")
           (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
             (drop (call $define (i32.const 0) (i32.const 110) (i32.const 4) (i32.const 40)))
             (drop (call $increment (i32.load (i32.const 40)) (i64.const 7)))
             (i32.const 0))"#,
    );
    let mut source = source(&module);
    source.late_metrics = Some(Arc::clone(&late) as Arc<dyn LateMetrics>);
    let probe = load(source, "{}").unwrap();
    for _ in 0..2 {
        let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
        probe
            .call(Phase::RequestHeaders, &mut slot, &mut stream)
            .unwrap();
        assert_eq!(stream.metrics.values().sum::<u64>(), 7);
    }
    assert_eq!(*late.0.lock().unwrap(), ["wasmcustom.late"]);
}

#[test]
fn metrics_are_defined_where_they_can_be_and_counted_anywhere() {
    let probe = probe(
        r#"           (data (i32.const 100) "requests") (data (i32.const 110) "late")
           (func (export "proxy_on_configure") (param i32 i32) (result i32)
             (drop (call $define (i32.const 0) (i32.const 100) (i32.const 8) (i32.const 40)))
             (drop (call $define (i32.const 1) (i32.const 100) (i32.const 8) (i32.const 44)))
             (i32.const 1))
           (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
             (call $say_number (i32.load (i32.const 40))) (call $say_number (i32.load (i32.const 44)))
             (call $say_number (call $increment (i32.load (i32.const 40)) (i64.const 2)))
             (call $say_number (call $increment (i32.load (i32.const 40)) (i64.const 0)))
             (call $say_number (call $record (i32.load (i32.const 44)) (i64.const 9)))
             (call $say_number (call $value (i32.load (i32.const 44)) (i32.const 48)))
             (call $say_number (i32.load (i32.const 48)))
             (drop (call $define (i32.const 0) (i32.const 110) (i32.const 4) (i32.const 40)))
             (call $say_number (call $increment (i32.load (i32.const 40)) (i64.const 7)))
             (drop (call $value (i32.load (i32.const 40)) (i32.const 48)))
             (call $say_number (i32.load (i32.const 48)))
             (call $say_number (call $increment (i32.const 40) (i64.const 7)))
             (call $say_number (call $define (i32.const 3) (i32.const 110) (i32.const 4) (i32.const 40)))
             (i32.const 0))"#,
    );
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    probe
        .call(Phase::RequestHeaders, &mut slot, &mut stream)
        .unwrap();
    assert_eq!(
        stream.logged(),
        [
            "04", "05", "00", "02", "00", "00", "09", "00", "07", "01", "02"
        ]
    );
    let defined: Vec<&str> = probe.metrics.defined[2..]
        .iter()
        .map(String::as_str)
        .collect();
    assert_eq!(defined, ["wasmcustom.requests"]);
    assert_eq!(stream.metrics.values().sum::<u64>(), 9);

    // The next configuration makes up for what was defined too late.
    let mut metrics = FakeMetrics::default();
    let next = config(r#"{"a": 1}"#);
    let configured = probe.plugin.configure(&next, &mut metrics).unwrap();
    assert_eq!(metrics.defined, ["wasmcustom.late", "wasmcustom.requests"]);
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    let call = Call {
        phase: Phase::RequestHeaders,
        end_of_stream: false,
    };
    configured.call(&mut slot, call, &mut stream).unwrap();
    configured.end(slot, 0);
    assert_eq!(stream.metrics.values().sum::<u64>(), 9 + 7);
}
