//! The plugins of calm and faulty hosts. They read, wait, call out and rewrite in every phase, and the bytes of the
//! requests and answers that pass them are known.

use super::SeededFault;
use crate::programs::wasm::{self, Guest, MAP_BEGIN, map, text};

/// Streams that a seeded fault leaves alone before it hits one.
const FAULT_EVERY: u32 = 200;

/// Lua plugins of one file, without their extension.
pub(super) const LUA: &[(&str, &str)] = &[
    (
        "calls",
        "
local function call(cluster)
    return envoy.callout.start{ cluster = cluster, path = '/status/200', timeout_ms = 300 }
end
return {
    version = 'v2',
    on_request_header = function()
        -- One that is waited for, one that fails and is tried again, one that is left alone.
        local _, _ = call('echo'):wait()
        local headers = call('faulty-h2'):wait()
        if not headers then call('faulty-h2') end
        envoy.stream.shared.open = envoy.callout.stream{ cluster = 'faulty-h2', path = '/part', timeout_ms = 500 }
        envoy.timer.after(2, function() envoy.req.get_header(':path') end)
    end,
    on_response_header = function()
        call('faulty'):wait()
        envoy.callout.send{ cluster = 'faulty-h2', path = '/sent' }
    end,
}",
    ),
    // Compares the answer of a callout whose body goes in parts; the client reads `x-parts`.
    (
        "parts",
        "
local sent = { 'the first part, ', ('and a long one '):rep(500), 'the rest' }
return {
    version = 'v2',
    on_request_header = function()
        local s = envoy.callout.stream{ cluster = 'echo-h2', method = 'POST', path = '/echo', timeout_ms = 1500 }
        if not s then return end
        s:send(sent[1])
        envoy.sleep(1)
        s:send(sent[2])
        s:send(sent[3], true)
        local headers = s:headers(1000)
        local body = headers and headers[':status'] == '200' and s:read_all(1000)
        if body then
            envoy.stream.shared.parts = body == table.concat(sent) and 'same' or 'other'
        end
    end,
    on_response_header = function()
        envoy.resp.set_header('x-parts', envoy.stream.shared.parts or 'none')
    end,
}",
    ),
    (
        "rewrite",
        "
return {
    version = 'v2',
    on_request_body = function()
        local body = envoy.req.get_body()
        if body then envoy.req.set_body(body) end
    end,
    on_response_body = function()
        local body = envoy.resp.get_body()
        if body then envoy.resp.set_body('<' .. body .. '>') end
    end,
}",
    ),
    (
        "stamp",
        "return { version = 'v2', on_request_header = function() local _ = envoy.config().version end }",
    ),
];

/// A Lua plugin that reads chunks as they come.
pub(super) const STREAMING: &str = "
return {
    version = 'v2',
    on_request_body = function() local _ = envoy.req.get_body_size() end,
    on_response_body = function() local _ = envoy.resp.get_body_size() envoy.sleep(0) end,
}";

/// Returns a Lua plugin that reads whole bodies, and does a seeded fault if there is one.
pub(super) fn whole(fault: Option<SeededFault>) -> String {
    let (request, response) = match fault {
        Some(SeededFault::Stall) => ("envoy.sleep(3600000)", ""),
        Some(SeededFault::Byte) => (
            "",
            "local b = envoy.resp.get_body() if b and b ~= '' then envoy.resp.set_body('#' .. b:sub(2)) end",
        ),
        Some(SeededFault::Crash) | None => ("", ""),
    };
    format!(
        "
local count = 0
local function is_hit() count = count + 1 return count % {FAULT_EVERY} == 0 end
return {{
    version = 'v2',
    on_request_body = function()
        envoy.stream.shared.size = #(envoy.req.get_body() or '')
        envoy.sleep(1)
        if is_hit() then {request} end
    end,
    on_response_body = function()
        envoy.stream.shared.size = #(envoy.resp.get_body() or '')
        if is_hit() then {response} end
    end,
    on_log = function() local _ = envoy.stream.shared.size end,
}}"
    )
}

/// Returns a guest that holds headers, bodies and trailers of requests, and headers and bodies of responses, until a
/// callout has ended, leaves a gRPC stream open on each, and whose root opens and cancels gRPC streams in its ticks.
pub(super) fn pausing() -> Guest {
    let (echo, faulty) = (text("echo"), text("faulty-h2"));
    let (service, method) = (text("helloworld.Greeter"), text("SayHello"));
    let message = text("\0\0\0\0\x03abc");
    let size = map().len();
    let seen = format!("{} {}", text("x-seen"), text("yes"));
    Guest {
        configure: "(drop (call $set_tick_period_milliseconds (i32.const 25)))".to_owned(),
        functions: format!(
            r#"
  ;; Where a callout's stream and side are kept: 0 the request, 1 the response.
  (func $slot (param $token i32) (result i32)
    (i32.add (i32.const 16384) (i32.shl (i32.and (local.get $token) (i32.const 1023)) (i32.const 3))))
  (func $ask (param $context i32) (param $side i32) (param $upstream i32) (param $length i32) (result i32)
    (local $slot i32)
    (if (i32.ne (i32.const 0)
        (call $http_call (local.get $upstream) (local.get $length) (i32.const {MAP_BEGIN}) (i32.const {size})
          (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 300) (i32.const 12288)))
      (then (return (i32.const 0))))
    (local.set $slot (call $slot (i32.load (i32.const 12288))))
    (i32.store (local.get $slot) (local.get $context))
    (i32.store offset=4 (local.get $slot) (local.get $side))
    (i32.const 1))
  ;; The host calls this for the root, so the stream has to be named.
  (func (export "proxy_on_http_call_response") (param $root i32) (param $token i32) (param i32 i32 i32)
    (local $slot i32)
    (local.set $slot (call $slot (local.get $token)))
    (drop (call $set_effective_context (i32.load (local.get $slot))))
    (drop (call $continue_stream (i32.load offset=4 (local.get $slot)))))
  (func (export "proxy_on_request_headers") (param $context i32) (param i32 i32) (result i32)
    (drop (call $grpc_stream {faulty} {service} {method} (i32.const 0) (i32.const 0) (i32.const 12304)))
    (call $ask (local.get $context) (i32.const 0) {echo}))
  (func (export "proxy_on_request_body") (param $context i32) (param $size i32) (param $ends i32) (result i32)
    (i32.eqz (local.get $ends)))
  (func (export "proxy_on_request_trailers") (param $context i32) (param i32) (result i32)
    (call $ask (local.get $context) (i32.const 0) {faulty}))
  (func (export "proxy_on_response_headers") (param $context i32) (param i32 i32) (result i32)
    (drop (call $replace_header_map_value (i32.const 2) {seen}))
    (call $ask (local.get $context) (i32.const 1) {faulty}))
  (func (export "proxy_on_response_body") (param $context i32) (param $size i32) (param $ends i32) (result i32)
    (i32.eqz (local.get $ends)))
  (func (export "proxy_on_tick") (param i32)
    (drop (call $grpc_cancel (i32.load (i32.const 12320))))
    (drop (call $grpc_stream {faulty} {service} {method} (i32.const 0) (i32.const 0) (i32.const 12320)))
    (drop (call $grpc_send (i32.load (i32.const 12320)) {message} (i32.const 0))))
"#
        ),
        ..Guest::default()
    }
}

/// Returns the guest that sets a header of responses.
pub(super) fn reading() -> Guest {
    wasm::sound()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pausing_guest_is_a_valid_module() {
        assert!(pausing().module().unwrap().starts_with(b"\0asm"));
    }

    #[test]
    fn seeded_faults_change_the_plugin_that_reads_whole_bodies() {
        let sound = whole(None);
        assert!(!sound.contains("set_body"), "{sound}");
        assert!(whole(Some(SeededFault::Byte)).contains("set_body"));
        assert!(whole(Some(SeededFault::Stall)).contains("sleep(3600000)"));
    }
}
