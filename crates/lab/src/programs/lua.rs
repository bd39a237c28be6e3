//! Random programs over the Lua SDK.
//!
//! `{v}` in a template is a random value, `{s}` a random text, `{n}` a random number, `{c}` the name of a cluster.

use std::fmt::Write as _;

use crate::random::Random;

/// Calls of the SDK, mostly with arguments that make sense.
const CALLS: &[&str] = &[
    "envoy.req.get_header({s})",
    "envoy.req.get_header_size({s})",
    "envoy.req.get_header_index({s}, {n})",
    "envoy.req.get_headers()",
    "envoy.req.set_header({s}, {v})",
    "envoy.req.add_header({s}, {v})",
    "envoy.req.set_headers({v})",
    "envoy.req.clear_header({s})",
    "envoy.req.set_header('content-length', {v})",
    "envoy.req.set_header('transfer-encoding', {s})",
    "envoy.req.set_header(':path', {s})",
    "envoy.req.set_header(':method', {s})",
    "envoy.resp.set_header({s}, {v})",
    "envoy.resp.set_header(':status', {v})",
    "envoy.resp.set_header('content-length', {n})",
    "envoy.resp.get_headers()",
    "envoy.resp.clear_header({s})",
    "envoy.req.get_trailers()",
    "envoy.req.set_trailer({s}, {v})",
    "envoy.resp.set_trailer({s}, {v})",
    "envoy.req.get_body()",
    "envoy.req.get_body_size()",
    "envoy.req.get_body_bytes({n}, {n})",
    "envoy.req.set_body({v})",
    "envoy.req.append_body({s})",
    "envoy.req.prepend_body({s})",
    "envoy.req.drain_body({n})",
    "envoy.resp.get_body()",
    "envoy.resp.set_body({v})",
    "envoy.resp.append_body({s})",
    "envoy.resp.drain_body({n})",
    "envoy.req.get_query_parameters({n})",
    "envoy.req.clear_route_cache()",
    "envoy.req.set_upstream_override_host({s}, {v})",
    "envoy.config()",
    "envoy.get_base_config()",
    "envoy.get_route_config()",
    "envoy.respond({ [':status'] = {n} }, {v}, {s})",
    "envoy.respond({ [':status'] = 403, [{s}] = {v} }, {s})",
    "envoy.httpCall({c}, { [':method'] = 'GET', [':path'] = '/status/200', [':authority'] = 'a' }, {v}, {n})",
    "envoy.httpCall({c}, { [':method'] = {s}, [':path'] = {s}, [':authority'] = {s}, [{s}] = {v} }, {s}, 200)",
    "envoy.sleep({n})",
    "envoy.sleep(0)",
    "envoy.callout.start{ cluster = {c}, path = '/status/200', timeout_ms = 200 }:wait()",
    "envoy.callout.start{ cluster = {c}, path = {s}, body = {s}, headers = { [{s}] = {s} } }",
    "envoy.callout.send{ cluster = {c}, path = '/delay/50' }",
    "envoy.callout.wait_any({ envoy.callout.start{ cluster = {c} }, envoy.callout.start{ cluster = {c} } }, 100)",
    "envoy.callout.wait_all({ envoy.callout.start{ cluster = {c} }, {v} }, {n})",
    "stream()",
    "stream():send({s}, {v})",
    "stream():send_trailers({ [{s}] = {s} })",
    "stream():headers(50)",
    "stream():read({n})",
    "stream():read_all(100)",
    "stream():close()",
    "envoy.timer.after({n}, step)",
    "envoy.timer.after(1, function() envoy.respond({ [':status'] = 504 }) end)",
    "envoy.timer.every({n}, step)",
    "envoy.stream.shared.kept",
    "keep(envoy.stream.shared)",
    "envoy.streaminfo.start_time()",
    "envoy.streaminfo.upstream_host()",
    "envoy.streaminfo.timing()",
    "envoy.streaminfo.response_code_details()",
    "envoy.attribute({s})",
    "envoy.attribute('request.path')",
    "envoy.connection.tls()",
    "envoy.metadata.get({s}, {s}, {v})",
    "envoy.metadata.set({s}, {s}, {v})",
    "envoy.metadata.keys({s})",
    "envoy.req.get_metadata({s}, {s})",
    "envoy.req.set_dynamic_metadata({s}, {v}, {s})",
    "envoy.filter_state.get({s})",
    "envoy.filter_state.set({s}, {s})",
    "envoy.filter_state.set_typed({s}, {s})",
    "envoy.logInfo({v})",
    "envoy.logWarn({s})",
    "envoy.filelog({s})",
    "envoy.increment_metric({n}, {n})",
    "envoy.record_metric({n}, {v})",
    "envoy.get_metric({n})",
    "envoy.json.encode({v})",
    "envoy.json.decode({s})",
    "envoy.base64.decode({s})",
    "envoy.crypto.sha256({v})",
    "envoy.crypto.hmac_sha256({s}, {v})",
    "envoy.crypto.unhex({s})",
    "envoy.uuid()",
    "envoy.re.find({s}, {s}, {n})",
    "envoy.re.replace({s}, {s}, {s})",
    "envoy.url.decode({s})",
    "envoy.url.build_query({v})",
    "envoy.shared.set({s}, {v}, {n})",
    "envoy.shared.get({s})",
    "envoy.shared.add({s}, {v})",
    "envoy.shared.incr({s}, {n})",
];

/// What Lua itself offers for mischief.
const MISCHIEF: &[&str] = &[
    "while true do end",
    "while true do pcall(function() while true do end end) end",
    "repeat local ok = pcall(string.rep, 'x', 1e9) until false",
    "local t = {} while true do t[#t + 1] = ('x'):rep(1000) .. #t end",
    "local t = {} for i = 1, {n} do t[i % 1000000] = i end",
    "local function f() return 1 + f() end f()",
    "local function f() return f() end f()",
    "error(setmetatable({}, { __tostring = function() while true do end end }))",
    "error({v})",
    "error()",
    "setmetatable({}, { __index = function(t, k) return t[k] end })[1] = nil",
    "local x = setmetatable({}, { __index = function(t, k) return t[k] end }).x",
    "table.sort({ 3, 2, 1, 5, 4, 9, 8 }, function() while true do end end)",
    "table.sort({ 3, 2, 1, 5, 4 }, function(a, b) return true end)",
    "('x'):rep(5000):find('.-.-.-.-b')",
    "('x'):rep(100000):gsub('x', function() return {v} end)",
    "('a'):rep(30):gsub('a*', function() envoy.sleep(1) end)",
    "coroutine.wrap(function() while true do coroutine.yield() end end)()",
    "local c = coroutine.create(function() envoy.sleep(1) end) coroutine.resume(c) coroutine.resume(c)",
    "load('return {' .. ('1,'):rep(200000) .. '}')",
    "load(function() while true do end end)",
    "load('return string.find', 'a', 't', {v})",
    "pcall(load, 'while true do end', {s}, 't', {})",
    "xpcall(function() error({v}) end, function(e) while true do end end)",
    "xpcall(function() error({v}) end, function(e) error(e) end)",
    "local i = 0 while i < {n} do i = i + 1 end",
    "local t = envoy.time.monotonic() while envoy.time.monotonic() - t < 12 do end",
    "for i = 1, 20 do local t = envoy.time.monotonic() while envoy.time.monotonic() - t < 9 do end envoy.sleep(1) end",
    "for i = 1, 200 do envoy.sleep(0) end",
    "for i = 1, 100 do envoy.callout.start{ cluster = {c}, path = '/delay/20' } end",
    "for i = 1, 500 do envoy.logWarn(('y'):rep(2000)) end",
    "for i = 1, 500 do envoy.filelog(('y'):rep(2000)) end",
    "for i = 1, 2000 do envoy.shared.set('k' .. i, ('z'):rep(500)) end",
    "for i = 1, 300 do envoy.req.set_header('h' .. i, ('v'):rep(300)) end",
    "for i = 1, 200 do envoy.metadata.set('m', 'k' .. i, ('v'):rep(10000)) end",
    "envoy.json.decode(('['):rep(100000))",
    "envoy.json.encode(kept)",
    "kept[#kept + 1] = ('k'):rep({n} % 100000)",
    "collectgarbage('collect')",
    "string.format('%99999999d', 1)",
    "string.format({s}, {v}, {v})",
    "tostring(setmetatable({}, { __tostring = function() return {v} end }))",
    "kept = setmetatable({}, { __gc = function() while true do end end, __mode = 'k' })",
    "os = nil envoy = nil",
    "pcall(pcall, pcall, error)",
    "select({n}, {v}, {v})",
    "unpack({}, 1, {n})",
];

/// Texts as values: names that mean something, and what no sound program would pass.
const TEXTS: &[&str] = &[
    "'x-seen'",
    "'key'",
    "'request.path'",
    "'response.code'",
    "'content-type'",
    "':path'",
    "':status'",
    "':authority'",
    "'connection'",
    "'x\\nerror: forged'",
    "'x\\0y'",
    "''",
    "'/status/200'",
    "'/bytes/70000'",
    "'GET /x HTTP/1.1'",
    "('x'):rep(70000)",
    "'127.0.0.1:1'",
    "'(a+)+$'",
    "'%s%d%q'",
    "'{\"a\":[1,2,{}]}'",
    "'\\255\\254'",
];

/// Numbers as values.
const NUMBERS: &[&str] = &[
    "0", "1", "-1", "5", "100", "200", "204", "503", "65536", "1000000", "2 ^ 31", "2 ^ 53",
    "1e300", "1 / 0", "-1 / 0", "0 / 0", "0.5",
];

/// Other values.
const VALUES: &[&str] = &[
    "nil",
    "true",
    "false",
    "{}",
    "{ 1, 2, 3 }",
    "{ a = { b = { c = 'd' } } }",
    "setmetatable({}, { __index = error })",
    "setmetatable({}, { __tostring = function() return 'text' end })",
    "print",
    "envoy",
    "envoy.stream.shared",
    "coroutine.create(print)",
];

/// Names of clusters: the caller's, and some that are not there.
const CLUSTERS: &[&str] = &[
    "'echo'",
    "'other'",
    "'other'",
    "'echo-h2'",
    "'faulty'",
    "'faulty-h2'",
    "'nowhere'",
    "''",
];

/// Handlers that a program may have.
const HANDLERS: &[&str] = &[
    "on_request_header",
    "on_request_body",
    "on_request_trailer",
    "on_response_header",
    "on_response_body",
    "on_response_trailer",
    "on_log",
];

/// Returns a random program: a plugin that loads without an error, and whose handlers do random things.
pub fn program(random: &mut Random) -> String {
    let mut program = "local handler = { version = 'v2' }
local kept = {}
local count = 0
local function keep(value) kept[#kept % 64 + 1] = value end
local function stream() return envoy.callout.stream{ cluster = 'other', method = 'POST', path = '/echo' } end
local metric = envoy.define_metric(0, 'calls')
local step
"
    .to_owned();
    let _ = writeln!(program, "function step()\n    {}\nend", line(random));
    for handler in HANDLERS {
        if !random.chance(60) {
            continue;
        }
        let _ = writeln!(
            program,
            "function handler:{handler}(end_of_stream)\n    count = count + 1"
        );
        for _ in 0..random.between(1, 6) {
            let _ = writeln!(program, "    {}", line(random));
        }
        program.push_str("end\n");
    }
    program.push_str("return handler\n");
    program
}

/// One line of a handler.
fn line(random: &mut Random) -> String {
    let is_mischief = random.chance(12);
    let template = random.word(if is_mischief { MISCHIEF } else { CALLS });
    let filled = fill(random, template);
    let statement = if is_mischief {
        format!("do {filled} end")
    } else {
        format!("local _ = {filled}")
    };
    let guarded = if random.chance(70) {
        format!("pcall(function() {statement} end)")
    } else {
        format!("do {statement} end")
    };
    // Mischief at each call would leave nothing but the circuit to see.
    let every = if is_mischief {
        random.between(2, 60)
    } else {
        random.between(1, 5)
    };
    if every > 1 {
        format!("if count % {every} == 0 then {guarded} end")
    } else {
        guarded
    }
}

fn fill(random: &mut Random, template: &str) -> String {
    let mut filled = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        let replaced = match after.split_once('}') {
            Some(("v", rest)) => Some((value(random), rest)),
            Some(("s", rest)) => Some((random.word(TEXTS), rest)),
            Some(("n", rest)) => Some((random.word(NUMBERS), rest)),
            Some(("c", rest)) => Some((random.word(CLUSTERS), rest)),
            _ => None,
        };
        if let Some((text, left)) = replaced {
            let _ = write!(filled, "({text})");
            rest = left;
        } else {
            filled.push('{');
            rest = after;
        }
    }
    filled + rest
}

fn value(random: &mut Random) -> &'static str {
    match random.below(3) {
        0 => random.word(TEXTS),
        1 => random.word(NUMBERS),
        _ => random.word(VALUES),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_functions_of_the_seed_and_leave_no_place_unfilled() {
        for seed in 0..500 {
            let text = program(&mut Random::new(seed));
            assert_eq!(text, program(&mut Random::new(seed)));
            for place in ["{v}", "{s}", "{n}", "{c}"] {
                assert!(!text.contains(place), "{text}");
            }
        }
    }
}
