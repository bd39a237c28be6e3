//! What is loaded, what is refused, and how a guest starts.

use outrider_plugin_api::{BodyMode, HeaderMap, Interest, Phase, Slot};

use super::fake::{
    FakeMetrics, FakeStream, config, guest, guest_text, load, probe, refused, source,
};

#[test]
fn what_is_no_plugin_is_refused_with_the_reason() {
    let text = wat::parse_str("(module)").unwrap();
    for (module, reason) in [
        (&b""[..], "is empty"),
        (b"#!/bin/sh", "does not begin with `\\0asm`"),
        (b"\0asm\x0d\0\x01\0", "is a WebAssembly component"),
        (b"\0asm\x02\0\0\0", "unknown version of WebAssembly"),
        (&text, "exports none of proxy_abi_version_0_1_0"),
    ] {
        let refusal = refused(module);
        assert!(refusal.contains(reason), "{refusal}");
        assert!(
            refusal.starts_with("plugin probe: probe.wasm "),
            "{refusal}"
        );
    }
    let whole = guest("");
    let refusal = refused(&whole[..whole.len() - 20]);
    assert!(refusal.contains("cannot be compiled"), "{refusal}");
    let future = wat::parse_str(r#"(module (func (export "proxy_abi_version_0_3_0")))"#).unwrap();
    let refusal = refused(&future);
    assert!(
        refusal.contains("it exports proxy_abi_version_0_3_0"),
        "{refusal}"
    );
}

#[test]
fn imports_that_nobody_provides_are_named() {
    let module = wat::parse_str(
        r#"(module
          (import "env" "proxy_log" (func (param i32 i32 i32) (result i32)))
          (import "env" "proxy_redis_call" (func (param i32) (result i32)))
          (import "wasi_snapshot_preview1" "sock_open" (func (param i32) (result i32)))
          (memory (export "memory") 1)
          (func (export "proxy_abi_version_0_2_0")))"#,
    )
    .unwrap();
    let refusal = refused(&module);
    assert!(
        refusal.contains("env.proxy_redis_call, wasi_snapshot_preview1.sock_open"),
        "{refusal}"
    );
    let module = wat::parse_str(
        r#"(module
          (import "env" "proxy_log" (func (param i64) (result i32)))
          (memory (export "memory") 1)
          (func (export "proxy_abi_version_0_2_0")))"#,
    )
    .unwrap();
    let refusal = refused(&module);
    assert!(refusal.contains("another type"), "{refusal}");
}

#[test]
fn callbacks_are_found_by_their_exports() {
    let plugin = probe(
        r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) (i32.const 0))
           (func (export "proxy_on_response_body") (param i32 i32 i32) (result i32) (i32.const 0))
           (func (export "proxy_on_delete") (param i32))"#,
    );
    assert_eq!(
        plugin.plugin.interest(),
        Interest {
            request_headers: true,
            response_body: BodyMode::Stream,
            log: true,
            ..Interest::default()
        }
    );
    assert_eq!(probe("").plugin.interest(), Interest::default());
    let refusal = refused(&guest(r#"(func (export "proxy_on_log") (param i64))"#));
    assert!(
        refusal.contains("its export proxy_on_log has not the type"),
        "{refusal}"
    );
}

#[test]
fn a_guest_starts_in_the_order_of_the_interface() {
    let body = r#"
      (data (i32.const 100) "start-init-main-create-vm-configure")
      (func $begin (call $say (i32.const 100) (i32.const 5)))
      (start $begin)
      (func (export "_initialize") (call $say (i32.const 106) (i32.const 4)))
      (func (export "main") (param i32 i32) (result i32)
        (call $say (i32.const 111) (i32.const 4)) (i32.const 0))
      (func (export "_start") unreachable)
      (func (export "proxy_on_context_create") (param i32 i32)
        (call $say (i32.const 116) (i32.const 6)))
      (func (export "proxy_on_vm_start") (param i32 i32) (result i32)
        (call $say (i32.const 123) (i32.const 2))
        (drop (call $buffer (i32.const 6) (i32.const 0) (i32.const 99) (i32.const 0) (i32.const 4)))
        (call $say_given)
        (i32.const 1))
      (func (export "proxy_on_configure") (param i32 i32) (result i32)
        (call $say (i32.const 126) (i32.const 9))
        (drop (call $buffer (i32.const 7) (i32.const 0) (i32.const 99) (i32.const 0) (i32.const 4)))
        (call $say_given)
        (i32.const 1))"#;
    let mut source = source(&guest(body));
    source.options.vm_configuration = b"vm-text".to_vec();
    let probe = load(source, r#""plain \"text\"""#).unwrap();
    assert_eq!(
        probe.metrics.logs,
        [
            "start",
            "init",
            "main",
            "create",
            "vm",
            "vm-text",
            "configure",
            "plain \"text\""
        ]
    );
}

#[test]
fn a_command_starts_and_may_end_with_success() {
    let body = r#"
      (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))"#;
    let module = |code: i32| {
        wat::parse_str(format!(
            r#"(module {body} (memory (export "memory") 1)
              (func (export "_start") (call $exit (i32.const {code})))
              (func (export "proxy_abi_version_0_2_0")))"#
        ))
        .unwrap()
    };
    load(source(&module(0)), "{}").unwrap();
    let refusal = refused(&module(3));
    assert!(
        refusal.contains("_start: it called proc_exit(3)"),
        "{refusal}"
    );
}

/// What TinyGo makes: a command whose `_start` sets the runtime up and registers contexts, then is called as a
/// reactor; allocator `malloc`; version 0.2.0; clock and random numbers as it starts.
const TINYGO: &str = r#"(module
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))
  (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "args_sizes_get" (func $args (param i32 i32) (result i32)))
  (import "env" "proxy_get_buffer_bytes" (func $buffer (param i32 i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_replace_header_map_value" (func $replace (param i32 i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 2)
  (data (i32.const 64) "started\0ax-config")
  (global $top (mut i32) (i32.const 65536))
  (global $started (mut i32) (i32.const 0))
  (func (export "proxy_abi_version_0_2_0"))
  (func $malloc (export "malloc") (param $n i32) (result i32)
    (local $at i32)
    (if (i32.eqz (global.get $started)) (then unreachable))
    (local.set $at (global.get $top))
    (global.set $top (i32.add (global.get $top) (local.get $n)))
    (local.get $at))
  (func (export "free") (param i32))
  (func (export "calloc") (param i32 i32) (result i32) unreachable)
  (func (export "realloc") (param i32 i32) (result i32) unreachable)
  (func (export "_start")
    (if (call $clock (i32.const 1) (i64.const 0) (i32.const 16)) (then unreachable))
    (if (call $random (i32.const 24) (i32.const 8)) (then unreachable))
    (if (call $args (i32.const 32) (i32.const 36)) (then unreachable))
    (i32.store (i32.const 40) (i32.const 64))
    (i32.store (i32.const 44) (i32.const 8))
    (if (call $fd_write (i32.const 1) (i32.const 40) (i32.const 1) (i32.const 48)) (then unreachable))
    (global.set $started (i32.const 1)))
  (func (export "proxy_on_context_create") (param i32 i32)
    (if (i32.eqz (global.get $started)) (then unreachable)))
  (func (export "proxy_on_vm_start") (param i32 i32) (result i32) (i32.const 1))
  (func (export "proxy_on_configure") (param i32 i32) (result i32)
    (i32.eqz (call $buffer (i32.const 7) (i32.const 0) (local.get 1) (i32.const 0) (i32.const 4))))
  (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
    (call $replace (i32.const 0) (i32.const 72) (i32.const 8) (i32.load (i32.const 0)) (i32.load (i32.const 4)))))"#;

#[test]
fn a_guest_of_tinygos_shape_is_a_plugin() {
    let module = wat::parse_str(TINYGO).unwrap();
    let probe = load(source(&module), "{\"a\": 1}").unwrap();
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    probe
        .call(Phase::RequestHeaders, &mut slot, &mut stream)
        .unwrap();
    assert_eq!(
        stream.get(HeaderMap::RequestHeaders, "x-config").as_deref(),
        Some("{\"a\": 1}")
    );
    assert_eq!(stream.logged(), ["started"]);
}

#[test]
fn host_functions_are_closed_while_a_guest_starts() {
    let refusal = refused(&guest(
        r#"(func (export "_initialize") (drop (call $tick (i32.const 1))))"#,
    ));
    assert!(
        refusal
            .contains("proxy_set_tick_period_milliseconds cannot be called while the guest starts"),
        "{refusal}"
    );
}

#[test]
fn empty_configuration_has_size_zero() {
    let body = r#"
      (data (i32.const 100) "size ?")
      (func (export "proxy_on_configure") (param i32 i32) (result i32)
        (i32.store8 (i32.const 105) (i32.add (i32.const 48) (local.get 1)))
        (call $say (i32.const 100) (i32.const 6))
        (drop (call $buffer (i32.const 7) (i32.const 0) (i32.const 99) (i32.const 0) (i32.const 4)))
        (call $say_given)
        (i32.const 1))"#;
    for (config, size, text) in [
        ("{}", "size 0", ""),
        (r#""""#, "size 0", ""),
        (r#""{}""#, "size 2", "{}"),
        (r#"{"a":1}"#, "size 7", r#"{"a":1}"#),
    ] {
        let probe = load(source(&guest(body)), config).unwrap();
        assert_eq!(probe.metrics.logs, [size, text], "{config}");
    }
}

#[test]
fn webassembly_features_are_as_the_page_says() {
    const PAGE: &str = include_str!("../../../../docs/proxy-wasm-support.md");
    for (feature, body, runs) in [
        (
            "SIMD",
            "(func (result v128) (v128.const i32x4 0 0 0 0))",
            true,
        ),
        (
            "relaxed SIMD",
            "(func (param v128 v128) (result v128) (i8x16.relaxed_swizzle (local.get 0) (local.get 1)))",
            true,
        ),
        ("tail calls", "(func $again return_call $again)", true),
        (
            "multi-value",
            "(func (result i32 i32) (i32.const 1) (i32.const 2))",
            true,
        ),
        (
            "bulk memory",
            "(func (memory.copy (i32.const 0) (i32.const 0) (i32.const 0)))",
            true,
        ),
        (
            "extended constant expressions",
            "(global i32 (i32.add (i32.const 1) (i32.const 2)))",
            true,
        ),
        (
            "`externref` (of the reference types)",
            "(table 1 externref)",
            false,
        ),
        ("exceptions", "(tag)", false),
        (
            "threads, atomics, shared memories",
            "(func (drop (i32.atomic.load (i32.const 0))))",
            false,
        ),
        ("several memories", "(memory 1)", false),
        ("garbage collection", "(type (struct (field i32)))", false),
        (
            "an imported memory or table",
            r#"(import "env" "table" (table 1 funcref))"#,
            false,
        ),
    ] {
        let module = if body.starts_with("(import ") {
            // Imports come first.
            let text = guest_text("").replacen("(import ", &format!("{body}\n(import "), 1);
            wat::parse_str(text).unwrap()
        } else {
            guest(body)
        };
        let loaded = load(source(&module), "{}");
        assert_eq!(loaded.is_ok(), runs, "{feature}: {:?}", loaded.err());
        let row = format!("| {feature} | {} |", if runs { "runs" } else { "refused" });
        assert!(PAGE.contains(&row), "the page has no row {row}");
    }
}

#[test]
fn a_configuration_is_refused_with_what_the_guest_says() {
    let body = r#"
      (data (i32.const 100) "`realm` is missing")
      (func (export "proxy_on_configure") (param i32 i32) (result i32)
        (drop (call $log (i32.const 4) (i32.const 100) (i32.const 18)))
        (i32.gt_u (local.get 1) (i32.const 2)))"#;
    let mut metrics = FakeMetrics::default();
    let plugin = crate::load(source(&guest(body)), 2, &mut metrics).unwrap();
    plugin
        .configure(&config(r#"{"a":1}"#), &mut metrics)
        .unwrap();
    for _ in 0..2 {
        let refusal = plugin.configure(&config("{}"), &mut metrics).unwrap_err();
        assert_eq!(
            refusal.message,
            "probe.wasm: `realm` is missing: it refuses the configuration (proxy_on_configure answered \
             false) (configuration of gateway)"
        );
    }
    let trap = refused(&guest(
        r#"(func (export "proxy_on_configure") (param i32 i32) (result i32) unreachable)"#,
    ));
    assert!(
        trap.contains("proxy_on_configure: it ended itself (`unreachable`"),
        "{trap}"
    );
}

#[test]
fn a_memory_that_the_budget_does_not_hold_is_refused() {
    let mut source = source(&guest(""));
    source.memory_budget = 65_536;
    let refusal = load(source, "{}").unwrap_err().message;
    assert!(
        refusal.contains("does not hold the memory that it begins with"),
        "{refusal}"
    );
}
