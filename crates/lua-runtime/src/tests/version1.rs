//! Version 1 of Rider's SDK.

use outrider_plugin_api::{Cause, Decision, Pause, Phase, Slot, Wake};

use super::fake::{FakeStream, probe};

#[test]
fn get_body_suspends_until_the_body_is_complete() {
    let probe = probe(
        r#"
        require("rider")
        local handler = {}
        function handler:on_request()
            local body = envoy.req.get_body()
            if body == nil then
                envoy.logInfo("no body")
                return
            end
            envoy.logInfo(body:length() .. body:getBytes(0, body:length()) .. body:getBytes(1, 3))
            envoy.req.set_body("other")
            envoy.logInfo(envoy.req.get_body():getBytes(0, 99))
        end
        return handler
        "#,
    );
    let mut stream = FakeStream::new();
    let mut slot = Slot::default();
    let decision = probe.call(Phase::RequestHeaders, &mut slot, &mut stream);
    assert_eq!(decision, Ok(Decision::Pause(Pause::WholeBody)));
    stream.request_body = Some(vec![b"hel".to_vec(), b"lo".to_vec()]);
    assert_eq!(
        probe.wake(Wake::Body, &mut slot, &mut stream),
        Ok(Decision::Continue)
    );
    assert_eq!(stream.logged(), ["5helloel", "other"]);

    let (mut stream, mut slot) = (FakeStream::new(), Slot::default());
    probe
        .call(Phase::RequestHeaders, &mut slot, &mut stream)
        .unwrap();
    assert_eq!(
        probe.wake(Wake::Body, &mut slot, &mut stream),
        Ok(Decision::Continue)
    );
    assert_eq!(stream.logged(), ["no body"]);
}

#[test]
fn a_body_is_there_only_in_its_own_handler() {
    let probe = probe(
        "return { on_response = function() envoy.req.get_body() end, on_request = function() end }",
    );
    let fault = probe
        .call(
            Phase::ResponseHeaders,
            &mut Slot::default(),
            &mut FakeStream::new(),
        )
        .unwrap_err();
    assert_eq!(fault.cause, Cause::Error);
    assert_eq!(
        fault.message,
        "probe/main.lua:1: the request's body is available only in on_request"
    );
}

#[test]
fn a_plugin_in_rider_s_manner_runs() {
    let probe = super::fake::probe_with(
        super::fake::source(&[("main.lua", RIDER_STYLE)]),
        r#"{"deny": ["bad", "worse"]}"#,
    );
    let mut stream = FakeStream::new();
    assert_eq!(probe.request(&mut stream), Ok(Decision::Continue));
    stream
        .maps
        .values_mut()
        .for_each(|map| map.push((b"user-agent".to_vec(), b"a worse one".to_vec())));
    let Ok(Decision::Reply(reply)) = probe.request(&mut stream) else {
        panic!("no reply")
    };
    assert_eq!((reply.status, reply.body.as_slice()), (403, &b"denied"[..]));
}

const RIDER_STYLE: &str = r#"
require("rider")
local envoy = envoy
local get_header, respond, log = envoy.req.get_header, envoy.respond, envoy.logDebug
local shared = envoy.stream.shared
local validator = require("rider.json_validator")
validator.register_validator({ type = "object", properties = {} }, nil)

local handler = {}
function handler:on_request()
    local config = envoy.get_route_config() or envoy.get_base_config()
    local agent = get_header("user-agent")
    if agent == nil then
        return
    end
    shared.agent = agent
    for _, rule in ipairs(config.deny) do
        log("compare " .. rule)
        if string.find(shared.agent, rule) then
            return respond({ [":status"] = 403 }, "denied")
        end
    end
end
return handler
"#;
