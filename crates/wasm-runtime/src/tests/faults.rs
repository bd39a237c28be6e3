//! What guests do wrong, and what becomes of their streams and of others.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use outrider_plugin_api::{Cause, Decision, Phase, Slot, Wake};

use super::fake::{
    FakeStream, Probe, clock, cpu_time, guest, guest_text, guest_with_lines, line_of, load, probe,
    refused, source,
};

/// A guest that fails on streams whose request has `x-fail`, in the way that `wrong` says.
fn failing(wrong: &str) -> String {
    format!(
        r#"(data (i32.const 100) "x-fail")
        (func $wrong (export "wrong_here") (param $id i32) {wrong})
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
          (if (i32.eqz (call $get (i32.const 0) (i32.const 100) (i32.const 6) (i32.const 0) (i32.const 4)))
            (then (call $wrong (local.get 0))))
          (i32.const 0))
        (func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32) (i32.const 0))"#
    )
}

fn failing_stream() -> FakeStream {
    let mut stream = FakeStream::new();
    let map = outrider_plugin_api::HeaderMap::RequestHeaders;
    let pair = (b"x-fail".to_vec(), b"1".to_vec());
    stream.maps.get_mut(&map).unwrap().push(pair);
    stream
}

/// One stream fails; one that had begun is told that it lost its state; later ones are served.
fn fails_alone(probe: &Probe, cause: Cause, words: &[&str]) {
    let (mut earlier, mut its) = (Slot::default(), FakeStream::new());
    let served = probe.call(Phase::RequestHeaders, &mut earlier, &mut its);
    assert_eq!(served, Ok(Decision::Continue));
    let (mut slot, mut stream) = (Slot::default(), failing_stream());
    let fault = probe
        .call(Phase::RequestHeaders, &mut slot, &mut stream)
        .unwrap_err();
    assert_eq!(fault.cause, cause, "{fault}");
    for word in words {
        assert!(fault.message.contains(word), "{word}: {fault}");
    }
    let lost = probe
        .call(Phase::ResponseHeaders, &mut earlier, &mut its)
        .unwrap_err();
    assert_eq!(lost.cause, Cause::Unavailable);
    assert!(lost.message.contains("was lost"), "{lost}");
    for slot in [slot, earlier] {
        probe.configured.end(slot, 0);
    }
    let (mut later, mut its) = (Slot::default(), FakeStream::new());
    let served = probe.call(Phase::RequestHeaders, &mut later, &mut its);
    assert_eq!(served, Ok(Decision::Continue));
    assert_eq!(probe.plugin.status().workers[0].replacements, 1);
}

#[test]
fn traps_end_their_stream_and_the_vm_is_replaced() {
    for (wrong, words) in [
        (
            "unreachable",
            &[
                "probe.wasm: proxy_on_request_headers: it ended itself (`unreachable`",
                "in wrong",
            ][..],
        ),
        (
            "(drop (i32.load (i32.const 0x7fffffff)))",
            &["out of bounds memory access"],
        ),
        (
            "(drop (i32.div_u (i32.const 1) (i32.const 0)))",
            &["divide by zero"],
        ),
        (
            "(call $wrong (local.get $id))",
            &["call stack exhausted", "called by wrong"],
        ),
    ] {
        fails_alone(&probe(&failing(wrong)), Cause::Error, words);
    }
}

/// Functions that have no loop and do not end, or not soon.
fn without_loops() -> String {
    const DEPTH: usize = 60;
    let twice: Vec<String> = (1..DEPTH)
        .map(|number| {
            let next = if number + 1 == DEPTH { "end".to_owned() } else { format!("{}", number + 1) };
            format!(
                "(func $twice{number} (param i32) (call $twice{next} (local.get 0)) (call $twice{next} (local.get 0)))"
            )
        })
        .collect();
    format!(
        "(type $callback (func (param i32)))
        (table 1 funcref) (elem (i32.const 0) func $wrong)
        (func $in_turns (param i32) (return_call $wrong (local.get 0)))
        {} (func $twiceend (param i32))
        (func $twice (param i32) (call $twice1 (local.get 0)))",
        twice.concat()
    )
}

#[test]
fn an_endless_loop_ends_within_the_time_budget() {
    for endless in [
        "(loop $again (br $again))",
        // Without a loop: from tail to tail, in turns, and through the table.
        "(return_call $wrong (local.get $id))",
        "(return_call $in_turns (local.get $id))",
        "(return_call_indirect (type $callback) (local.get $id) (i32.const 0))",
        // As good as endless: each calls the next one twice.
        "(call $twice (local.get $id))",
        // Longer than a call may be, in the guest's own instructions for it.
        "(loop $again (memory.fill (i32.const 1024) (i32.const 1) (i32.const 60000)) (br $again))",
        // Of Go's shape: there and back again.
        "(loop $again
           (block $b (block $a (br_table $a $b (local.get $id)))
             (local.set $id (i32.const 1)) (br $again))
           (local.set $id (i32.const 0)) (br $again))",
    ] {
        let probe = probe(&format!("{} {}", failing(endless), without_loops()));
        let began = Instant::now();
        let place = "; in wrong, called by";
        let names = if endless.starts_with("(loop") {
            place
        } else {
            "; in "
        };
        fails_alone(
            &probe,
            Cause::Time,
            &["time budget of 50 ms", "; `budgets.time_ms` is 50", names],
        );
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(50), "{took:?}");
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
}

#[test]
fn an_endless_start_section_ends_too() {
    let text = "(func $begin (loop $again (br $again))) (start $begin)";
    let mut source = source(&guest(text));
    source.time_budget = Duration::from_millis(10);
    let refusal = load(source, "{}").unwrap_err().message;
    for word in ["its start section", "time budget of 2000 ms; in begin"] {
        assert!(refusal.contains(word), "{word}: {refusal}");
    }
}

#[test]
fn a_trap_tells_its_line_where_the_file_has_lines() {
    // What is put before it moves it.
    let wrong = "(loop $again (br_if $again (i32.eqz (local.get $id))))\n unreachable nop";
    let body = failing(wrong);
    let line = |what| line_of(what, &body);
    let module = guest_with_lines("made/of.wat", &body);
    let probe = load(source(&module), "{}").unwrap();
    let place = format!(
        "in wrong (made/of.wat:{}), called by",
        line("unreachable nop")
    );
    let caller = format!("(made/of.wat:{})", line("(then (call $wrong"));
    fails_alone(&probe, Cause::Error, &[&place, &caller]);
}

/// A stream fails because its call used up the time budget of 50 ms, and not much more CPU time than that.
fn ends_in_time(probe: &Probe, place: &str) {
    let (mut slot, mut stream) = (Slot::default(), failing_stream());
    let began = cpu_time();
    let fault = probe
        .call(Phase::RequestHeaders, &mut slot, &mut stream)
        .unwrap_err();
    let took = cpu_time().saturating_sub(began);
    assert_eq!(fault.cause, Cause::Time, "{fault}");
    for words in ["time budget of 50 ms", place] {
        assert!(fault.message.contains(words), "{words}: {fault}");
    }
    assert!(took < Duration::from_millis(200), "{took:?}");
}

/// A function of many instructions without a loop, called from straight-line code of many calls: `levels` times.
fn acyclic(width: usize, levels: usize) -> String {
    let mut text = format!(
        "(global $sum (mut i64) (i64.const 0)) (func $level0 {})",
        "(global.set $sum (i64.add (global.get $sum) (i64.const 1)))".repeat(width)
    );
    for level in 1..=levels {
        let calls = format!("(call $level{})", level - 1).repeat(width);
        text.extend(["(func $level", &level.to_string(), " ", &calls, ")"]);
    }
    text
}

#[test]
fn work_without_loops_ends_within_the_time_budget() {
    // 10^12 instructions, and no cycle in the graph of calls.
    let body = format!("{} {}", failing("(call $level3)"), acyclic(1000, 3));
    ends_in_time(&probe(&body), "; in level");
}

#[test]
fn bulk_operations_end_within_the_time_budget() {
    const PAGES: usize = 512;
    let bytes = PAGES * 65_536;
    let fill = format!("(memory.fill (i32.const 0) (i32.const 7) (i32.const {bytes}))");
    let half = bytes / 2;
    let copy = format!("(memory.copy (i32.const 0) (i32.const {half}) (i32.const {half}))");
    let table = "(table.fill 1 (i32.const 0) (ref.null func) (i32.const 3000000))";
    let table_copy = "(table.copy 1 1 (i32.const 0) (i32.const 1) (i32.const 2999999))";
    for operation in [fill.as_str(), copy.as_str(), table, table_copy] {
        for wrong in [
            // Without a loop, so without Wasmtime's checks of loops and functions in between.
            operation.repeat(3000),
            "(call $once)".repeat(3000),
            format!("(loop $again {operation} (br $again))"),
        ] {
            let body = format!(
                "(func $once {operation}) {} (table 0 funcref) (table $large 3000000 funcref)",
                failing(&format!(
                    "(drop (memory.grow (i32.sub (i32.const {PAGES}) (memory.size)))) {wrong}"
                ))
            );
            let mut source = source(&guest(&body));
            source.memory_budget = 128 * 1024 * 1024;
            ends_in_time(&load(source, "{}").unwrap(), "; in ");
        }
    }
}

/// Bytes of an argument that host functions take long for.
const LARGE: usize = 40 * 1024 * 1024;

/// What `uncompress` takes long for: much that comes of little, and nothing that comes of much.
fn bombs() -> [Vec<u8>; 2] {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    for _ in 0..48 {
        encoder.write_all(&vec![0; 1024 * 1024]).unwrap();
    }
    let much = encoder.finish().unwrap();
    // Blocks without bytes, of which none is the last.
    let nothing = [&[0x78, 0x9c][..], &[0, 0, 0, 0xff, 0xff].repeat(200_000)].concat();
    [much, nothing]
}

#[test]
fn host_calls_that_take_long_end_within_the_time_budget() {
    let [much, nothing] = bombs();
    let escaped = |bytes: &[u8]| {
        bytes.iter().fold(String::new(), |mut text, byte| {
            write!(text, "\\{byte:02x}").unwrap();
            text
        })
    };
    let call = |name: usize, length: usize, bytes: usize| {
        format!(
            "(drop (call $foreign (i32.const {name}) (i32.const {length}) (i32.const 1048576)
               (i32.const {bytes}) (i32.const 0) (i32.const 4)))"
        )
    };
    let calls = [
        (call(210, 10, much.len()), &much),
        (call(210, 10, nothing.len()), &nothing),
        (call(200, 8, LARGE), &much),
        (call(220, 4, LARGE), &much),
        (call(230, 20, LARGE), &much),
        (
            format!("(drop (call $log (i32.const 2) (i32.const 0) (i32.const {LARGE})))"),
            &much,
        ),
        (
            format!("(drop (call $enqueue (i32.const 1) (i32.const 0) (i32.const {LARGE})))"),
            &much,
        ),
    ];
    for (call, data) in calls {
        let body = format!(
            r#"(data (i32.const 200) "compress") (data (i32.const 210) "uncompress") (data (i32.const 220) "sign")
            (data (i32.const 230) "set_dynamic_metadata") (data (i32.const 1048576) "{}") {}"#,
            escaped(data),
            failing(&format!("(loop $again {call} (br $again))"))
        );
        let body =
            guest_text(&body).replace(r#"(export "memory") 2)"#, r#"(export "memory") 700)"#);
        let mut source = source(&wat::parse_str(body).unwrap());
        source.memory_budget = 64 * 1024 * 1024;
        ends_in_time(&load(source, "{}").unwrap(), "; in wrong");
    }
}

#[test]
fn growing_memory_and_tables_ends_within_the_time_budget() {
    for wrong in [
        "(loop $again (drop (memory.grow (i32.const 1))) (br $again))",
        "(loop $again (drop (table.grow 0 (ref.null func) (i32.const 1))) (br $again))",
    ] {
        let body = format!("(table 1 funcref) {}", failing(wrong));
        let mut source = source(&guest(&body));
        source.memory_budget = 64 * 1024 * 1024;
        let probe = load(source, "{}").unwrap();
        ends_in_time(&probe, "; in wrong");
    }
}

#[test]
fn memory_beyond_the_budget_is_refused() {
    let probe = probe(&failing(
        "(if (i32.eq (memory.grow (i32.const 100)) (i32.const -1)) (then unreachable))",
    ));
    fails_alone(&probe, Cause::Memory, &["refused memory beyond its budget"]);
}

#[test]
fn a_loop_as_a_configuration_comes_ends_too() {
    let body = r#"(func (export "proxy_on_configure") (param i32 i32) (result i32)
      (loop $again (br $again)) (i32.const 1))"#;
    let mut source = source(&guest(body));
    source.time_budget = Duration::from_millis(10);
    let refusal = load(source, "{}").unwrap_err().message;
    assert!(refusal.contains("time budget of 2000 ms"), "{refusal}");
}

#[test]
fn a_guest_that_fails_each_time_is_replaced_at_growing_distances() {
    let (clock, now) = clock();
    let mut source = source(&guest(&failing("unreachable")));
    source.clock = clock;
    let probe = load(source, "{}").unwrap();
    let mut causes = Vec::new();
    for _ in 0..6 {
        let (mut slot, mut stream) = (Slot::default(), failing_stream());
        let fault = probe
            .call(Phase::RequestHeaders, &mut slot, &mut stream)
            .unwrap_err();
        causes.push(fault.cause);
    }
    let error = Cause::Error;
    assert_eq!(
        causes,
        [
            error,
            error,
            error,
            error,
            Cause::Unavailable,
            Cause::Unavailable
        ]
    );
    let status = &probe.plugin.status().workers[0];
    assert!(status.memory.is_none());
    let trouble = status.trouble.as_ref().unwrap();
    assert!(trouble.contains("ended itself"), "{trouble}");
    now.fetch_add(100, Ordering::Relaxed);
    assert_eq!(probe.said(), [""; 0]);
    assert!(probe.plugin.status().workers[0].trouble.is_none());
}

#[test]
fn pointers_and_lengths_that_lie_outside_are_an_error_status() {
    let probe = probe(
        r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
          (call $say_number (call $log (i32.const 2) (i32.const -1) (i32.const 1)))
          (call $say_number (call $log (i32.const 2) (i32.const 0) (i32.const -1)))
          (call $say_number (call $get (i32.const 0) (i32.const 131070) (i32.const 5) (i32.const 0) (i32.const 4)))
          (call $say_number (call $pairs (i32.const 0) (i32.const -4) (i32.const 4)))
          (call $say_number (call $pairs (i32.const 0) (i32.const 0) (i32.const -1)))
          (call $say_number (call $set_pairs (i32.const 0) (i32.const 1) (i32.const 131072)))
          (call $say_number (call $add (i32.const 0) (i32.const 0) (i32.const 4) (i32.const -9) (i32.const 2)))
          (i32.const 0))"#,
    );
    assert_eq!(probe.said(), ["06"; 7]);
}

#[test]
fn an_allocator_that_gives_nothing_or_fails() {
    for (allocator, words) in [
        ("(i32.const 0)", None),
        ("unreachable", Some("ended itself")),
    ] {
        let module = wat::parse_str(format!(
            r#"(module
              (import "env" "proxy_get_header_map_pairs" (func $pairs (param i32 i32 i32) (result i32)))
              (memory (export "memory") 1)
              (func (export "malloc") (param i32) (result i32) {allocator})
              (func (export "proxy_abi_version_0_2_0"))
              (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
                (call $pairs (i32.const 0) (i32.const 0) (i32.const 4))))"#
        ))
        .unwrap();
        let probe = load(source(&module), "{}").unwrap();
        let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
        let outcome = probe.call(Phase::RequestHeaders, &mut slot, &mut stream);
        match words {
            // The status is what the callback answers: more than it may say stands for a pause.
            None => assert!(matches!(outcome, Ok(Decision::Pause(_)))),
            Some(words) => {
                let fault = outcome.unwrap_err();
                assert!(fault.message.contains(words), "{fault}");
                // What stands between the guest and the host is not the guest's.
                assert!(!fault.message.contains("outrider"), "{fault}");
                assert_eq!(fault.message.matches("function ").count(), 2, "{fault}");
            }
        }
    }
}

#[test]
fn what_is_handed_over_waits_unharmed_for_the_allocator() {
    // It logs, with the host function that gathers bytes as others do, and asks for what it cannot have.
    let module = |asks: &str| {
        wat::parse_str(format!(
            r#"(module
              (import "env" "proxy_get_header_map_value"
                (func $get (param i32 i32 i32 i32 i32) (result i32)))
              (import "env" "proxy_log" (func $log (param i32 i32 i32) (result i32)))
              (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
              (memory (export "memory") 1)
              (data (i32.const 32) "\28\00\00\00\09\00\00\00allocates")
              (data (i32.const 64) ":path")
              (func (export "malloc") (param i32) (result i32)
                (drop (call $write (i32.const 1) (i32.const 32) (i32.const 1) (i32.const 48)))
                {asks}
                (i32.const 1024))
              (func (export "proxy_abi_version_0_2_0"))
              (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
                (drop (call $get (i32.const 0) (i32.const 64) (i32.const 5) (i32.const 0) (i32.const 4)))
                (drop (call $log (i32.const 2) (i32.load (i32.const 0)) (i32.load (i32.const 4))))
                (i32.const 0)))"#
        ))
        .unwrap()
    };
    let probe = load(source(&module("")), "{}").unwrap();
    assert_eq!(probe.said(), ["allocates", "/cart?item=1"]);
    let asks =
        "(drop (call $get (i32.const 0) (i32.const 64) (i32.const 5) (i32.const 0) (i32.const 4)))";
    let probe = load(source(&module(asks)), "{}").unwrap();
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    let fault = probe
        .call(Phase::RequestHeaders, &mut slot, &mut stream)
        .unwrap_err();
    let words = "proxy_get_header_map_value cannot be called while the guest's allocator runs";
    assert!(fault.message.contains(words), "{fault}");
}

#[test]
fn a_guest_cannot_import_what_is_not_for_guests() {
    let module = r#"(module (import "outrider" "hand_over" (func (param i32) (result i32)))
      (memory (export "memory") 1) (func (export "proxy_abi_version_0_2_1")))"#;
    let module = wat::parse_str(module).unwrap();
    let reason = refused(&module);
    assert!(reason.contains("outrider.hand_over"), "{reason}");
}

#[test]
fn what_an_event_meets_after_the_vm_failed_is_a_fault_of_its_own() {
    let probe = probe(
        r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
          (if (i32.gt_u (local.get 1) (i32.const 4)) (then unreachable))
          (i32.const 1))"#,
    );
    let (mut waiting, mut its) = (Slot::default(), FakeStream::new());
    probe
        .call(Phase::RequestHeaders, &mut waiting, &mut its)
        .unwrap();
    assert_eq!(its.timers.len(), 1);
    let (mut slot, mut stream) = (Slot::default(), failing_stream());
    probe
        .call(Phase::RequestHeaders, &mut slot, &mut stream)
        .unwrap_err();
    let fault = probe
        .configured
        .event(&mut waiting, Wake::Timer(1), &mut its)
        .unwrap_err();
    assert_eq!(fault.cause, Cause::Unavailable);
}

#[test]
fn call_that_ran_on_in_a_host_function_fails_and_its_vm_is_replaced() {
    let probe = probe(
        r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
          (call $say (i32.const 0) (i32.const 1)) (i32.const 0))"#,
    );
    // The second is over its budget when it ends, but not by so much that its VM is not used again.
    for (cost, replaced) in [(10, 0), (60, 0), (500, 1)] {
        let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
        stream.log_cost = Duration::from_millis(cost);
        let called = probe.call(Phase::RequestHeaders, &mut slot, &mut stream);
        if replaced == 0 {
            assert_eq!(called, Ok(Decision::Continue), "{cost}");
        } else {
            let fault = called.unwrap_err();
            assert_eq!(fault.cause, Cause::Time, "{fault}");
            assert!(fault.message.contains("a host function"), "{fault}");
        }
        let status = probe.plugin.status();
        assert_eq!(status.workers[0].replacements, replaced, "{cost}");
    }
    assert_eq!(probe.said().len(), 1);
}

#[test]
fn a_panic_of_the_host_leaves_a_vm_that_is_replaced() {
    let probe = probe(
        r#"(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
          (call $say (i32.const 0) (i32.const 1)) (i32.const 0))"#,
    );
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    stream.panics = true;
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        probe.call(Phase::RequestHeaders, &mut slot, &mut stream)
    }));
    assert!(panicked.is_err());
    assert_eq!(probe.said().len(), 1);
}
