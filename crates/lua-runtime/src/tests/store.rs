//! `envoy.shared`: what workers have in common.

use outrider_plugin_api::{Cause, Decision, HeaderMap};

use super::fake::{FakeStream, fault_of, logs_of, on_request, probe_with, source};

#[test]
fn values_of_each_kind_are_kept() {
    let logs = logs_of(
        r#"
        local shared = envoy.shared
        print(shared.get("a"))
        shared.set("a", "text\0") print(#shared.get("a"))
        shared.set("a", 1.5) print(shared.get("a"))
        shared.set("a", false) print(shared.get("a"))
        print(shared.add("a", 1), shared.add("b", "new"), shared.get("b"))
        print(shared.incr("n"), shared.incr("n", 2), shared.incr("n", -4.5), shared.incr("m", 1, 10))
        print(shared.delete("a"), shared.delete("a"), shared.get("a"))
        print(shared.ttl("b"), shared.ttl("none"))
        "#,
    );
    assert_eq!(
        logs,
        [
            "nil",
            "5",
            "1.5",
            "false",
            "false\ttrue\tnew",
            "1\t3\t-1.5\t11",
            "true\tfalse\tnil",
            "nil\tnil",
        ]
    );
}

#[test]
fn workers_see_the_same_and_the_stream_s_clock_ends_it() {
    let probe =
        on_request("print(envoy.shared.incr('count', 1, 0, 60000), envoy.shared.ttl('count'))");
    let ask = |worker, offset| {
        let mut stream = FakeStream::new();
        stream.worker = worker;
        stream.offset = offset;
        probe.request(&mut stream).unwrap();
        stream.logged().concat()
    };
    assert_eq!(ask(0, 0), "1\t60000");
    assert_eq!(ask(1, 1000), "2\t59000");
    assert_eq!(ask(0, 59_999), "3\t1");
    assert_eq!(ask(1, 60_000), "1\t60000");
}

#[test]
fn another_plugin_sees_nothing_of_it() {
    let first = on_request("envoy.shared.set('leak', 'secret')");
    let second = on_request("print(envoy.shared.get('leak'))");
    first.request(&mut FakeStream::new()).unwrap();
    let mut stream = FakeStream::new();
    second.request(&mut stream).unwrap();
    assert_eq!(stream.logged(), ["nil"]);
}

#[test]
fn what_cannot_be_kept_raises_an_error_at_the_plugin_s_line() {
    let time = "the time to live must be a number of milliseconds above 0";
    for (call, message) in [
        ("envoy.shared.get()", "the key must be a string, not nil"),
        (
            "envoy.shared.set(1, 'x')",
            "the key must be a string, not number",
        ),
        (
            "envoy.shared.set('x', {})",
            "a shared value must be a string, a number or a boolean, not table",
        ),
        (
            "envoy.shared.add('x')",
            "a shared value must be a string, a number or a boolean, not nil",
        ),
        ("envoy.shared.set('x', 1, 0)", time),
        ("envoy.shared.add('x', 1, 'y')", time),
        ("envoy.shared.incr('x', 1, 0, 0/0)", time),
        (
            "envoy.shared.incr('x', 1/0)",
            "the amount and what it begins with must be finite numbers",
        ),
        (
            "envoy.shared.set('x', ('y'):rep(70000))",
            "the value has 70000 bytes; 65536 are allowed",
        ),
        (
            "envoy.shared.incr(('y'):rep(2000))",
            "the key has 2000 bytes; 1024 are allowed",
        ),
        (
            "envoy.shared.set('x', 'y') envoy.shared.incr('x')",
            "the value of x is not a number",
        ),
        (
            "envoy.shared.delete(nil)",
            "the key must be a string, not nil",
        ),
        ("envoy.shared.ttl(nil)", "the key must be a string, not nil"),
    ] {
        let fault = fault_of(call);
        assert_eq!(
            fault.message,
            format!("probe/main.lua:3: {message}"),
            "{call}"
        );
    }
}

#[test]
fn a_vm_that_could_not_be_replaced_is_tried_again() {
    // The plugin does not load while a shared value says so.
    let probe = probe_with(
        source(&[(
            "main.lua",
            r#"
            if envoy.shared.get("broken") then error("broken") end
            return { on_request_header = function()
                if envoy.req.get_header("x-break") then
                    envoy.shared.set("broken", true)
                    local hog = string.rep("x", 1e9)
                elseif envoy.req.get_header("x-mend") then
                    envoy.shared.delete("broken")
                end
            end }"#,
        )]),
        "{}",
    );
    let ask = |worker: usize, offset: u64, header: &str| {
        let mut stream = FakeStream::new();
        stream.worker = worker;
        stream.offset = offset;
        let request = stream.maps.get_mut(&HeaderMap::RequestHeaders).unwrap();
        request.push((header.as_bytes().to_vec(), b"1".to_vec()));
        probe.request(&mut stream)
    };
    let fault = ask(0, 0, "x-break").unwrap_err();
    assert_eq!(fault.cause, Cause::Memory);
    // The first attempt failed at once, the second one does when its time has come.
    for offset in [50, 100] {
        let fault = ask(0, offset, "x").unwrap_err();
        assert_eq!(fault.cause, Cause::Unavailable);
        assert_eq!(
            fault.message,
            "the worker's Lua VM came to its end and is not replaced yet: the last attempt to \
             make one failed: probe/main.lua:2: broken"
        );
    }
    assert_eq!(ask(1, 120, "x-mend"), Ok(Decision::Continue));
    let fault = ask(0, 299, "x").unwrap_err();
    assert_eq!(fault.cause, Cause::Unavailable, "the pause has doubled");
    assert_eq!(ask(0, 300, "x"), Ok(Decision::Continue));
    assert_eq!(ask(0, 301, "x"), Ok(Decision::Continue));
}

#[test]
fn buckets_are_taken_from_and_wrong_ones_are_refused() {
    let logs = logs_of(
        r#"
        local shared = envoy.shared
        print(shared.take("b", 2, 1000))
        print(shared.take("b", 2, 1000, 0.5))
        print(shared.take("b", 2, 1000))
        shared.set("text", "x")
        print(pcall(shared.take, "text", 1, 1))
        "#,
    );
    assert_eq!(
        logs,
        [
            "true\t1",
            "true\t0.5",
            "false\t500",
            "false\tthe value of text is not a bucket",
        ]
    );
    for (call, message) in [
        (
            "envoy.shared.take('b', 0, 1)",
            "a bucket's capacity, its interval, and what is taken must be numbers above 0",
        ),
        (
            "envoy.shared.take('b', 1, 1/0)",
            "a bucket's capacity, its interval, and what is taken must be numbers above 0",
        ),
        (
            "envoy.shared.take('b', 1, 1, 2)",
            "more is taken than the bucket holds",
        ),
        (
            "envoy.shared.take(nil, 1, 1)",
            "the key must be a string, not nil",
        ),
    ] {
        let fault = fault_of(call);
        assert_eq!(fault.message, format!("probe/main.lua:3: {message}"));
    }
}
