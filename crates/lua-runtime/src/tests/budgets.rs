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

/// Runs a plugin whose handler logs `checked` when none of its assertions failed. A debug build takes its time.
fn logs_checked(text: &str) {
    let mut source = source(&[("main.lua", text)]);
    source.time_budget = Duration::from_secs(20);
    let mut stream = FakeStream::new();
    probe_with(source, "{}").request(&mut stream).unwrap();
    assert_eq!(stream.logged(), ["checked"]);
}

#[test]
fn an_endless_loop_is_ended() {
    let message = misbehaves("while true do end", Cause::Time);
    assert_eq!(
        message,
        "probe/main.lua:3: the time budget of the call is used up; `budgets.time_ms` is 10"
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
fn loop_after_timed_out_loads_is_ended() {
    let main = r#"
        local long = "return {" .. ("1,"):rep(1000000) .. "}"
        return { on_request_header = function()
            local kind = envoy.req.get_header("x-bad")
            if kind then while true do end end
            return load(long)
        end }
    "#;
    let mut source = source(&[("main.lua", main)]);
    source.time_budget = Duration::from_millis(5);
    source.memory_budget = 256 * 1024 * 1024;
    let probe = probe_with(source, "{}");
    for _ in 0..4 {
        // A quick machine may load it in time.
        if let Err(fault) = probe.request(&mut FakeStream::new()) {
            assert_eq!(fault.cause, Cause::Time, "{fault}");
        }
    }
    for _ in 0..3 {
        let began = Instant::now();
        assert_eq!(probe.request(&mut bad()).unwrap_err().cause, Cause::Time);
        assert!(began.elapsed() < Duration::from_secs(10));
    }
}

#[test]
fn vm_whose_call_ran_on_after_its_interrupt_is_replaced() {
    let main = r#"
        return { on_request_header = function()
            while envoy.req.get_header("x-one") do end
        end }
    "#;
    let mut source = source(&[("main.lua", main)]);
    source.time_budget = Duration::from_millis(1);
    let probe = probe_with(source, "{}");
    let replacements = || probe.plugin.status().workers[0].replacements;
    let began = Instant::now();
    while replacements() == 0 {
        let mut stream = FakeStream::new();
        // A host call that runs on, as one that does not look at the budget would.
        stream.spins = Duration::from_millis(150);
        let fault = probe.request(&mut stream).unwrap_err();
        assert_eq!(fault.cause, Cause::Time);
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "no call was late"
        );
    }
    let fault = probe.request(&mut FakeStream::new()).unwrap_err();
    assert_eq!(fault.cause, Cause::Time);
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
                    fault.message.ends_with(
                        "the memory budget of 8388608 bytes is used up; `budgets.memory_mib` is 8"
                    ),
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
fn misspelt_function_of_the_sdk_is_an_error_that_names_the_near_one() {
    let message = misbehaves("envoy.req.get_headr('a')", Cause::Error);
    assert_eq!(
        message,
        "probe/main.lua:3: attempt to call field 'get_headr' (a nil value); did you mean \
         `envoy.req.get_header`?"
    );
    // A plugin may ask whether there is a function.
    misbehaves("if not envoy.headrs then error('none') end", Cause::Error);
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
        "probe/main.lua:4: the memory budget of 8388608 bytes is used up; `budgets.memory_mib` is 8"
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
    // Of every call: in between two collections the memory doubles, so that a single one tells only where in
    // such a cycle it was, and the largest of a few is no bound for more of them.
    let run = |count: usize| {
        let mut peak = 0.0_f64;
        for _ in 0..count {
            let mut stream = FakeStream::new();
            probe.request(&mut stream).unwrap();
            peak = peak.max(stream.logged()[0].parse().unwrap());
            let request = outrider_plugin_api::HeaderMap::RequestHeaders;
            stream
                .maps
                .get_mut(&request)
                .unwrap()
                .push((b"x-reply".to_vec(), b"1".to_vec()));
            let reply = probe.request(&mut stream).unwrap();
            assert!(matches!(reply, Decision::Reply(_)));
        }
        peak
    };
    let peak = |rounds: usize| (0..rounds).map(|_| run(500)).fold(0.0_f64, f64::max);
    let before = peak(5);
    let after = peak(20);
    assert!(after < before * 1.3, "{before} KiB, then {after} KiB");
}

#[test]
fn functions_that_run_long_outside_of_lua_are_ended_too() {
    for body in [
        "string.find(string.rep('a', 5000), '.-.-.-.-b')",
        "local s = string.rep('a', 5000) return s:find('.-.-.-.-b')",
        "string.match(string.rep('a', 5000), '(.-)(.-)(.-)%1%2%3b')",
        "for _ in string.gmatch(string.rep('a', 5000), 'a-a-a-a-b') do end",
        "string.gsub(string.rep('a', 5000), 'a*a*a*a*b', '')",
        "string.gsub(string.rep('a', 5000), '.-.-.-.-b', {})",
        "string.gsub(string.rep('a', 5000), '.-.-.-.-b', function() end)",
        "while true do pcall(string.find, string.rep('a', 5000), '.-.-.-.-b') end",
        "coroutine.wrap(function() string.find(string.rep('a', 5000), '.-.-.-.-b') end)()",
        "string.find(string.rep('(', 200000), '%b()%b()')",
        "local s = string.rep('a', 100000) string.find(s, string.rep('a', 50000) .. 'b', 1, false)
            while true do s:find(string.rep('a', 50000) .. 'b', 1, true) end",
        "local t = {} for i = 1, 200000 do t[i] = -i % 7919 end
            while true do table.sort(t) table.sort(t, function(a, b) return a > b end) end",
        "local t = {} for i = 1, 100000 do t[i] = i end
            table.sort(t, function(a, b) for i = 1, 1000 do end return a < b end)",
        "load(string.rep('x = 1 ', 300000))",
        "loadstring('return ' .. string.rep('{', 150) .. string.rep('1,', 500000))",
        "load(function() return 'x = 1 ' end)",
    ] {
        let handler = format!("return {{ on_request_header = function()\n{OK}{body}\nend }}");
        let mut source = source(&[("main.lua", &handler)]);
        source.time_budget = Duration::from_millis(10);
        source.memory_budget = 64 * 1024 * 1024;
        let probe = probe_with(source, "{}");
        for _ in 0..2 {
            let began = Instant::now();
            let Err(fault) = probe.request(&mut bad()) else {
                panic!("{body}: it was not ended");
            };
            assert_eq!(fault.cause, Cause::Time, "{body}: {fault}");
            assert!(
                began.elapsed() < Duration::from_secs(2),
                "{body}: {:?}",
                began.elapsed()
            );
            let fine = probe.request(&mut FakeStream::new());
            assert_eq!(fine, Ok(Decision::Continue), "{body}");
        }
    }
}

#[test]
fn insertion_shifts_short_and_long_lists_and_refuses_positions_out_of_bounds() {
    let text = r#"
        local function check(length, position)
            local list, expected = {}, {}
            for i = 1, length do list[i] = i end
            for i = 1, length + 1 do
                expected[i] = i < position and i or i == position and "new" or i - 1
            end
            table.insert(list, position, "new")
            assert(#list == length + 1)
            for i = 1, length + 1 do assert(list[i] == expected[i], length .. " " .. position .. " " .. i) end
        end
        return { on_request_header = function()
            for _, length in ipairs({ 0, 1, 5, 999, 1000, 1001, 3000 }) do
                check(length, 1)
                check(length, length + 1)
                check(length, math.floor(length / 2) + 1)
            end
            local list = { 1 }
            table.insert(list, 2)
            table.insert(list, nil)
            table.insert(list, "1", 0)
            assert(#list == 3 and list[1] == 0 and list[3] == 2)
            local _, problem = pcall(function() table.insert(list, -1, 0) end)
            assert(problem:find("main.lua:%d+: bad argument #2 to 'insert' %(position out of bounds%)"), problem)
            _, problem = pcall(function() table.insert(1, 2) end)
            assert(problem:find("bad argument #1 to 'insert'"), problem)
            _, problem = pcall(function() table.insert(list, "x", 2) end)
            assert(problem:find("bad argument #2 to 'insert'"), problem)
            envoy.logInfo("checked")
        end }
    "#;
    logs_checked(text);
}

#[test]
fn functions_of_lua_52_do_as_luajit_has_them() {
    let text = r#"
        local function fails(says, ...)
            local done, problem = pcall(...)
            assert(not done and problem:find(says), tostring(problem))
        end
        local function joined(list) return table.concat(list, ",") end
        return { on_request_header = function()
            assert(select('#', table.unpack({ 1, nil, 3 }, 1, 3)) == 3 and table.unpack == unpack)
            local packed = table.pack(nil, 2, nil)
            assert(packed.n == 3 and packed[2] == 2 and packed[1] == nil and table.pack().n == 0)
            assert(table.getn({ 1, 2 }) == 2)
            assert(joined(table.move({ 1, 2, 3 }, 1, 3, 2)) == "1,1,2,3")
            assert(joined(table.move({ 1, 2, 3 }, 2, 3, 1)) == "2,3,3")
            assert(joined(table.move({ 1, 2, 3 }, 1, 3, 3, { 7, 8 })) == "7,8,1,2,3")
            assert(joined(table.move({ 1, 2, 3 }, 1, 0, 2)) == "1,2,3")
            local target = {}
            assert(table.move({ 5 }, 1, 1, 1, target) == target and target[1] == 5)
            local seen = setmetatable({}, { __newindex = function(list, key, value) rawset(list, key, -value) end })
            assert(joined(table.move({ 1, 2 }, 1, 2, 1, seen)) == "-1,-2")
            fails("main.lua:%d+: bad argument #1 to 'move' %(table expected, got nil%)", function() table.move() end)
            fails("main.lua:%d+: bad argument #5 to 'move'", function() table.move({}, 1, 1, 1, 1) end)
            fails("main.lua:%d+: bad argument #3 to 'move'", function() table.move({}, 1, {}, 1) end)
            fails("main.lua:%d+: bad argument #1 to 'getn'", function() table.getn("x") end)
            local clear, new = require("table.clear"), require("table.new")
            local list = new(1e9, 1e9)
            for i = 1, 100 do list[i], list["k" .. i] = i, i end
            clear(list)
            assert(next(list) == nil)
            fails("table expected", clear, "x")
            for _, name in ipairs({ "bit", "coroutine", "math", "os", "string", "table" }) do
                assert(require(name) == _G[name] and require(name) ~= nil, name)
            end
            assert(load("return 7", "x", "t")() == 7 and load("return 7", "x", "bt")() == 7)
            local chunk, problem = load("return 7", "x", "b")
            assert(chunk == nil and problem == "attempt to load chunk with wrong mode", problem)
            envoy.logInfo("checked")
        end }
    "#;
    logs_checked(text);
}

/// Each would take seconds, or gigabytes.
#[test]
fn functions_of_lua_52_end_with_their_budgets() {
    for (work, cause) in [
        ("table.move({}, 1, 1e9, 2)", Cause::Time),
        ("table.move({}, 1, 1e9, 1, {})", Cause::Time),
        (
            "table.move({ 1 }, 1, 1e9, 1, setmetatable({}, { __newindex = function() end }))",
            Cause::Time,
        ),
        (
            "table.move(setmetatable({}, { __index = function() return 1 end }), 1, 1e9, 1, {})",
            Cause::Memory,
        ),
        (
            "while true do table.pack(table.unpack({}, 1, 5000)) end",
            Cause::Time,
        ),
        (
            "local kept = {} while true do kept[#kept + 1] = table.pack(table.unpack({}, 1, 5000)) end",
            Cause::Memory,
        ),
        (
            "local clear = require('table.clear') while true do clear({ 1, 2, 3 }) end",
            Cause::Time,
        ),
    ] {
        let run = if cause == Cause::Time {
            format!("while true do pcall(function() {work} end) end")
        } else {
            work.to_owned()
        };
        let text = format!("return {{ on_request_header = function() {run} end }}");
        let mut source = source(&[("main.lua", &text)]);
        source.time_budget =
            Duration::from_millis(if cause == Cause::Memory { 20_000 } else { 100 });
        let probe = probe_with(source, "{}");
        let fault = probe.request(&mut FakeStream::new()).unwrap_err();
        assert_eq!(fault.cause, cause, "{work}: {}", fault.message);
    }
}

/// Functions that LuaJIT has in C work on long texts and lists in parts: results and messages stay the same.
#[test]
fn long_texts_and_lists_are_converted_as_short_ones_are() {
    let text = r#"
        local function check(made, expected, what)
            assert(made == expected, what)
        end
        return { on_request_header = function()
            local unit = "aB\0" .. ("x"):rep(97)
            for _, count in ipairs({ 0, 1, 655, 656, 1311, 2000 }) do
                local expected = {}
                for i = 1, count do expected[i] = unit end
                local long = table.concat(expected)
                check(#long, 100 * count, "concat")
                check(unit:rep(count), long, "rep")
                check(unit:rep(count, ", "), table.concat(expected, ", "), "rep with a separator")
                check(long:lower(), unit:lower():rep(count), "lower")
                check(long:upper(), unit:upper():rep(count), "upper")
                check(long:reverse(), unit:reverse():rep(count), "reverse")
            end
            check(string.rep(5, 3) .. ("x"):rep("2") .. ("x"):rep(-1), "555xx", "rep of numbers")
            check(("x"):rep(0 / 0) .. (""):rep(1e9) .. ("x"):rep(3.9), "xxx", "odd counts")
            local list = {}
            for i = 1, 9000 do list[i] = i end
            local parts = {}
            for number in table.concat(list, ","):gmatch("%d+") do parts[#parts + 1] = tonumber(number) end
            check(#parts, 9000, "length")
            for i = 1, 9000 do check(parts[i], i, "part") end
            check(table.concat(list, "", 4000, 8999):sub(-8), "89988999", "range")
            list[8000] = {}
            for _, call in ipairs({
                { "invalid value %(table%) at index 8000 in table for 'concat'", function() table.concat(list) end },
                { "bad argument #1 to 'lower'", function() string.lower({}) end },
                { "bad argument #2 to 'rep'", function() string.rep("x", {}) end },
                { "bad argument #1 to 'concat'", function() table.concat(1) end },
                { "the format has 65537 bytes; 65536 are allowed", function() (" "):rep(65537):format() end },
                { "%%q takes texts of 65536 bytes at most",
                    function() local s = ("%%%s%5q"):format("", (" "):rep(65537)) end },
            }) do
                local _, problem = pcall(call[2])
                assert(problem:find("main.lua:%d+: " .. call[1]), problem)
            end
            check(#("%q%s"):format("", (" "):rep(65537)), 65539, "long %s")
            envoy.logInfo("checked")
        end }
    "#;
    logs_checked(text);
}

/// What takes long in C beside them would run on for hundreds of milliseconds after its budget.
#[test]
fn long_host_calls_and_conversions_end_with_the_time_budget() {
    for body in [
        "local s = string.rep('abcdefg\\1', 5e6):lower():upper():reverse():lower():upper()",
        "local t = {} for i = 1, 3e6 do t[i] = 'xyz' end while true do table.concat(t, ',') end",
        "local s = string.rep('a', 8e6) while true do envoy.crypto.constant_time_equals(s, s .. '') end",
        "local s = string.rep('a', 8e6) while true do envoy.url.parse_query(s) end",
        "local s = string.rep('&', 8e6) while true do envoy.url.parse_query(s) end",
        "local s = string.rep('\\1', 8e6) while true do envoy.json.encode(s) end",
        "local t = {} for i = 1, 3e5 do t['k' .. i] = 'v' end while true do envoy.url.build_query(t) end",
        "local s = string.rep('x', 8e6) while true do
            envoy.crypto.verify_signature('sha512', key, 'x', s) end",
    ] {
        let key = include_str!("../../../signatures/vectors/keys/p256.pem");
        let handler = format!(
            "local key = envoy.crypto.import_public_key([[{key}]])
            return {{ on_request_header = function()\n{OK}{body}\nend }}"
        );
        let mut source = source(&[("main.lua", &handler)]);
        source.time_budget = Duration::from_millis(20);
        source.memory_budget = 256 * 1024 * 1024;
        let probe = probe_with(source, "{}");
        let began = Instant::now();
        let fault = probe.request(&mut bad()).unwrap_err();
        println!("{:?} {body}: {fault}", began.elapsed());
        assert_eq!(fault.cause, Cause::Time, "{body}: {fault}");
        assert!(began.elapsed() < Duration::from_millis(400), "{body}");
    }
}

#[test]
fn headers_of_any_size_are_refused_before_they_are_read_or_copied() {
    let text = r#"
        return { on_request_header = function()
            local long, many = ("x"):rep(2e6), {}
            for i = 1, 10000 do many[i] = "v" end
            for _, call in ipairs({
                function() envoy.req.set_header("a", long) end,
                function() envoy.req.add_header(long, "a") end,
                function() envoy.req.set_headers({ a = { long, long, long } }) end,
                function() envoy.req.set_headers({ a = many }) end,
                function() envoy.callout.send({ cluster = "a", headers = { a = many } }) end,
            }) do
                local done, problem = pcall(call)
                assert(not done and problem:find("the headers would grow by more than"), problem)
            end
            assert(envoy.req.get_header(long) == nil)
            envoy.logInfo("checked")
        end }
    "#;
    let mut stream = FakeStream::new();
    probe_with(source(&[("main.lua", text)]), "{}")
        .request(&mut stream)
        .unwrap();
    assert_eq!(stream.logged(), ["checked"]);
}

#[test]
fn the_sandbox_has_no_function_that_outlasts_its_budget_by_much() {
    // Everything that may run long in C on the largest values that the default memory budget holds.
    let limit = Duration::from_millis(if cfg!(debug_assertions) { 3000 } else { 250 });
    for body in [
        "local s = string.rep('x', 5e6)",
        "local s = string.rep('', 2147483647)",
        "local s = string.rep('', 100000000, 'x')",
        "local s = string.rep('x', 3e6):reverse():upper():lower()",
        "local t = {} for i = 1, 3e5 do t[i] = 'abcdefgh' end local s = table.concat(t, ',')",
        "local t = {} for i = 1, 3e5 do t[i] = i end for i = 1, 20 do table.insert(t, 1, i) end",
        "local t = {} for i = 1, 3e5 do t[i] = i end for i = 1, 20 do table.remove(t, 1) end",
        "pcall(table.insert, {}, -2147483648, 1) pcall(table.insert, { 1 }, -1e9, 1) pcall(table.remove, {}, -2^31)",
        "pcall(table.insert, { 1 }, 0 / 0, 1) pcall(table.insert, {}, 1e300, 1) pcall(table.insert, {}, 'nan', 1)",
        "local t = {} for i = 1, 3e5 do t[i] = i end pcall(unpack, t) pcall(unpack, t, 1, 2e9) table.maxn(t)",
        "pcall(unpack, {}, -2147483648, 2147483647) pcall(select, 1e9, 1)",
        "pcall(string.byte, string.rep('x', 3e6), 1, -1)",
        "pcall(string.format, '%99999d', 1) pcall(string.format, '%99.99f', 1e308)",
        "local s = string.format('%s%q', string.rep('x', 1e6), string.rep('\\n', 65536))",
        "local s = tostring(string.rep('1', 3e6)) tonumber(s) tonumber(s, 36)",
        "pcall(os.date, string.rep('%c', 500)) pcall(os.date, '*t', 1e300) pcall(os.time, {year = 1e9})",
        "local t = {} for i = 1, 1e5 do t['k' .. i] = i end for k in pairs(t) do t[k] = nil end
            for i = 1, 5 do next(t) end",
        "local s = string.rep('x', 3e6) for i = 1, 5 do s:find('y', 1, true) s:find('xy') end",
        "envoy.base64.encode(string.rep('x', 2e6)) envoy.crypto.sha256(string.rep('x', 3e6))",
        "pcall(envoy.json.decode, '[' .. string.rep('0,', 5e5) .. '0]')",
        "pcall(envoy.json.decode, string.rep('[', 1e6))",
        "pcall(envoy.json.decode, '\"' .. string.rep('\\\\u0041', 5e5) .. '\"')",
        "pcall(envoy.re.find, string.rep('x', 3e6), 'x*y') pcall(envoy.re.gsub, string.rep('x', 1e6), 'x', 'y')",
        "pcall(envoy.url.decode, string.rep('%41', 1e6)) pcall(envoy.url.encode, string.rep('/', 1e6))",
    ] {
        let handler = format!("return {{ on_request_header = function()\n{OK}{body}\nend }}");
        let mut source = source(&[("main.lua", &handler)]);
        source.time_budget = Duration::from_millis(20);
        source.memory_budget = 16 * 1024 * 1024;
        let probe = probe_with(source, "{}");
        let began = Instant::now();
        let outcome = probe.request(&mut bad());
        let took = began.elapsed();
        println!(
            "{:>8.1} ms  {body}  {outcome:?}",
            took.as_secs_f64() * 1000.0
        );
        assert!(took < limit, "{body}: {took:?}");
        if let Err(fault) = outcome {
            let is_budget = matches!(fault.cause, Cause::Memory | Cause::Time);
            assert!(is_budget, "{body}: {fault}");
        }
        assert_eq!(
            probe.request(&mut FakeStream::new()),
            Ok(Decision::Continue),
            "{body}"
        );
    }
}

/// Defines `colliding(n)` in Lua: `n` numbers that LuaJIT's hash of numbers (`hashrot` in `lj_tab.h`, as on x86) maps to 0.
///
/// It goes backwards through the hash: any `lo` gives one `hi` with the result 0, and the two are the halves of a number.
const COLLIDING: &str = "
    local function colliding(n)
        local keys, lo2 = {}, 0
        while #keys < n do
            lo2 = bit.tobit(lo2 + 1)
            local hi1 = bit.ror(bit.bxor(lo2, bit.rol(lo2, 13)), 5)
            local hi = bit.ror(hi1, 14)
            local lo = bit.bxor(bit.tobit(lo2 + hi1), hi)
            if bit.band(hi, 1) == 0 then
                local high = bit.rshift(hi, 1)
                local exponent = bit.rshift(high, 20)
                if exponent > 0 and exponent < 2047 then
                    local mantissa = bit.band(high, 0xfffff) * 2 ^ 32 + lo % 2 ^ 32
                    keys[#keys + 1] = math.ldexp(1 + mantissa / 2 ^ 52, exponent - 1023)
                end
            end
        end
        return keys
    end
";

#[test]
#[cfg(target_arch = "x86_64")]
fn insertion_of_a_chosen_number_does_not_take_the_square_of_the_table() {
    let handler = format!(
        "{COLLIDING}
        return {{ on_request_header = function()
            local keys, t, longest, began = colliding(8192), {{}}, 0, os.clock()
            for i = 1, #keys do
                local at = os.clock()
                t[keys[i]] = i
                longest = math.max(longest, os.clock() - at)
            end
            local whole = os.clock() - began
            for i = 1, #keys do assert(t[keys[i]] == i) end
            envoy.logInfo(string.format('%.6f', longest / whole))
        end }}"
    );
    let mut source = source(&[("main.lua", &handler)]);
    source.time_budget = Duration::from_secs(30);
    source.memory_budget = 64 * 1024 * 1024;
    let probe = probe_with(source, "{}");

    // An insertion searches one chain of all keys: one in 4,000 of the whole. A rehash that searches for each key is a third.
    let mut least = f64::MAX;
    for _ in 0..3 {
        let mut stream = FakeStream::new();
        assert_eq!(probe.request(&mut stream), Ok(Decision::Continue));
        least = least.min(stream.logged()[0].parse().unwrap());
    }
    assert!(least < 0.05, "the longest insertion took {least} of all");
}

#[test]
fn tables_keep_what_they_hold_while_they_grow_and_shrink() {
    let handler = format!(
        "{COLLIDING}
        local pool = colliding(500)
        for i = -50, 400 do pool[#pool + 1] = i end
        for i = 1, 300 do pool[#pool + 1] = 'k' .. i end
        for i = 1, 300 do pool[#pool + 1] = {{}} end
        pool[#pool + 1] = true
        pool[#pool + 1] = false
        local function check(t, values, n)
            local held = 0
            for i = 1, #pool do
                assert(t[pool[i]] == values[i], i)
                if values[i] ~= nil then held = held + 1 end
            end
            for k, v in pairs(t) do
                held = held - 1
                assert(v ~= nil and rawequal(t[k], v))
            end
            assert(held == 0, held)
        end
        return {{ on_request_header = function()
            local seed = 7
            local function random(n)
                seed = (seed * 16807) % 2147483647
                return seed % n + 1
            end
            for round = 1, 60 do
                local t, values = {{}}, {{}}
                for step = 1, 40 do
                    -- Runs of one kind, so that parts grow and shrink; removal of most, so that a part becomes too large.
                    local from, count, remove = random(#pool), random(80), random(3) == 1
                    for i = from, math.min(from + count, #pool) do
                        if remove then values[i] = nil else values[i] = step * 1000 + i end
                        t[pool[i]] = values[i]
                    end
                    if random(6) == 1 then
                        t['gone' .. random(1000)], t['gone'] = nil, nil
                        local garbage = string.rep('x', 1e5) .. step
                    end
                end
                check(t, values)
            end
        end }}"
    );
    let mut source = source(&[("main.lua", &handler)]);
    source.time_budget = Duration::from_mins(1);
    source.memory_budget = 64 * 1024 * 1024;
    let probe = probe_with(source, "{}");
    for _ in 0..2 {
        assert_eq!(
            probe.request(&mut FakeStream::new()),
            Ok(Decision::Continue)
        );
    }
}

/// Runs on a thread with a stack smaller than any worker has.
fn on_a_small_stack(run: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(2 * 1024 * 1024);
    thread.spawn(run).unwrap().join().unwrap();
}

#[test]
fn recursion_of_any_kind_does_not_reach_the_end_of_the_workers_stack() {
    on_a_small_stack(|| {
        for body in [
            "local function deep(n) return deep(n + 1) + 1 end deep(1)",
            "local function deep() string.gsub('x', 'x', deep) end deep()",
            "local function deep() table.sort({1, 2, 3}, deep) end deep()",
            "local function deep() pcall(deep) deep() end deep()",
            "local function deep() xpcall(deep, deep) end deep()",
            "local function deep() coroutine.wrap(deep)() end deep()",
            "local function deep() coroutine.resume(coroutine.create(deep)) deep() end deep()",
            "local function deep() load(function() deep() return '' end) end deep()",
            "local function deep() return 'return ' .. string.rep('(', 1e5) end load(deep())",
            "load('return ' .. string.rep('{', 1e5)) load(string.rep('do ', 1e5))
                load('x = ' .. string.rep('-', 3e5) .. '1') load('x = ' .. string.rep('not ', 1e5) .. '1')
                load('x = ' .. string.rep('1 .. ', 1e5) .. '1') load(string.rep('function f() ', 1e5))",
            "local t t = setmetatable({}, { __index = function(_, k) return t[k .. 'x'] end }) return t.x",
            "local t t = setmetatable({}, { __tostring = function() return tostring(t) end }) tostring(t)",
            "local t t = setmetatable({}, { __tostring = function() return string.format('%s', t) end })
                string.format('%s', t)",
            "local t t = setmetatable({}, { __concat = function() return t .. 'x' end }) return t .. 'x'",
            "local t t = setmetatable({}, { __lt = function() return t < t end }) return t < t",
            "local t t = setmetatable({}, { __eq = function(a, b) return a == b end }) local u = setmetatable({},
                getmetatable(t)) return t == u",
            "local t t = setmetatable({}, { __call = function() return t() + 1 end }) return t()",
            "local t = {} for i = 1, 1e5 do t = setmetatable({}, { __index = t }) end return t.x",
            "local t = {} for i = 1, 1e5 do t = { t } end pcall(envoy.json.encode, t)",
            "local t = {} t[1] = t pcall(envoy.json.encode, t)",
            "error(setmetatable({}, { __tostring = function(t) error(t) end }))",
            "string.find(string.rep('a', 1e5), string.rep('a?', 1e5))",
            "string.find(string.rep('(', 1e5), string.rep('(', 1e5))",
            "pcall(envoy.json.decode, string.rep('[', 1e5))",
        ] {
            let handler = format!("return {{ on_request_header = function()\n{OK}{body}\nend }}");
            for memory_budget in [8, 64] {
                let mut source = source(&[("main.lua", &handler)]);
                source.time_budget = Duration::from_millis(500);
                source.memory_budget = memory_budget * 1024 * 1024;
                let probe = probe_with(source, "{}");
                eprintln!("{memory_budget} {body}");
                // What matters is that this thread is still there.
                let _ = probe.request(&mut bad());
                let fine = probe.request(&mut FakeStream::new());
                assert_eq!(fine, Ok(Decision::Continue), "{body}");
            }
        }
    });
}

#[test]
fn loading_and_configurations_have_a_budget_too() {
    for (text, part) in [
        (
            "while true do end",
            "the time budget of the call is used up",
        ),
        (
            "string.find(string.rep('a', 5000), '.-.-.-.-b')",
            "the time budget of the call is used up",
        ),
        (
            "string.rep('x', 1e9)",
            "the memory budget of 8388608 bytes is used up",
        ),
    ] {
        let began = Instant::now();
        let at_load = format!("{text} return {{ on_log = function() end }}");
        let refused = super::fake::try_load(&[("main.lua", &at_load)]).unwrap_err();
        assert!(refused.message.contains(part), "{refused}");
        let at_configure =
            format!("return {{ on_log = function() end, on_configure = function() {text} end }}");
        let plugin = super::fake::try_load(&[("main.lua", &at_configure)]).unwrap();
        let mut metrics = super::fake::FakeMetrics::default();
        let refused = plugin
            .configure(&super::fake::config("{}"), &mut metrics)
            .unwrap_err();
        assert!(refused.message.contains(part), "{refused}");
        // The budgets are of CPU time, of which a busy machine gives little.
        assert!(began.elapsed() < Duration::from_mins(1));
    }
}

#[test]
fn metamethods_that_are_the_functions_which_call_them_end() {
    let variants = [
        "for _ in pairs(setmetatable({}, { __pairs = pairs })) do end",
        "for _ in ipairs(setmetatable({}, { __ipairs = ipairs })) do end",
        "pairs(setmetatable({}, { __pairs = ipairs, __ipairs = pairs }))",
        "local m = { __call = pairs } local t = setmetatable({}, m) m.__pairs = t pairs(t)",
        "local m = { __call = tostring } local t = setmetatable({}, m) m.__tostring = t tostring(t)",
        "tostring(setmetatable({}, { __tostring = tostring }))",
        "string.format('%s', setmetatable({}, { __tostring = tostring }))",
        "print(setmetatable({}, { __tostring = tostring }))",
        "error(setmetatable({}, { __tostring = tostring }))",
        "coroutine.wrap(function() pairs(setmetatable({}, { __pairs = pairs })) end)()",
        "pcall(pairs, setmetatable({}, { __pairs = pairs })) while true do end",
        "local t = setmetatable({}, { __call = pcall, __pairs = pcall, __tostring = pcall }) pairs(t) tostring(t) t()",
        "local t = setmetatable({}, { __index = rawget, __len = rawlen, __eq = rawequal }) local _ = t.x, #t",
    ];
    for body in variants {
        let began = std::time::Instant::now();
        let probe = on_request(body);
        let _fault = probe.request(&mut FakeStream::new());
        assert!(
            began.elapsed() < std::time::Duration::from_secs(5),
            "{body}: {:?}",
            began.elapsed()
        );
    }
}
