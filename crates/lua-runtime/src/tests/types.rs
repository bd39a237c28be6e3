//! The annotations for editors name every function of the SDK, with its parameters.

use std::collections::BTreeSet;

use super::fake::{FakeStream, on_request, probe};

/// What is in the SDK in tests only, or belongs to scripts of Rider.
pub(super) fn is_of_tests(line: &str) -> bool {
    let name = line.split('(').next().unwrap_or_default();
    [
        "envoy.trace_start",
        "envoy.trace_report",
        "envoy.trace_methods",
        "envoy.sdk_functions",
        "envoy.sdk_names",
        "envoy.builtin_name",
        "envoy.builtins_left",
    ]
    .contains(&name)
}

/// The functions that the annotations declare: `envoy.x.y(a, b)`.
fn declared() -> BTreeSet<String> {
    let mut declared = BTreeSet::new();
    for line in crate::TYPES.lines() {
        let Some(function) = line
            .strip_prefix("function ")
            .and_then(|line| line.strip_suffix(" end"))
        else {
            continue;
        };
        if let Some(method) = function.strip_prefix("message.") {
            declared.insert(format!("envoy.req.{method}"));
            declared.insert(format!("envoy.resp.{method}"));
        } else if function.starts_with("envoy.") {
            declared.insert(function.to_owned());
        }
    }
    declared
}

#[test]
fn annotations_name_every_function_with_its_parameters() {
    let mut stream = FakeStream::new();
    on_request("envoy.sdk_functions()")
        .request(&mut stream)
        .unwrap();
    let running: BTreeSet<String> = stream
        .logged()
        .into_iter()
        .filter(|line| !is_of_tests(line))
        .collect();
    let declared = declared();
    let missing: Vec<_> = running.difference(&declared).collect();
    let gone: Vec<_> = declared.difference(&running).collect();
    assert!(
        missing.is_empty() && gone.is_empty(),
        "crates/lua-runtime/types/outrider.lua lacks {missing:#?} and has too much {gone:#?}"
    );
}

#[test]
fn annotations_are_lua() {
    let quoted = format!("[==[{}]==]", crate::TYPES);
    let mut stream = FakeStream::new();
    on_request(&format!("assert(load({quoted}, 'types'))"))
        .request(&mut stream)
        .unwrap();
}

/// The page lists what Envoy's own objects have.
#[test]
fn annotations_name_every_function_of_envoys_handle() {
    let page = include_str!("../../../../docs/envoy-lua.md");
    for function in page
        .lines()
        .filter(|line| !line.contains("**not supported**"))
        .flat_map(|line| line.split('`'))
        .filter_map(|text| text.strip_prefix("handle:")?.strip_suffix("()"))
    {
        assert!(
            crate::TYPES.contains(&format!("function Handle:{function}("))
                || crate::TYPES.contains(&format!("function Object:{function}(")),
            "types/outrider.lua has no handle:{function}()"
        );
    }
    let methods = crate::TYPES.lines().filter_map(|line| {
        let method = line.strip_prefix("function Handle:")?;
        Some(method.split('(').next().unwrap_or_default())
    });
    let checks: Vec<String> = methods
        .map(|method| format!("assert(type(handle.{method}) == 'function', '{method}')"))
        .collect();
    let checks = checks.join("\n");
    probe(&format!("function envoy_on_request(handle)\n{checks}\nend"))
        .request(&mut FakeStream::new())
        .unwrap();
}
