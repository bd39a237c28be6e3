//! Lua's patterns and sorting, which are the SDK's own, beside LuaJIT's.

use std::time::Duration;

use super::fake::{FakeStream, probe_with, source};

#[test]
fn patterns_and_sorting_are_like_luajits() {
    let mut source = source(&[("main.lua", include_str!("lua_patterns.lua"))]);
    source.time_budget = Duration::from_mins(2);
    source.memory_budget = 64 * 1024 * 1024;
    let probe = probe_with(source, "{}");
    let mut stream = FakeStream::new();
    probe.request(&mut stream).unwrap();
    assert_eq!(stream.logged(), ["213032 compared"]);
}

/// What they cost beside LuaJIT's own; for whoever changes them. Prints nanoseconds a call.
#[test]
#[ignore = "a measurement, which a busy machine makes wrong"]
fn how_fast_they_are() {
    let text = r#"
        local function time(run)
            for i = 1, 2000 do run() end
            local began = envoy.time.monotonic()
            for i = 1, 300000 do run() end
            return ("%6.0f ns"):format((envoy.time.monotonic() - began) * 1e6 / 300000)
        end
        local line = "authorization: Bearer abc.def.ghi; path=/a/b/c?d=e"
        local o = envoy.original
        return { on_request_header = function()
            for _, case in ipairs({
                { "find, plain", function() return string.find(line, "Bearer", 1, true) end,
                    function() return o.find(line, "Bearer", 1, true) end },
                { "find, pattern", function() return string.find(line, "path=(%S+)") end,
                    function() return o.find(line, "path=(%S+)") end },
                { "match, 2 captures", function() return string.match(line, "^(%w+):%s*(%w+)") end,
                    function() return o.match(line, "^(%w+):%s*(%w+)") end },
                { "gsub, text", function() return string.gsub(line, "%.", "-") end,
                    function() return o.gsub(line, "%.", "-") end },
                { "gsub, function", function() return string.gsub(line, "%.", function() return "-" end) end,
                    function() return o.gsub(line, "%.", function() return "-" end) end },
                { "gmatch", function() for a in string.gmatch(line, "%w+") do end end,
                    function() for a in o.gmatch(line, "%w+") do end end },
                { "sort of 20", function()
                    local t = {} for i = 1, 20 do t[i] = i * 7 % 20 end table.sort(t) end,
                    function() local t = {} for i = 1, 20 do t[i] = i * 7 % 20 end o.sort(t) end },
            }) do
                envoy.logInfo(("%-20s %s; LuaJIT's %s"):format(case[1], time(case[2]), time(case[3])))
            end
        end }
    "#;
    let mut source = source(&[("main.lua", text)]);
    source.time_budget = Duration::from_mins(2);
    let mut stream = FakeStream::new();
    stream.clock = Some(std::time::Instant::now());
    probe_with(source, "{}").request(&mut stream).unwrap();
    for line in stream.logged() {
        println!("{line}");
    }
}
