//! Generations and routes, without an Envoy.

mod places;

use std::sync::Arc;

use outrider_plugin_api::Chain;
use serde_json::{Value, json};

use crate::document::Refusal;
use crate::registry::Registry;
use crate::route::Route;

pub(crate) const ACCEPTS_ALL: &str = "local handler = { version = 'v2' }\n\
    function handler:on_request_header() end\nreturn handler";

const WANTS_KEY: &str = "local handler = { version = 'v2' }\n\
    function handler:on_configure(config)\n  if not config.key then error('key is missing') end\nend\n\
    function handler:on_request_header() end\nreturn handler";

pub(crate) fn plugin(name: &str, code: &str, more: Value) -> Value {
    let files = std::collections::BTreeMap::from([("main.lua".to_owned(), code.to_owned())]);
    let mut plugin = json!({
        "name": name, "runtime": "lua", "entry": "main.lua", "enabled": true,
        "digest": crate::source::digest(&files), "source": { "inline": files },
    });
    if let (Value::Object(plugin), Value::Object(more)) = (&mut plugin, more) {
        plugin.extend(more);
    }
    plugin
}

pub(crate) fn document(plugins: &[Value]) -> Vec<u8> {
    json!({ "format": 1, "plugins": plugins })
        .to_string()
        .into_bytes()
}

pub(crate) fn route(plugins: &Value) -> Vec<u8> {
    json!({ "format": 1, "scope": "route r", "plugins": plugins })
        .to_string()
        .into_bytes()
}

fn names(chain: &Chain) -> Vec<String> {
    chain
        .links()
        .iter()
        .map(|link| link.name.to_string())
        .collect()
}

fn ready(chain: &Chain) -> Vec<bool> {
    chain
        .links()
        .iter()
        .map(|link| link.plugin.is_some())
        .collect()
}

fn texts(refusals: &[Refusal]) -> String {
    refusals
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

fn as_route(route: &outrider_envoy_abi::RouteConfig) -> &Route {
    route.downcast_ref::<Route>().unwrap()
}

#[test]
fn a_chain_is_ordered_by_group_then_priority_then_name() {
    let registry = Registry::default();
    let core = registry
        .core(
            "f",
            &document(&[
                plugin(
                    "z",
                    ACCEPTS_ALL,
                    json!({ "group": "transform", "priority": 5 }),
                ),
                plugin("b", ACCEPTS_ALL, json!({ "group": "authz" })),
                plugin("a", ACCEPTS_ALL, json!({ "group": "authz" })),
                plugin(
                    "late",
                    ACCEPTS_ALL,
                    json!({ "group": "observe", "priority": 99 }),
                ),
                plugin(
                    "first",
                    ACCEPTS_ALL,
                    json!({ "group": "authn", "priority": -3 }),
                ),
                plugin(
                    "y",
                    ACCEPTS_ALL,
                    json!({ "group": "transform", "priority": 6 }),
                ),
                plugin("off", ACCEPTS_ALL, json!({ "enabled": false })),
            ]),
            1,
        )
        .unwrap();
    assert_eq!(names(&core.base()), ["first", "a", "b", "y", "z", "late"]);
}

#[test]
fn everything_that_is_wrong_is_told_at_once() {
    let registry = Registry::default();
    let mut tampered = plugin("tampered", ACCEPTS_ALL, json!({}));
    tampered["digest"] = json!("sha256:00");
    let refusals = registry
        .core(
            "f",
            &document(&[
                plugin("broken", "local = 1", json!({})),
                plugin("picky", WANTS_KEY, json!({})),
                plugin(
                    "typed",
                    ACCEPTS_ALL,
                    json!({
                        "schema": { "type": "object", "properties": { "n": { "type": "integer" } } },
                        "config": { "n": "three" },
                    }),
                ),
                tampered,
            ]),
            1,
        )
        .unwrap_err();
    let texts = texts(&refusals);
    for part in [
        "main.lua:1:",
        "key is missing",
        "/n: \"three\" is not of type",
        "has the digest sha256:",
    ] {
        assert!(texts.contains(part), "{part:?} is not in\n{texts}");
    }
    assert_eq!(refusals.len(), 4, "{texts}");
}

#[test]
fn documents_of_another_form_are_refused() {
    let registry = Registry::default();
    let wrong = |document: &[u8]| texts(&registry.core("f", document, 1).unwrap_err());
    assert!(wrong(b"{").contains("not in the form"));
    assert!(wrong(br#"{"format": 2}"#).contains("is in format 2"));
    assert!(wrong(br#"{"format": 1, "plugin": []}"#).contains("unknown field `plugin`"));
}

#[test]
fn a_route_changes_switches_and_adds() {
    let registry = Registry::default();
    let core = registry
        .core(
            "f",
            &document(&[
                plugin("one", ACCEPTS_ALL, json!({})),
                plugin("two", WANTS_KEY, json!({ "enabled": false })),
                plugin("three", ACCEPTS_ALL, json!({})),
            ]),
            1,
        )
        .unwrap();
    let made = registry
        .route_config(
            "f",
            &route(&json!([
                { "name": "one", "enabled": false },
                { "name": "two", "enabled": true, "config": { "key": 1 } },
            ])),
        )
        .unwrap();
    let chain = as_route(&made).chain(&core);
    assert_eq!(names(&chain), ["three", "two"]);
    assert_eq!(ready(&chain), [true, true]);
    assert_eq!(names(&core.base()), ["one", "three"]);

    let refused = registry
        .route_config("f", &route(&json!([{ "name": "two", "enabled": true }])))
        .unwrap_err();
    assert!(texts(&refused).contains("key is missing"));
    let refused = registry
        .route_config("f", &route(&json!([{ "name": "four", "enabled": true }])))
        .unwrap_err();
    assert!(texts(&refused).contains("route r uses plugin four"));
}

#[test]
fn routes_that_come_first_get_their_chains_when_the_generation_comes() {
    let registry = Registry::default();
    let early = registry
        .route_config(
            "f",
            &route(&json!([{ "name": "one", "enabled": true, "config": { "key": 1 } }])),
        )
        .unwrap();
    let broken = registry
        .route_config("f", &route(&json!([{ "name": "one", "enabled": true }])))
        .unwrap();
    let core = registry
        .core(
            "f",
            &document(&[plugin("one", WANTS_KEY, json!({ "enabled": false }))]),
            1,
        )
        .unwrap();
    assert_eq!(ready(&as_route(&early).chain(&core)), [true]);
    assert_eq!(
        ready(&as_route(&broken).chain(&core)),
        [false],
        "it fails by its policy"
    );
}

#[test]
fn a_route_that_new_code_refuses_keeps_its_old_chain() {
    let registry = Registry::default();
    let old = registry
        .core(
            "f",
            &document(&[plugin("one", ACCEPTS_ALL, json!({ "enabled": false }))]),
            1,
        )
        .unwrap();
    let made = registry
        .route_config("f", &route(&json!([{ "name": "one", "enabled": true }])))
        .unwrap();
    let old_chain = as_route(&made).chain(&old);
    let new = registry
        .core(
            "f",
            &document(&[plugin("one", WANTS_KEY, json!({ "enabled": false }))]),
            1,
        )
        .unwrap();
    assert!(Arc::ptr_eq(&old_chain, &as_route(&made).chain(&new)));
    drop(old);
    assert!(
        Arc::ptr_eq(&old_chain, &as_route(&made).chain(&new)),
        "also when the old generation is gone"
    );
}

#[test]
fn the_same_code_is_loaded_once_and_dropped_with_its_last_generation() {
    let registry = Registry::default();
    let with = |config: Value| document(&[plugin("one", ACCEPTS_ALL, json!({ "config": config }))]);
    let first = registry.core("f", &with(json!({ "n": 1 })), 2).unwrap();
    let again = registry.core("f", &with(json!({ "n": 1 })), 2).unwrap();
    assert!(
        Arc::ptr_eq(&first, &again),
        "the same document is the same generation"
    );
    let mixed = with(json!({ "m": { "x": 1, "y": 2 }, "n": 1 }));
    let one = registry.core("f", &mixed, 2).unwrap();
    let other = with(json!({ "n": 1, "m": { "y": 2, "x": 1 } }));
    assert_ne!(mixed, other);
    assert!(
        Arc::ptr_eq(&one, &registry.core("f", &other, 2).unwrap()),
        "the order of keys is not the document's"
    );
    drop(one);
    let second = registry.core("f", &with(json!({ "n": 2 })), 2).unwrap();
    assert_eq!(registry.living_code().len(), 1);
    let made = registry
        .route_config(
            "f",
            &route(&json!([{ "name": "one", "config": { "m": 1 } }])),
        )
        .unwrap();
    drop((first, again, second));
    assert_eq!(
        registry.living_code().len(),
        0,
        "a route's chains go with their generations"
    );
    drop(made);
}

#[test]
fn reporting_headers_of_check_and_of_the_chain_are_the_same() {
    assert_eq!(
        outrider_plugin_api::framing::REPORTING_HEADERS,
        outrider_plugin_formats::REPORTING_HEADERS
    );
}
