//! Loading: messages with file and line, modules, and which handlers are found.

use std::time::Duration;

use outrider_plugin_api::{BodyMode, Interest, Phase, Slot};

use super::fake::{FakeMetrics, FakeStream, probe_with, source, try_load};

fn message(files: &[(&str, &str)]) -> String {
    try_load(files).unwrap_err().to_string()
}

#[test]
fn what_does_not_load_says_where_and_why() {
    let report: Vec<String> = [
        vec![("main.lua", "local x = \nreturn")],
        vec![("main.lua", "return {}"), ("lib/broken.lua", "if x then")],
        vec![("main.lua", "\n\nrequire('lib.absent')")],
        vec![("main.lua", "require('io')")],
        vec![("main.lua", "local t = nil\nreturn t.x")],
        vec![("main.lua", "error({message = 'as a table'})")],
        vec![("main.lua", "print('no handlers')")],
        vec![("main.lua", "return { on_configure = print }")],
        vec![(
            "main.lua",
            "return {\n on_request_headers = function() end }",
        )],
        vec![("main.lua", "return { on_log = 7 }")],
        vec![("other.lua", "return {}")],
        vec![("main.lua", "envoy.req.get_header('x')")],
        vec![("main.lua", "envoy.httpCall('a', {}, '', 10)")],
        vec![("main.lua", "envoy.config()")],
        vec![
            ("main.lua", "require('a')"),
            ("a.lua", "require('b')"),
            ("b.lua", "require('a')"),
        ],
        vec![("main.lua", "\u{1b}LJ\u{2}")],
        vec![("main.lua", "coroutine.yield()")],
    ]
    .iter()
    .map(|files| message(files))
    .collect();
    insta::assert_snapshot!(report.join("\n"));
}

#[test]
fn an_endless_load_is_ended() {
    let message = message(&[("main.lua", "while true do end")]);
    assert_eq!(
        message,
        "plugin probe: probe/main.lua:1: the time budget of the call is used up (it was loading)"
    );
}

#[test]
fn a_load_that_takes_too_much_memory_is_refused() {
    let message = message(&[("main.lua", "t = {}\nfor i = 1, 1e9 do t[i] = i .. 'x' end")]);
    assert!(
        message.contains("the memory budget of 8388608 bytes is used up"),
        "{message}"
    );
    let mut tiny = source(&[("main.lua", "return {on_log = print}")]);
    tiny.memory_budget = 100_000;
    let message = crate::load(tiny, 1, &mut FakeMetrics::default())
        .unwrap_err()
        .message;
    assert_eq!(
        message,
        "the memory budget of 100000 bytes does not hold a Lua VM"
    );
}

#[test]
fn modules_are_found_once_in_both_places() {
    let files = [
        (
            "main.lua",
            "require('rider') require('rider.v2')
            local a, b = require('lib.a'), require('lib')
            assert(require('lib.a') == a)
            return { on_log = function() envoy.logInfo(a.name .. b.name .. count) end }",
        ),
        (
            "lib/a.lua",
            "count = (count or 0) + 1 return { name = ... }",
        ),
        ("lib/init.lua", "return { name = 'init' }"),
    ];
    let probe = probe_with(source(&files), "{}");
    let mut stream = FakeStream::new();
    probe
        .call(Phase::Log, &mut Slot::default(), &mut stream)
        .unwrap();
    assert_eq!(stream.logged(), ["lib.ainit1"]);
}

#[test]
fn handlers_make_the_interest() {
    let handlers = |names: &[&str]| {
        let members: Vec<String> = names
            .iter()
            .map(|name| format!("{name} = function() end"))
            .collect();
        let text = format!("return {{ {} }}", members.join(", "));
        let mut source = source(&[("main.lua", &text)]);
        source.response_body = BodyMode::Stream;
        crate::load(source, 1, &mut FakeMetrics::default())
            .unwrap()
            .interest()
    };
    let none = Interest::default();
    assert_eq!(
        handlers(&["on_request_header", "on_log"]),
        Interest {
            request_headers: true,
            log: true,
            ..none
        }
    );
    assert_eq!(
        handlers(&["on_request_body", "on_response_body"]),
        // Body handlers are called after those of the headers where there is no body.
        Interest {
            request_headers: true,
            response_headers: true,
            request_body: BodyMode::Whole,
            response_body: BodyMode::Stream,
            ..none
        }
    );
    assert_eq!(
        handlers(&[
            "on_request_trailer",
            "on_response_header",
            "on_response_trailer"
        ]),
        Interest {
            request_trailers: true,
            response_headers: true,
            response_trailers: true,
            ..none
        }
    );
    assert_eq!(
        handlers(&["on_request", "on_response"]),
        Interest {
            request_headers: true,
            response_headers: true,
            ..none
        }
    );
    assert_eq!(
        handlers(&["on_request", "on_log"]).request_body,
        BodyMode::None
    );
}

#[test]
fn each_worker_has_its_own_globals() {
    let probe = probe_with(
        source(&[(
            "main.lua",
            "return { on_log = function() n = (n or 0) + 1 envoy.logInfo(n) end }",
        )]),
        "{}",
    );
    let count = |worker| {
        let mut stream = FakeStream::new();
        stream.worker = worker;
        probe
            .call(Phase::Log, &mut Slot::default(), &mut stream)
            .unwrap();
        stream.logged().concat()
    };
    assert_eq!(
        [count(0), count(0), count(1), count(0)],
        ["1", "2", "1", "3"]
    );
    let mut stream = FakeStream::new();
    stream.worker = 2;
    let fault = probe
        .call(Phase::Log, &mut Slot::default(), &mut stream)
        .unwrap_err();
    assert_eq!(fault.cause, outrider_plugin_api::Cause::Unavailable);
}

#[test]
fn workers_run_at_the_same_time() {
    let mut slow = source(&[(
        "main.lua",
        "return { on_log = function() local n = 0 for i = 1, 3e6 do n = n + i % 7 end
            envoy.logInfo(n) end }",
    )]);
    slow.time_budget = Duration::from_secs(20);
    let probe = probe_with(slow, "{}");
    std::thread::scope(|scope| {
        for worker in 0..2 {
            let configured = &probe.configured;
            scope.spawn(move || {
                for _ in 0..20 {
                    let mut stream = FakeStream::new();
                    stream.worker = worker;
                    configured
                        .call(
                            &mut Slot::default(),
                            super::fake::call(Phase::Log),
                            &mut stream,
                        )
                        .unwrap();
                    assert_eq!(stream.logged().len(), 1);
                }
            });
        }
    });
}
