//! What a plugin must not reach: files, processes, the environment, native code, bytecode, the
//! debugger, another plugin. On the real Envoy, whose own LuaJIT has all of it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test, its helpers included, fails by panicking"
)]

use outrider_e2e::{Gateway, GatewayOptions};
use outrider_lab::client::Request;
use outrider_lab::echo::Echo;

const GATEWAY: &str = "
gateway:
  listeners: [{name: main, address: '{listen}'}]
  admin: '{admin}'
  workers: 1
plugins:
  trying: {source: trying.lua, budgets: {time_ms: 1000}}
  leaking: {source: leaking.lua, priority: 10}
  looking: {source: looking.lua}
projects:
  - name: shop
    hosts: ['*']
    routes:
      - {match: {prefix: /try}, to: echo, use: [trying]}
      - {match: {prefix: /}, to: echo, use: [leaking, looking]}
upstreams:
  echo: {endpoints: ['ECHO']}
";

/// Evaluates the expression in the request's body, and answers `value: ...` or `error: ...`.
const TRYING: &str = "
local handler = { version = 'v2' }
function handler:on_request_body()
  local chunk, problem = load('return ' .. envoy.req.get_body(), '=try')
  local answer
  if not chunk then
    answer = 'error: ' .. tostring(problem)
  else
    local ok, value = pcall(chunk)
    answer = (ok and 'value: ' or 'error: ') .. tostring(value)
  end
  envoy.respond({ [':status'] = '200' }, answer)
end
return handler
";

/// What must be nil.
const NOTHING: &[&str] = &[
    "io",
    "package",
    "debug",
    "ffi",
    "jit",
    "dofile",
    "loadfile",
    "module",
    "newproxy",
    "getfenv",
    "setfenv",
    "gcinfo",
    "os.execute",
    "os.exit",
    "os.getenv",
    "os.remove",
    "os.rename",
    "os.tmpname",
    "os.setlocale",
    "string.dump",
    "string.buffer",
    "('').dump",
    "table.new",
    "_G.io",
    "_G.debug",
    "_G._G._G.package",
    "rawget(_G, 'io')",
    "getmetatable('').__index",
    "getmetatable(_G)",
    "getmetatable(envoy.stream).__index == nil or nil",
    "load('return io')()",
    "load('return debug', 'x', 't')()",
    "loadstring('return package')()",
    "coroutine.wrap(function() return io end)()",
    "envoy.ffi",
    "envoy.call",
];

/// What must be an error, and what it says.
const ERRORS: &[(&str, &str)] = &[
    ("io.open('/etc/passwd')", "io"),
    ("os.execute('true')", "execute"),
    ("require('ffi')", "not found"),
    ("require('io')", "not found"),
    ("require('debug')", "not found"),
    ("require('jit.util')", "not found"),
    ("require('string.buffer')", "not found"),
    ("require('/etc/passwd')", "not found"),
    ("require('../looking')", "not found"),
    ("debug.getregistry()", "debug"),
    ("string.dump(function() end)", "dump"),
    (
        "assert(load('\\27LJ\\2\\0\\0', 'code'))",
        "attempt to load chunk with wrong mode",
    ),
    (
        "assert(load('\\27LJ\\2\\0\\0', 'code', 'b'))",
        "attempt to load chunk with wrong mode",
    ),
    (
        "assert(loadstring('\\27LJ\\2\\0\\0'))",
        "attempt to load chunk with wrong mode",
    ),
    (
        "assert(load(function() return nil end, 'x', 'b')) and error('loaded')",
        "attempt to load chunk with wrong mode",
    ),
    ("collectgarbage('stop')", "collectgarbage"),
    ("setmetatable('', {})", ""),
    ("coroutine.yield()", "coroutine.yield"),
    (
        "rawset(envoy.config(), 'x', 1) == nil or error('changed')",
        "",
    ),
];

async fn attempt(gateway: &Gateway, expression: &str) -> String {
    let request = Request::post("/try", expression.to_owned());
    let response = gateway.send(request).await.unwrap();
    assert_eq!(
        response.status,
        200,
        "{expression}: {}",
        gateway.output.text()
    );
    response.text()
}

async fn start() -> (Echo, Gateway) {
    let echo = Echo::start("echo").await.unwrap();
    let yaml = GATEWAY.replace("ECHO", &echo.address().to_string());
    let files = [
        ("trying.lua", TRYING),
        ("leaking.lua", LEAKING),
        ("looking.lua", LOOKING),
    ];
    let gateway = Gateway::start_with(&yaml, &files, GatewayOptions::default()).unwrap();
    (echo, gateway)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_out_of_reach_is_nil_or_an_error() {
    let (echo, gateway) = start().await;
    assert_eq!(attempt(&gateway, "1 + 1").await, "value: 2");
    let mut wrong = Vec::new();
    for expression in NOTHING {
        let answer = attempt(&gateway, expression).await;
        if answer != "value: nil" {
            wrong.push(format!("{expression} gives {answer:?}, not nil"));
        }
    }
    for (expression, says) in ERRORS {
        let answer = attempt(&gateway, expression).await;
        if !answer.starts_with("error: ") || !answer.contains(says) {
            wrong.push(format!(
                "{expression} gives {answer:?}, not an error with {says:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // What stays is enough to work with.
    for (expression, value) in [
        ("type(os.time())", "number"),
        ("type(os.clock())", "number"),
        ("('a'):upper()", "A"),
        ("table.concat({1, 2}, ',')", "1,2"),
        ("bit.band(6, 3)", "2"),
        ("math.max(1, 2)", "2"),
        ("select('#', 1, 2)", "2"),
    ] {
        assert_eq!(
            attempt(&gateway, expression).await,
            format!("value: {value}"),
            "{expression}"
        );
    }
    gateway.stop().unwrap();
    echo.stop().await;
}

/// Writes whatever it can reach, at every place that another plugin might read.
const LEAKING: &str = "
local handler = { version = 'v2' }
leaked = 'global'
_G.leaked_too = 'global'
string.leaked = 'string'
math.leaked = 'math'
pcall(function() envoy.leaked = 'envoy' end)
pcall(function() envoy.req.leaked = 'envoy.req' end)
pcall(rawset, envoy, 'leaked', 'envoy')
function string.upper() return 'hijacked' end
function handler:on_request_header()
  envoy.stream.shared.leaked = 'stream'
  envoy.req.set_header('x-leaking', tostring(leaked) .. ' ' .. ('a'):upper())
end
return handler
";

const LOOKING: &str = "
local handler = { version = 'v2' }
function handler:on_request_header()
  local seen = {
    tostring(leaked), tostring(leaked_too), tostring(string.leaked), tostring(math.leaked),
    tostring(envoy.leaked), tostring(envoy.req.leaked), tostring(envoy.stream.shared.leaked),
    ('a'):upper(),
  }
  envoy.req.set_header('x-looking', table.concat(seen, ' '))
end
return handler
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_plugins_globals_are_not_anothers() {
    let (echo, gateway) = start().await;
    for _ in 0..2 {
        let response = gateway.send(Request::get("/status/200")).await.unwrap();
        let seen = response.json();
        assert_eq!(seen["headers"]["x-leaking"][0], "global hijacked");
        assert_eq!(
            seen["headers"]["x-looking"][0],
            "nil nil nil nil nil nil nil A"
        );
    }
    gateway.stop().unwrap();
    echo.stop().await;
}
