//! Being compiled is a property: after warm-up every function of the SDK that is no exception is in a
//! trace, and no trace was given up because of something that LuaJIT does not compile.

use std::collections::BTreeSet;
use std::time::Duration;

use outrider_plugin_api::{Decision, HeaderMap, Phase, Slot, Wake};

use super::fake::{FakeStream, on_request, probe_with, source};
use super::types::is_of_tests;

/// What [`traces`] saw.
#[derive(Debug)]
struct Report {
    made: u32,
    /// Places and reasons of what was not compiled.
    notes: Vec<String>,
    /// Functions of the SDK that a finished trace goes through.
    compiled: BTreeSet<String>,
}

impl Report {
    fn of(stream: &FakeStream) -> Self {
        let mut lines = stream
            .logged()
            .into_iter()
            .skip_while(|line| line.parse::<u32>().is_err());
        let made = lines.next().unwrap().parse().unwrap();
        let (mut notes, mut compiled) = (Vec::new(), BTreeSet::new());
        for line in lines {
            match line.strip_prefix("compiled: ") {
                Some(name) => drop(compiled.insert(name.to_owned())),
                None => notes.push(line),
            }
        }
        Self {
            made,
            notes,
            compiled,
        }
    }

    fn check(&self, body: &str) {
        assert!(self.made > 0, "{body}: no trace was made: {self:?}");
        // A trace may begin within a function that is called, and be given up as that returns: LuaJIT counts what is
        // hot by addresses, of which two may share a counter. Another begins elsewhere then.
        let notes = self.notes.iter();
        let notes: Vec<_> = notes
            .filter(|note| !note.contains("return to a lower frame"))
            .collect();
        assert_eq!(notes, [""; 0], "{body}");
    }
}

/// The methods of a class that the annotations declare, each quoted, with a comma before it.
fn methods_of(class: &str) -> String {
    let start = format!("function {class}:");
    let methods = crate::TYPES
        .lines()
        .filter_map(|line| line.strip_prefix(&start)?.split('(').next());
    let quoted: Vec<_> = methods.map(|name| format!(", '{name}'")).collect();
    quoted.concat()
}

/// Lua text that makes the methods of these objects known to the report.
fn known_methods(objects: &[(&str, &str)]) -> String {
    let calls = objects.iter().map(|(class, object)| {
        let methods = methods_of(class);
        format!("envoy.trace_methods('{class}', {object}{methods})")
    });
    calls.collect::<Vec<_>>().join(
        "
",
    )
}

/// An object of each class of the SDK.
const OBJECTS: [(&str, &str); 4] = [
    ("Callout", "envoy.callout.start{ cluster = 'a' }"),
    ("HttpStream", "envoy.callout.stream{ cluster = 'a' }"),
    ("Timer", "envoy.timer.after(5, print)"),
    ("schema", "schema"),
];

/// Runs `body` 500 times in a loop.
fn traces(body: &str) -> Report {
    let objects = known_methods(&OBJECTS);
    let text = format!(
        "local envoy, handler = envoy, {{}}
        local schema = envoy.json_schema.compile({{ properties = {{ a = {{ type = 'integer' }} }} }})
        local counter, gauge = envoy.define_metric(0, 'counter'), envoy.define_metric(1, 'gauge')
        local value = {{ a = {{ 1, 2.5, {{}}, 'x\"y' }}, b = {{ c = true, d = envoy.json.null }} }}
        local names = {{ 'e', 'b', 'a', 'd', 'c', 'h', 'g', 'f' }}
        local function upper(letter) return letter:upper() end
        local function descending(a, b) return a > b end
        function handler:on_request_header()
            {objects}
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
    stream.maps.insert(
        HeaderMap::ResponseTrailers,
        vec![(b"t".to_vec(), b"1".to_vec())],
    );
    stream.response_body = Some(vec![b"body".to_vec()]);
    probe.request(&mut stream).unwrap();
    Report::of(&stream)
}

/// What is run in loops, so that every function of the SDK is in one that is no exception.
const CASES: &[&str] = &[
        "local list = { i } table.insert(list, i) table.insert(list, 'x')",
        "local list = table.move({ i, 2 }, 1, 2, 2) local n = table.getn(list)",
        "local list = require('table.new')(2, 0) list[1] = i require('table.clear')(list)",
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
        "local s = ('Abc'):lower() .. ('Abc'):upper() .. ('Abc'):reverse() .. ('x'):rep(3)",
        "local s = table.concat(names, ',')",
        "local s = ('%d items of %s'):format(i, 'x')",
        "local s = ('%s'):format('x')",
    "local s = ('%s %s %s'):format('x', 'x', 'x')",
    "local s = ('%s %s %s %s'):format('x', 'x', 'x', 'x')",
    "local s = ('%s %s %s %s %s'):format('x', 'x', 'x', 'x', 'x')",
    "local s = ('%s%s%s%s%s%s%s'):format('a', 'b', 'c', 'd', 'e', 'f', 'g')",
    "local s = ('%s %s %s %s %s %s'):format('x', 'x', 'x', 'x', 'x', 'x')",
    "local text, count = ('a b c'):gsub('%w', upper)",
        "local text = envoy.json.encode(value)",
        "local text = envoy.json.encode{ name = 'x', number = i, list = { 'a', 'b' } }",
        "local text = envoy.json.encode(envoy.json.array{})",
        "local value = envoy.json.decode('{\"a\": [1, 2, {\"b\": null}], \"c\": {\"d\": true}}')",
        "local value, reason = envoy.json.decode('[')",
        "local text = envoy.json.encode(envoy.json.decode('[9007199254740993, {\"b\": 1, \"a\": 2}]'))",
        "local id = envoy.json.integer('9007199254740993')",
        "local compiled = envoy.json_schema.compile('{\"type\": \"object\"}')",
        "local compiled = envoy.json_schema.compile{ type = 'object', required = {} }",
        "local text = envoy.base64.encode('user')",
        "envoy.req.set_headers{ ['x-one'] = '1', ['x-two'] = { '1', '2' } }
         envoy.resp.set_headers{ [':status'] = '200', ['x-two'] = { '1', '2' } }",
        "envoy.req.set_trailers{ t = '1' }",
    "envoy.resp.set_trailers{ t = '1' }",
        "envoy.req.add_header('x', 'v') envoy.req.remove_header('x')
         envoy.resp.add_header('x', 'v') envoy.resp.remove_header('x') envoy.resp.clear_header('x')",
        "envoy.req.add_trailer('x', 'v') envoy.req.set_trailer('x', i) envoy.req.remove_trailer('x')
         envoy.resp.add_trailer('x', 'v') envoy.resp.set_trailer('x', i) envoy.resp.clear_trailer('x')",
        "local n = envoy.req.get_trailer_size('t') + #envoy.req.get_trailer_index('t', 0)
         local m = envoy.resp.get_trailer_size('t') + #envoy.resp.get_trailer_index('t', 0)",
        "local n = #envoy.req.get_trailer('t') + #envoy.resp.get_trailer('t')
         local m = envoy.req.get_trailer_map_size() + envoy.resp.get_trailer_map_size()",
        "local r = envoy.req.get_trailers() local s = envoy.resp.get_trailers()",
        "local v = #envoy.resp.get_header('server') + #envoy.resp.get_header_index('server', 0)
         local n = envoy.resp.get_header_size('server') + envoy.resp.get_header_map_size()",
        "local h = envoy.resp.get_headers() local n = envoy.req.get_header_map_size()",
        "local b = #envoy.resp.get_body() + envoy.resp.get_body_size() + #envoy.resp.get_body_bytes(1, 2)",
        "envoy.resp.set_body('b') envoy.resp.append_body('y') envoy.resp.prepend_body('z')
         envoy.resp.drain_body(1)",
        "local q = envoy.req.get_query_parameters() local r = envoy.req.get_query_parameters(2)",
        "envoy.req.clear_route_cache()",
        "local m = envoy.req.get_metadata('key', 'mine')",
        "envoy.metadata.set('mine', 'nested', { list = { 1, 'a' }, flag = true })",
        "envoy.increment_metric(counter) envoy.increment_metric(gauge, -1)
         envoy.record_metric(gauge, i) envoy.record_metric(counter, 1)",
        "local v = envoy.get_metric(counter) + envoy.get_metric(99)",
        "local id = envoy.define_metric(0, 'counter')",
        "envoy.filelog('line')",
        "envoy.logTrace('off') envoy.logDebug(i)",
        "envoy.logInfo('on') envoy.logWarn('on') envoy.logErr('on')",
        "local s = envoy.streaminfo
         local a = { s.downstream_direct_remote_address(), s.downstream_local_address(), s.upstream_host(),
            s.upstream_cluster(), s.upstream_local_address(), s.route_name() }
         local b = { s.protocol(), s.request_id(), s.requested_server_name(), s.response_code_details(),
            s.attempt_count(), s.duration(), s.response_code(), s.current_time_milliseconds() }",
        "local d = #envoy.crypto.sha384('a') + #envoy.crypto.hmac_sha1('k', 'a')
            + #envoy.crypto.hmac_sha512('k', 'a')",
        "local t = envoy.timer.every(50, print) t:cancel()",
        "local s = envoy.callout.stream{ cluster = 'a' } local d = s:done() s:close()",
        "local a = envoy.callout.start{ cluster = 'a' } a:cancel() local headers, why = a:wait()
         local all = envoy.callout.wait_all({ a }) local first, place = envoy.callout.wait_any({ a })",
        "local s = envoy.callout.stream{ cluster = 'a' } s:close()
         local headers, why = s:headers() local part = s:read() local rest = s:read_all()
         local trailers = s:trailers()",
        "local c = envoy.config() local b = envoy.get_base_config() local r = envoy.get_route_config()",
];

#[test]
fn the_main_functions_are_compiled() {
    for body in CASES {
        traces(body).check(body);
    }
}

#[test]
fn the_test_sees_what_is_not_compiled() {
    let report = traces("local f = function() return i end local g = string.rep('x', i)");
    assert!(report.notes[0].contains("bytecode"), "{report:?}");
    let report = traces("local s = os.date('%Y', 0)");
    assert!(
        report.notes[0].contains("left for a C function"),
        "{report:?}"
    );
}

/// An object of each class of Envoy's Lua filter.
const ENVOYS_OBJECTS: [(&str, &str); 18] = [
    ("Handle", "handle"),
    ("Object", "handle"),
    ("Headers", "handle:headers()"),
    ("Buffer", "handle:body()"),
    ("Metadata", "handle:metadata()"),
    ("DynamicMetadata", "handle:streamInfo():dynamicMetadata()"),
    ("FilterState", "handle:streamInfo():filterState()"),
    (
        "ParsedName",
        "handle:connection():ssl():parsedSubjectPeerCertificate()",
    ),
    ("Ssl", "handle:connection():ssl()"),
    ("StreamInfo", "handle:streamInfo()"),
    ("ConnectionStreamInfo", "handle:connectionStreamInfo()"),
    ("Connection", "handle:connection()"),
    ("Route", "handle:route()"),
    ("PublicKey", "handle:importPublicKey('', 0)"),
    ("Counter", "handle:stats():counter('counter')"),
    ("Gauge", "handle:stats():gauge('gauge')"),
    ("Histogram", "handle:stats():histogram('histogram')"),
    ("Stats", "handle:stats()"),
];

/// As [`traces`], for a script of Envoy's Lua filter.
fn traces_of_script(body: &str) -> Report {
    let objects = known_methods(&ENVOYS_OBJECTS);
    let key = include_str!("../../../signatures/vectors/keys/p256.pem");
    let text = format!(
        "local key = [[{key}]]
        function envoy_on_request(handle)
            {objects}
            local counter, gauge = handle:stats():counter('counter'), handle:stats():gauge('gauge')
            local histogram = handle:stats():histogram('histogram')
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
    stream.tls = true;
    stream.request_body = Some(vec![b"body".to_vec()]);
    stream
        .metadata
        .insert(("mine".to_owned(), "key".to_owned()), "value".into());
    probe.request(&mut stream).unwrap();
    Report::of(&stream)
}

const CASES_OF_SCRIPTS: &[&str] = &[
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
    "handle:headers():add('x', 'v') handle:headers():remove('x')
         handle:headers():setHttp1ReasonPhrase('Fine')",
    "for name, value in pairs(handle:headers()) do local s = name .. value end",
    "local h = handle:requestHeaders():get('x-one') handle:clearRouteCache()",
    "handle:logTrace('off') handle:logInfo('on') handle:logWarn('on') handle:logErr('on')
         handle:logCritical('on')",
    "local n = handle:body():setBytes('body')",
    "local m = handle:metadata():get('key') local r = handle:route():metadata():get('key')
         local v = handle:virtualHost():metadata()",
    "local m = handle:streamInfo():dynamicMetadata():get('mine')",
    "handle:streamInfo():dynamicMetadata():set('mine', 'key', 'value')",
    "handle:streamInfo():dynamicMetadata():set('mine', 'nested', { a = 1, b = { 'c' } })",
    "handle:streamInfo():filterState():set('mine.' .. i, 'envoy.string', 'value')
         local v = handle:streamInfo():filterState():get('mine.' .. i)",
    "local ssl = handle:streamInfo():downstreamSslConnection()
         local a = ssl:sha256PeerCertificateDigest() .. ssl:subjectPeerCertificate()
            .. ssl:subjectLocalCertificate() .. ssl:tlsVersion() .. ssl:uriSanPeerCertificate()[1]
         local n = #ssl:uriSanLocalCertificate() + #ssl:dnsSansPeerCertificate()
            + #ssl:dnsSansLocalCertificate()
         local p = ssl:peerCertificatePresented()",
    "local name = handle:connection():ssl():parsedSubjectPeerCertificate()
         local s = name:commonName() .. #name:organizationName()",
    "local s = handle:streamInfo()
         local a = s:downstreamLocalAddress() .. s:downstreamDirectLocalAddress()
            .. s:downstreamRemoteAddress() .. s:downstreamDirectRemoteAddress()
            .. s:requestedServerName() .. s:virtualClusterName()
         local t = s:dynamicTypedMetadata('x')",
    "local m = handle:connectionStreamInfo():dynamicMetadata()
         local t = handle:connectionStreamInfo():dynamicTypedMetadata('x')",
    "counter:inc() counter:add(2) local v = counter:value()",
    "gauge:inc() gauge:dec() gauge:add(2) gauge:sub(1) gauge:set(4) local v = gauge:value()",
    "histogram:recordValue(i)",
    "handle:stats():counter('counter'):inc() handle:stats():gauge('gauge'):inc()
         handle:stats():histogram('histogram', 'ms'):recordValue(1)",
    "local imported = handle:importPublicKey(key, #key):get()",
    "local right, why = handle:verifySignature('sha256', key, 'a', 1, 'b', 1)",
    "handle:setUpstreamOverrideHost('10.0.0.1:80', true)",
    "local t = handle:trailers()",
];

#[test]
fn handles_of_envoys_filter_are_compiled() {
    for body in CASES_OF_SCRIPTS {
        traces_of_script(body).check(body);
    }
}

/// Functions that no trace goes through, and why; `docs/lua-sdk.md` names them.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("envoy.sleep", SUSPENDS),
    ("envoy.httpCall", SUSPENDS),
    ("envoy.respond", SUSPENDS),
    ("Handle:httpCall", SUSPENDS),
    ("Handle:respond", SUSPENDS),
    ("Handle:bodyChunks", SUSPENDS),
    ("string.gmatch", MAKES_A_FUNCTION),
    ("table.sort", LEAVES_A_PCALL),
    ("HttpStream:chunks", MAKES_A_FUNCTION),
    ("table.pack", TAKES_ALL),
];

const TAKES_ALL: &str =
    "LuaJIT compiles no constructor of a table that takes all arguments (bytecode TSETM)";

const LEAVES_A_PCALL: &str = "a trace that begins while it sorts cannot return through the pcall around it: \
    return to a lower frame; comparisons and loops in it are compiled";
const SUSPENDS: &str = "it suspends or ends the handler, and traces end where a coroutine does";
const MAKES_A_FUNCTION: &str =
    "it answers a new function, and LuaJIT compiles no bytecode FNEW; what it answers is compiled";

/// All functions of the SDK, and the methods of its objects: `envoy.a.b`, `string.find`, `Class:method`.
fn all_functions() -> BTreeSet<String> {
    let mut stream = FakeStream::new();
    on_request("envoy.sdk_names()")
        .request(&mut stream)
        .unwrap();
    let functions = stream
        .logged()
        .into_iter()
        .filter(|line| !is_of_tests(line));
    let methods = crate::TYPES.lines().filter_map(|line| {
        let (class, rest) = line.strip_prefix("function ")?.split_once(':')?;
        Some(format!("{class}:{}", rest.split('(').next()?))
    });
    functions.chain(methods).collect()
}

#[test]
fn every_function_is_compiled_or_an_exception() {
    let mut compiled = BTreeSet::new();
    // Which function a trace begins in differs from run to run.
    for _ in 0..3 {
        for body in CASES {
            compiled.append(&mut traces(body).compiled);
        }
        for body in CASES_OF_SCRIPTS {
            compiled.append(&mut traces_of_script(body).compiled);
        }
    }
    let exceptions: BTreeSet<String> = EXCEPTIONS
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect();
    let all = all_functions();
    let missing: Vec<_> = all
        .iter()
        .filter(|name| !compiled.contains(*name) && !exceptions.contains(*name))
        .collect();
    let needless: Vec<_> = exceptions
        .iter()
        .filter(|name| compiled.contains(*name) || !all.contains(*name))
        .collect();
    assert!(
        missing.is_empty() && needless.is_empty(),
        "in no trace of a case, and no exception: {missing:#?}; an exception without need: {needless:#?}"
    );
}

/// The reasons of the exceptions, measured.
#[test]
fn exceptions_are_not_compiled_for_the_reasons_given() {
    for (body, reason) in [
        (
            "for name in ('a=b, c=d'):gmatch('%w+') do local s = name end",
            "bytecode 51",
        ),
        (
            "local s = envoy.callout.stream{ cluster = 'a' } s:close() for chunk in s:chunks() do end",
            "bytecode 51",
        ),
        (
            "local list = {} for j = 1, 8 do list[j] = names[j] end table.sort(list)",
            "return to a lower frame",
        ),
        ("local s = ('%s'):format(i)", "left for a C function"),
    ] {
        let notes = traces(body).notes;
        assert!(
            notes.iter().any(|note| note.contains(reason)),
            "{body}: {notes:?}"
        );
    }
}

#[test]
fn a_loop_that_suspends_the_handler_is_left_for_the_yield() {
    let mut source = source(&[(
        "main.lua",
        "local handler, envoy = {}, envoy
        function handler:on_request_header()
            envoy.trace_start()
            for i = 1, 200 do
                envoy.sleep(1)
            end
            envoy.trace_report()
        end
        return handler",
    )]);
    source.time_budget = Duration::from_secs(10);
    let probe = probe_with(source, "{}");
    let (mut stream, mut slot) = (FakeStream::new(), Slot::default());
    let mut decision = probe.call(Phase::RequestHeaders, &mut slot, &mut stream);
    while let Ok(Decision::Pause(_)) = decision {
        let timer = stream.timers.len() as u64;
        decision = probe.wake(Wake::Timer(timer), &mut slot, &mut stream);
    }
    decision.unwrap();
    let report = Report::of(&stream);
    assert!(
        report.notes.iter().any(
            |note| note.starts_with("=sdk/wait.lua") && note.ends_with("left for a C function")
        ),
        "{report:?}"
    );
}
