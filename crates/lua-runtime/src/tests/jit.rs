//! Being compiled is a property: after warm-up the SDK's main functions sit in traces, and no trace
//! was given up because of something that LuaJIT does not compile.

use std::time::Duration;

use super::fake::{FakeStream, probe_with, source};

/// Runs `body` 500 times in a loop and answers how many traces were made, then the places and reasons
/// of those that were not.
fn traces(body: &str) -> Vec<String> {
    let text = format!(
        "local envoy, handler = envoy, {{}}
        local schema = envoy.json_schema.compile({{ properties = {{ a = {{ type = 'integer' }} }} }})
        function handler:on_request_header()
            envoy.trace_start()
            for i = 1, 500 do
                {body}
            end
            envoy.trace_report()
        end
        return handler"
    );
    let mut source = source(&[("main.lua", &text)]);
    source.time_budget = Duration::from_secs(10);
    let probe = probe_with(source, r#"{"limit": 5, "nested": {"list": ["a"]}}"#);
    let mut stream = FakeStream::new();
    stream.tls = true;
    stream.request_body = Some(vec![b"body".to_vec()]);
    stream
        .metadata
        .insert(("mine".to_owned(), "key".to_owned()), "value".into());
    stream.metadata.insert(
        ("mine".to_owned(), "list".to_owned()),
        super::fake::Metadata::List(vec!["a".into(), 2.0.into()]),
    );
    stream
        .filter_state
        .insert(b"mine.key".to_vec(), b"value".to_vec());
    probe.request(&mut stream).unwrap();
    stream.logged()
}

#[test]
fn the_main_functions_are_compiled() {
    for body in [
        "local v = envoy.req.get_header('x-one')",
        "local v = envoy.req.get_header('x-none')",
        "envoy.req.set_header('x-one', 'value')",
        "envoy.resp.set_header('x-one', 'value')",
        "envoy.req.clear_header('x-one')",
        "local n = envoy.req.get_header_size('x-two') + #envoy.req.get_header_index('x-two', 1)",
        "local c = envoy.config().limit + #envoy.config().nested.list[1]",
        "local c = envoy.get_base_config().limit local r = envoy.get_route_config()",
        "local b = #envoy.req.get_body() + envoy.req.get_body_size()",
        "local b = envoy.req.get_body_bytes(2, 3) .. envoy.req.get_body_bytes(-2)",
        "envoy.req.set_body('body')",
        "local b = envoy.req.get_body() envoy.req.set_body('body') local c = #b + #envoy.req.get_body()",
        "envoy.req.append_body('y') envoy.req.drain_body(1)",
        "envoy.req.prepend_body('y') envoy.req.drain_body(1)",
        "local m = envoy.req.get_dynamic_metadata('key', 'mine')",
        "envoy.req.set_dynamic_metadata('key', 'value', 'mine')",
        "local s = envoy.stream.shared s.count = (s.count or 0) + 1",
        "local t = envoy.streaminfo.start_time() + envoy.nowms()",
        "local a = envoy.streaminfo.downstream_remote_address()",
        "local a = #envoy.attribute('request.path') + envoy.attribute('source.port')",
        "local a = envoy.attribute('health_check') or envoy.attribute('connection.mtls')",
        "local t = envoy.connection.tls().subject",
        "local m = envoy.metadata.get('mine', 'key') .. #envoy.metadata.get('mine', 'list')",
        "envoy.metadata.set('mine', 'key', i) envoy.metadata.set('mine', 'flag', true)",
        "local k = #envoy.metadata.keys('mine') + #envoy.metadata.namespaces('route')",
        "local s = envoy.filter_state.get('mine.key')",
        "envoy.filter_state.set('mine.' .. i, 'value')",
        "envoy.filter_state.set_typed('envoy.' .. i, 'value')",
        "envoy.req.set_upstream_override_host('10.0.0.1:80', true)",
        "local t = envoy.streaminfo.timing().first_upstream_received + 1",
        "envoy.logDebug('off')",
        "local h = envoy.req.get_headers()",
        "local h = envoy.base64.decode('dXNlcjpwYXNz')",
        "local id = #envoy.uuid()",
        "local d = envoy.crypto.hex(envoy.crypto.sha256('abc')) local b = envoy.crypto.unhex(d)",
        "local d = envoy.crypto.hmac_sha256('key', 'abc')",
        "local d = #envoy.crypto.sha1('a') + #envoy.crypto.sha512('a') + #envoy.crypto.hmac_sha384('k', 'a')",
        "local right, why = envoy.crypto.verify_signature('sha256', 'no key', 'signature', 'abc')",
        "local key, why = envoy.crypto.import_public_key('no key')",
        "local e = envoy.crypto.constant_time_equals('abc', 'abd')",
        "local t = envoy.time.now() + envoy.time.monotonic()",
        "local t = envoy.time.rfc3339() .. envoy.time.http_date(0)",
        "local t = envoy.time.parse_rfc3339('2023-11-14T23:13:20Z') + 1",
        "local t = envoy.time.parse_http_date('Tue, 14 Nov 2023 22:13:20 GMT') + 1",
        "local u = envoy.url.decode(envoy.url.encode('a b'))",
        "local q = envoy.url.parse_query('a=1&b=2&a=3')",
        "local q = envoy.url.build_query(envoy.config().nested)",
        "local m = envoy.re.match('x-42', '[0-9]+')",
        "local first, last = envoy.re.find('x-42', '[0-9]+', 2) local none = envoy.re.find('x', 'y')",
        "local groups = envoy.re.captures('x-42', '(?<letter>[a-z])-([0-9]+)(x)?')",
        "local text, count = envoy.re.replace('x-42', '[0-9]', '*')",
        "local v = schema:validate('{\"a\": 1}')",
        "local v, messages = schema:validate('{\"a\": \"x\"}')",
        "envoy.shared.set('a', 'b') local v = envoy.shared.get('a')",
        "envoy.shared.set('a', i, 1000) local v = envoy.shared.get('a') + envoy.shared.ttl('a')",
        "local added = envoy.shared.add('a', true) local v = envoy.shared.get('a')",
        "local n = envoy.shared.incr('n') + envoy.shared.incr('n', 2, 1, 1000)",
        "local taken, left = envoy.shared.take('bucket', 5, 1000) taken = left",
        "local gone = envoy.shared.delete('a')",
        "local sent = envoy.callout.send{ cluster = 'a', path = '/x', headers = { ['x-a'] = 'b' } }",
        "local a = envoy.callout.start{ cluster = 'a' } local d = a:done() a:cancel()",
        "local s = envoy.callout.stream{ cluster = 'a' } s:send('x') s:send_trailers{ a = 'b' } s:close()",
        "local t = envoy.timer.after(5, print) t:cancel()",
        "local first, last, name = ('a=b'):find('(%w+)=')",
        "local first = ('a=b'):find('=', 1, true)",
        "local name, value = ('a=b'):match('(%w+)=(%w+)')",
        "local name = ('a=b'):match('^%w+', 1) local place = ('ab'):match('a()b')",
        "local text, count = ('a b c'):gsub('%w', '<%0>')",
        "local text, count = ('a b c'):gsub('(%w)', { a = 'x' })",
        "local s = ('%d items of %s'):format(i, 'x')",
    ] {
        let report = traces(body);
        let made: u32 = report[0].parse().unwrap();
        assert!(made > 0, "{body}: no trace was made: {report:?}");
        assert_eq!(report[1..], [""; 0], "{body}");
    }
}

#[test]
fn the_test_sees_what_is_not_compiled() {
    let report = traces("local f = function() return i end local g = string.rep('x', i)");
    assert!(report[1].contains("bytecode"), "{report:?}");
    let report = traces("local s = os.date('%Y', 0)");
    assert!(report[1].contains("left for a C function"), "{report:?}");
}

/// As [`traces`], for a script of Envoy's Lua filter.
fn traces_of_script(body: &str) -> Vec<String> {
    let text = format!(
        "function envoy_on_request(handle)
            envoy.trace_start()
            for i = 1, 500 do
                {body}
            end
            envoy.trace_report()
        end"
    );
    let mut source = source(&[("main.lua", &text)]);
    source.time_budget = Duration::from_secs(10);
    let probe = probe_with(source, r#"{"limit": 5}"#);
    let mut stream = FakeStream::new();
    stream.request_body = Some(vec![b"body".to_vec()]);
    probe.request(&mut stream).unwrap();
    stream.logged()
}

#[test]
fn handles_of_envoys_filter_are_compiled() {
    for body in [
        "local v = handle:headers():get('x-one')",
        "local v = handle:headers():get('x-none')",
        "handle:headers():replace('x-one', 'value')",
        "handle:headers():remove('x-one')",
        "local n = handle:headers():getNumValues('x-one') + #handle:headers():getAtIndex('x-one', 0)",
        "local p = handle:streamInfo():protocol() .. handle:streamInfo():routeName()",
        "local c = handle:filterContext():get('limit') + handle:filterContext().limit",
        "local t = handle:timestamp() + #handle:timestampString()",
        "local b = #handle:body():getBytes(0, 2) + handle:body():length()",
        "local b = handle:base64Decode(handle:base64Escape('ab'))",
        "handle:logDebug('off')",
    ] {
        let report = traces_of_script(body);
        let made: u32 = report[0].parse().unwrap();
        assert!(made > 0, "{body}: no trace was made: {report:?}");
        assert_eq!(report[1..], [""; 0], "{body}");
    }
}
