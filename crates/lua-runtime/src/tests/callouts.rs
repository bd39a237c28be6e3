//! Several callouts at once, callouts in parts, timers with functions: what the host is asked for, and
//! what becomes of events in whatever order they come.

use std::time::Duration;

use outrider_plugin_api::{
    CalloutFailure, CalloutId, CalloutResponse, Cause, Decision, Direction, HttpStreamEvent,
    HttpStreamId, MemoryExceeded, Pause, Phase, Slot, Wake, WakeId,
};

use super::fake::{FakeStream, Probe, fault_of, on_request, probe, probe_with, source};

const PAUSED: Result<Decision, outrider_plugin_api::Fault> = Ok(Decision::Pause(Pause::Event));
const DONE: Result<Decision, outrider_plugin_api::Fault> = Ok(Decision::Continue);

fn response<'a>(body: &'a [&'a [u8]]) -> CalloutResponse<'a> {
    CalloutResponse {
        headers: &[(b":status", b"200")],
        body,
    }
}

/// Hands an event to a plugin as a chain does.
fn tell(
    probe: &Probe,
    wake: Wake<'_>,
    slot: &mut Slot,
    stream: &mut FakeStream,
) -> Option<Decision> {
    let waits = wake.id().and_then(|id| {
        probe
            .configured
            .waits_in(*slot, id, Direction::Request, stream.worker)
    });
    match waits {
        Some(direction) => Some(
            probe
                .configured
                .resume(slot, direction, wake, stream)
                .unwrap(),
        ),
        None => probe
            .configured
            .event(slot, wake, stream)
            .unwrap()
            .reply
            .map(Decision::Reply),
    }
}

fn answer(probe: &Probe, id: u64, body: &str, slot: &mut Slot, stream: &mut FakeStream) -> bool {
    let body = [body.as_bytes()];
    let wake = Wake::Callout(CalloutId(id), Ok(response(&body)));
    tell(probe, wake, slot, stream) == Some(Decision::Continue)
}

fn begin(probe: &Probe) -> (Slot, FakeStream) {
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    let decision = probe.call(Phase::RequestHeaders, &mut slot, &mut stream);
    assert_eq!(decision, PAUSED);
    (slot, stream)
}

#[test]
fn two_callouts_run_at_once_and_their_order_does_not_matter() {
    let probe = on_request(
        r#"
        local a = envoy.callout.start{ cluster = "a", path = "/one", timeout_ms = 70 }
        local b = envoy.callout.start{ cluster = "b", body = "ask", headers = { ["x-k"] = "v" } }
        local _, first = a:wait()
        local headers, second = b:wait()
        envoy.logInfo(first .. second .. headers[":status"])
        local _, again = a:wait()
        envoy.logInfo(again)
        "#,
    );
    for order in [[1, 2], [2, 1]] {
        let (mut slot, mut stream) = begin(&probe);
        let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect()
        };
        assert_eq!(
            stream.callouts,
            [
                (
                    "a".to_owned(),
                    pairs(&[(":authority", "a"), (":method", "GET"), (":path", "/one")]),
                    String::new(),
                    Duration::from_millis(70)
                ),
                (
                    "b".to_owned(),
                    pairs(&[
                        (":authority", "b"),
                        (":method", "POST"),
                        (":path", "/"),
                        ("x-k", "v")
                    ]),
                    "ask".to_owned(),
                    Duration::from_secs(1)
                ),
            ]
        );
        let bodies = ["", "first", "second"];
        let first = order[0];
        assert!(!answer(
            &probe,
            first as u64,
            bodies[first],
            &mut slot,
            &mut stream
        ));
        let last = order[1];
        assert!(answer(
            &probe,
            last as u64,
            bodies[last],
            &mut slot,
            &mut stream
        ));
        assert_eq!(stream.logged(), ["firstsecond200", "first"]);
        probe.configured.end(slot, 0);
    }
}

#[test]
fn a_callout_of_one_handler_is_waited_for_in_another() {
    let probe = probe(
        r#"
        local shared = envoy.stream.shared
        return {
            on_request_header = function()
                shared.call = envoy.callout.start{ cluster = "a" }
            end,
            on_response_header = function()
                local _, body = shared.call:wait()
                envoy.resp.set_header("x-said", body)
            end,
        }
        "#,
    );
    for early in [true, false] {
        let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
        let decision = probe.call(Phase::RequestHeaders, &mut slot, &mut stream);
        assert_eq!(decision, DONE, "starting does not hold the stream up");
        if early {
            assert!(!answer(&probe, 1, "early", &mut slot, &mut stream));
            let decision = probe.call(Phase::ResponseHeaders, &mut slot, &mut stream);
            assert_eq!(decision, DONE);
        } else {
            let decision = probe.call(Phase::ResponseHeaders, &mut slot, &mut stream);
            assert_eq!(decision, PAUSED);
            let wake = WakeId::Callout(CalloutId(1));
            let way = probe.configured.waits_in(slot, wake, Direction::Request, 0);
            assert_eq!(way, Some(Direction::Response));
            assert!(answer(&probe, 1, "late", &mut slot, &mut stream));
        }
        probe.configured.end(slot, 0);
    }
}

#[test]
fn waiting_for_all_and_for_any() {
    let all = on_request(
        r#"
        local a, b = envoy.callout.start{ cluster = "a" }, envoy.callout.start{ cluster = "b" }
        local done, why = envoy.callout.wait_all({ a, b }, 50)
        envoy.logInfo(tostring(done) .. tostring(why) .. tostring(a:done()) .. tostring(b:done()))
        "#,
    );
    let (mut slot, mut stream) = begin(&all);
    assert_eq!(stream.timers, [Duration::from_millis(50)]);
    assert!(!answer(&all, 2, "b", &mut slot, &mut stream));
    assert!(answer(&all, 1, "a", &mut slot, &mut stream));
    assert_eq!(stream.logged(), ["trueniltruetrue"]);
    assert_eq!(stream.cancelled, [WakeId::Timer(1)]);

    let (mut slot, mut stream) = begin(&all);
    assert!(!answer(&all, 2, "b", &mut slot, &mut stream));
    let due = tell(&all, Wake::Timer(1), &mut slot, &mut stream);
    assert_eq!(due, Some(Decision::Continue));
    assert_eq!(stream.logged(), ["niltimeoutfalsetrue"]);

    let any = on_request(
        r#"
        local a, b = envoy.callout.start{ cluster = "a" }, envoy.callout.start{ cluster = "b" }
        local first, index = envoy.callout.wait_any({ a, b })
        local _, body = first:wait()
        a:cancel()
        local headers, why = a:wait()
        envoy.logInfo(index .. body .. tostring(headers) .. why)
        "#,
    );
    let (mut slot, mut stream) = begin(&any);
    assert!(answer(&any, 2, "b", &mut slot, &mut stream));
    assert_eq!(stream.logged(), ["2bnilcancelled"]);
    assert_eq!(stream.cancelled, [WakeId::Callout(CalloutId(1))]);
}

#[test]
fn nobody_waits_for_what_is_sent() {
    let probe = on_request(
        r#"
        local sent = envoy.callout.send{ cluster = "audit", path = "/log", body = "seen" }
        envoy.logInfo(tostring(sent))
        "#,
    );
    let mut stream = FakeStream::new();
    assert_eq!(probe.request(&mut stream), DONE);
    assert_eq!(stream.callouts[0].2, "seen");
    assert_eq!(stream.cancelled, [WakeId::Callout(CalloutId(1))]);
    let mut stream = FakeStream::new();
    stream.refuse_callouts = Some(CalloutFailure::TooMany);
    let refused = on_request(
        r#"
        envoy.logInfo(select(2, envoy.callout.send{ cluster = "audit" }))
        envoy.logInfo(select(2, envoy.callout.start{ cluster = "audit" }:wait()))
        envoy.logInfo(select(2, envoy.callout.stream{ cluster = "audit" }:headers()))
        envoy.logInfo(select(2, envoy.timer.after(1, function() end)))
        envoy.sleep(1)
        "#,
    );
    let fault = refused.request(&mut stream).unwrap_err();
    let many = "too many are under way: a plugin may have 64 callouts, timers and streaming callouts at \
                once on one stream";
    assert_eq!(stream.logged(), [many; 4]);
    assert_eq!(
        fault.message,
        format!("probe/main.lua:8: envoy.sleep: {many}")
    );
}

#[test]
fn callout_without_room_in_the_memory_account_names_the_key() {
    let probe = on_request(
        r#"
        local stream = envoy.callout.stream{ cluster = "audit" }
        local sent, reason = stream:send("part")
        envoy.logInfo(tostring(sent) .. " " .. reason)
        envoy.logInfo(select(2, envoy.callout.send{ cluster = "audit" }))
        "#,
    );
    let mut stream = FakeStream::new();
    let exceeded = MemoryExceeded { limit: 1000 };
    stream.refuse_callouts = Some(exceeded.into());
    assert_eq!(probe.request(&mut stream), DONE);
    for line in stream.logged() {
        assert!(line.contains("1000 bytes"), "{line}");
        assert!(line.contains("`budgets.memory_mib`"), "{line}");
    }
}

#[test]
fn a_response_that_nobody_asks_for_is_bounded() {
    let mut source = source(&[(
        "main.lua",
        r#"
        local shared = envoy.stream.shared
        return {
            on_request_header = function() shared.call = envoy.callout.start{ cluster = "a" } end,
            on_response_header = function() envoy.logInfo(select(2, shared.call:wait())) end,
        }
        "#,
    )]);
    source.memory_budget = 1024 * 1024;
    let probe = probe_with(source, "{}");
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    probe
        .call(Phase::RequestHeaders, &mut slot, &mut stream)
        .unwrap();
    answer(&probe, 1, &"x".repeat(200 * 1024), &mut slot, &mut stream);
    let decision = probe.call(Phase::ResponseHeaders, &mut slot, &mut stream);
    assert_eq!(decision, DONE);
    assert_eq!(
        stream.logged(),
        [
            "more came before it was asked for than is kept: 131072 bytes for one stream, an eighth of \
             the plugin's memory budget"
        ]
    );
}

const EXCHANGE: &str = r#"
    local s = envoy.callout.stream{ cluster = "a", path = "/talk", timeout_ms = 900 }
    envoy.logInfo(tostring(s:send("one")) .. tostring(s:send("two", true)))
    envoy.logInfo(tostring(select(2, s:send("three"))))
    local headers, why = s:headers()
    envoy.logInfo(headers and headers[":status"] or why)
    local parts = {}
    for chunk in s:chunks() do parts[#parts + 1] = chunk end
    envoy.logInfo(table.concat(parts, "|") .. tostring(s.broken))
    local trailers = s:trailers()
    envoy.logInfo(trailers and trailers["x-sum"] or "none")
"#;

fn on_stream(event: HttpStreamEvent<'_>) -> Wake<'_> {
    Wake::HttpStream(HttpStreamId(1), event)
}

const OK: HttpStreamEvent<'_> = HttpStreamEvent::Headers {
    headers: &[(b":status", b"200")],
    end_of_stream: false,
};

fn data<'a>(pieces: &'a [&'a [u8]], end_of_stream: bool) -> HttpStreamEvent<'a> {
    HttpStreamEvent::Data {
        pieces,
        end_of_stream,
    }
}

#[test]
fn a_callout_in_parts() {
    let probe = on_request(EXCHANGE);
    let (mut slot, mut stream) = begin(&probe);
    let sent: Vec<_> = stream.sent.iter().map(|(_, what)| what.as_str()).collect();
    assert_eq!(sent, ["one", "two", "end"]);
    for event in [OK, data(&[b"he", b"llo"], false), data(&[b"world"], false)] {
        let decision = tell(&probe, on_stream(event), &mut slot, &mut stream);
        assert_eq!(decision, Some(Decision::Pause(Pause::Event)));
    }
    let last = HttpStreamEvent::Trailers(&[(b"x-sum", b"2")]);
    let decision = tell(&probe, on_stream(last), &mut slot, &mut stream);
    assert_eq!(decision, Some(Decision::Continue));
    let complete = on_stream(HttpStreamEvent::Complete);
    assert_eq!(tell(&probe, complete, &mut slot, &mut stream), None);
    assert_eq!(
        stream.logged(),
        [
            "truetrue",
            "the request is complete",
            "200",
            "hello|worldnil",
            "2"
        ]
    );
    probe.configured.end(slot, 0);
}

#[test]
fn a_callout_in_parts_that_breaks_off() {
    let probe = on_request(EXCHANGE);
    let (mut slot, mut stream) = begin(&probe);
    let failed = HttpStreamEvent::Failed(CalloutFailure::Reset);
    tell(&probe, on_stream(OK), &mut slot, &mut stream);
    tell(
        &probe,
        on_stream(data(&[b"half"], false)),
        &mut slot,
        &mut stream,
    );
    let decision = tell(&probe, on_stream(failed), &mut slot, &mut stream);
    assert_eq!(decision, Some(Decision::Continue));
    let reset = "reset before the response was complete";
    assert_eq!(
        stream.logged()[3..],
        [format!("half{reset}"), "none".to_owned()]
    );
}

#[test]
fn what_comes_while_nobody_reads_is_kept_up_to_a_bound() {
    let mut source = source(&[(
        "main.lua",
        r#"
        local shared = envoy.stream.shared
        return {
            on_request_header = function() shared.s = envoy.callout.stream{ cluster = "a", end_stream = true } end,
            on_response_header = function()
                local s, count = shared.s, 0
                while true do
                    local chunk, why = s:read()
                    if not chunk then
                        envoy.logInfo(count .. " " .. why)
                        break
                    end
                    count = count + #chunk
                end
                s:close()
                envoy.logInfo(select(2, s:read()))
            end,
        }
        "#,
    )]);
    source.memory_budget = 1024 * 1024;
    let probe = probe_with(source, "{}");
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    probe
        .call(Phase::RequestHeaders, &mut slot, &mut stream)
        .unwrap();
    let chunk = vec![b'x'; 50_000];
    for _ in 0..5 {
        tell(
            &probe,
            on_stream(data(&[&chunk], false)),
            &mut slot,
            &mut stream,
        );
    }
    let name = WakeId::HttpStream(HttpStreamId(1));
    assert_eq!(stream.cancelled, [name], "the stream was reset");
    let decision = probe.call(Phase::ResponseHeaders, &mut slot, &mut stream);
    assert_eq!(decision, DONE);
    assert_eq!(
        stream.logged(),
        [
            "100000 more came before it was asked for than is kept: 131072 bytes for one stream, an eighth \
             of the plugin's memory budget",
            "the stream is closed"
        ]
    );
    probe.configured.end(slot, 0);
}

#[test]
fn a_timer_s_function_runs_beside_the_handlers() {
    let probe = on_request(
        r#"
        local seen = 0
        local timer = envoy.timer.every(20, function()
            seen = seen + 1
            envoy.req.set_header("x-seen", tostring(seen))
            envoy.sleep(5)
            envoy.logInfo("slept " .. seen)
        end)
        envoy.timer.after(100, function()
            timer:cancel()
            envoy.respond({ [":status"] = 504 }, "late")
        end)
        "#,
    );
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    let decision = probe.call(Phase::RequestHeaders, &mut slot, &mut stream);
    assert_eq!(decision, DONE, "a timer does not hold the stream up");
    let tell_timer =
        |id, slot: &mut Slot, stream: &mut FakeStream| tell(&probe, Wake::Timer(id), slot, stream);
    // The timer (1), the limit (2); the function sleeps (3), then the timer starts anew (4).
    assert_eq!(tell_timer(1, &mut slot, &mut stream), None);
    assert_eq!(tell_timer(3, &mut slot, &mut stream), None);
    assert_eq!(stream.timers.len(), 4);
    assert_eq!(stream.logged(), ["slept 1"]);
    let Some(Decision::Reply(reply)) = tell_timer(2, &mut slot, &mut stream) else {
        panic!("no reply")
    };
    assert_eq!((reply.status, reply.body.as_slice()), (504, &b"late"[..]));
    assert_eq!(stream.cancelled, [WakeId::Timer(4)]);
    assert_eq!(tell_timer(4, &mut slot, &mut stream), None);
    probe.configured.end(slot, 0);
}

#[test]
fn an_error_in_a_timer_s_function_is_the_plugins() {
    for (body, message) in [
        ("error('broken')", "probe/main.lua:4: broken"),
        (
            "envoy.callout.start{ cluster = 'a' }:wait(error('x'))",
            "probe/main.lua:4: x",
        ),
    ] {
        let probe = on_request(&format!("envoy.timer.after(1, function()\n{body}\nend)"));
        let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
        probe
            .call(Phase::RequestHeaders, &mut slot, &mut stream)
            .unwrap();
        let fault = probe
            .configured
            .event(&mut slot, Wake::Timer(1), &mut stream)
            .unwrap_err();
        assert_eq!(
            (fault.cause, fault.message.as_str()),
            (Cause::Error, message)
        );
        probe.configured.end(slot, 0);
    }
}

#[test]
fn mistakes_are_told_with_their_line() {
    for (body, message) in [
        (
            "envoy.callout.start('auth')",
            "envoy.callout.start takes a table: envoy.callout.start{ cluster = \"auth\", path = \"/check\" }",
        ),
        (
            "envoy.callout.start{ cluster = 'a', timeout = 5 }",
            "envoy.callout.start has no option timeout; it has cluster, method, path, host, headers, body \
             and timeout_ms",
        ),
        (
            "envoy.callout.send{ path = '/' }",
            "the cluster must be a string, not nil",
        ),
        (
            "envoy.callout.start{ cluster = 'a', timeout_ms = 0 }",
            "the timeout must be a number of milliseconds above 0",
        ),
        (
            "envoy.callout.wait_all(envoy.callout.start{ cluster = 'a' })",
            "envoy.callout.wait_all takes a list of callouts: envoy.callout.wait_all({ a, b })",
        ),
        (
            "envoy.callout.wait_any({ 1 })",
            "envoy.callout.wait_any: number 1 of the list is no callout",
        ),
        (
            "envoy.timer.after('soon', print)",
            "envoy.timer.after takes a number of milliseconds",
        ),
        (
            "envoy.timer.every(1, print)",
            "envoy.timer.every takes a number of milliseconds from 10",
        ),
        (
            "envoy.timer.after(1)",
            "what is to run must be a function, not nil",
        ),
        (
            "local a = envoy.callout.start{ cluster = 'a' } coroutine.wrap(function() a:wait() end)()",
            "wait cannot be called from a coroutine of the plugin's own",
        ),
    ] {
        assert_eq!(
            fault_of(body).message,
            format!("probe/main.lua:3: {message}"),
            "{body}"
        );
    }
    let log = probe("return { on_log = function()\nenvoy.callout.send{ cluster = 'a' } end }");
    let fault = log
        .call(Phase::Log, &mut Slot::default(), &mut FakeStream::new())
        .unwrap_err();
    assert_eq!(
        fault.message,
        "probe/main.lua:2: envoy.callout.send cannot be called from on_log: the stream is over"
    );
}

#[test]
fn two_handlers_cannot_wait_for_one_callout() {
    let probe = probe(
        r#"
        local shared = envoy.stream.shared
        return {
            on_request_header = function()
                shared.call = envoy.callout.start{ cluster = "a" }
                shared.call:wait()
            end,
            on_response_header = function() shared.call:wait() end,
        }
        "#,
    );
    let (mut slot, mut stream) = begin(&probe);
    let fault = probe
        .call(Phase::ResponseHeaders, &mut slot, &mut stream)
        .unwrap_err();
    assert_eq!(
        fault.message,
        "probe/main.lua:8: wait: another handler waits for it already"
    );
}

#[test]
fn a_vm_that_is_replaced_forgets_what_came() {
    let mut source = source(&[(
        "main.lua",
        r#"
        local shared = envoy.stream.shared
        return {
            on_request_header = function() shared.a = envoy.callout.start{ cluster = "a" } end,
            on_response_header = function() local t = {} while true do t[#t + 1] = ("x"):rep(1e6) .. #t end end,
        }
        "#,
    )]);
    source.memory_budget = 4 * 1024 * 1024;
    source.time_budget = Duration::from_secs(10);
    let probe = probe_with(source, "{}");
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    probe
        .call(Phase::RequestHeaders, &mut slot, &mut stream)
        .unwrap();
    answer(&probe, 1, "kept", &mut slot, &mut stream);
    let (mut other, mut its) = (Slot::default(), FakeStream::new());
    let fault = probe
        .call(Phase::ResponseHeaders, &mut other, &mut its)
        .unwrap_err();
    assert_eq!(fault.cause, Cause::Memory);
    let wake = Wake::Callout(CalloutId(2), Err(CalloutFailure::Reset));
    let fault = probe
        .configured
        .event(&mut slot, wake, &mut stream)
        .unwrap_err();
    assert_eq!(fault.cause, Cause::Unavailable);
    assert!(fault.message.contains("was lost"), "{}", fault.message);
    probe.configured.end(slot, 0);
}

/// What is cancelled while a handler waits for it wakes that handler, by a timer that is due at once.
#[test]
fn handler_that_waits_for_what_is_cancelled_goes_on() {
    for (start, stop, waits, outcome) in [
        (
            "start{ cluster = 'a' }",
            "cancel",
            "one:wait()",
            "cancelled",
        ),
        (
            "start{ cluster = 'a' }",
            "cancel",
            "envoy.callout.wait_any({ one }):wait()",
            "cancelled",
        ),
        (
            "stream{ cluster = 'a' }",
            "close",
            "one:read_all()",
            "the stream is closed",
        ),
        (
            "stream{ cluster = 'a' }",
            "close",
            "one:headers(500)",
            "the stream is closed",
        ),
        (
            "stream{ cluster = 'a' }",
            "close",
            "envoy.callout.wait_any({ one }):read()",
            "the stream is closed",
        ),
    ] {
        let probe = on_request(&format!(
            "
            local one = envoy.callout.{start}
            envoy.timer.after(50, function() one:{stop}() end)
            local _, reason = {waits}
            envoy.logInfo(tostring(reason))
            "
        ));
        let (mut slot, mut stream) = begin(&probe);
        assert_eq!(tell(&probe, Wake::Timer(1), &mut slot, &mut stream), None);
        assert_eq!(stream.timers.last(), Some(&Duration::ZERO), "{waits}");
        let soon = Wake::Timer(stream.timers.len() as u64);
        let decision = tell(&probe, soon, &mut slot, &mut stream);
        assert_eq!(decision, Some(Decision::Continue), "{waits}");
        assert_eq!(stream.logged(), [outcome], "{waits}");
        probe.configured.end(slot, 0);
    }
}

#[test]
fn handle_is_of_no_use_in_another_stream() {
    for (keeps, uses, name) in [
        (
            "envoy.callout.start{ cluster = 'a' }",
            "kept:wait()",
            "wait",
        ),
        (
            "envoy.callout.start{ cluster = 'a' }",
            "kept:done()",
            "done",
        ),
        (
            "envoy.callout.start{ cluster = 'a' }",
            "kept:cancel()",
            "cancel",
        ),
        (
            "envoy.callout.stream{ cluster = 'a' }",
            "kept:read()",
            "read",
        ),
        (
            "envoy.callout.stream{ cluster = 'a' }",
            "kept:send('x')",
            "send",
        ),
        (
            "envoy.callout.stream{ cluster = 'a' }",
            "kept:close()",
            "close",
        ),
        (
            "envoy.callout.start{ cluster = 'a' }",
            "envoy.callout.wait_all({ kept })",
            "envoy.callout.wait_all: number 1 of the list",
        ),
        (
            "envoy.timer.after(1, function() end)",
            "kept:cancel()",
            "cancel",
        ),
    ] {
        for is_over in [false, true] {
            let probe = probe(&format!(
                "
                local kept
                return {{ on_request_header = function()
                    if kept then
                        local ok, why = pcall(function()
                            {uses}
                        end)
                        envoy.logInfo(tostring(why))
                    else
                        kept = {keeps}
                    end
                end }}
                "
            ));
            let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
            let decision = probe.call(Phase::RequestHeaders, &mut slot, &mut stream);
            assert_eq!(decision, DONE);
            if is_over {
                probe.configured.end(slot, 0);
            }
            let (mut other, mut its) = (Slot::default(), FakeStream::new());
            let decision = probe.call(Phase::RequestHeaders, &mut other, &mut its);
            assert_eq!(decision, DONE);
            assert_eq!(
                its.logged(),
                [format!(
                    "probe/main.lua:6: {name}: it belongs to another stream, or its stream is over"
                )],
                "{uses}, over: {is_over}"
            );
            assert!(its.cancelled.is_empty() && stream.cancelled.is_empty());
            probe.configured.end(other, 0);
        }
    }
}
