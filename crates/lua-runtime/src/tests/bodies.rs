//! Bodies: read whole and in parts, changed at their ends, in both versions.

use outrider_plugin_api::{Decision, Direction, Pause, Phase, Slot, Wake};

use super::fake::{FakeStream, on_request, probe};

fn stream(pieces: &[&str]) -> FakeStream {
    FakeStream {
        request_body: Some(
            pieces
                .iter()
                .map(|piece| piece.as_bytes().to_vec())
                .collect(),
        ),
        ..FakeStream::new()
    }
}

/// The body after `body` ran as a handler of request headers, and what it printed.
fn after(pieces: &[&str], body: &str) -> (String, Vec<String>) {
    let mut stream = stream(pieces);
    on_request(body).request(&mut stream).unwrap();
    let left = stream.request_body.clone().unwrap().concat();
    (String::from_utf8(left).unwrap(), stream.logged())
}

#[test]
fn parts_of_a_body_are_read() {
    let script = r#"
        local req = envoy.req
        print(req.get_body_size(), req.get_body())
        print(req.get_body_bytes(1, 3), req.get_body_bytes(3, 8), req.get_body_bytes(-4))
        print(req.get_body_bytes(5, 4) == "", req.get_body_bytes(100) == "")
        print(req.get_body() == req.get_body())
    "#;
    let expected = ["10\t0123456789", "012\t234567\t6789", "true\ttrue", "true"];
    assert_eq!(after(&["0123456789"], script).1, expected);
    assert_eq!(after(&["012", "", "34567", "89"], script).1, expected);
}

#[test]
fn a_body_that_was_read_is_read_anew_after_a_change() {
    let (left, printed) = after(
        &["ab", "cd"],
        r#"
        local req = envoy.req
        print(req.get_body())
        req.append_body("ef") req.append_body("")
        print(req.get_body(), req.get_body_size())
        req.prepend_body(12)
        print(req.get_body())
        req.drain_body(3)
        print(req.get_body())
        req.drain_body(0) req.set_body(req.get_body():upper())
        print(req.get_body_bytes(2))
        req.drain_body(99)
        print(req.get_body(), req.get_body_size())
        req.append_body("end")
        "#,
    );
    assert_eq!(
        printed,
        ["abcd", "abcdef\t6", "12abcdef", "bcdef", "CDEF", "\t0"]
    );
    assert_eq!(left, "end");
}

#[test]
fn a_body_is_its_own_stream_s() {
    let probe = on_request(
        "
        local req, resp = envoy.req, envoy.resp
        local seen = req.get_body() .. req.get_body()
        print(seen, resp.get_body(), #req.get_body())
        ",
    );
    // Often enough for the handler to be compiled.
    for number in 100..400 {
        let mut stream = stream(&[&number.to_string(), "-body"]);
        stream.response_body = Some(vec![format!("answer {number}").into_bytes()]);
        probe.request(&mut stream).unwrap();
        let expected = format!("{number}-body{number}-body\tanswer {number}\t8");
        assert_eq!(stream.logged(), [expected]);
        let mut without = FakeStream::new();
        without.request_body = Some(Vec::new());
        probe.request(&mut without).unwrap();
        assert_eq!(without.logged(), ["\tnil\t0"]);
    }
}

#[test]
fn a_body_that_grew_during_a_wait_is_read_anew() {
    let probe = on_request(
        r"
        local before = envoy.req.get_body()
        envoy.sleep(1)
        print(before, envoy.req.get_body())
        ",
    );
    let mut stream = stream(&["first"]);
    let mut slot = Slot::default();
    let decision = probe.call(Phase::RequestHeaders, &mut slot, &mut stream);
    assert_eq!(decision.unwrap(), Decision::Pause(Pause::Event));
    stream.request_body = Some(vec![b"first and second".to_vec()]);
    probe.wake(Wake::Timer(1), &mut slot, &mut stream).unwrap();
    probe.configured.end(slot, 0);
    assert_eq!(stream.logged(), ["first\tfirst and second"]);
}

#[test]
fn what_is_wrong_names_the_plugin_s_line() {
    for (call, message) in [
        (
            "envoy.resp.append_body('x')",
            "there is no body in this phase",
        ),
        (
            "envoy.req.append_body({})",
            "what is appended must be a string, not table",
        ),
        (
            "envoy.req.prepend_body()",
            "what is put in front must be a string, not nil",
        ),
        (
            "envoy.req.drain_body(-1)",
            "drain_body takes how many bytes are removed, a number from 0",
        ),
        (
            "envoy.req.get_body_bytes()",
            "the first byte's place must be a number, not nil",
        ),
        (
            "envoy.req.get_body_bytes(1, 'x')",
            "the last byte's place must be a number, not string",
        ),
    ] {
        let fault = on_request(call)
            .request(&mut stream(&["body"]))
            .unwrap_err();
        assert_eq!(
            fault.message,
            format!("probe/main.lua:3: {message}"),
            "{call}"
        );
    }
    let mut announced = stream(&["body"]);
    announced.length_announced = true;
    let fault = on_request("envoy.req.drain_body(1)")
        .request(&mut announced)
        .unwrap_err();
    assert!(
        fault
            .message
            .starts_with("probe/main.lua:3: the body's length was announced"),
        "{fault}"
    );
    let logs =
        super::fake::logs_of("print(envoy.req.get_body_bytes(1), envoy.req.get_body_size())");
    assert_eq!(logs, ["nil\tnil"]);
}

#[test]
fn version_1_waits_for_the_body_that_it_changes() {
    let probe = probe(
        r#"
        local handler = {}
        function handler:on_request()
            envoy.req.append_body("!")
            print(envoy.req.get_body_size(), envoy.req.get_body_bytes(1, 2), envoy.req.get_body():length())
        end
        return handler
        "#,
    );
    let mut stream = FakeStream::new();
    let mut slot = Slot::default();
    probe
        .call(Phase::RequestHeaders, &mut slot, &mut stream)
        .unwrap();
    stream.request_body = Some(vec![b"body".to_vec()]);
    probe
        .configured
        .resume(&mut slot, Direction::Request, Wake::Body, &mut stream)
        .unwrap();
    assert_eq!(stream.logged(), ["5\tbo\t5"]);
}

/// Calls the headers handler of a message whose headers are its end.
fn without_body(
    probe: &super::fake::Probe,
    phase: Phase,
    slot: &mut Slot,
    stream: &mut FakeStream,
) -> Result<Decision, outrider_plugin_api::Fault> {
    let call = outrider_plugin_api::Call {
        phase,
        end_of_stream: true,
    };
    probe.configured.call(slot, call, stream)
}

#[test]
fn body_handler_is_called_for_a_message_without_body() {
    for (handlers, expected) in [
        (
            "handler.on_request_header = function() note('headers') end",
            vec!["headers", "request nil nil true", "response nil nil true"],
        ),
        ("", vec!["request nil nil true", "response nil nil true"]),
    ] {
        let probe = super::fake::probe(&format!(
            "local handler = {{ version = 'v2' }}
            local note = envoy.logInfo
            {handlers}
            function handler:on_request_body(ended)
                note('request ' .. tostring(envoy.req.get_body()) .. ' ' .. tostring(envoy.req.get_body_size())
                    .. ' ' .. tostring(ended))
            end
            function handler:on_response_body(ended)
                note('response ' .. tostring(envoy.resp.get_body()) .. ' ' .. tostring(envoy.resp.get_body_size())
                    .. ' ' .. tostring(ended))
            end
            return handler"
        ));
        assert!(probe.plugin.interest().request_headers);
        let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
        for phase in [Phase::RequestHeaders, Phase::ResponseHeaders] {
            let decision = without_body(&probe, phase, &mut slot, &mut stream);
            assert_eq!(decision, Ok(Decision::Continue));
        }
        assert_eq!(stream.logged(), expected);
        // With a body to come, it is called with that.
        let mut stream = FakeStream::new();
        probe
            .call(Phase::RequestHeaders, &mut slot, &mut stream)
            .unwrap();
        assert!(!stream.logged().concat().contains("request"));
    }
}

#[test]
fn body_handler_that_checks_bodies_is_not_passed_without_one() {
    let probe = super::fake::probe(
        "return { on_request_body = function()
            local body = envoy.req.get_body()
            if not body or not body:find('token') then
                envoy.respond({ [':status'] = 403 }, 'no token')
            end
        end }",
    );
    let decision = without_body(
        &probe,
        Phase::RequestHeaders,
        &mut Slot::default(),
        &mut FakeStream::new(),
    );
    assert!(matches!(decision, Ok(Decision::Reply(reply)) if reply.status == 403));
}

#[test]
fn body_handler_without_a_body_follows_a_headers_handler_that_waits_and_may_wait_itself() {
    let probe = super::fake::probe(
        "local handler = {}
        function handler:on_request_header()
            envoy.sleep(1)
            envoy.logInfo('headers')
        end
        function handler:on_request_body()
            envoy.sleep(1)
            envoy.logInfo('body ' .. tostring(envoy.req.get_body()))
        end
        return handler",
    );
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    let paused = without_body(&probe, Phase::RequestHeaders, &mut slot, &mut stream);
    assert!(matches!(paused, Ok(Decision::Pause(_))));
    let paused = probe.wake(Wake::Timer(1), &mut slot, &mut stream);
    assert!(matches!(paused, Ok(Decision::Pause(_))), "{paused:?}");
    let done = probe.wake(Wake::Timer(2), &mut slot, &mut stream);
    assert_eq!(done, Ok(Decision::Continue));
    assert_eq!(stream.logged(), ["headers", "body nil"]);
}
