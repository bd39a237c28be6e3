//! Calls that wait for their plugin's share of CPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::wire::{Asked, Wire, link_with_share, streaming, whole};
use crate::{
    Call, CalloutRequest, Cause, ConfiguredPlugin, Decision, Direction, FailureAction, Fault,
    Interest, Link, Pause, Phase, SHARE_PATIENCE, Slot, Stream, Wake,
};

/// A plugin that starts so many callouts for each call, and counts what it is charged.
#[derive(Debug)]
struct Calling {
    callouts: usize,
    charged: Arc<AtomicU64>,
}

impl ConfiguredPlugin for Calling {
    fn call(&self, _: &mut Slot, _: Call, stream: &mut dyn Stream) -> Result<Decision, Fault> {
        for _ in 0..self.callouts {
            let request = CalloutRequest {
                cluster: b"auth",
                headers: &[
                    (b":method", b"GET"),
                    (b":path", b"/"),
                    (b":authority", b"a"),
                ],
                body: b"",
                timeout: None,
            };
            stream.start_callout(&request).unwrap();
        }
        Ok(Decision::Continue)
    }

    fn resume(
        &self,
        _: &mut Slot,
        _: Direction,
        _: Wake<'_>,
        _: &mut dyn Stream,
    ) -> Result<Decision, Fault> {
        Ok(Decision::Continue)
    }

    fn charge_callout(&self, _: usize) {
        self.charged.fetch_add(1, Ordering::Relaxed);
    }

    fn end(&self, _: Slot, _: usize) {}
}

#[test]
fn callouts_beyond_the_first_of_a_stream_are_charged() {
    for (callouts, charged_for) in [(1, 0), (2, 0), (3, 2), (20, 36)] {
        let charged = Arc::new(AtomicU64::new(0));
        let (mut link, _) = busy(0, FailureAction::Closed, streaming());
        link.plugin = Some(Arc::new(Calling {
            callouts,
            charged: Arc::clone(&charged),
        }));
        let mut wire = Wire::new(vec![link]);
        // Two calls of one stream.
        wire.headers(Direction::Request, HEADERS, false);
        wire.body(Direction::Request, b"", true);
        assert_eq!(charged.load(Ordering::Relaxed), charged_for, "{callouts}");
    }
}

const HEADERS: &[(&str, &str)] = &[(":method", "POST"), (":path", "/")];

/// A plugin that is over its share for the first questions, and the number of its calls.
fn busy(times: u64, action: FailureAction, interest: Interest) -> (Link, Arc<AtomicU64>) {
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let questions = AtomicU64::new(0);
    let share = move || {
        let asked = questions.fetch_add(1, Ordering::Relaxed);
        (asked < times).then_some(Duration::from_millis(30))
    };
    let link = link_with_share(action, interest, share, move |asked, stream| {
        counted.fetch_add(1, Ordering::Relaxed);
        if let Asked::Call(call) = asked
            && call.phase == Phase::RequestHeaders
        {
            stream
                .set_header(crate::HeaderMap::RequestHeaders, b"x-seen", b"yes")
                .unwrap();
        }
        Ok(Decision::Continue)
    });
    (link, calls)
}

#[test]
fn call_over_share_is_delayed_and_then_made() {
    for interest in [streaming(), whole()] {
        let (link, calls) = busy(2, FailureAction::Closed, interest);
        let mut wire = Wire::new(vec![link]);
        wire.headers(Direction::Request, HEADERS, false);
        assert_eq!(wire.sent(Direction::Request).headers, None);
        wire.body(Direction::Request, b"hello", true);
        assert_eq!(calls.load(Ordering::Relaxed), 0);
        assert!(wire.fire());
        assert_eq!(calls.load(Ordering::Relaxed), 0);
        assert!(wire.fire());
        assert_eq!(calls.load(Ordering::Relaxed), 2);
        let sent = wire.sent(Direction::Request);
        assert_eq!(sent.header("x-seen"), Some("yes"));
        assert_eq!(sent.body, b"hello");
        assert!(sent.ended);
        assert!(!wire.fire());
        assert_eq!(wire.host.faults, []);
    }
}

#[test]
fn call_over_share_for_too_long_gets_the_failure_policy() {
    for (action, passes) in [(FailureAction::Open, true), (FailureAction::Closed, false)] {
        let (link, calls) = busy(u64::MAX, action, streaming());
        let circuit = Arc::clone(&link.circuit);
        let mut wire = Wire::new(vec![link]);
        wire.headers(Direction::Request, HEADERS, true);
        while wire.fire() {}
        assert_eq!(u128::from(wire.host.nanos), SHARE_PATIENCE.as_nanos());
        assert_eq!(calls.load(Ordering::Relaxed), 0);
        assert_eq!(wire.host.faults.len(), 1);
        assert_eq!(wire.host.faults[0].2.cause, Cause::Share);
        assert_eq!(wire.sent(Direction::Request).ended, passes);
        let details = wire.reply.as_ref().map(|reply| reply.details.as_str());
        assert_eq!(details, (!passes).then_some("outrider.p.share"));
        assert_eq!(circuit.status().failures, 0);
        wire.log();
    }
}

/// A stream whose plugin is over its share at every other question, so that each call waits once, for 50 ms; the request's
/// headers have done so.
fn each_call_waits_once() -> Wire {
    let asked = AtomicU64::new(0);
    let share = move || {
        let odd = asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
        odd.then_some(Duration::from_millis(50))
    };
    let link = link_with_share(FailureAction::Closed, streaming(), share, |_, _| {
        Ok(Decision::Continue)
    });
    let mut wire = Wire::new(vec![link]);
    wire.headers(Direction::Request, HEADERS, false);
    while wire.fire() {}
    wire
}

#[test]
fn patience_is_for_all_calls_of_one_plugin_on_one_stream() {
    let mut wire = each_call_waits_once();
    // The headers have waited once.
    for _ in 1..SHARE_PATIENCE.as_millis() / 50 {
        wire.body(Direction::Request, b"x", false);
        while wire.fire() {}
        assert_eq!(wire.reply, None);
    }
    wire.body(Direction::Request, b"x", false);
    while wire.fire() {}
    assert!(wire.reply.is_some());
}

#[test]
fn patience_comes_back_while_nothing_waits() {
    let mut wire = each_call_waits_once();
    for _ in 0..100 {
        wire.host.nanos += 500_000_000;
        wire.body(Direction::Request, b"x", false);
        while wire.fire() {}
        assert_eq!(wire.reply, None);
    }
}

/// A stream whose handler of request headers waits for a timer, or did not wait for it, with a plugin that is over its
/// share from then on; and the timer.
fn waits_for_timer(action: FailureAction, pauses: bool) -> (Wire, u64, Arc<AtomicU64>) {
    let resumed = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&resumed);
    let over = Arc::new(AtomicU64::new(0));
    let is_over = Arc::clone(&over);
    let share = move || (is_over.load(Ordering::Relaxed) > 0).then_some(Duration::from_millis(50));
    let link = link_with_share(action, streaming(), share, move |asked, stream| {
        if !matches!(asked, Asked::Call(_)) {
            counted.fetch_add(1, Ordering::Relaxed);
            return Ok(Decision::Continue);
        }
        stream.start_timer(Duration::from_millis(1)).unwrap();
        over.store(1, Ordering::Relaxed);
        Ok(if pauses {
            Decision::Pause(Pause::Event)
        } else {
            Decision::Continue
        })
    });
    let mut wire = Wire::new(vec![link]);
    wire.headers(Direction::Request, HEADERS, true);
    let (timer, _) = wire.host.timers.first_key_value().unwrap();
    let timer = *timer;
    (wire, timer, resumed)
}

#[test]
fn event_over_share_for_too_long_gets_the_failure_policy() {
    for (action, passes) in [(FailureAction::Open, true), (FailureAction::Closed, false)] {
        for pauses in [true, false] {
            let (mut wire, timer, resumed) = waits_for_timer(action, pauses);
            let began = wire.host.nanos;
            while wire.wait_for_share(timer).is_some() {
                wire.host.nanos += 50_000_000;
            }
            let waited = wire.host.nanos - began;
            assert_eq!(u128::from(waited), SHARE_PATIENCE.as_nanos());
            assert!(wire.fire());
            assert_eq!(resumed.load(Ordering::Relaxed), 0);
            assert_eq!(wire.host.faults.len(), 1);
            assert_eq!(wire.host.faults[0].2.cause, Cause::Share);
            let ended = wire.sent(Direction::Request).ended;
            assert_eq!(ended, passes || !pauses, "{action:?}, pauses: {pauses}");
            assert_eq!(wire.reply.is_some(), !passes);
        }
    }
}

#[test]
fn log_call_over_share_is_skipped_and_counted() {
    let (link, calls) = busy(
        u64::MAX,
        FailureAction::Closed,
        Interest {
            log: true,
            ..Interest::default()
        },
    );
    let errors = link.metrics.errors[Cause::Share.index()].map(|id| u64::from(id.0));
    let mut wire = Wire::new(vec![link]);
    wire.headers(Direction::Request, HEADERS, true);
    wire.log();
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    assert_eq!(wire.host.metrics.get(&errors.unwrap()), Some(&1));
    assert!(wire.host.timers.is_empty());
}

/// A plugin whose VM is gone: the call finds that out, and then one is being made, for so many questions.
fn replaced(times: u64) -> (Link, Arc<AtomicU64>) {
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let left = Arc::new(AtomicU64::new(0));
    let making = Arc::clone(&left);
    let share = move || {
        let before = left.load(Ordering::Relaxed);
        left.store(before.saturating_sub(1), Ordering::Relaxed);
        (before > 0).then_some(Duration::from_millis(30))
    };
    let link = link_with_share(FailureAction::Closed, streaming(), share, move |_, _| {
        if counted.fetch_add(1, Ordering::Relaxed) == 0 {
            making.store(times, Ordering::Relaxed);
            return Err(Fault {
                cause: Cause::Unavailable,
                message: "its VM is being made".to_owned(),
            });
        }
        Ok(Decision::Continue)
    });
    (link, calls)
}

#[test]
fn call_that_finds_its_vm_being_made_is_made_again() {
    let (link, calls) = replaced(3);
    let mut wire = Wire::new(vec![link]);
    wire.headers(Direction::Request, HEADERS, true);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert_eq!(wire.sent(Direction::Request).headers, None);
    assert!(wire.fire());
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    while wire.fire() {}
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    assert!(wire.sent(Direction::Request).ended);
    assert_eq!(wire.host.faults, []);
    assert_eq!(wire.reply, None);
}

#[test]
fn call_whose_vm_is_not_made_in_time_gets_the_failure_policy() {
    let (link, calls) = replaced(u64::MAX);
    let mut wire = Wire::new(vec![link]);
    wire.headers(Direction::Request, HEADERS, true);
    while wire.fire() {}
    assert_eq!(u128::from(wire.host.nanos), SHARE_PATIENCE.as_nanos());
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert_eq!(wire.host.faults.len(), 1);
    assert!(!wire.sent(Direction::Request).ended);
    assert!(wire.reply.is_some());
}

#[test]
fn call_that_is_unavailable_for_good_gets_the_failure_policy_at_once() {
    let (link, calls) = replaced(0);
    let mut wire = Wire::new(vec![link]);
    wire.headers(Direction::Request, HEADERS, true);
    assert!(!wire.fire());
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert_eq!(wire.host.faults[0].2.cause, Cause::Unavailable);
    assert!(wire.reply.is_some());
}
