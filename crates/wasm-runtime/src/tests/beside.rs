//! What VMs do beside streams.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outrider_plugin_api::{
    Background, CalloutDone, CalloutFailure, CalloutRequest, CalloutResponse, HttpStreamEvent,
    HttpStreamHandle, HttpStreamRequest, HttpStreamTold, LogLevel, MetricId, Phase, Slot,
};

use super::fake::{FakeStream, Probe, clock, cpu_time, guest, load, source};
use super::spare::wait_for_spare;

/// A proxy that calls nobody by itself: the test does.
#[derive(Default)]
pub(super) struct FakeBackground {
    is_away: AtomicBool,
    rings: Mutex<Vec<Duration>>,
    callouts: Mutex<Vec<(String, CalloutDone)>>,
    streams: Mutex<Vec<HttpStreamTold>>,
    sent: Arc<Mutex<Vec<String>>>,
    said: Mutex<Vec<String>>,
}

/// An HTTP stream of no stream, which notes what is done with it.
#[derive(Debug)]
struct FakeHandle(Arc<Mutex<Vec<String>>>);

impl HttpStreamHandle for FakeHandle {
    fn send(&self, data: &[u8], end_of_stream: bool) -> Result<(), CalloutFailure> {
        let data = String::from_utf8_lossy(data).replace('\0', "");
        self.0
            .lock()
            .unwrap()
            .push(format!("{data:?} {end_of_stream}"));
        Ok(())
    }
}

impl Drop for FakeHandle {
    fn drop(&mut self) {
        self.0.lock().unwrap().push("reset".to_owned());
    }
}

impl std::fmt::Debug for FakeBackground {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FakeBackground")
    }
}

impl FakeBackground {
    pub(super) fn said(&self) -> Vec<String> {
        std::mem::take(&mut *self.said.lock().unwrap())
    }

    pub(super) fn rings(&self) -> Vec<Duration> {
        std::mem::take(&mut *self.rings.lock().unwrap())
    }
}

impl Background for FakeBackground {
    fn is_there(&self) -> bool {
        !self.is_away.load(Ordering::Relaxed)
    }

    fn ring_in(&self, delay: Duration) {
        self.rings.lock().unwrap().push(delay);
    }

    fn start_callout(
        &self,
        request: &CalloutRequest<'_>,
        done: CalloutDone,
    ) -> Result<(), CalloutFailure> {
        let cluster = String::from_utf8_lossy(request.cluster).into_owned();
        self.callouts.lock().unwrap().push((cluster, done));
        Ok(())
    }

    fn start_http_stream(
        &self,
        request: &HttpStreamRequest<'_>,
        told: HttpStreamTold,
    ) -> Result<Box<dyn HttpStreamHandle>, CalloutFailure> {
        let cluster = String::from_utf8_lossy(request.cluster).into_owned();
        let path = request.headers.iter().find(|(name, _)| *name == b":path");
        let path = String::from_utf8_lossy(path.unwrap().1).into_owned();
        self.sent.lock().unwrap().push(format!(
            "{cluster}{path} {} {}",
            request.body.len(),
            request.end_of_stream
        ));
        self.streams.lock().unwrap().push(told);
        Ok(Box::new(FakeHandle(Arc::clone(&self.sent))))
    }

    fn add_metric(&self, _metric: MetricId, _amount: i64) -> bool {
        false
    }

    fn record_metric(&self, _metric: MetricId, _value: u64) -> bool {
        false
    }

    fn log_enabled(&self, level: LogLevel) -> bool {
        level >= LogLevel::Info
    }

    fn log(&self, _level: LogLevel, _plugin: &str, message: &str) {
        self.said.lock().unwrap().push(message.to_owned());
    }
}

pub(super) struct World {
    pub(super) background: Arc<FakeBackground>,
    now: Arc<std::sync::atomic::AtomicU64>,
    pub(super) probe: Probe,
}

impl World {
    pub(super) fn new(body: &str) -> Self {
        let background = Arc::new(FakeBackground::default());
        let (clock, now) = clock();
        let mut source = source(&guest(body));
        source.clock = clock;
        source.background = Some(Arc::<FakeBackground>::clone(&background));
        let probe = load(source, "{}").unwrap();
        wait_for_spare(&probe);
        background.rings();
        Self {
            background,
            now,
            probe,
        }
    }

    pub(super) fn pass(&self, milliseconds: u64) {
        self.now.fetch_add(milliseconds, Ordering::Relaxed);
    }

    /// The proxy calls the worker. Answers what the guest said, and when it is to be called again.
    pub(super) fn call(&self) -> (Vec<String>, Vec<Duration>) {
        self.probe.plugin.background(0);
        (self.background.said(), self.background.rings())
    }
}

const fn millis(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

const TICKING: &str = r#"
  (global $ticks (mut i32) (i32.const 0))
  (func (export "proxy_on_configure") (param i32 i32) (result i32)
    (drop (call $tick (i32.const 30))) (i32.const 1))
  (func (export "proxy_on_tick") (param i32)
    (global.set $ticks (i32.add (global.get $ticks) (i32.const 1)))
    (call $say_number (global.get $ticks))
    (if (i32.eq (global.get $ticks) (i32.const 3)) (then (unreachable))))
  (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) (i32.const 0))"#;

#[test]
fn ticks_come_when_they_are_due_and_not_with_streams() {
    let world = World::new(TICKING);
    assert_eq!(world.call(), (vec![], vec![millis(30)]));
    world.pass(20);
    assert_eq!(world.call(), (vec![], vec![millis(10)]));
    world.pass(15);
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    world
        .probe
        .call(Phase::RequestHeaders, &mut slot, &mut stream)
        .unwrap();
    assert_eq!(stream.logged(), [""; 0], "it comes by itself");
    assert_eq!(world.call(), (vec!["01".to_owned()], vec![millis(30)]));
    // A proxy that does not call: streams see to it.
    world.background.is_away.store(true, Ordering::Relaxed);
    world.pass(31);
    world
        .probe
        .call(Phase::ResponseHeaders, &mut slot, &mut stream)
        .unwrap();
    assert_eq!(stream.logged(), ["02"]);
}

#[test]
fn a_tick_that_fails_ends_the_vm_and_the_next_one_ticks() {
    let world = World::new(TICKING);
    for _ in 0..2 {
        world.pass(30);
        world.call();
    }
    world.pass(30);
    let (said, _) = world.call();
    assert_eq!(said[0], "03");
    assert!(said[1].contains("unreachable"), "{said:?}");
    // The next one is put off: 200 ms after the first failure.
    wait_for_spare(&world.probe);
    world.call();
    world.pass(30);
    assert_eq!(world.call(), (vec![], vec![millis(170)]));
    world.pass(170);
    assert_eq!(world.call().0, ["01"]);
}

#[test]
fn a_vm_that_fails_at_once_again_and_again_waits() {
    let world = World::new(&TICKING.replace("(i32.const 3)", "(i32.const 1)"));
    let mut failures = 0;
    for _ in 0..12 {
        world.pass(30);
        failures += world.call().0.iter().filter(|line| *line == "01").count();
    }
    // The first at 30 ms, the second 200 ms later, the third would be another 400 ms later.
    assert_eq!(failures, 2, "{:?}", world.background.rings());
}

#[test]
fn ticks_have_a_least_period_that_counts_from_their_end() {
    let world = World::new(
        r#"
        (func (export "proxy_on_configure") (param i32 i32) (result i32)
          (drop (call $tick (i32.const 1))) (i32.const 1))
        (func (export "proxy_on_tick") (param i32) (call $say_number (i32.const 1)))"#,
    );
    let mut ticks = 0;
    for _ in 0..100 {
        world.pass(1);
        ticks += world.call().0.len();
        // A second call at the same time finds nothing to do.
        assert_eq!(world.call().0, [""; 0]);
    }
    assert!((9..=11).contains(&ticks), "{ticks}");
}

#[test]
fn ticks_that_take_long_are_followed_by_nine_times_as_much_rest() {
    let body = r#"
        (func (export "proxy_on_configure") (param i32 i32) (result i32)
          (drop (call $tick (i32.const 10))) (i32.const 1))
        (func (export "proxy_on_tick") (param i32) (local $turns i32)
          (call $say_number (i32.const 1))
          (loop $again
            (local.set $turns (i32.add (local.get $turns) (i32.const 1)))
            (br_if $again (i32.lt_u (local.get $turns) (i32.const 5000000)))))"#;
    let world = World::new(body);
    world.pass(10);
    let began = cpu_time();
    let (said, rings) = world.call();
    let took = cpu_time().saturating_sub(began);
    assert_eq!(said, ["01"]);
    let rest = rings.into_iter().min().unwrap();
    assert!(
        rest > millis(10) && rest <= took * 9,
        "{rest:?} after {took:?}"
    );
    world.pass(10);
    assert_eq!(world.call().0, [""; 0]);
    world.pass(10_000);
    assert_eq!(world.call().0, ["01"]);
}

const CALLING: &str = r#"
  (data (i32.const 100) "auth")
  (data (i32.const 110) "\01\00\00\00\05\00\00\00\02\00\00\00:path\00/a\00")
  (global $calls (mut i32) (i32.const 0))
  (func $http
    (call $say_number (call $http_call (i32.const 100) (i32.const 4) (i32.const 110) (i32.const 21)
      (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 1500) (i32.const 8))))
  (func (export "proxy_on_configure") (param i32 i32) (result i32)
    (call $http) (i32.const 1))
  (func (export "proxy_on_http_call_response") (param i32 i32 i32 i32 i32)
    (global.set $calls (i32.add (global.get $calls) (i32.const 1)))
    (call $say_number (local.get 2)) (call $say_number (local.get 3))
    (drop (call $buffer (i32.const 4) (i32.const 0) (i32.const 99) (i32.const 0) (i32.const 4)))
    (call $say_given)
    (call $http)
    (if (i32.eq (global.get $calls) (i32.const 2)) (then (unreachable))))
  (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) (i32.const 0))"#;

#[test]
fn a_root_s_callout_is_answered_on_its_worker() {
    let world = World::new(CALLING);
    // The check sends nothing; its lines go where the configuration's do. The worker's VM and the spare one do.
    assert_eq!(world.background.said(), ["00", "00"]);
    assert_eq!(world.probe.metrics.logs, ["00"]);
    let take = || world.background.callouts.lock().unwrap().pop().unwrap();
    let _spare = take();
    let (cluster, done) = take();
    assert_eq!(cluster, "auth");
    done(Ok(CalloutResponse {
        headers: &[(b":status", b"200"), (b"a", b"b")],
        body: &[b"wel", b"come"],
    }));
    assert_eq!(world.background.rings(), [Duration::ZERO]);
    assert_eq!(world.call().0, ["02", "07", "welcome", "00"]);
    // No such upstream: nothing comes. The guest fails, and with it what it has under way.
    let (_, done) = take();
    done(Err(CalloutFailure::ClusterNotFound));
    let (said, _) = world.call();
    assert_eq!(said[..4], ["00", "00", "", "00"]);
    // The next spare VM makes its callout, too.
    wait_for_spare(&world.probe);
    let _next = take();
    let (_, lost) = take();
    world.background.said();
    lost(Err(CalloutFailure::Reset));
    assert_eq!(world.call().0, [""; 0]);
}

#[test]
fn a_notice_of_a_queue_needs_no_stream() {
    let world = World::new(
        r#"(data (i32.const 100) "beside-queue")
           (func (export "proxy_on_configure") (param i32 i32) (result i32)
             (drop (call $register (i32.const 100) (i32.const 12) (i32.const 8)))
             (i32.const 1))
           (func (export "proxy_on_queue_ready") (param i32 i32)
             (drop (call $dequeue (local.get 1) (i32.const 0) (i32.const 4)))
             (call $say_given))
           (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
             (drop (call $enqueue (i32.load (i32.const 8)) (i32.const 100) (i32.const 6)))
             (i32.const 0))"#,
    );
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    world
        .probe
        .call(Phase::RequestHeaders, &mut slot, &mut stream)
        .unwrap();
    assert_eq!(world.background.rings(), [Duration::ZERO]);
    // A configuration that is checked takes nothing from those that live.
    let config = super::fake::config("{\"a\":1}");
    let mut metrics = super::fake::FakeMetrics::default();
    let other = world.probe.plugin.configure(&config, &mut metrics);
    assert!(other.is_ok());
    assert_eq!(world.call().0, ["beside"]);
}

const ASKING: &str = r#"
  (data (i32.const 100) "auth")
  (data (i32.const 110) "a.Service")
  (data (i32.const 120) "Method")
  (data (i32.const 130) "message")
  (func (export "proxy_on_configure") (param i32 i32) (result i32)
    (call $say_number (call $grpc_call (i32.const 100) (i32.const 4) (i32.const 110) (i32.const 9)
      (i32.const 120) (i32.const 6) (i32.const 0) (i32.const 0) (i32.const 130) (i32.const 7)
      (i32.const 1500) (i32.const 8)))
    (call $say_number (call $grpc_stream (i32.const 100) (i32.const 4) (i32.const 110) (i32.const 9)
      (i32.const 120) (i32.const 6) (i32.const 0) (i32.const 0) (i32.const 12)))
    (i32.const 1))
  (func (export "proxy_on_tick") (param i32))
  (func (export "proxy_on_grpc_receive") (param i32 i32 i32)
    (drop (call $buffer (i32.const 5) (i32.const 0) (i32.const 99) (i32.const 0) (i32.const 4)))
    (call $say_given)
    (call $say_number (local.get 1))
    (if (i32.eq (local.get 1) (i32.load (i32.const 12))) (then
      (call $say_number (call $grpc_send (local.get 1) (i32.const 130) (i32.const 4) (i32.const 0)))
      (call $say_number (call $grpc_close (local.get 1)))
      (call $say_number (call $grpc_send (local.get 1) (i32.const 130) (i32.const 4) (i32.const 0))))))
  (func (export "proxy_on_grpc_close") (param i32 i32 i32) (call $say_number (local.get 2)))
  (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
    (drop (call $effective (i32.const 1)))
    (call $say_number (call $grpc_cancel (i32.load (i32.const 8))))
    (i32.const 0))"#;

#[test]
fn a_root_s_grpc_needs_no_stream() {
    let world = World::new(ASKING);
    let sent = || std::mem::take(&mut *world.background.sent.lock().unwrap());
    // The check sends nothing. The worker's VM and the spare one do.
    assert_eq!(
        sent(),
        [
            "auth/a.Service/Method 12 true",
            "auth/a.Service/Method 0 false"
        ]
        .repeat(2)
    );
    assert_eq!(world.probe.metrics.logs, ["00", "00"]);
    assert_eq!(world.background.said(), ["00"; 4]);
    let headers = HttpStreamEvent::Headers {
        headers: &[(b":status", b"200")],
        end_of_stream: false,
    };
    let data = HttpStreamEvent::Data {
        pieces: &[b"\0\0\0\0\x03o", b"ne"],
        end_of_stream: false,
    };
    let trailers = HttpStreamEvent::Trailers(&[(b"grpc-status", b"0")]);
    let mut streams = std::mem::take(&mut *world.background.streams.lock().unwrap());
    let _spare = streams.split_off(2);
    for told in &mut streams {
        told(headers);
        told(data);
    }
    // A call's answer waits for its end.
    assert_eq!(world.call().0, ["one", "06", "00", "00", "00"]);
    assert_eq!(sent(), [r#""\u{4}mess" false"#, r#""" true"#]);
    for told in &mut streams {
        told(trailers);
        told(HttpStreamEvent::Complete);
    }
    assert_eq!(world.call().0, ["one", "05", "00"]);
    assert_eq!(sent(), ["reset", "reset"], "they are over");
    // What nobody waits for any more is reset.
    let config = super::fake::config("{\"a\":1}");
    let mut metrics = super::fake::FakeMetrics::default();
    let other = world.probe.plugin.configure(&config, &mut metrics);
    wait_for_spare(&world.probe);
    world.call();
    // The worker's VM begins two for this configuration, the next spare VM two for each; two of the one before end.
    let deadline = Instant::now() + Duration::from_mins(1);
    let mut lines = 0;
    while lines < 8 {
        lines += sent().len();
        assert!(Instant::now() < deadline, "{lines}");
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut streams = std::mem::take(&mut *world.background.streams.lock().unwrap());
    streams.truncate(2);
    world.background.said();
    drop(other);
    // Both are told of before the root's end, and are not when their own end comes.
    assert_eq!(world.call().0, ["14", "14"]);
    assert_eq!(sent(), ["reset", "reset"]);
    for told in &mut streams {
        told(HttpStreamEvent::Failed(CalloutFailure::Reset));
    }
    assert_eq!(world.call().0, [""; 0]);
}
