//! Callouts, streaming callouts and timers of Lua plugins in whole chains: on a fake clock, in every way
//! in which messages can arrive.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use outrider_plugin_api::{CalloutFailure, Chain};
use outrider_plugin_testkit::{
    Arrival, Headers, LoadedPlugin, Message, MetricTable, Outcome, ScriptedAnswer, ScriptedHost,
    ScriptedResponse, play, read_cases, run_case,
};
use serde_json::json;

fn plugin(name: &str, code: &str) -> LoadedPlugin {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(format!("{name}.lua"));
    fs::write(&file, code).unwrap();
    LoadedPlugin::from_package(&outrider_plugin_store::open(&file).unwrap()).unwrap()
}

fn chain(plugins: &[LoadedPlugin]) -> Arc<Chain> {
    let links = plugins.iter().flat_map(|plugin| {
        let chain = plugin.chain(&json!({}), None, &mut MetricTable::new());
        chain.unwrap().links().to_vec()
    });
    Arc::new(Chain::new(links.collect()))
}

fn get() -> Message {
    Message {
        headers: Headers::new()
            .with(":method", "GET")
            .with(":path", "/")
            .with(":authority", "shop"),
        ..Message::default()
    }
}

fn ok() -> Message {
    Message {
        headers: Headers::new().with(":status", "200"),
        chunks: vec![b"hello".to_vec()],
        trailers: None,
    }
}

fn after(milliseconds: u64, body: &[&str]) -> ScriptedAnswer {
    ScriptedAnswer {
        after: Duration::from_millis(milliseconds),
        answer: Ok(ScriptedResponse {
            headers: Headers::new().with(":status", "200"),
            body: body.iter().map(|piece| piece.as_bytes().to_vec()).collect(),
            ..ScriptedResponse::default()
        }),
    }
}

fn host(answers: &[ScriptedAnswer]) -> ScriptedHost {
    let mut host = ScriptedHost::default();
    host.answers.extend(answers.iter().cloned());
    host
}

fn status(outcome: &Outcome) -> String {
    outcome.response.as_ref().unwrap().headers.text(":status")
}

fn log(outcome: &Outcome) -> Vec<String> {
    let lines = outcome.host.log.borrow();
    lines.iter().map(|line| line.message.clone()).collect()
}

fn played(plugins: &[LoadedPlugin], answers: &[ScriptedAnswer], check: impl Fn(&Outcome)) {
    for arrival in Arrival::ALL {
        let outcome = play(chain(plugins), &get(), &ok(), arrival, host(answers));
        assert_eq!(outcome.problems, Vec::<String>::new(), "{arrival}");
        check(&outcome);
    }
}

const CASES: &str = r#"
- name: two callouts at once take as long as the longer
  request: {path: /both}
  callouts:
    - {expect: {upstream: prices, path: /p}, answer: {body: "7", after_ms: 40}}
    - {expect: {upstream: stock, method: POST, body: ask}, answer: {body: "3", after_ms: 15}}
  expect:
    upstream_request: {headers: {x-price: "7", x-stock: "3"}}
    delay_ms: 40
- name: the first answer is enough
  request: {path: /any}
  callouts:
    - {expect: {upstream: prices}, answer: {body: slow, after_ms: 400}}
    - {expect: {upstream: stock}, answer: {body: fast, after_ms: 5}}
  expect: {upstream_request: {headers: {x-first: fast}}}
- name: waiting has an end
  request: {path: /any}
  callouts:
    - {expect: {upstream: prices}, answer: {failure: timeout}}
    - {expect: {upstream: stock}, answer: {failure: timeout}}
  expect: {upstream_request: {headers: {x-first: timeout}}, delay_ms: 100}
- name: a request and its response in parts
  request: {path: /parts}
  callouts:
    - expect: {upstream: talk, method: POST, body: onetwo, trailers: {x-sum: "2"}}
      answer: {chunks: [he, ll, o], trailers: {x-count: "3"}, after_ms: 5, chunk_every_ms: 10}
  expect:
    upstream_request: {headers: {x-heard: "he,ll,o", x-status: "200", x-count: "3"}}
    delay_ms: 25
- name: nobody is there to talk to
  request: {path: /parts}
  callouts: [{expect: {upstream: talk}, answer: {failure: no-upstream}}]
  expect: {upstream_request: {headers: {x-status: no upstream of that name}}}
"#;

const TALKER: &str = r#"
local handler = {}
local ways = {
    ["/both"] = function()
        local price = envoy.callout.start{ cluster = "prices", path = "/p" }
        local stock = envoy.callout.start{ cluster = "stock", body = "ask" }
        assert(envoy.callout.wait_all({ price, stock }))
        envoy.req.set_header("x-price", select(2, price:wait()))
        envoy.req.set_header("x-stock", select(2, stock:wait()))
    end,
    ["/any"] = function()
        local calls = {
            envoy.callout.start{ cluster = "prices" }, envoy.callout.start{ cluster = "stock" },
        }
        local first, why = envoy.callout.wait_any(calls, 100)
        envoy.req.set_header("x-first", first and select(2, first:wait()) or why)
    end,
    ["/parts"] = function()
        local s = envoy.callout.stream{ cluster = "talk", method = "POST", body = "one" }
        s:send("two")
        s:send_trailers{ ["x-sum"] = 2 }
        local headers, why = s:headers()
        envoy.req.set_header("x-status", headers and headers[":status"] or why)
        local parts = {}
        for chunk in s:chunks() do parts[#parts + 1] = chunk end
        envoy.req.set_header("x-heard", table.concat(parts, ","))
        local trailers = s:trailers()
        envoy.req.set_header("x-count", trailers and trailers["x-count"] or "none")
    end,
}
function handler:on_request_header() ways[envoy.req.get_header(":path")]() end
return handler
"#;

#[test]
fn cases_script_several_callouts_and_such_in_parts() {
    let talker = plugin("talker", TALKER);
    for case in read_cases("talker.yaml", CASES).unwrap() {
        let result = run_case(&talker, &case);
        assert!(result.is_right(), "{}", result);
    }
}

#[test]
fn two_plugins_wait_in_turn_while_the_first_one_s_other_callout_goes_on() {
    let asking = |name: &str| {
        let code = r#"
            local shared = envoy.stream.shared
            return {
                on_request_header = function()
                    shared.slow = envoy.callout.start{ cluster = "NAME-slow" }
                    local _, body = envoy.callout.start{ cluster = "NAME" }:wait()
                    envoy.logInfo("NAME " .. body)
                end,
                on_response_header = function()
                    envoy.logInfo("NAME " .. select(2, shared.slow:wait()))
                end,
            }
        "#;
        plugin(name, &code.replace("NAME", name))
    };
    let answers = [
        after(30, &["slow a"]),
        after(10, &["fast a"]),
        after(60, &["slow b"]),
        after(10, &["fast b"]),
    ];
    played(&[asking("a"), asking("b")], &answers, |outcome| {
        assert_eq!(
            log(outcome),
            ["a fast a", "b fast b", "b slow b", "a slow a"]
        );
        assert_eq!(outcome.duration(), Duration::from_millis(70));
    });
}

#[test]
fn a_callout_outlives_its_handler_and_nobody_waits_for_it() {
    let sender = plugin(
        "sender",
        r#"return { on_request_header = function()
            assert(envoy.callout.send{ cluster = "audit", body = "seen" })
            envoy.callout.start{ cluster = "audit" }
        end }"#,
    );
    played(
        &[sender],
        &[after(5, &["a"]), after(5, &["b"])],
        |outcome| {
            assert_eq!(outcome.host.callouts.len(), 2);
            assert_eq!(outcome.duration(), Duration::ZERO);
            assert_eq!(outcome.host.faults, []);
        },
    );
}

#[test]
fn a_plugin_has_so_much_under_way_and_no_more() {
    let greedy = plugin(
        "greedy",
        r#"return { on_request_header = function()
            local calls, failed = {}, nil
            for i = 1, 100 do
                calls[i] = envoy.callout.start{ cluster = "a", path = "/" .. i }
            end
            envoy.callout.wait_any(calls)
            local count = 0
            for i = 1, 64 do
                if calls[i]:wait() then count = count + 1 end
            end
            envoy.logInfo(count .. " " .. select(2, calls[65]:wait()))
            -- There is room again.
            envoy.logInfo(select(2, envoy.callout.start{ cluster = "a" }:wait()))
        end }"#,
    );
    let answers: Vec<_> = (0..65).map(|index| after(index, &["x"])).collect();
    played(&[greedy], &answers, |outcome| {
        assert_eq!(
            log(outcome),
            [
                "64 too many are under way: a plugin may have 64 callouts, timers and streaming callouts at \
                 once on one stream",
                "x"
            ]
        );
        assert_eq!(outcome.host.callouts.len(), 65);
    });
}

#[test]
fn a_timer_ends_a_stream_that_waits() {
    let impatient = plugin(
        "impatient",
        r#"return { on_request_header = function()
            envoy.timer.after(50, function() envoy.respond({ [":status"] = 504 }, "too slow") end)
            local ticks = 0
            envoy.timer.every(20, function() ticks = ticks + 1 envoy.logInfo("tick " .. ticks) end)
            envoy.httpCall("a", { [":method"] = "GET", [":path"] = "/", [":authority"] = "a" }, "", 900)
            envoy.logInfo("never")
        end }"#,
    );
    let late = [after(500, &["x"])];
    played(&[impatient], &late, |outcome| {
        assert_eq!(status(outcome), "504");
        assert_eq!(log(outcome), ["tick 1", "tick 2"]);
        assert_eq!(outcome.details, "outrider.impatient");
        assert!(outcome.upstream_request.is_none());
    });
}

#[test]
fn a_timer_s_error_follows_the_failure_policy_wherever_the_plugin_waits() {
    let code = r#"return {
        on_request_header = function()
            envoy.timer.after(5, function() error("broken") end)
            envoy.sleep(50)
            envoy.logInfo("never")
        end,
    }"#;
    played(&[plugin("closed", code)], &[], |outcome| {
        assert_eq!(status(outcome), "500");
        assert_eq!(outcome.details, "outrider.closed.error");
        assert_eq!(outcome.duration(), Duration::from_millis(5));
    });
    let open =
        plugin("open", code).with_failure_policy(&serde_json::from_value(json!("open")).unwrap());
    played(&[open], &[], |outcome| {
        assert_eq!(status(outcome), "200");
        assert_eq!(outcome.host.faults.len(), 1);
        assert_eq!(outcome.duration(), Duration::from_millis(5));
        assert!(!log(outcome).contains(&"never".to_owned()));
    });
}

#[test]
fn events_after_a_reply_and_after_the_stream_find_nobody() {
    let refusing = plugin(
        "refusing",
        r#"
        local shared = envoy.stream.shared
        return {
            on_request_header = function()
                shared.call = envoy.callout.start{ cluster = "a" }
                shared.talk = envoy.callout.stream{ cluster = "b" }
                envoy.timer.every(10, function() envoy.logInfo("tick") end)
                envoy.respond({ [":status"] = 403 })
            end,
            on_log = function()
                envoy.logInfo(tostring(pcall(function() shared.call:wait() end)))
                shared.talk:close()
                envoy.logInfo(tostring(shared.talk:send("x")))
            end,
        }"#,
    );
    played(
        &[refusing],
        &[after(5, &["x"]), after(5, &["y"])],
        |outcome| {
            assert_eq!(status(outcome), "403");
            assert_eq!(log(outcome), ["false", "nil"]);
            assert_eq!(outcome.host.faults, []);
        },
    );
}

#[test]
fn a_stream_that_breaks_off_is_told_after_what_came() {
    let reader = plugin(
        "reader",
        r#"return { on_request_header = function()
            local s = envoy.callout.stream{ cluster = "a", end_stream = true, timeout_ms = TIMEOUT }
            local all, why = s:read_all()
            envoy.logInfo(tostring(all) .. " " .. tostring(why))
        end }"#
            .replace("TIMEOUT", "35")
            .as_str(),
    );
    let broken = ScriptedAnswer {
        after: Duration::from_millis(5),
        answer: Ok(ScriptedResponse {
            headers: Headers::new().with(":status", "200"),
            body: vec![b"a".to_vec(), b"b".to_vec()],
            every: Duration::from_millis(10),
            breaks: Some(CalloutFailure::Reset),
            ..ScriptedResponse::default()
        }),
    };
    played(&[reader], std::slice::from_ref(&broken), |outcome| {
        assert_eq!(log(outcome), ["nil reset before the response was complete"]);
        assert_eq!(outcome.duration(), Duration::from_millis(25));
    });
    let slow = after(50, &["late"]);
    let reader = plugin(
        "reader",
        r#"return { on_request_header = function()
            local s = envoy.callout.stream{ cluster = "a", end_stream = true, timeout_ms = 35 }
            local headers, why = s:headers(10)
            local again, reason = s:headers()
            envoy.logInfo(tostring(headers) .. why .. tostring(again) .. reason)
        end }"#,
    );
    played(&[reader], &[slow], |outcome| {
        assert_eq!(log(outcome), ["niltimeoutniltimeout"]);
        assert_eq!(outcome.duration(), Duration::from_millis(35));
    });
}
