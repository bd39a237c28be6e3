//! `envoy.json_schema`.

use std::time::Duration;

use outrider_plugin_api::Cause;

use super::fake::{FakeStream, fault_of, logs_of, probe_with, source};

#[test]
fn documents_are_checked_and_what_is_wrong_is_told() {
    let logs = logs_of(
        r#"
        local schema = envoy.json_schema.compile({
            type = "object",
            required = { "id" },
            properties = { id = { type = "integer" }, tags = { items = { maxLength = 2 } } },
        })
        print(schema:validate('{"id": 7}'))
        local valid, messages = schema:validate('{"id": 7.5, "tags": ["a", "abc"]}')
        print(valid, #messages, messages[1], messages[2])
        print(select('#', schema:validate('{"id": 1}')), schema:validate("[]"))
        local text = envoy.json_schema.compile('{"enum": [null, 1]}')
        print(text:validate("null"), text:validate("2"))
        "#,
    );
    assert_eq!(
        logs[..2],
        [
            "true",
            "false\t2\t/id: the value is not of type \"integer\"\t/tags/1: the value is longer than 2 characters",
        ]
    );
    assert!(logs[2].starts_with("1\tfalse\ttable"), "{logs:?}");
    assert!(logs[3].starts_with("true\tfalse\ttable"), "{logs:?}");
}

#[test]
fn what_made_room_is_compiled_again() {
    let logs = logs_of(
        r#"
        local first = envoy.json_schema.compile({ type = "integer" })
        for i = 1, 300 do
            envoy.json_schema.compile({ minimum = i })
        end
        print(first:validate("1"), (first:validate("1.5")))
        "#,
    );
    assert_eq!(logs, ["true\tfalse"]);
}

#[test]
fn wrong_use_is_told_at_the_plugins_line() {
    for (call, message) in [
        (
            "envoy.json_schema.compile(7)",
            "the schema must be a table or a string of JSON, not number",
        ),
        (
            "envoy.json_schema.compile({ type = 'nothing' })",
            "this is no JSON Schema: /type: ",
        ),
        (
            "envoy.json_schema.compile({ default = print })",
            "the schema: JSON has no value for a function",
        ),
        (
            "envoy.json_schema.compile('true'):validate()",
            "the document must be a string, not nil",
        ),
        (
            "envoy.json_schema.compile('true').validate('1')",
            "validate is a method of a schema: write schema:validate(text)",
        ),
    ] {
        let fault = fault_of(call);
        assert!(
            fault
                .message
                .starts_with(&format!("probe/main.lua:3: {message}")),
            "{call}: {}",
            fault.message
        );
    }
}

#[test]
fn a_check_that_takes_long_ends_with_the_time_budget() {
    let main = r#"
        local handler, schema = {}, nil
        function handler:on_configure()
            local numbers = {}
            for i = 1, 2000 do
                numbers[i] = { const = i }
            end
            schema = envoy.json_schema.compile({ items = { anyOf = numbers } })
        end
        function handler:on_request_header()
            pcall(schema.validate, schema, "[" .. ("2000,"):rep(400000) .. "2000]")
            print("went on")
        end
        return handler
    "#;
    let mut source = source(&[("main.lua", main)]);
    source.time_budget = Duration::from_millis(100);
    source.memory_budget = 64 * 1024 * 1024;
    let probe = probe_with(source, "{}");
    let mut stream = FakeStream::new();
    let fault = probe.request(&mut stream).unwrap_err();
    assert_eq!(fault.cause, Cause::Time);
    assert_eq!(stream.logged(), [""; 0]);
}
