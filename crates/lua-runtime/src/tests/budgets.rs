//! Plugins that do not end, and plugins that eat memory.

use std::time::{Duration, Instant};

use outrider_plugin_api::{Cause, Decision, Phase, Slot, Wake};

use super::fake::{FakeStream, on_request, probe, probe_with, source};

const OK: &str = "if not envoy.req.get_header('x-bad') then return end\n";

fn bad() -> FakeStream {
    let mut stream = FakeStream::new();
    let request = outrider_plugin_api::HeaderMap::RequestHeaders;
    stream
        .maps
        .get_mut(&request)
        .unwrap()
        .push((b"x-bad".to_vec(), b"1".to_vec()));
    stream
}

/// The plugin misbehaves on one stream, with this cause, and serves the next ones.
fn misbehaves(body: &str, cause: Cause) -> String {
    let handler = format!("return {{ on_request_header = function()\n{OK}{body}\nend }}");
    let mut source = source(&[("main.lua", &handler)]);
    source.time_budget = Duration::from_millis(10);
    let probe = probe_with(source, "{}");
    let mut message = String::new();
    for _ in 0..2 {
        assert_eq!(
            probe.request(&mut FakeStream::new()),
            Ok(Decision::Continue),
            "{body}"
        );
        let began = Instant::now();
        let fault = probe.request(&mut bad()).unwrap_err();
        assert_eq!(fault.cause, cause, "{body}: {fault}");
        assert!(
            began.elapsed() < Duration::from_secs(3),
            "{body}: {:?}",
            began.elapsed()
        );
        message = fault.message;
    }
    assert_eq!(
        probe.request(&mut FakeStream::new()),
        Ok(Decision::Continue),
        "{body}"
    );
    message
}

#[test]
fn an_endless_loop_is_ended() {
    let message = misbehaves("while true do end", Cause::Time);
    assert_eq!(
        message,
        "probe/main.lua:3: the time budget of the call is used up"
    );
}

#[test]
fn pcall_does_not_keep_it() {
    misbehaves(
        "while true do pcall(function() while true do end end) end",
        Cause::Time,
    );
    misbehaves("pcall(function() while true do end end)", Cause::Time);
    misbehaves(
        "while true do xpcall(function() while true do end end, function() while true do end end) end",
        Cause::Time,
    );
    misbehaves(
        "local function again() pcall(again) return again() end again()",
        Cause::Time,
    );
}

#[test]
fn coroutines_do_not_keep_it() {
    misbehaves(
        "coroutine.wrap(function() while true do end end)()",
        Cause::Time,
    );
    misbehaves(
        "while true do
            local t = coroutine.create(function() pcall(function() while true do end end) end)
            coroutine.resume(t)
        end",
        Cause::Time,
    );
}

#[test]
fn neither_do_metamethods_callbacks_and_calls_of_the_sdk() {
    misbehaves(
        "local t = setmetatable({}, { __index = function(t, k) return t[k + 1] == 1 end })
        while true do pcall(function() return t[1] end) end",
        Cause::Time,
    );
    misbehaves(
        "string.gsub('xxxx', 'x', function() while true do end end)",
        Cause::Time,
    );
    misbehaves(
        "table.sort({1, 2, 3}, function() while true do end end)",
        Cause::Time,
    );
    misbehaves(
        "while true do envoy.req.get_header('x-one') end",
        Cause::Time,
    );
    misbehaves(
        "while true do pcall(envoy.req.get_headers) end",
        Cause::Time,
    );
    misbehaves(
        "error(setmetatable({}, { __tostring = function() while true do end end }))",
        Cause::Error,
    );
}

#[test]
fn other_streams_of_the_vm_go_on_after_it() {
    let probe = on_request(
        r#"
        if envoy.req.get_header("x-bad") then while true do end end
        envoy.stream.shared.x = "kept"
        envoy.sleep(1)
        envoy.logInfo(envoy.stream.shared.x)
        "#,
    );
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    probe
        .call(Phase::RequestHeaders, &mut slot, &mut stream)
        .unwrap();
    assert_eq!(probe.request(&mut bad()).unwrap_err().cause, Cause::Time);
    assert_eq!(
        probe.wake(Wake::Timer(1), &mut slot, &mut stream),
        Ok(Decision::Continue)
    );
    assert_eq!(stream.logged(), ["kept"]);
}

#[test]
fn each_part_of_a_paused_call_has_the_whole_budget() {
    let mut source = source(&[(
        "main.lua",
        "local function work() local t = envoy.nowms() + 150 while envoy.nowms() < t do end end
        return { on_request_header = function() work() envoy.sleep(1) work() envoy.sleep(1) work() end }",
    )]);
    source.time_budget = Duration::from_millis(400);
    let probe = probe_with(source, "{}");
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    stream.clock = Some(Instant::now());
    probe
        .call(Phase::RequestHeaders, &mut slot, &mut stream)
        .unwrap();
    for timer in 1..3 {
        probe
            .wake(Wake::Timer(timer), &mut slot, &mut stream)
            .unwrap();
    }
}

#[test]
fn a_memory_hog_is_ended_and_its_vm_replaced() {
    for body in [
        "local t = {} for i = 1, 1e9 do t[i] = { i } end",
        "local s = 'x' while true do s = s .. s end",
        "string.rep('x', 1e9)",
        "local t = {} while true do t[#t + 1] = string.rep('x', 1000) .. #t end",
        "pcall(string.rep, 'x', 1e9)",
        "local t = {} while true do pcall(function() t[#t + 1] = string.rep('y', 4096) .. #t end)
            if #t > 1e6 then break end end",
        "local t = {} while true do t[#t + 1] = coroutine.create(function() end) end",
        "envoy.stream.shared.x = string.rep('x', 1e9)",
    ] {
        let probe = on_request(&format!("{OK}{body}"));
        for _ in 0..2 {
            assert_eq!(
                probe.request(&mut FakeStream::new()),
                Ok(Decision::Continue),
                "{body}"
            );
            let fault = probe.request(&mut bad()).unwrap_err();
            // Building up to the budget may also take longer than the call's time.
            assert!(
                matches!(fault.cause, Cause::Memory | Cause::Time),
                "{body}: {fault}"
            );
            if fault.cause == Cause::Memory {
                assert!(
                    fault
                        .message
                        .ends_with("the memory budget of 8388608 bytes is used up"),
                    "{fault}"
                );
            }
        }
        assert_eq!(
            probe.request(&mut FakeStream::new()),
            Ok(Decision::Continue),
            "{body}"
        );
    }
}

#[test]
fn streams_of_a_replaced_vm_are_told() {
    let probe = on_request(
        r#"
        if envoy.req.get_header("x-bad") then string.rep("x", 1e9) end
        envoy.sleep(1)
        "#,
    );
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    probe
        .call(Phase::RequestHeaders, &mut slot, &mut stream)
        .unwrap();
    let fault = probe.request(&mut bad()).unwrap_err();
    assert_eq!(fault.cause, Cause::Memory);
    assert_eq!(
        fault.message,
        "probe/main.lua:4: the memory budget of 8388608 bytes is used up"
    );
    let fault = probe
        .wake(Wake::Timer(1), &mut slot, &mut stream)
        .unwrap_err();
    assert_eq!(fault.cause, Cause::Unavailable);
    probe.configured.end(slot, 0);
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    let again = probe.call(Phase::RequestHeaders, &mut slot, &mut stream);
    assert!(matches!(again, Ok(Decision::Pause(_))));
    assert_eq!(
        probe.wake(Wake::Timer(1), &mut slot, &mut stream),
        Ok(Decision::Continue)
    );
}

#[test]
fn a_panic_costs_a_worker_its_vm_once() {
    let probe = on_request(
        r#"
        if envoy.req.get_header("x-bad") then error("bad") end
        envoy.sleep(1)
        "#,
    );
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    probe
        .call(Phase::RequestHeaders, &mut slot, &mut stream)
        .unwrap();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut stream = bad();
        stream.panics = true;
        probe.request(&mut stream)
    }));
    assert!(panicked.is_err());
    let fault = probe
        .wake(Wake::Timer(1), &mut slot, &mut stream)
        .unwrap_err();
    assert_eq!(fault.cause, Cause::Unavailable);
    for _ in 0..2 {
        let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
        let paused = probe.call(Phase::RequestHeaders, &mut slot, &mut stream);
        assert!(matches!(paused, Ok(Decision::Pause(_))), "{paused:?}");
        let woken = probe.wake(Wake::Timer(1), &mut slot, &mut stream);
        assert_eq!(woken, Ok(Decision::Continue));
    }
}

#[test]
fn a_stack_without_end_is_an_error() {
    let probe = on_request("local function deep(n) return deep(n + 1) + 1 end deep(1)");
    let fault = probe.request(&mut FakeStream::new()).unwrap_err();
    assert_eq!(fault.cause, Cause::Error);
    assert!(fault.message.contains("stack overflow"), "{fault}");
}

#[test]
fn large_bodies_come_and_go_within_the_budget() {
    let probe = probe(
        "return { on_request_body = function()
            local body = envoy.req.get_body()
            envoy.req.set_body(body:sub(1, -2) .. 'y')
        end }",
    );
    for _ in 0..50 {
        let mut stream = FakeStream::new();
        stream.request_body = Some(vec![vec![b'x'; 1024 * 1024]]);
        let decision = probe.call(Phase::RequestBody, &mut Slot::default(), &mut stream);
        assert_eq!(decision, Ok(Decision::Continue));
        assert_eq!(stream.request_body.unwrap()[0].last(), Some(&b'y'));
    }
}

#[test]
fn ten_thousand_calls_leave_the_memory_as_it_was() {
    let probe = on_request(
        r#"
        local shared = envoy.stream.shared
        shared.headers = envoy.req.get_headers()
        envoy.req.set_header("x-one", shared.headers["x-one"] .. "!")
        if envoy.req.get_header("x-reply") then envoy.respond({[":status"] = 200}, "x") end
        envoy.logInfo(collectgarbage("count"))
        "#,
    );
    let run = |count: usize| {
        let mut last = 0.0;
        for _ in 0..count {
            let mut stream = FakeStream::new();
            probe.request(&mut stream).unwrap();
            last = stream.logged()[0].parse::<f64>().unwrap();
            let request = outrider_plugin_api::HeaderMap::RequestHeaders;
            stream
                .maps
                .get_mut(&request)
                .unwrap()
                .push((b"x-reply".to_vec(), b"1".to_vec()));
            let reply = probe.request(&mut stream).unwrap();
            assert!(matches!(reply, Decision::Reply(_)));
        }
        last
    };
    let peak = |rounds: usize| (0..rounds).map(|_| run(500)).fold(0.0_f64, f64::max);
    let before = peak(5);
    let after = peak(20);
    assert!(after < before * 1.3, "{before} KiB, then {after} KiB");
}

#[test]
fn a_slow_pattern_in_c_is_seen_when_it_returns() {
    let mut slow = source(&[(
        "main.lua",
        "return { on_request_header = function()
            string.find(string.rep('a', 120), '.-.-.-b')
        end }",
    )]);
    slow.time_budget = Duration::from_millis(5);
    let probe = probe_with(slow, "{}");
    let fault = probe.request(&mut FakeStream::new()).unwrap_err();
    assert_eq!(fault.cause, Cause::Time);
}
