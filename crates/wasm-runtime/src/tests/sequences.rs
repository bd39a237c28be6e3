//! Callbacks that are called as one: a guest sees no difference.

use outrider_plugin_api::{Phase, Slot};

use super::fake::{FakeStream, Probe, guest, load, source};

/// A guest with all the callbacks of the two sequences. Each runs `what` with its own number in `$which`, and with
/// its context's in `$id`.
fn guest_with(what: &str) -> Vec<u8> {
    let callbacks = [
        (1, "proxy_on_context_create", "(param i32 i32)", ""),
        (
            2,
            "proxy_on_request_headers",
            "(param i32 i32 i32) (result i32)",
            "(i32.const 0)",
        ),
        (3, "proxy_on_log", "(param i32)", ""),
        (
            4,
            "proxy_on_done",
            "(param i32) (result i32)",
            "(i32.const 1)",
        ),
        (5, "proxy_on_delete", "(param i32)", ""),
    ];
    let callbacks = callbacks.map(|(number, name, kind, answer)| {
        format!(
            r#"(func (export "{name}") {kind}
                 (call $what (i32.const {number}) (local.get 0)) {answer})"#
        )
    });
    guest(&format!(
        r#"(data (i32.const 100) ":path")
        (data (i32.const 110) "x-new")
        (func $what (param $which i32) (param $id i32) {what})
        {}"#,
        callbacks.join("\n")
    ))
}

/// The words of the guest on one stream, from its beginning to its end.
fn said(probe: &Probe, between: &[Phase]) -> Vec<String> {
    let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
    for phase in [Phase::RequestHeaders].iter().chain(between) {
        probe.call(*phase, &mut slot, &mut stream).unwrap();
    }
    probe.call(Phase::Log, &mut slot, &mut stream).unwrap();
    assert_eq!(slot, Slot::default());
    let lines = stream.logged().into_iter();
    // What a trace adds.
    lines
        .filter(|line| !line.contains("[host") && !line.contains("[vm->host]"))
        .collect()
}

#[test]
fn a_guest_sees_no_difference() {
    // Which maps can be read and changed, whose context it is, and what an earlier callback left behind.
    let module = guest_with(
        r"(call $say_number (local.get $which))
        (call $say_number (call $get (i32.const 0) (i32.const 100) (i32.const 5) (i32.const 0) (i32.const 4)))
        (call $say_number (call $add (i32.const 0) (i32.const 110) (i32.const 5) (i32.const 100) (i32.const 5)))
        (call $say_number (call $get (i32.const 2) (i32.const 100) (i32.const 5) (i32.const 0) (i32.const 4)))
        (call $say_number (call $reply (i32.const 200) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
          (i32.const 0) (i32.const 0) (i32.const -1)))
        (drop (call $effective (i32.const 1)))
        (call $say_number (call $get (i32.const 0) (i32.const 100) (i32.const 5) (i32.const 0) (i32.const 4)))",
    );
    // No reply in the headers' callback: it would be the stream's end.
    let quiet = guest_with(
        r"(call $say_number (local.get $which))
        (call $say_number (call $add (i32.const 0) (i32.const 110) (i32.const 5) (i32.const 100) (i32.const 5)))
        (if (i32.eq (local.get $which) (i32.const 4))
          (then (drop (call $effective (i32.const 1)))))
        (call $say_number (call $get (i32.const 0) (i32.const 100) (i32.const 5) (i32.const 0) (i32.const 4)))",
    );
    for module in [module, quiet] {
        let as_one = load(source(&module), "{}").unwrap();
        let mut traced = source(&module);
        traced.options.trace = true;
        let one_by_one = load(traced, "{}").unwrap();
        let (expected, found) = (said(&one_by_one, &[]), said(&as_one, &[]));
        assert!(expected.len() > 12, "{expected:?}");
        assert_eq!(found, expected);
        let between = [Phase::ResponseHeaders, Phase::ResponseBody];
        assert_eq!(said(&as_one, &between), said(&one_by_one, &between));
    }
}

#[test]
fn a_trap_is_told_of_its_callback() {
    for (number, name, phase) in [
        (1, "proxy_on_context_create", Phase::RequestHeaders),
        (2, "proxy_on_request_headers", Phase::RequestHeaders),
        (3, "proxy_on_log", Phase::Log),
        (4, "proxy_on_done", Phase::Log),
        (5, "proxy_on_delete", Phase::Log),
    ] {
        let module = guest_with(&format!(
            // The root's context, which is 1, is none of a stream's.
            "(if (i32.and (i32.eq (local.get $which) (i32.const {number})) (i32.gt_u (local.get $id) (i32.const 1)))
               (then unreachable))"
        ));
        let probe = load(source(&module), "{}").unwrap();
        let (mut slot, mut stream) = (Slot::default(), FakeStream::new());
        let begun = probe.call(Phase::RequestHeaders, &mut slot, &mut stream);
        let fault = if phase == Phase::Log {
            begun.unwrap();
            probe.call(phase, &mut slot, &mut stream).unwrap_err()
        } else {
            begun.unwrap_err()
        };
        assert!(
            fault
                .message
                .contains(&format!(": {name}: it ended itself")),
            "{fault}"
        );
        assert!(fault.message.contains("; in what, called by"), "{fault}");
        assert!(!fault.message.contains("sequence"), "{fault}");
        probe.configured.end(slot, 0);
        assert_eq!(probe.plugin.status().workers[0].replacements, 1);
    }
}
