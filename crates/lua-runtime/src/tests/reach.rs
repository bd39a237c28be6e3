//! All that a plugin can reach, compared with a list: in each phase, by members, metatables, results and
//! errors of every function.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use outrider_plugin_api::{
    CalloutId, CalloutResponse, HttpStreamEvent, HttpStreamId, Phase, Slot, Wake,
};

use super::fake::{FakeMetrics, FakeStream, Probe, config, source};

/// Names of all methods of the SDK's objects, by the annotations, quoted and separated by commas.
fn method_names() -> String {
    let names = crate::TYPES.lines().filter_map(|line| {
        let function = line.strip_prefix("function ")?;
        let (_, method) = function.split_once(':')?;
        method.split('(').next()
    });
    let mut quoted = String::new();
    for name in names.collect::<BTreeSet<_>>() {
        let _ = write!(quoted, "'{name}',");
    }
    quoted
}

/// Text of a file that has the walk.
fn with_walk(text: &str) -> String {
    format!(
        "local walk = load([==[{}]==], '=walk')({{{}}})
        for name in pairs(envoy) do
            if name:find('^trace_') or name:find('^sdk_') or name:find('^builtin') or name == 'original' then
                envoy[name] = nil
            end
        end
        {text}",
        include_str!("reach.lua"),
        method_names()
    )
}

fn loaded(text: &str) -> (Probe, FakeMetrics) {
    let mut source = source(&[("main.lua", &with_walk(text)), ("other.lua", "return {}")]);
    source.time_budget = Duration::from_secs(20);
    source.memory_budget = 128 * 1024 * 1024;
    let mut metrics = FakeMetrics::default();
    let plugin = crate::load(source, 1, &mut metrics).unwrap();
    let configured = plugin
        .configure(&config(r#"{"a": {"b": [1, {}]}, "c": null}"#), &mut metrics)
        .unwrap();
    (
        Probe {
            plugin,
            configured,
            metrics: FakeMetrics::default(),
        },
        metrics,
    )
}

/// A stream that has something of everything.
fn full_stream() -> FakeStream {
    let mut stream = FakeStream::new();
    stream.tls = true;
    stream.request_body = Some(vec![b"{\"a\": 1}".to_vec()]);
    stream.response_body = Some(vec![b"body".to_vec()]);
    let list = super::fake::Metadata::List(vec!["a".into(), 2.0.into()]);
    let place = ("dynamic".to_owned(), "x".to_owned());
    stream.metadata.insert(place, list);
    let filter_state = &mut stream.filter_state;
    filter_state.insert(b"x-one".to_vec(), b"state".to_vec());
    stream
}

/// What the walk has logged, without its mark.
fn walked(lines: impl IntoIterator<Item = String>, into: &mut BTreeSet<String>) {
    for line in lines {
        if let Some((_, found)) = line.split_once("walk ") {
            into.insert(found.to_owned());
        }
    }
}

/// LuaJIT's own functions that a plugin may reach: those that end soon and lead nowhere.
const ALLOWED: &[&str] = &[
    "assert",
    "bit.",
    "coroutine.isyieldable",
    "coroutine.running",
    "coroutine.status",
    "error",
    "getmetatable",
    "ipairs's iterator",
    "math.",
    "next",
    "os.clock",
    "os.difftime",
    "os.time",
    "pcall",
    "rawequal",
    "rawget",
    "rawlen",
    "rawset",
    "select",
    "setmetatable",
    "string.byte",
    "string.char",
    "string.len",
    "string.lower",
    "string.rep",
    "string.reverse",
    "string.sub",
    "string.upper",
    "table.concat",
    "table.insert",
    "table.maxn",
    "table.remove",
    "table.unpack",
    "tonumber",
    "type",
    "unpack",
];

/// Checks that no line names something that no plugin may have.
fn check(lines: &BTreeSet<String>) {
    for line in lines {
        let (_, kind) = line.rsplit_once(' ').unwrap();
        assert!(
            !["userdata", "thread"].contains(&kind) || line.contains("coroutine."),
            "{line}"
        );
        assert!(kind != "cdata", "{line}");
        assert!(!line.contains("table of LuaJIT"), "{line}");
        if let Some((_, name)) = line.split_once("of LuaJIT: ") {
            let known = |allowed: &&&str| {
                name == **allowed || allowed.ends_with('.') && name.starts_with(**allowed)
            };
            assert!(ALLOWED.iter().any(|allowed| known(&allowed)), "{line}");
        }
    }
}

#[test]
fn all_that_a_plugin_can_reach_is_on_the_list() {
    let (probe, metrics) = loaded(
        r#"
        local handler = {}
        local schema = envoy.json_schema.compile({ type = "object" })
        local function whole()
            walk.from(_G, "_G")
            walk.object(schema, "schema")
            walk.builtins()
            walk.report()
        end
        walk.from(_G, "_G")
        walk.builtins(true)
        walk.report()
        function handler:on_configure(config)
            walk.from(config, "config")
            whole()
        end
        function handler:on_request_header()
            walk.object(envoy.callout.start{ cluster = "upstream" }, "callout")
            walk.object(envoy.callout.stream{ cluster = "upstream" }, "stream")
            walk.object(envoy.timer.after(5, function() end), "timer")
            local headers, body = envoy.httpCall("upstream", { [":path"] = "/" }, "", 100)
            walk.from(headers, "httpCall")
            local part = envoy.callout.stream{ cluster = "upstream", end_stream = true }
            walk.from(part:headers(), "part:headers()")
            envoy.timer.after(5, function() whole() end)
            whole()
        end
        function handler:on_request_body(...)
            walk.from({ ... }, "arguments")
            whole()
        end
        handler.on_response_header, handler.on_response_body = whole, whole
        function handler:on_log() whole() end
        walk.leave_out(handler)
        return handler
        "#,
    );
    let mut lines = BTreeSet::new();
    walked(metrics.1.into_iter().map(|(_, line)| line), &mut lines);
    let (mut slot, mut stream) = (Slot::default(), full_stream());
    let mut ids = stream.callouts.len();
    probe
        .call(Phase::RequestHeaders, &mut slot, &mut stream)
        .unwrap();
    assert!(stream.callouts.len() > ids, "{:?}", stream.logged());
    ids = stream.callouts.len();
    let body: &[&[u8]] = &[b"{}"];
    let headers: &[(&[u8], &[u8])] = &[(b":status", b"200"), (b"x-two", b"a"), (b"x-two", b"b")];
    let response = CalloutResponse { headers, body };
    let answer = Wake::Callout(CalloutId(ids as u64), Ok(response));
    probe.wake(answer, &mut slot, &mut stream).unwrap();
    let part = HttpStreamId(stream.callouts.len() as u64);
    let event = HttpStreamEvent::Headers {
        headers,
        end_of_stream: true,
    };
    probe
        .wake(Wake::HttpStream(part, event), &mut slot, &mut stream)
        .unwrap();
    let timer = stream.timers.len() as u64;
    probe
        .configured
        .event(&mut slot, Wake::Timer(timer), &mut stream)
        .unwrap();
    for phase in [
        Phase::RequestBody,
        Phase::ResponseHeaders,
        Phase::ResponseBody,
        Phase::Log,
    ] {
        probe.call(phase, &mut slot, &mut stream).unwrap();
    }
    walked(stream.logged(), &mut lines);
    assert!(lines.len() > 600, "{} lines", lines.len());
    check(&lines);
    let lines: Vec<_> = lines.into_iter().collect();
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn all_that_a_script_of_envoys_filter_can_reach_is_on_the_list() {
    let (probe, _) = loaded(
        r#"
        function envoy_on_request(handle)
            walk.from(_G, "_G")
            walk.object(handle, "request")
            walk.builtins()
            walk.report()
        end
        function envoy_on_response(handle)
            walk.object(handle, "response")
            walk.report()
        end
        walk.leave_out(envoy_on_request)
        walk.leave_out(envoy_on_response)
        "#,
    );
    let (mut slot, mut stream) = (Slot::default(), full_stream());
    for phase in [Phase::RequestHeaders, Phase::ResponseHeaders] {
        probe.call(phase, &mut slot, &mut stream).unwrap();
    }
    let mut lines = BTreeSet::new();
    walked(stream.logged(), &mut lines);
    assert!(lines.len() > 200, "{} lines", lines.len());
    check(&lines);
    let lines: Vec<_> = lines.into_iter().collect();
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn own_tables_of_luajit_are_empty_when_a_plugin_runs() {
    let logs = super::fake::logs_of("envoy.logInfo(envoy.builtins_left())");
    assert_eq!(logs, ["0"]);
}
