//! The ways out that a plugin could try.

use super::fake::{FakeStream, logs_of, on_request, probe};

#[test]
fn globals_are_a_list() {
    let logs = logs_of(
        r#"
        local names = {}
        for name, value in pairs(_G) do
            if type(value) == "table" and value ~= _G and name ~= "envoy" then
                for member in pairs(value) do names[#names + 1] = name .. "." .. member end
            else
                names[#names + 1] = name
            end
        end
        table.sort(names)
        envoy.logInfo(table.concat(names, " "))
        "#,
    );
    insta::assert_snapshot!(logs.concat());
}

#[test]
fn what_is_not_there_is_nil() {
    let logs = logs_of(
        r#"
        for _, name in ipairs({"io", "package", "debug", "ffi", "jit", "dofile", "loadfile", "module",
            "newproxy", "getfenv", "setfenv", "gcinfo"}) do
            if _G[name] ~= nil then envoy.logInfo(name) end
        end
        for _, name in ipairs({"execute", "exit", "getenv", "remove", "rename", "tmpname", "setlocale"}) do
            if os[name] ~= nil then envoy.logInfo("os." .. name) end
        end
        if string.dump or ("").dump then envoy.logInfo("dump") end
        "#,
    );
    assert_eq!(logs, [""; 0]);
}

#[test]
fn tables_of_the_ffi_outlive_the_sealing_of_its_library() {
    // The recorder of traces reads the FFI's table for each C function that it meets. If the collector had freed
    // it, the texts that are made here would be in its place, and the recorder would follow their bytes as pointers.
    let probe = on_request(
        r#"
        for number = 1, 10 do local garbage = ("g"):rep(100000) .. number end
        local kept = {}
        for number = 1, 1000 do kept[number] = ("\255"):rep(24 + number % 40) .. number end
        for _ = 1, 3 do
            local run = load("local seen = 0 for _ = 1, 300 do if envoy.req.get_header('x') then seen = seen + 1 end end")
            run()
        end
        envoy.logInfo(tostring(#kept))
        "#,
    );
    for _ in 0..20 {
        let mut stream = FakeStream::new();
        probe.request(&mut stream).unwrap();
        assert!(stream.logged()[0].contains("1000"), "{:?}", stream.logged());
    }
}

#[test]
fn require_opens_no_library() {
    for name in [
        "ffi",
        "io",
        "jit",
        "jit.util",
        "debug",
        "package",
        "string.buffer",
    ] {
        let probe = on_request(&format!(
            "envoy.logInfo(select(2, pcall(require, '{name}')))"
        ));
        let mut stream = FakeStream::new();
        probe.request(&mut stream).unwrap();
        assert!(
            stream.logged()[0].contains(&format!("module {name} not found")),
            "{name}"
        );
    }
}

#[test]
fn bytecode_is_refused() {
    let logs = logs_of(
        r#"
        for _, load in ipairs({load, loadstring}) do
            local f, why = load("\27LJ\2\0\0")
            envoy.logInfo(tostring(f) .. " " .. why)
        end
        local f, why = load("\27LJ\2\0\0", "x", "b")
        envoy.logInfo(tostring(f) .. " " .. why)
        "#,
    );
    for line in &logs {
        assert!(line.starts_with("nil ") && line.contains("mode"), "{line}");
    }
    assert_eq!(logs.len(), 3);
}

#[test]
fn loaded_text_sees_the_same_globals() {
    let logs = logs_of(
        r#"
        here = "mine"
        envoy.logInfo(load("return here")())
        envoy.logInfo(tostring(load("return io or debug or getfenv")()))
        envoy.logInfo(load("return here", "x", "t", { here = "given" })())
        envoy.logInfo(tostring(loadstring("return package")()))
        "#,
    );
    assert_eq!(logs, ["mine", "nil", "given", "nil"]);
}

#[test]
fn metatables_of_strings_are_out_of_reach() {
    let logs = logs_of(
        r#"
        envoy.logInfo(getmetatable(""))
        envoy.logInfo(tostring(pcall(setmetatable, "", {})))
        string.format = function() return "mine" end
        string.find, string.gsub, string.sub = nil, nil, nil
        table.concat, ipairs, pairs, type, error, pcall, tostring, setmetatable, next = nil
        envoy.logInfo(envoy.json.encode({ a = "b\n" }))
        envoy.logInfo(envoy.req.get_headers()["x-two"][1])
        "#,
    );
    assert_eq!(logs, ["string", "false", "{\"a\":\"b\\n\"}", "first"]);
}

#[test]
fn no_cdata_and_no_inner_table_leaves_the_sdk() {
    let logs = logs_of(
        r#"
        local seen = {}
        local function walk(value, path)
            local kind = type(value)
            if kind == "cdata" or kind == "userdata" or kind == "thread" then
                envoy.logInfo(path .. " is " .. kind)
            end
            if kind == "table" and not seen[value] then
                seen[value] = true
                for key, member in pairs(value) do walk(key, path .. ".key") walk(member, path .. "." .. tostring(key)) end
                local meta = getmetatable(value)
                if type(meta) == "table" then walk(meta, path .. ".meta") end
            end
        end
        walk(_G, "_G")
        walk(envoy.req.get_headers(), "headers")
        walk({ envoy.nowms(), envoy.req.get_header_size("x-one"), envoy.streaminfo.response_code(),
            envoy.streaminfo.start_time() }, "numbers")
        -- A number that is cdata is an object without use; the SDK takes none.
        envoy.logInfo(tostring(pcall(envoy.req.get_header_index, "x-two", 1LL)))
        envoy.logInfo(tostring(getmetatable(1LL)))
        "#,
    );
    assert_eq!(logs, ["false", "ffi"]);
}

#[test]
fn nothing_of_another_plugin_is_seen() {
    let first = probe(
        "leak = 'secret' string.leak = 1 envoy.leak = 1 return { on_request_header = function() end }",
    );
    let second = on_request(
        "envoy.logInfo(tostring(leak) .. tostring(string.leak) .. tostring(envoy.leak))",
    );
    first.request(&mut FakeStream::new()).unwrap();
    let mut stream = FakeStream::new();
    second.request(&mut stream).unwrap();
    assert_eq!(stream.logged(), ["nilnilnil"]);
}

#[test]
fn collecting_and_finalizers_are_the_host_s_matter() {
    let logs = logs_of(
        r#"
        envoy.logInfo(type(collectgarbage("count")))
        envoy.logInfo(select(2, pcall(collectgarbage, "stop")))
        setmetatable({}, { __gc = function() envoy.logInfo("finalizer") end })
        for i = 1, 1e5 do local _ = {} end
        "#,
    );
    assert_eq!(
        logs,
        [
            "number",
            "collectgarbage answers \"count\" only; memory is the host's matter"
        ]
    );
}

#[test]
fn load_takes_no_environment_but_a_table() {
    for environment in [
        "5",
        "'x'",
        "true",
        "false",
        "print",
        "function() end",
        "coroutine.create(print)",
        "1LL",
    ] {
        let logs = logs_of(&format!(
            "envoy.logInfo(select(2, pcall(load, 'return string.find', 'a', 't', {environment})))"
        ));
        assert!(
            logs[0].contains("the environment of a chunk must be a table"),
            "{environment}: {logs:?}"
        );
    }
    let logs = logs_of(
        r#"
        envoy.logInfo(tostring(load("return _G", "a", "t", nil)() == _G))
        envoy.logInfo(tostring(load("return _G", "a", "t", {})()))
        envoy.logInfo(tostring(load("return string.find", "a", "t", { string = { find = 7 } })()))
        envoy.logInfo(tostring(load("x = 1 return x", "a", "t", setmetatable({}, { __newindex = rawset }))()))
        "#,
    );
    assert_eq!(logs, ["true", "nil", "7", "1"]);
}

#[test]
fn handlers_coroutine_cannot_be_resumed_by_another_handler() {
    let probe = on_request(
        r#"
        if kept then
            envoy.logInfo(tostring(select(2, coroutine.resume(kept))))
        else
            kept = coroutine.running()
            envoy.sleep(1)
            envoy.logInfo("went on")
        end
        "#,
    );
    let (mut slot, mut stream) = (outrider_plugin_api::Slot::default(), FakeStream::new());
    let phase = outrider_plugin_api::Phase::RequestHeaders;
    probe.call(phase, &mut slot, &mut stream).unwrap();
    let mut other = FakeStream::new();
    probe.request(&mut other).unwrap();
    assert_eq!(
        other.logged(),
        ["cannot resume a coroutine that is not the plugin's own"]
    );
    let timer = outrider_plugin_api::Wake::Timer(1);
    probe.wake(timer, &mut slot, &mut stream).unwrap();
    assert_eq!(stream.logged(), ["went on"]);
}

#[test]
fn metamethods_of_lua_52_run_in_the_plugins_code_and_not_in_the_sdks() {
    let logs = logs_of(
        r#"
        local ran = {}
        local function hostile(list)
            local function note(name)
                return function() ran[name] = true return next, {}, nil end
            end
            return setmetatable(list, { __pairs = note("pairs"), __ipairs = note("ipairs"), __len = note("len") })
        end
        envoy.req.set_headers(hostile({ ["x-one"] = hostile({ "a", "b" }) }))
        envoy.logInfo(table.concat(envoy.req.get_headers()["x-one"], "+"))
        envoy.logInfo(envoy.json.encode(hostile({ a = hostile({ 1, 2 }) })))
        envoy.logInfo(envoy.url.build_query(hostile({ tag = hostile({ "a", "b" }) })))
        local list = hostile({ 3, 1, 2 })
        table.sort(list)
        table.insert(list, 4)
        table.insert(list, 1, 0)
        envoy.logInfo(table.concat(list, ",") .. table.getn(list) .. rawlen(list) .. select([[#]], unpack(list)))
        envoy.logInfo(tostring(pcall(envoy.callout.wait_all, hostile({}), 1)))
        envoy.logInfo(tostring(pcall(envoy.callout.start, hostile({ cluster = "c" }))))
        envoy.logInfo(tostring(next(ran)))
        for _ in pairs(list) do end
        for _ in ipairs(list) do end
        local _ = #list
        envoy.logInfo(tostring(ran.pairs) .. tostring(ran.ipairs) .. tostring(ran.len))
        "#,
    );
    assert_eq!(
        logs,
        [
            "a+b",
            r#"{"a":[1,2]}"#,
            "tag=a&tag=b",
            "0,1,2,3,4555",
            "false",
            "true",
            "nil",
            "truetruetrue",
        ]
    );
}
