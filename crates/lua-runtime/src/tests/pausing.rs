//! Callouts, timers, replies, and what cannot pause.

use std::time::Duration;

use outrider_plugin_api::{
    CalloutFailure, CalloutId, CalloutResponse, Cause, Decision, Direction, Pause, Phase, Slot,
    Wake,
};

use super::fake::{FakeStream, Probe, fault_of, on_request, probe};

const ASK: &str = r#"
    local headers, body = envoy.httpCall("auth", {
        [":method"] = "POST", [":path"] = "/check", [":authority"] = "auth", ["x-list"] = {"a", "b"},
    }, "ask", 250)
    if not headers then
        envoy.logInfo("failed: " .. body)
    else
        envoy.logInfo(headers[":status"] .. headers.set[2] .. body .. #body)
    end
    envoy.logInfo(envoy.req.get_header("x-one"))
"#;

fn start(probe: &Probe) -> (Slot, FakeStream) {
    let mut stream = FakeStream::new();
    let mut slot = Slot::default();
    let decision = probe.call(Phase::RequestHeaders, &mut slot, &mut stream);
    assert_eq!(decision, Ok(Decision::Pause(Pause::Event)));
    assert_ne!(slot, Slot::default());
    (slot, stream)
}

#[test]
fn a_callout_suspends_and_its_response_resumes() {
    let probe = on_request(ASK);
    let (mut slot, mut stream) = start(&probe);
    let (cluster, headers, body, timeout) = stream.callouts[0].clone();
    assert_eq!((cluster.as_str(), body.as_str()), ("auth", "ask"));
    assert_eq!(timeout, Duration::from_millis(250));
    assert!(headers.contains(&("x-list".to_owned(), "b".to_owned())));
    let response = CalloutResponse {
        headers: &[(b":status", b"201"), (b"set", b"1"), (b"set", b"2")],
        body: &[b"he", b"llo"],
    };
    let wake = Wake::Callout(CalloutId(1), Ok(response));
    assert_eq!(
        probe.wake(wake, &mut slot, &mut stream),
        Ok(Decision::Continue)
    );
    assert_eq!(stream.logged(), ["2012hello5", "1"]);
    probe.configured.end(slot, 0);
}

#[test]
fn each_failure_of_a_callout_is_nil_and_its_words() {
    for failure in [
        CalloutFailure::ClusterNotFound,
        CalloutFailure::MissingHeaders,
        CalloutFailure::CannotStart,
        CalloutFailure::StreamOver,
    ] {
        let mut stream = FakeStream::new();
        stream.refuse_callouts = Some(failure);
        assert_eq!(on_request(ASK).request(&mut stream), Ok(Decision::Continue));
        assert_eq!(stream.logged()[0], format!("failed: {failure}"));
    }
    for failure in [
        CalloutFailure::Reset,
        CalloutFailure::Timeout,
        CalloutFailure::TooLarge,
    ] {
        let probe = on_request(ASK);
        let (mut slot, mut stream) = start(&probe);
        let wake = Wake::Callout(CalloutId(1), Err(failure));
        assert_eq!(
            probe.wake(wake, &mut slot, &mut stream),
            Ok(Decision::Continue)
        );
        assert_eq!(stream.logged()[0], format!("failed: {failure}"));
    }
}

#[test]
fn another_event_than_the_awaited_one_changes_nothing() {
    let probe = on_request(ASK);
    let (mut slot, mut stream) = start(&probe);
    let other = Wake::Callout(CalloutId(9), Err(CalloutFailure::Reset));
    assert_eq!(
        probe.wake(other, &mut slot, &mut stream),
        Ok(Decision::Pause(Pause::Event))
    );
    assert_eq!(
        probe.wake(Wake::Timer(1), &mut slot, &mut stream),
        Ok(Decision::Pause(Pause::Event))
    );
    let wake = Wake::Callout(CalloutId(1), Err(CalloutFailure::Reset));
    assert_eq!(
        probe.wake(wake, &mut slot, &mut stream),
        Ok(Decision::Continue)
    );
    assert_eq!(
        probe.wake(wake, &mut slot, &mut stream),
        Ok(Decision::Continue)
    );
    assert_eq!(stream.logged().len(), 2);
}

#[test]
fn sleeping_takes_a_timer_and_pauses_nest_in_pcall() {
    let probe = on_request(
        r#"
        local done, value = pcall(function()
            envoy.sleep(30)
            envoy.sleep(0.5)
            error("after", 0)
        end)
        envoy.logInfo(tostring(done) .. value)
        "#,
    );
    let (mut slot, mut stream) = start(&probe);
    assert_eq!(
        probe.wake(Wake::Timer(1), &mut slot, &mut stream),
        Ok(Decision::Pause(Pause::Event))
    );
    assert_eq!(
        probe.wake(Wake::Timer(2), &mut slot, &mut stream),
        Ok(Decision::Continue)
    );
    assert_eq!(stream.timers, [Duration::from_millis(30), Duration::ZERO]);
    assert_eq!(stream.logged(), ["falseafter"]);
}

#[test]
fn both_directions_pause_apart() {
    let probe = probe(
        r#"
        local function wait(name) envoy.sleep(1) envoy.logInfo(name) end
        return {
            on_request_header = function() wait("request") end,
            on_response_header = function() wait("response") end,
        }
        "#,
    );
    let (mut slot, mut stream) = start(&probe);
    let paused = probe.call(Phase::ResponseHeaders, &mut slot, &mut stream);
    assert_eq!(paused, Ok(Decision::Pause(Pause::Event)));
    let go_on = |direction, timer, slot: &mut Slot, stream: &mut FakeStream| {
        probe
            .configured
            .resume(slot, direction, Wake::Timer(timer), stream)
    };
    let response = go_on(Direction::Response, 2, &mut slot, &mut stream);
    assert_eq!(response, Ok(Decision::Continue));
    let request = go_on(Direction::Request, 1, &mut slot, &mut stream);
    assert_eq!(request, Ok(Decision::Continue));
    assert_eq!(stream.logged(), ["response", "request"]);
}

#[test]
fn a_reply_ends_the_handler_even_inside_pcall() {
    let probe = on_request(
        r#"
        pcall(function()
            envoy.respond({[":status"] = 403, ["content-length"] = "99", ["x-why"] = {"a", "b"}},
                "nope", "denied_by_probe")
            envoy.logInfo("not reached")
        end)
        envoy.logInfo("not reached either")
        "#,
    );
    for _ in 0..3 {
        let mut stream = FakeStream::new();
        let Ok(Decision::Reply(reply)) = probe.request(&mut stream) else {
            panic!("no reply")
        };
        assert_eq!((reply.status, reply.body.as_slice()), (403, &b"nope"[..]));
        assert_eq!(reply.details, "denied_by_probe");
        let pair = |value: &[u8]| (b"x-why".to_vec(), value.to_vec());
        assert_eq!(reply.headers, [pair(b"a"), pair(b"b")]);
        assert!(stream.logged().is_empty());
    }
}

#[test]
fn a_callback_of_gsub_or_sort_may_wait_and_reply() {
    let probe = on_request(
        r#"
        local done, why = pcall(string.gsub, "x", "x", function()
            table.sort({ 2, 1 }, function()
                envoy.sleep(1)
                envoy.respond({[":status"] = "401"})
            end)
        end)
        envoy.logInfo("not reached")
        "#,
    );
    let (mut slot, mut stream) = start(&probe);
    let Ok(Decision::Reply(reply)) = probe.wake(Wake::Timer(1), &mut slot, &mut stream) else {
        panic!("no reply")
    };
    assert_eq!((reply.status, reply.body.len()), (401, 0));
    assert_eq!(stream.logged(), [""; 0]);
}

#[test]
fn a_reply_may_follow_a_callout() {
    let probe = on_request("envoy.sleep(1) envoy.respond({[':status'] = 204})");
    let (mut slot, mut stream) = start(&probe);
    let Ok(Decision::Reply(reply)) = probe.wake(Wake::Timer(1), &mut slot, &mut stream) else {
        panic!("no reply")
    };
    assert_eq!(reply.status, 204);
    probe.configured.end(slot, 0);
}

#[test]
fn where_nothing_can_wait_the_error_says_so() {
    let coroutine = fault_of("coroutine.wrap(function() envoy.sleep(1) end)()");
    assert_eq!(
        coroutine.message,
        "probe/main.lua:3: envoy.sleep cannot be called from a coroutine of the plugin's own"
    );
    let own_yield = fault_of("coroutine.yield(1)");
    assert_eq!(
        own_yield.message,
        "probe/main.lua:3: coroutine.yield outside of a coroutine of the plugin's own"
    );
    let log = probe("return { on_log = function() envoy.httpCall('a', {}, '', 1) end }");
    let fault = log
        .call(Phase::Log, &mut Slot::default(), &mut FakeStream::new())
        .unwrap_err();
    assert_eq!(fault.cause, Cause::Error);
    assert_eq!(
        fault.message,
        "probe/main.lua:1: envoy.httpCall cannot be called from on_log: the stream is over"
    );
}

#[test]
fn own_coroutines_work() {
    let probe = on_request(
        r#"
        local produce = coroutine.wrap(function() for i = 1, 3 do coroutine.yield(i) end end)
        envoy.logInfo(produce() + produce() + produce())
        local thread = coroutine.create(function(a) local b = coroutine.yield(a + 1) return b * 2 end)
        local _, first = coroutine.resume(thread, 1)
        local _, second = coroutine.resume(thread, 10)
        envoy.logInfo(first .. " " .. second .. coroutine.status(thread))
        "#,
    );
    let mut stream = FakeStream::new();
    probe.request(&mut stream).unwrap();
    assert_eq!(stream.logged(), ["6", "2 20dead"]);
}

#[test]
fn a_stream_that_ends_while_it_waits_leaves_nothing() {
    let probe = on_request("envoy.stream.shared.x = 1 envoy.sleep(1000)");
    for _ in 0..1000 {
        let (slot, _) = start(&probe);
        probe.configured.end(slot, 0);
    }
    let (slot, mut stream) = start(&probe);
    assert_eq!(
        slot.0 as u32, 1,
        "the entry of the first stream is used again"
    );
    probe.configured.end(slot, 0);
    // A late event finds nobody.
    let late = probe.wake(Wake::Timer(1), &mut slot.clone(), &mut stream);
    assert_eq!(late, Ok(Decision::Continue));
}

#[test]
fn an_error_after_a_pause_names_its_line_and_debug_shows_the_calls() {
    let probe = on_request("envoy.sleep(1)\nlocal function inner() error('late') end\ninner()");
    let (mut slot, mut stream) = start(&probe);
    stream.debug = true;
    let fault = probe
        .wake(Wake::Timer(1), &mut slot, &mut stream)
        .unwrap_err();
    assert_eq!(fault.message, "probe/main.lua:4: late");
    let trace = stream.logged().concat();
    assert!(
        trace.contains("in function 'inner'") && trace.contains("probe/main.lua:5:"),
        "{trace}"
    );
}
