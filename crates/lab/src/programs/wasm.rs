//! Proxy-Wasm guests (ABI 0.2.1) as text, and random ones.
//!
//! Memory: from 1024 on the texts of [`TEXTS`], from 8192 on room for results, from 65536 on the heap, which grows.
//! The allocator never frees.

use std::fmt::Write as _;

use anyhow::Context as _;

use crate::random::Random;

/// The host functions, with how many 32-bit parameters each has before a last 64-bit one, if it has that.
const HOST_FUNCTIONS: &[(&str, usize, bool)] = &[
    ("proxy_log", 3, false),
    ("proxy_get_log_level", 1, false),
    ("proxy_get_current_time_nanoseconds", 1, false),
    ("proxy_set_tick_period_milliseconds", 1, false),
    ("proxy_get_property", 4, false),
    ("proxy_set_property", 4, false),
    ("proxy_get_buffer_bytes", 5, false),
    ("proxy_get_buffer_status", 3, false),
    ("proxy_set_buffer_bytes", 5, false),
    ("proxy_get_header_map_pairs", 3, false),
    ("proxy_set_header_map_pairs", 3, false),
    ("proxy_get_header_map_size", 2, false),
    ("proxy_get_header_map_value", 5, false),
    ("proxy_add_header_map_value", 5, false),
    ("proxy_replace_header_map_value", 5, false),
    ("proxy_remove_header_map_value", 3, false),
    ("proxy_send_local_response", 8, false),
    ("proxy_http_call", 10, false),
    ("proxy_continue_stream", 1, false),
    ("proxy_close_stream", 1, false),
    ("proxy_get_status", 3, false),
    ("proxy_set_effective_context", 1, false),
    ("proxy_done", 0, false),
    ("proxy_define_metric", 4, false),
    ("proxy_increment_metric", 1, true),
    ("proxy_record_metric", 1, true),
    ("proxy_get_metric", 2, false),
    ("proxy_grpc_call", 12, false),
    ("proxy_grpc_stream", 9, false),
    ("proxy_grpc_send", 4, false),
    ("proxy_grpc_close", 1, false),
    ("proxy_grpc_cancel", 1, false),
    ("proxy_call_foreign_function", 6, false),
    ("proxy_register_shared_queue", 3, false),
    ("proxy_resolve_shared_queue", 5, false),
    ("proxy_enqueue_shared_queue", 3, false),
    ("proxy_dequeue_shared_queue", 3, false),
    ("proxy_get_shared_data", 5, false),
    ("proxy_set_shared_data", 5, false),
];

/// Texts that every guest has in memory; [`text`] is the place of one.
const TEXTS: &[&str] = &[
    "x-seen",
    "yes",
    ":path",
    ":status",
    ":method",
    ":authority",
    "content-length",
    "transfer-encoding",
    "/status/200",
    "echo",
    "echo-h2",
    "faulty",
    "faulty-h2",
    "other",
    "nowhere",
    "key",
    "a value of some length, which is not the shortest of all",
    "metric",
    "request\0path",
    "plugin_root_id",
    "xds\0node",
    "line\nerror: forged",
    "sign",
    "verify_signature",
    "compress",
    "uncompress",
    "helloworld.Greeter",
    "SayHello",
    "\0\0\0\0\x03abc",
    "GET",
    "x\u{0}y",
    "",
];

/// Where [`TEXTS`] begin.
const TEXTS_BEGIN: usize = 1024;
/// Where the header map for callouts begins, in the form of the ABI.
pub(crate) const MAP_BEGIN: usize = 4096;
/// Where host functions write results to.
const RESULTS: usize = 8192;

/// Returns a text's address and length as two operands; it has to be one of [`TEXTS`].
pub(crate) fn text(text: &str) -> String {
    let mut at = TEXTS_BEGIN;
    for candidate in TEXTS {
        if *candidate == text {
            break;
        }
        at += candidate.len();
    }
    format!("(i32.const {at}) (i32.const {})", text.len())
}

/// Header map of a request for a callout: `GET /status/200` of host `other`.
pub(crate) fn map() -> Vec<u8> {
    let pairs: [(&str, &str); 3] = [
        (":method", "GET"),
        (":path", "/status/200"),
        (":authority", "other"),
    ];
    let mut bytes = (pairs.len() as u32).to_le_bytes().to_vec();
    for (name, value) in pairs {
        bytes.extend((name.len() as u32).to_le_bytes());
        bytes.extend((value.len() as u32).to_le_bytes());
    }
    for (name, value) in pairs {
        bytes.extend(name.bytes());
        bytes.push(0);
        bytes.extend(value.bytes());
        bytes.push(0);
    }
    bytes
}

fn data(at: usize, bytes: &[u8]) -> String {
    let mut text = format!("  (data (i32.const {at}) \"");
    for byte in bytes {
        let _ = write!(text, "\\{byte:02x}");
    }
    text + "\")\n"
}

/// A guest in the making: what it does in which callback.
#[derive(Debug, Clone, Default)]
pub(crate) struct Guest {
    /// Instructions of `proxy_on_vm_start`.
    pub(crate) vm_start: String,
    /// Instructions of `proxy_on_configure`.
    pub(crate) configure: String,
    /// Further functions.
    pub(crate) functions: String,
}

impl Guest {
    /// Returns the module as text. Each host function is there under its name without `proxy_`; `$turns` is a
    /// loop of so many turns, `$endless` one without end, `$straight` takes 2^36 calls without any loop.
    pub(crate) fn text(&self) -> String {
        let mut module = "(module $guest\n".to_owned();
        for (name, count, wide) in HOST_FUNCTIONS {
            let mut parameters = "i32 ".repeat(*count);
            if *wide {
                parameters.push_str("i64");
            }
            let parameters = if parameters.is_empty() {
                String::new()
            } else {
                format!("(param {})", parameters.trim_end())
            };
            let short = name.trim_start_matches("proxy_");
            let _ = writeln!(
                module,
                "  (import \"env\" \"{name}\" (func ${short} {parameters} (result i32)))"
            );
        }
        module.push_str(
            r#"  (memory (export "memory") 3)
  (func (export "proxy_abi_version_0_2_1"))
  (global $heap (mut i32) (i32.const 65536))
  (global $count (mut i32) (i32.const 0))
  (func $malloc (export "malloc") (param $size i32) (result i32)
    (local $begin i32)
    (local.set $begin (global.get $heap))
    (global.set $heap (i32.add (global.get $heap)
      (i32.and (i32.add (local.get $size) (i32.const 7)) (i32.const -8))))
    ;; What the host hands over is used at once, so the heap begins anew at a megabyte.
    (if (i32.and (i32.gt_u (global.get $heap) (i32.const 1048576))
                 (i32.lt_u (local.get $size) (i32.const 524288)))
      (then
        (local.set $begin (i32.const 65536))
        (global.set $heap (i32.add (i32.const 65536) (local.get $size)))))
    (if (i32.gt_u (global.get $heap) (i32.mul (memory.size) (i32.const 65536)))
      (then (drop (memory.grow (i32.add (i32.const 1)
        (i32.shr_u (i32.sub (global.get $heap) (i32.mul (memory.size) (i32.const 65536))) (i32.const 16)))))))
    (local.get $begin))
  (func $turns (param $left i32)
    (loop $next
      (local.set $left (i32.sub (local.get $left) (i32.const 1)))
      (br_if $next (local.get $left))))
  (func $endless (loop $next (br $next)))
  (func (export "proxy_on_context_create") (param i32 i32))
"#,
        );
        module.push_str(
            "  (func $call0 (global.set $count (i32.add (global.get $count) (i32.const 1))))\n",
        );
        for level in 1..=36 {
            let below = level - 1;
            let _ = writeln!(
                module,
                "  (func $call{level} (call $call{below}) (call $call{below}))"
            );
        }
        module.push_str("  (func $straight (call $call36))\n");
        let _ = write!(
            module,
            "  (func (export \"proxy_on_vm_start\") (param $context i32) (param $size i32) (result i32)\n    {}\n    \
             (i32.const 1))\n  (func (export \"proxy_on_configure\") (param $context i32) (param $size i32) \
             (result i32)\n    {}\n    (i32.const 1))\n{}\n",
            self.vm_start, self.configure, self.functions
        );
        module.push_str(&data(TEXTS_BEGIN, TEXTS.concat().as_bytes()));
        module.push_str(&data(MAP_BEGIN, &map()));
        module.push_str(")\n");
        module
    }

    /// Returns the module as WebAssembly.
    pub(crate) fn module(&self) -> anyhow::Result<Vec<u8>> {
        let text = self.text();
        wat::parse_str(&text).with_context(|| format!("the guest is not valid:\n{text}"))
    }
}

/// Returns a guest that sets the response header `x-seen: yes`.
pub(crate) fn sound() -> Guest {
    Guest {
        functions: format!(
            "(func (export \"proxy_on_response_headers\") (param i32 i32 i32) (result i32)
    (drop (call $replace_header_map_value (i32.const 2) {} {}))
    (i32.const 0))",
            text("x-seen"),
            text("yes")
        ),
        ..Guest::default()
    }
}

/// Callbacks of streams, with their parameters and whether they return an action.
const CALLBACKS: &[(&str, usize, bool)] = &[
    ("proxy_on_request_headers", 3, true),
    ("proxy_on_request_body", 3, true),
    ("proxy_on_request_trailers", 2, true),
    ("proxy_on_response_headers", 3, true),
    ("proxy_on_response_body", 3, true),
    ("proxy_on_response_trailers", 2, true),
    ("proxy_on_http_call_response", 5, false),
    ("proxy_on_grpc_receive", 3, false),
    ("proxy_on_grpc_close", 3, false),
    ("proxy_on_queue_ready", 2, false),
    ("proxy_on_tick", 1, false),
    ("proxy_on_log", 1, false),
    ("proxy_on_delete", 1, false),
];

/// Returns a random guest: callbacks with random sequences of host calls, in which some loop, trap, recurse, grow
/// memory or pause.
pub fn program(random: &mut Random) -> anyhow::Result<Vec<u8>> {
    let mut guest = Guest::default();
    let period = random.between(1, 200);
    if random.chance(40) {
        guest.configure =
            format!("(drop (call $set_tick_period_milliseconds (i32.const {period})))\n    ");
    }
    for _ in 0..random.below(4) {
        let step = host_call(random);
        guest.configure.push_str(&step);
    }
    for (name, parameters, has_action) in CALLBACKS {
        if !random.chance(60) {
            continue;
        }
        let mut body = String::new();
        for _ in 0..random.between(1, 6) {
            let step = step(random);
            if random.chance(40) {
                // Not at each call: a counter decides, so that a stream goes well now and then.
                let every = random.between(2, 40);
                let _ = write!(
                    body,
                    "\n    (global.set $count (i32.add (global.get $count) (i32.const 1)))
    (if (i32.eqz (i32.rem_u (global.get $count) (i32.const {every}))) (then {step}))"
                );
            } else {
                body.push_str("\n    ");
                body.push_str(&step);
            }
        }
        let parameters = format!("(param {})", "i32 ".repeat(*parameters).trim_end());
        let (result, action) = if *has_action {
            let action = u64::from(random.chance(15));
            ("(result i32)", format!("(i32.const {action})"))
        } else {
            ("", String::new())
        };
        let _ = writeln!(
            guest.functions,
            "  (func (export \"{name}\") {parameters} {result}{body}\n    {action})"
        );
    }
    guest.module()
}

/// One step of a callback: mostly a host call.
fn step(random: &mut Random) -> String {
    match random.below(100) {
        0 => "(call $endless)".to_owned(),
        1 => "(call $straight)".to_owned(),
        2 | 3 => "(unreachable)".to_owned(),
        4 | 5 => format!(
            "(call $turns (i32.const {}))",
            random.between(1, 20_000_000)
        ),
        6 => format!(
            "(drop (memory.grow (i32.const {})))",
            random.between(1, 2_000)
        ),
        7 => "(i32.store (i32.const -4) (i32.const 1))".to_owned(),
        8 => format!(
            "(memory.fill (i32.const 65536) (i32.const 7) (i32.const {}))",
            random.between(1, 131_072)
        ),
        _ => host_call(random),
    }
}

/// A call of a random host function, most of whose arguments make sense.
fn host_call(random: &mut Random) -> String {
    let index = usize::try_from(random.below(HOST_FUNCTIONS.len() as u64)).unwrap_or(0);
    let Some((name, count, wide)) = HOST_FUNCTIONS.get(index).copied() else {
        return String::new();
    };
    let short = name.trim_start_matches("proxy_");
    let likely = likely_arguments(random, short);
    let mut call = format!("(drop (call ${short}");
    if random.chance(80)
        && let Some(arguments) = likely
    {
        call.push(' ');
        call.push_str(&arguments);
    } else {
        for _ in 0..count {
            let _ = write!(call, " (i32.const {})", wild(random));
        }
        if wide {
            let _ = write!(call, " (i64.const {})", random.number().cast_signed());
        }
    }
    call + "))"
}

/// A 32-bit number that is small, at the edge of something, an address, or anything.
fn wild(random: &mut Random) -> i64 {
    match random.below(6) {
        0 => random.below(8).cast_signed(),
        1 => random.between(TEXTS_BEGIN as u64, 8_192).cast_signed(),
        2 => -random.below(16).cast_signed(),
        3 => 65_536 + random.below(131_072).cast_signed(),
        4 => i64::from(i32::MAX) - random.below(2).cast_signed(),
        _ => i64::from(random.number() as i32),
    }
}

fn any_text(random: &mut Random) -> String {
    text(random.word(TEXTS))
}

/// Arguments that the host has to take seriously; `None` for functions that get wild ones only.
fn likely_arguments(random: &mut Random, function: &str) -> Option<String> {
    let result = |place: usize| format!("(i32.const {})", RESULTS + place * 16);
    let number = |number: u64| format!("(i32.const {number})");
    let header_map = number(random.below(4));
    let buffer = number(random.below(9));
    let (first, second) = (result(0), result(1));
    Some(match function {
        "log" => format!("{} {}", number(random.below(6)), any_text(random)),
        "get_current_time_nanoseconds" | "get_log_level" => first,
        "set_tick_period_milliseconds" => {
            number(random.word(&["0", "1", "10", "100"]).parse().ok()?)
        }
        "get_property" => format!("{} {first} {second}", any_text(random)),
        "set_property" => format!("{} {}", any_text(random), any_text(random)),
        "get_buffer_bytes" => format!(
            "{buffer} {} {} {first} {second}",
            number(random.below(4)),
            number(random.below(1 << 20))
        ),
        "get_buffer_status" => format!("{buffer} {first} {second}"),
        "set_buffer_bytes" => format!(
            "{} {} {} {}",
            number(random.below(2)),
            number(random.below(10)),
            number(random.below(100)),
            any_text(random)
        ),
        "get_header_map_pairs" => format!("{header_map} {first} {second}"),
        "set_header_map_pairs" => format!(
            "{header_map} (i32.const {MAP_BEGIN}) {}",
            number(map().len() as u64)
        ),
        "get_header_map_size" => format!("{header_map} {first}"),
        "get_header_map_value" => format!("{header_map} {} {first} {second}", any_text(random)),
        "add_header_map_value" | "replace_header_map_value" => {
            format!("{header_map} {} {}", any_text(random), any_text(random))
        }
        "remove_header_map_value" => format!("{header_map} {}", any_text(random)),
        "send_local_response" => format!(
            "{} {} {} (i32.const 0) (i32.const 0) (i32.const -1)",
            number(
                random
                    .word(&["200", "204", "304", "403", "503", "100", "0", "65535"])
                    .parse()
                    .ok()?
            ),
            any_text(random),
            any_text(random)
        ),
        "http_call" => format!(
            "{} (i32.const {MAP_BEGIN}) {} {} (i32.const 0) (i32.const 0) {} {first}",
            text(random.word(&["echo", "other", "nowhere", "echo-h2", "faulty", "faulty-h2"])),
            number(map().len() as u64),
            any_text(random),
            number(random.below(500))
        ),
        "continue_stream" | "close_stream" => number(random.below(4)),
        "get_status" => format!("{first} {second} {}", result(2)),
        "set_effective_context" => number(random.below(6)),
        "done" => String::new(),
        "define_metric" => format!("{} {} {first}", number(random.below(4)), any_text(random)),
        "increment_metric" | "record_metric" => format!(
            "{} (i64.const {})",
            number(random.below(4)),
            random.number().cast_signed() >> random.below(63)
        ),
        "get_metric" => format!("{} {first}", number(random.below(4))),
        "grpc_stream" => format!(
            "{} {} {} (i32.const 0) (i32.const 0) {first}",
            text(random.word(&["other", "echo-h2", "faulty-h2"])),
            text("helloworld.Greeter"),
            text("SayHello")
        ),
        "grpc_call" => format!(
            "{} {} {} (i32.const 0) (i32.const 0) {} {} {first}",
            text(random.word(&["other", "echo-h2", "faulty-h2"])),
            text("helloworld.Greeter"),
            text("SayHello"),
            text("\0\0\0\0\x03abc"),
            number(random.below(1000))
        ),
        "grpc_send" => format!(
            "{} {} {}",
            number(random.below(8)),
            any_text(random),
            number(random.below(2))
        ),
        "grpc_close" | "grpc_cancel" => number(random.below(8)),
        "call_foreign_function" => {
            format!("{} {} {first} {second}", any_text(random), any_text(random))
        }
        "register_shared_queue" => format!("{} {first}", any_text(random)),
        "resolve_shared_queue" => format!("{} {} {first}", any_text(random), any_text(random)),
        "enqueue_shared_queue" => format!("{} {}", number(random.below(8)), any_text(random)),
        "dequeue_shared_queue" => format!("{} {first} {second}", number(random.below(8))),
        "get_shared_data" => format!("{} {first} {second} {}", any_text(random), result(2)),
        "set_shared_data" => format!(
            "{} {} {}",
            any_text(random),
            any_text(random),
            number(random.below(3))
        ),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_valid_modules_and_functions_of_the_seed() {
        for seed in 0..200 {
            let module = program(&mut Random::new(seed)).unwrap();
            assert_eq!(module, program(&mut Random::new(seed)).unwrap());
        }
        assert!(sound().module().unwrap().starts_with(b"\0asm"));
    }
}
