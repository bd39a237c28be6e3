//! Every function of the SDK, version 2.

use outrider_plugin_api::{
    BodyError, Cause, Decision, HeaderMap, LogLevel, MetricKind, Phase, Slot,
};

use super::fake::{FakeStream, Metadata, fault_of, logs_of, on_request, probe, probe_with, source};

#[test]
fn headers_are_read() {
    let logs = logs_of(
        r#"
        local req = envoy.req
        envoy.logInfo(req.get_header("X-One"))
        envoy.logInfo(req.get_header("x-two"))
        envoy.logInfo(req.get_header("none"))
        envoy.logInfo(req.get_header_size("x-two"))
        envoy.logInfo(req.get_header_size("none"))
        envoy.logInfo(req.get_header_index("x-two", 1))
        envoy.logInfo(req.get_header_index("x-two", 2))
        envoy.logInfo(req.get_header_index("x-two", -1))
        local all = req.get_headers()
        envoy.logInfo(all["x-one"] .. all["x-two"][1] .. all["x-two"][2] .. all[":path"])
        envoy.logInfo(req.get_header_map_size())
        "#,
    );
    assert_eq!(
        logs,
        [
            "1",
            "first",
            "nil",
            "2",
            "0",
            "second",
            "nil",
            "nil",
            "1firstsecond/cart?item=a%20b&item=2&flag",
            "6"
        ]
    );
}

#[test]
fn headers_cannot_be_smuggled() {
    for code in [
        r#"envoy.req.set_header("x-a", "1\r\nx-b: 2")"#,
        r#"envoy.req.add_header("x-a", "1\nx-b: 2")"#,
        r#"envoy.req.set_header("x-a", "1\0")"#,
        r#"envoy.req.set_header("x a", "1")"#,
        r#"envoy.req.set_header("", "1")"#,
        r#"envoy.req.set_header(":", "1")"#,
        r#"envoy.req.add_header("x-a: 1\r\nx-b", "2")"#,
        r#"envoy.req.set_headers({ ["x-a"] = { "1", "2\n" } })"#,
        r#"envoy.respond({ [":status"] = 200, ["x-a"] = "1\r\nx-b: 2" }, "")"#,
    ] {
        let fault = fault_of(code);
        assert!(
            fault.message.contains("main.lua:") && fault.message.contains("token of HTTP"),
            "{code}: {fault}"
        );
    }
}

#[test]
fn headers_are_written() {
    let probe = on_request(
        r#"
        envoy.req.set_header("x-one", "new")
        envoy.req.set_header("x-number", 7)
        envoy.req.add_header("x-two", "third")
        envoy.req.clear_header("x-two-not-there")
        envoy.req.remove_header(":authority")
        envoy.resp.set_header("server", "me")
        envoy.req.set_trailer("t", envoy.req.get_trailer("t") .. "2")
        "#,
    );
    let mut stream = FakeStream::new();
    assert_eq!(probe.request(&mut stream), Ok(Decision::Continue));
    let request = HeaderMap::RequestHeaders;
    assert_eq!(stream.get(request, "x-one").as_deref(), Some("new"));
    assert_eq!(stream.get(request, "x-number").as_deref(), Some("7"));
    assert_eq!(stream.get(request, ":authority"), None);
    assert_eq!(
        stream.get(HeaderMap::ResponseHeaders, "server").as_deref(),
        Some("me")
    );
    assert_eq!(
        stream.get(HeaderMap::RequestTrailers, "t").as_deref(),
        Some("12")
    );
    let twos = stream.maps[&request]
        .iter()
        .filter(|(name, _)| name == b"x-two")
        .count();
    assert_eq!(twos, 3);
}

#[test]
fn set_headers_replaces_all_but_pseudo_headers() {
    let probe =
        on_request(r#"envoy.req.set_headers({[":path"] = "/new", ["x-three"] = {"a", "b"}})"#);
    let mut stream = FakeStream::new();
    probe.request(&mut stream).unwrap();
    let mut left: Vec<String> = stream.maps[&HeaderMap::RequestHeaders]
        .iter()
        .map(|(name, value)| {
            format!(
                "{}={}",
                String::from_utf8_lossy(name),
                String::from_utf8_lossy(value)
            )
        })
        .collect();
    left.sort();
    assert_eq!(
        left,
        [
            ":authority=shop.example.com",
            ":method=GET",
            ":path=/new",
            "x-three=a",
            "x-three=b"
        ]
    );
}

#[test]
fn a_wrong_argument_names_the_plugin_s_line() {
    for (body, expected) in [
        (
            "envoy.req.get_header(nil)",
            "probe/main.lua:3: the header's name must be a string, not nil",
        ),
        (
            "local x\nenvoy.req.set_header('a', {})",
            "probe/main.lua:4: the header's value must be a string, not table",
        ),
        (
            "envoy.resp.set_trailer('a', 'b')",
            "probe/main.lua:3: there are no response trailers in this phase",
        ),
        (
            "envoy.req.set_headers({a = function() end})",
            "probe/main.lua:3: the value of header a must be a string, not function",
        ),
        (
            "envoy.req.get_query_parameters(0)",
            "probe/main.lua:3: max_args must be from 1 to 10000",
        ),
        (
            "envoy.req.set_body('x')",
            "probe/main.lua:3: there is no body in this phase",
        ),
        (
            "envoy.req.get_metadata('x')",
            "probe/main.lua:3: the filter's name must be a string, not nil",
        ),
        (
            "envoy.increment_metric(99, 1)",
            "probe/main.lua:3: no metric has this id; ids come from envoy.define_metric",
        ),
        (
            "\nreturn envoy.sleep('x')",
            "probe/main.lua:2: envoy.sleep takes a number of milliseconds",
        ),
        (
            "envoy.sleep('x')",
            "probe/main.lua:3: envoy.sleep takes a number of milliseconds",
        ),
        (
            "envoy.respond({}, 'x')",
            "probe/main.lua:3: the headers of envoy.respond need a \":status\" from 200 to 599",
        ),
        (
            "envoy.json.encode(print)",
            "probe/main.lua:3: JSON has no value for a function",
        ),
        (
            "error({code = 1, message = 'told'})",
            "probe/main.lua:3: told",
        ),
        (
            "error(setmetatable({}, {__tostring = function() return 'shown' end}))",
            "probe/main.lua:3: shown",
        ),
        (
            "error()",
            "probe/main.lua:3: an error without a value (nil)",
        ),
        (
            "error({})",
            "probe/main.lua:3: an error value that is a table without a message",
        ),
        (
            "local t = nil\nreturn t.x",
            "probe/main.lua:4: attempt to index local 't' (a nil value)",
        ),
    ] {
        let fault = fault_of(body);
        assert_eq!(fault.cause, Cause::Error, "{body}");
        assert_eq!(fault.message, expected, "{body}");
    }
}

#[test]
fn query_parameters_are_decoded() {
    let logs = logs_of(
        r#"
        local query = envoy.req.get_query_parameters()
        envoy.logInfo(query.item[1] .. "," .. query.item[2] .. "," .. query.flag .. ".")
        envoy.logInfo(envoy.req.get_query_parameters(1).item)
        "#,
    );
    assert_eq!(logs, ["a b,2,.", "a b"]);
}

#[test]
fn bodies_are_read_and_replaced() {
    let probe = probe(
        r#"
        local handler = { version = "v2" }
        function handler:on_request_body(end_of_stream)
            envoy.logInfo(tostring(end_of_stream) .. envoy.req.get_body())
            envoy.req.set_body("changed")
            envoy.logInfo(envoy.req.get_body())
        end
        function handler:on_response_body()
            envoy.logInfo(tostring(envoy.resp.get_body()))
            envoy.resp.set_body(12)
        end
        return handler
        "#,
    );
    let mut stream = FakeStream::new();
    stream.request_body = Some(vec![b"one".to_vec(), b"two".to_vec()]);
    let mut slot = Slot::default();
    probe
        .call(Phase::RequestBody, &mut slot, &mut stream)
        .unwrap();
    assert_eq!(stream.logged(), ["falseonetwo", "changed"]);
    assert_eq!(stream.request_body, Some(vec![b"changed".to_vec()]));
    let fault = probe
        .call(Phase::ResponseBody, &mut slot, &mut stream)
        .unwrap_err();
    assert!(
        fault.message.ends_with("there is no body in this phase"),
        "{fault}"
    );
    stream.response_body = Some(vec![]);
    stream.length_announced = true;
    let fault = probe
        .call(Phase::ResponseBody, &mut slot, &mut stream)
        .unwrap_err();
    assert_eq!(
        fault.message,
        format!("probe/main.lua:10: {}", BodyError::LengthAnnounced)
    );
}

#[test]
fn metadata_is_read_and_written() {
    let probe = on_request(
        r#"
        local req = envoy.req
        envoy.logInfo(req.get_metadata("id", "hub") .. type(req.get_metadata("number", "plain")))
        envoy.logInfo(tostring(req.get_metadata("none", "hub")))
        req.set_dynamic_metadata("s", "text", "mine")
        req.set_dynamic_metadata("n", 2.5, "mine")
        req.set_dynamic_metadata("b", true, "mine")
        envoy.logInfo(req.get_dynamic_metadata("s", "mine"))
        envoy.logInfo(req.get_dynamic_metadata("n", "mine"))
        envoy.logInfo(req.get_dynamic_metadata("b", "mine"))
        "#,
    );
    let mut stream = FakeStream::new();
    let place = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    stream
        .route_metadata
        .insert(place("com.netease.hub", "id"), "x".into());
    stream
        .route_metadata
        .insert(place("plain", "number"), Metadata::Number(4.0));
    probe.request(&mut stream).unwrap();
    assert_eq!(stream.logged(), ["xnumber", "nil", "text", "2.5", "true"]);
    assert_eq!(stream.metadata[&place("mine", "b")], Metadata::Bool(true));
}

#[test]
fn facts_about_the_stream() {
    let logs = logs_of(
        r#"
        local info = envoy.streaminfo
        for _, name in ipairs({"downstream_remote_address", "downstream_local_address",
            "upstream_cluster", "upstream_host", "route_name", "protocol", "response_code",
            "response_code_details", "start_time", "current_time_milliseconds"}) do
            envoy.logInfo(tostring(info[name]()))
        end
        envoy.logInfo(string.format("%.0f", envoy.nowms()))
        envoy.req.clear_route_cache()
        "#,
    );
    assert_eq!(
        logs,
        [
            "10.0.0.9:4711",
            "10.0.0.1:443",
            "shop-v1",
            "nil",
            "cart",
            "HTTP/2",
            "200",
            "nil",
            "1700000000000",
            "1700000000500",
            "1700000000500"
        ]
    );
}

#[test]
fn logs_have_levels_and_those_that_are_off_cost_no_line() {
    let probe = on_request(
        r#"
        envoy.logTrace("t") envoy.logDebug("d") envoy.logInfo("i") envoy.logWarn("w") envoy.logErr("e")
        print("a", nil, 1)
        envoy.filelog("to the log")
        "#,
    );
    let mut stream = FakeStream::new();
    probe.request(&mut stream).unwrap();
    let lines = stream.logs.borrow().clone();
    let expected = [
        (LogLevel::Info, "i"),
        (LogLevel::Warn, "w"),
        (LogLevel::Error, "e"),
        (LogLevel::Info, "a\tnil\t1"),
        (LogLevel::Info, "to the log"),
    ];
    assert_eq!(
        lines,
        expected.map(|(level, line)| (level, line.to_owned()))
    );
}

#[test]
fn the_file_log_is_written_off_the_worker() {
    let folder = tempfile::tempdir().unwrap();
    let mut source = source(&[(
        "main.lua",
        "return { on_log = function() envoy.filelog('one') envoy.filelog('two') end }",
    )]);
    source.log_folder = Some(crate::LogFolder {
        folder: folder.path().join("logs"),
        budget: std::sync::Arc::default(),
    });
    let probe = probe_with(source, "{}");
    let mut stream = FakeStream::new();
    probe
        .call(Phase::Log, &mut Slot::default(), &mut stream)
        .unwrap();
    crate::file_log::flush();
    let written = std::fs::read_to_string(folder.path().join("logs/probe.log")).unwrap();
    assert_eq!(written, "one\ntwo\n");
    assert!(stream.logged().is_empty());
}

#[test]
fn metrics_are_defined_at_load_and_found_again() {
    let probe = probe(
        r#"
        local hits = envoy.define_metric(0, "hits")
        local size = envoy.define_metric(1, "size")
        local handler = {}
        function handler:on_request_header()
            envoy.increment_metric(hits, 2)
            envoy.increment_metric(hits)
            envoy.record_metric(size, 9)
            envoy.increment_metric(size, -4)
            -- Rider's way: defined in the handler, by a literal name.
            local late = envoy.define_metric(0, "late")
            envoy.record_metric(late, 5)
            envoy.logInfo(envoy.get_metric(hits) .. " " .. envoy.get_metric(size) .. " "
                .. envoy.get_metric(late) .. " " .. envoy.get_metric(77))
            local name = "unknown"
            local id, why = envoy.define_metric(0, name)
            envoy.logInfo(id .. " " .. why)
        end
        return handler
        "#,
    );
    let names: Vec<&str> = probe
        .metrics
        .0
        .iter()
        .map(|(_, name)| name.as_str())
        .collect();
    assert_eq!(
        names,
        [
            "outrider.plugin.probe.metric.hits",
            "outrider.plugin.probe.metric.size",
            "outrider.plugin.probe.metric.late"
        ]
    );
    assert_eq!(probe.metrics.0[1].0, MetricKind::Gauge);
    let mut stream = FakeStream::new();
    probe.request(&mut stream).unwrap();
    assert_eq!(
        stream.logged(),
        [
            "3 5 5 -1",
            "-1 metric unknown must be defined while the plugin loads: at the top of a file, or in \
             on_configure"
        ]
    );
}

#[test]
fn the_shared_table_lives_as_long_as_its_stream() {
    let probe = probe(
        r#"
        local at_load = envoy.stream.shared
        local handler = {}
        function handler:on_request_header()
            if kept then
                local _, problem = pcall(function() kept.x = 1 end)
                envoy.logInfo(problem)
                _, problem = pcall(function() return kept.x end)
                envoy.logInfo(problem)
            end
            kept = envoy.stream.shared
            kept.x = (kept.x or 0) + 1
            at_load.y = "forwarded"
        end
        function handler:on_response_header()
            envoy.logInfo(envoy.stream.shared.x .. envoy.stream.shared.y)
        end
        return handler
        "#,
    );
    let mut first = FakeStream::new();
    let mut slot = Slot::default();
    probe
        .call(Phase::RequestHeaders, &mut slot, &mut first)
        .unwrap();
    probe
        .call(Phase::ResponseHeaders, &mut slot, &mut first)
        .unwrap();
    assert_eq!(first.logged(), ["1forwarded"]);
    probe.configured.end(slot, 0);
    let mut second = FakeStream::new();
    let mut slot = Slot::default();
    probe
        .call(Phase::RequestHeaders, &mut slot, &mut second)
        .unwrap();
    probe
        .call(Phase::ResponseHeaders, &mut slot, &mut second)
        .unwrap();
    assert_eq!(
        second.logged(),
        [
            "probe/main.lua:6: envoy.stream.shared was used after its stream had ended",
            "probe/main.lua:8: envoy.stream.shared was used after its stream had ended",
            "1forwarded"
        ]
    );
}

#[test]
fn json_goes_both_ways() {
    let logs = logs_of(
        r#"
        local json = envoy.json
        local value = json.decode('{"a":[1,2.5,"x\\u00e4",true,false,null],"o":{},"e":[]}')
        envoy.logInfo(value.a[1] .. value.a[2] .. value.a[3] .. tostring(value.a[4])
            .. tostring(value.a[5]) .. tostring(value.a[6] == json.null))
        envoy.logInfo(json.encode(value.a) .. json.encode(value.e) .. json.encode(value.o))
        envoy.logInfo(json.encode({ text = 'q"\\\n\1' }))
        envoy.logInfo(json.encode(json.array({})) .. json.encode(0.1) .. json.encode(-3))
        envoy.logInfo(tostring(select(2, json.decode("{"))))
        local loop = {} loop.loop = loop
        envoy.logInfo(select(2, pcall(json.encode, loop)))
        envoy.logInfo(select(2, pcall(json.encode, 0/0)))
        "#,
    );
    assert_eq!(
        logs,
        [
            "12.5xätruefalsetrue",
            "[1,2.5,\"xä\",true,false,null][]{}",
            "{\"text\":\"q\\\"\\\\\\n\\u0001\"}",
            "[]0.1-3",
            "not JSON: EOF while parsing an object at line 1 column 1",
            "the value is nested more than 100 deep, or contains itself",
            "JSON has no number for nan"
        ]
    );
}

/// What is decoded and encoded again is the same text: order, digits and all.
#[test]
fn json_keeps_what_it_is_given() {
    let documents = [
        r#"{"price":19.99,"tax":0.1,"c":3,"b":2,"a":1}"#,
        r#"[{"z":1,"y":{"b":null,"a":[]}},{"z":2,"y":{"b":[],"a":{}}},{"y":0,"z":0}]"#,
        r#"{"a":{"a":{"b":1,"a":2},"b":3},"b":{"b":1,"a":2}}"#,
        "[9007199254740991,9007199254740992,9007199254740993,-9007199254740993]",
        "[12345678901234567890,18446744073709551615,18446744073709551616,-9223372036854775809]",
        "[123456789012345678901234567890,1e+30,[99999999999999999999,1e20,\"1e99\"],2]",
        "[1.7976931348623157e308,5e-324,2.2250738585072014e-308,0.000001,1e-7,-0,0,123456.789]",
        "[100000000000000000000,0.3,4.35,9.95,1.005,33.333333333333336]",
        r#"{"10":1,"9":2,"":3}"#,
        r#"{"\"quoted\"":"\\\"1,2","x":[12345678901234567890]}"#,
    ];
    for document in documents {
        let logs = logs_of(&format!(
            "envoy.logInfo(envoy.json.encode(envoy.json.decode([==[{document}]==])))"
        ));
        let expected = document
            .replace("1e+30", "1e30")
            .replace("1e20", "100000000000000000000");
        assert_eq!(logs, [expected], "{document}");
    }
}

#[test]
fn members_are_written_in_the_order_they_came_in_then_sorted() {
    let logs = logs_of(
        r#"
        local json = envoy.json
        local value = json.decode('{"d":1,"a":2,"c":3,"a":4}')
        envoy.logInfo(json.encode(value))
        value.z, value.b, value.d = 1, 2, nil
        envoy.logInfo(json.encode(value))
        value.d = 5
        value[2], value[10] = "two", "ten"
        envoy.logInfo(json.encode(value))
        local many = {}
        for i = 40, 1, -1 do many["k" .. i] = i end
        local sorted = json.encode(many)
        envoy.logInfo(sorted:sub(1, 39))
        envoy.logInfo(json.encode({ b = 1, a = 2, c = { z = 1, y = 2 } }))
        local list = json.decode('[{"b":1,"a":2},{"b":1,"a":2},{"a":1}]')
        list[1].c = 1
        envoy.logInfo(json.encode(list))
        envoy.logInfo(json.encode(json.array(json.decode('{"a":1}'))))
        "#,
    );
    assert_eq!(
        logs,
        [
            r#"{"d":1,"a":4,"c":3}"#,
            r#"{"a":4,"c":3,"b":2,"z":1}"#,
            r#"{"10":"ten","2":"two","a":4,"b":2,"c":3,"d":5,"z":1}"#,
            r#"{"k1":1,"k10":10,"k11":11,"k12":12,"k13"#,
            r#"{"a":2,"b":1,"c":{"y":2,"z":1}}"#,
            r#"[{"b":1,"a":2,"c":1},{"b":1,"a":2},{"a":1}]"#,
            "[]",
        ]
    );
}

#[test]
fn integers_beyond_the_numbers_of_lua_are_digits() {
    let logs = logs_of(
        r#"
        local json = envoy.json
        local id = json.decode('{"id":9007199254740993}').id
        envoy.logInfo(type(id) .. " " .. tostring(id) .. " " .. id .. "!")
        local other = json.integer("9007199254740993")
        envoy.logInfo(tostring(id == other) .. tostring(id < json.integer("10000000000000000"))
            .. tostring(json.integer("-5") < id) .. tostring(json.integer("-10") < json.integer("-9"))
            .. tostring(id <= other) .. tostring(id > other))
        envoy.logInfo(json.encode({ other, json.integer("0") }))
        envoy.logInfo(tostring(tonumber(tostring(id)) == 2^53))
        envoy.logInfo(select(2, pcall(function() return id + 1 end)))
        envoy.logInfo(select(2, pcall(json.integer, "007")))
        envoy.logInfo(select(2, pcall(function() id.x = 1 end)))
        id[1] = '0,"injected"'
        envoy.logInfo(select(2, pcall(json.encode, id)))
        envoy.logInfo(tostring(json.decode('12') + 1))
        "#,
    );
    assert_eq!(
        logs,
        [
            "table 9007199254740993 9007199254740993!",
            "truetruetruetruetruefalse",
            "[9007199254740993,0]",
            "true",
            "probe/main.lua:13: an integer beyond 2^53 cannot be calculated with; tonumber(tostring(value)) rounds it",
            "the digits of an integer are expected, without zeros before them: 007",
            "probe/main.lua:15: an integer cannot be changed",
            "an integer was changed",
            "13",
        ]
    );
}

#[test]
fn base64_goes_both_ways() {
    let logs = logs_of(
        r#"
        local base64 = envoy.base64
        envoy.logInfo(base64.encode("user:pass") .. base64.encode(""))
        envoy.logInfo(base64.decode("dXNlcjpwYXNz") .. base64.decode("dXNlcg==") .. base64.decode("dXNlcg"))
        envoy.logInfo(base64.decode("-_8") == base64.decode("+/8="))
        envoy.logInfo(tostring(base64.decode("!")) .. select(2, base64.decode("!")))
        "#,
    );
    assert_eq!(
        logs,
        ["dXNlcjpwYXNz", "user:passuseruser", "true", "nilnot Base64"]
    );
}
