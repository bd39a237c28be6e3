//! Scripts for Envoy's own Lua filter, without Envoy. What they do on the real one, compared with what
//! Envoy's filter does, is `crates/e2e/tests/envoy_lua.rs`.

use outrider_plugin_api::{
    BodyMode, Call, CalloutFailure, CalloutId, CalloutResponse, Decision, HeaderMap, Pause, Phase,
    Slot, Wake,
};

use super::fake::{FakeStream, Probe, probe, try_load};

fn at(
    probe: &Probe,
    phase: Phase,
    end: bool,
    slot: &mut Slot,
    stream: &mut FakeStream,
) -> Decision {
    let call = Call {
        phase,
        end_of_stream: end,
    };
    probe.configured.call(slot, call, stream).unwrap()
}

#[test]
fn a_script_reads_and_changes_headers() {
    let probe = probe(
        r#"
        function envoy_on_request(handle)
            local headers = handle:headers()
            handle:logInfo(headers:get("x-two") .. "|" .. headers:getAtIndex("x-two", 1)
                .. "|" .. headers:getNumValues("X-Two") .. "|" .. tostring(headers:get("none")))
            headers:add("x-new", 12)
            headers:replace("x-one", "other")
            headers:remove("x-two")
            local seen = {}
            for name, value in pairs(headers) do
                seen[#seen + 1] = name .. "=" .. value
            end
            handle:logInfo(table.concat(seen, " "))
        end
        function envoy_on_response(handle)
            handle:headers():add("x-path", handle:requestHeaders():get(":path"))
        end
        "#,
    );
    let mut stream = FakeStream::new();
    let mut slot = Slot::default();
    at(&probe, Phase::RequestHeaders, true, &mut slot, &mut stream);
    at(&probe, Phase::ResponseHeaders, true, &mut slot, &mut stream);
    assert_eq!(
        stream.logged(),
        [
            "first,second|second|2|nil",
            ":method=GET :path=/cart?item=a%20b&item=2&flag :authority=shop.example.com x-new=12 \
             x-one=other",
        ]
    );
    assert_eq!(
        stream.route_cleared, 3,
        "each change has the route chosen anew"
    );
    assert_eq!(
        stream.get(HeaderMap::ResponseHeaders, "x-path").as_deref(),
        Some("/cart?item=a%20b&item=2&flag")
    );
}

#[test]
fn body_waits_for_the_whole_body() {
    let probe = probe(
        r#"
        function envoy_on_request(handle)
            local body = handle:body()
            handle:headers():add("size", body:length())
            handle:logInfo(body:getBytes(1, 3))
            handle:logInfo(tostring(body:setBytes("new")))
            handle:logInfo(tostring(handle:trailers() and handle:trailers():get("t")))
        end
        "#,
    );
    let (mut stream, mut slot) = (FakeStream::new(), Slot::default());
    let decision = at(&probe, Phase::RequestHeaders, false, &mut slot, &mut stream);
    assert_eq!(decision, Decision::Pause(Pause::WholeBody));
    stream.request_body = Some(vec![b"hel".to_vec(), b"lo".to_vec()]);
    assert_eq!(
        probe.wake(Wake::Body, &mut slot, &mut stream),
        Ok(Decision::Continue)
    );
    assert_eq!(stream.logged(), ["ell", "3", "1"]);
    assert_eq!(
        stream.get(HeaderMap::RequestHeaders, "size").as_deref(),
        Some("5")
    );
    assert_eq!(
        stream
            .get(HeaderMap::RequestHeaders, "content-length")
            .as_deref(),
        Some("3")
    );
}

#[test]
fn a_coroutine_goes_on_from_chunk_to_chunk() {
    let probe = probe(
        r#"
        function envoy_on_request(handle)
            for chunk in handle:bodyChunks() do
                handle:logInfo(chunk:getBytes(0, chunk:length()))
            end
            local done, problem = pcall(function() handle:headers():add("a", "b") end)
            handle:logInfo((problem:gsub("^.-: ", "")))
            local trailers = handle:trailers()
            handle:logInfo(trailers and trailers:get("t") or "no trailers")
        end
        "#,
    );
    assert_eq!(probe.plugin.interest().request_body, BodyMode::Stream);
    assert!(probe.plugin.interest().request_trailers);
    assert_eq!(probe.plugin.interest().response_body, BodyMode::None);
    for trailers in [true, false] {
        let (mut stream, mut slot) = (FakeStream::new(), Slot::default());
        if !trailers {
            stream.maps.remove(&HeaderMap::RequestTrailers);
        }
        let go_on = Decision::Continue;
        let map = stream.maps.remove(&HeaderMap::RequestTrailers);
        assert_eq!(
            at(&probe, Phase::RequestHeaders, false, &mut slot, &mut stream),
            go_on
        );
        for (chunk, last) in [("one", false), ("two", !trailers)] {
            stream.request_body = Some(vec![chunk.into()]);
            assert_eq!(
                at(&probe, Phase::RequestBody, last, &mut slot, &mut stream),
                go_on
            );
        }
        stream.request_body = None;
        if let Some(map) = map {
            stream.maps.insert(HeaderMap::RequestTrailers, map);
            assert_eq!(
                at(&probe, Phase::RequestTrailers, true, &mut slot, &mut stream),
                go_on
            );
        }
        let last = if trailers { "1" } else { "no trailers" };
        assert_eq!(
            stream.logged(),
            ["one", "two", "header map can no longer be modified", last]
        );
        probe.configured.end(slot, 0);
    }
}

#[test]
fn a_script_that_never_streams_is_not_called_for_bodies() {
    let probe = probe("function envoy_on_request(handle) handle:headers():get('a') end");
    assert_eq!(probe.plugin.interest().request_body, BodyMode::None);
    assert!(!probe.plugin.interest().request_trailers);
    let probe = super::fake::probe(
        "function envoy_on_request(handle) local f = handle['body' .. 'Chunks'](handle) f() end",
    );
    let fault = probe.call(
        Phase::RequestHeaders,
        &mut Slot::default(),
        &mut FakeStream::new(),
    );
    assert_eq!(
        fault.unwrap_err().message,
        "probe/main.lua:1: bodyChunks() is called, but no file of the plugin names it: write it as \
         handle:bodyChunks()"
    );
}

#[test]
fn http_call_answers_as_envoys_does() {
    let probe = probe(
        r#"
        function envoy_on_request(handle)
            local request = { [":method"] = "POST", [":path"] = "/", [":authority"] = "a", n = 5 }
            local headers, body = handle:httpCall("auth", request, "hello", 250)
            handle:logInfo(headers[":status"] .. " " .. headers.k .. " " .. tostring(body))
            headers, body = handle:httpCall("auth", request, nil,
                { timeout_ms = 9, return_duplicate_headers = true })
            handle:logInfo(headers[":status"] .. " " .. headers.k[1] .. " " .. tostring(body))
            headers, body = handle:httpCall("auth", request, nil, 0)
            handle:logInfo(headers[":status"] .. " " .. tostring(body))
            handle:httpCall("auth", request, nil, 10, true)
            handle:logInfo("not waited for")
        end
        "#,
    );
    let (mut stream, mut slot) = (FakeStream::new(), Slot::default());
    let event = Ok(Decision::Pause(Pause::Event));
    assert_eq!(
        probe.call(Phase::RequestHeaders, &mut slot, &mut stream),
        event
    );
    let headers: &[(&[u8], &[u8])] = &[(b":status", b"200"), (b"k", b"1"), (b"k", b"2")];
    let answer = |body| Ok(CalloutResponse { headers, body });
    let first = Wake::Callout(CalloutId(1), answer(&[b"ans", b"wer"]));
    assert_eq!(probe.wake(first, &mut slot, &mut stream), event);
    let second = Wake::Callout(CalloutId(2), answer(&[]));
    assert_eq!(probe.wake(second, &mut slot, &mut stream), event);
    let third = Wake::Callout(CalloutId(3), Err(CalloutFailure::Reset));
    assert_eq!(
        probe.wake(third, &mut slot, &mut stream),
        Ok(Decision::Continue)
    );
    assert_eq!(
        stream.logged(),
        [
            "200 2 answer",
            "200 1 nil",
            "503 upstream failure",
            "not waited for"
        ]
    );
    assert_eq!(stream.callouts.len(), 4);
}

#[test]
fn respond_ends_the_script_and_shows_the_reply_to_it() {
    let probe = probe(
        r#"
        function envoy_on_request(handle)
            handle:respond({ [":status"] = "403", ["x-list"] = { "a", "b" } }, "nope")
            handle:logInfo("not reached")
        end
        function envoy_on_response(handle)
            handle:respond({ [":status"] = "500" }, "")
        end
        "#,
    );
    let (mut stream, mut slot) = (FakeStream::new(), Slot::default());
    let decision = at(&probe, Phase::RequestHeaders, true, &mut slot, &mut stream);
    let Decision::Reply(reply) = decision else {
        panic!("{decision:?}")
    };
    assert_eq!((reply.status, reply.body.as_slice()), (403, &b"nope"[..]));
    assert_eq!(reply.details, "lua_response");
    assert_eq!(reply.audience, outrider_plugin_api::Audience::Everyone);
    assert_eq!(reply.headers.len(), 2);
    let fault = probe.call(Phase::ResponseHeaders, &mut slot, &mut stream);
    assert_eq!(
        fault.unwrap_err().message,
        "probe/main.lua:7: respond not currently supported in the response path"
    );
    assert!(stream.logged().is_empty());
}

#[test]
fn what_is_missing_is_said() {
    for (code, expected) in [
        (
            "envoy_on_request = 1",
            "plugin probe: envoy_on_request must be a function, not a number",
        ),
        (
            "local f = 'envoy_on_request'",
            "plugin probe: probe/main.lua: the file must return its table of handlers, not nothing",
        ),
    ] {
        let error = try_load(&[("main.lua", code)]).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn facts_are_told_as_envoy_tells_them() {
    let script = r#"
        function envoy_on_request(handle)
            local info = handle:streamInfo()
            handle:logInfo(info:protocol() .. " " .. info:routeName() .. " " ..
                info:downstreamLocalAddress() .. " " .. info:downstreamRemoteAddress())
            local metadata = info:dynamicMetadata()
            metadata:set("mine", "request.info", { auth = "a", list = { 1, { deep = true } } })
            metadata:set("mine", "plain", "text")
            local found = metadata:get("mine")
            handle:logInfo(found["request.info"].auth .. tostring(found["request.info"].list[2].deep)
                .. found.plain .. tostring(metadata:get("other")))
            local kinds = {}
            for name, members in pairs(metadata) do kinds[name] = type(members) end
            handle:logInfo(tostring(next(kinds)) .. kinds.mine)
            handle:logInfo(tostring(handle:filterContext():get("limit"))
                .. tostring(handle:filterContext()["limit"]))
            handle:logInfo(handle:timestampString() .. " "
                .. handle:timestampString(EnvoyTimestampResolution.MICROSECOND) .. " "
                .. tostring(handle:timestamp() == 1700000000500))
            handle:logInfo(handle:base64Escape("a\0b") .. handle:base64Decode("YWI=")
                .. tostring(handle:base64Decode("!")))
            local ssl = info:downstreamSslConnection()
            handle:logInfo(ssl:tlsVersion() .. ssl:parsedSubjectPeerCertificate():commonName()
                .. #ssl:dnsSansPeerCertificate() .. tostring(ssl:peerCertificatePresented()))
            local counter = handle:stats():counter("seen")
            counter:inc()
            counter:add(2)
            handle:logInfo(tostring(counter:value()))
        end
        "#;
    let source = super::fake::source(&[("main.lua", script)]);
    let probe = super::fake::probe_with(source, r#"{"limit": 5}"#);
    let mut stream = FakeStream::new();
    stream.tls = true;
    probe.request(&mut stream).unwrap();
    assert_eq!(
        stream.logged(),
        [
            "HTTP/2 cart 10.0.0.1:443 10.0.0.9:4711",
            "atruetextnil",
            "minetable",
            "55",
            "1700000000500 1700000000500000 true",
            "YQBiabnil",
            "TLSv1.3client1true",
            "3",
        ]
    );
}
