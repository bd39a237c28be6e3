//! The pages, without an Envoy.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outrider_plugin_api::{Cause, Fault, Phase};
use outrider_plugin_formats::{PluginTime, Runtime};
use serde_json::json;

use super::file::{File, Refused};
use super::state::{Age, Circuit, Generation, LastFailure, Metrics, Plugin, State, Vm};
use super::{Form, GENERATIONS, PLUGINS, form, json as page, text};
use crate::registry::Registry;
use crate::tests::{ACCEPTS_ALL, document, plugin, route};

fn state() -> State {
    State {
        version: "0.0.0",
        abi: "v0".to_owned(),
        metrics: Metrics {
            used: 12,
            capacity: 4096,
        },
        file: Some(File {
            path: "/etc/outrider/gateway.yaml".to_owned(),
            refused: Some(Refused {
                at: 1_795_392_000,
                reason: "gateway.yaml:3:1: no such key\n  \u{1b}[2Jmend it".to_owned(),
            }),
        }),
        generations: vec![
            Generation {
                id: 7,
                filter: "outrider".to_owned(),
                since: "2026-11-21T09:00:00Z".to_owned(),
                age: Age::Newest,
                plugins: vec!["auth".to_owned(), "stamp".to_owned()],
                routes: 3,
                plugin_time: PluginTime::Off,
            },
            Generation {
                id: 6,
                filter: "outrider".to_owned(),
                since: "2026-11-21T08:00:00Z".to_owned(),
                age: Age::Older,
                plugins: vec!["auth".to_owned()],
                routes: 3,
                plugin_time: PluginTime::Histograms,
            },
        ],
        plugins: vec![
            Plugin {
                name: "auth".to_owned(),
                filter: "outrider".to_owned(),
                generation: 7,
                version: Some("1.2.0".to_owned()),
                digest: "sha256:abcd".to_owned(),
                runtime: Runtime::Lua,
                enabled: true,
                configurations: 2,
                calls: 1000,
                replies: 4,
                failures: BTreeMap::from([("error", 20), ("time", 1), ("memory", 0)]),
                last_failure: Some(LastFailure {
                    at: "2026-11-21T09:00:07Z".to_owned(),
                    phase: "request headers".to_owned(),
                    cause: "error",
                    message: "main.lua:3: no \u{1b}[31mkey\nGET / HTTP/1.1\u{202e}".to_owned(),
                }),
                circuits: vec![Circuit {
                    scope: "project shop, route /cart".to_owned(),
                    state: "open",
                    failures_in_window: 20,
                    openings: 1,
                    retry_at: Some("2026-11-21T09:00:08Z".to_owned()),
                    last_failure: Some("main.lua:3: no key".to_owned()),
                }],
                time_budget_ms: 20,
                memory_budget_bytes: 16 * 1024 * 1024,
                share: 20,
                vms: vec![
                    Vm {
                        worker: 0,
                        memory_bytes: Some(421_990),
                        replacements: 0,
                        trouble: None,
                    },
                    Vm {
                        worker: 1,
                        memory_bytes: None,
                        replacements: 2,
                        trouble: Some("main.lua:1: out of memory".to_owned()),
                    },
                ],
                spare_vms_memory_bytes: vec![72_351_744],
                log_lines_dropped: Some(5),
                share_waits: 7,
            },
            Plugin {
                name: "stamp".to_owned(),
                filter: "outrider".to_owned(),
                generation: 7,
                version: None,
                digest: "sha256:ef01".to_owned(),
                runtime: Runtime::Lua,
                enabled: false,
                configurations: 0,
                calls: 0,
                replies: 0,
                failures: BTreeMap::from([("error", 0)]),
                last_failure: None,
                circuits: Vec::new(),
                time_budget_ms: 5,
                memory_budget_bytes: 1_572_864,
                share: 20,
                vms: Vec::new(),
                spare_vms_memory_bytes: Vec::new(),
                log_lines_dropped: None,
                share_waits: 0,
            },
        ],
    }
}

#[test]
fn the_page_for_people() {
    insta::assert_snapshot!(text("/outrider", &state()));
}

#[test]
fn the_page_for_programs() {
    insta::assert_snapshot!(format!("{:#}", page("/outrider", &state())));
}

#[test]
fn the_other_pages_show_their_part() {
    let state = state();
    let all = text("/outrider", &state);
    for path in [GENERATIONS, PLUGINS] {
        assert!(all.contains(&text(path, &state)), "{path}");
    }
    let all = page("/outrider", &state);
    assert_eq!(page(PLUGINS, &state), json!({ "plugins": all["plugins"] }));
    assert_eq!(
        page(GENERATIONS, &state),
        json!({ "generations": all["generations"] })
    );
}

#[test]
fn a_form_is_asked_for_in_the_query() {
    assert_eq!(form(""), Ok(Form::Text));
    assert_eq!(form("format=text"), Ok(Form::Text));
    assert_eq!(form("usedonly&format=json"), Ok(Form::Json));
    assert_eq!(
        form("format=x\u{7}ml").unwrap_err(),
        "there is no format x\\u{7}ml: the formats are text and json\n"
    );
}

#[test]
fn what_others_wrote_stays_on_its_line() {
    let page = text(PLUGINS, &state());
    assert!(
        page.chars()
            .all(|character| character == '\n' || !character.is_control())
    );
    assert!(
        page.contains(r"no \u{1b}[31mkey\nGET / HTTP/1.1\u{202e}"),
        "{page}"
    );
}

#[test]
fn what_lives_is_gathered() {
    let registry = Registry::default();
    assert_eq!(State::of(&registry).generations, []);
    assert!(text("/outrider", &State::of(&registry)).contains("no generation"));

    let with = |secret: &str| {
        let more = json!({
            "enabled": true, "version": "2.0", "config": { "token": secret },
            "budgets": { "time_ms": 7, "memory_mib": 3 },
        });
        document(&[plugin("gathered", ACCEPTS_ALL, more)])
    };
    let old = registry.core("f", &with("s3cret"), 2).unwrap();
    let new = registry.core("f", &with("s4cret"), 2).unwrap();
    let routes = [
        json!({ "token": "s5cret" }),
        json!({ "token": "s5cret" }),
        json!({}),
    ]
    .map(|config| {
        let plugins = json!([{ "name": "gathered", "config": config }]);
        registry.route_config("f", &route(&plugins)).unwrap()
    });
    crate::last_faults::of("gathered").note(
        1_700_000_000_999,
        Phase::ResponseBody,
        &Fault {
            cause: Cause::Memory,
            message: "too much".to_owned(),
        },
    );
    let state = State::of(&registry);
    let ages: Vec<_> = state
        .generations
        .iter()
        .map(|one| (one.id, one.age))
        .collect();
    assert_eq!(ages, [(new.id, Age::Newest), (old.id, Age::Older)]);
    assert_eq!(state.generations[0].routes, routes.len());
    assert_eq!(state.generations[0].plugins, ["gathered"]);
    let [newest, older] = state.plugins.as_slice() else {
        panic!("{:?}", state.plugins);
    };
    assert_eq!((newest.generation, older.generation), (new.id, old.id));
    assert_eq!(newest.version.as_deref(), Some("2.0"));
    assert!(newest.digest.starts_with("sha256:"));
    // The gateway's own, that of the two routes which agree, and that of the third, which says nothing
    // but has a patch.
    assert_eq!(newest.configurations, 3);
    assert_eq!(
        (newest.time_budget_ms, newest.memory_budget_bytes),
        (7, 3 << 20)
    );
    assert_eq!(newest.vms.len(), 2);
    assert!(
        newest.vms.iter().all(|vm| vm.memory_bytes > Some(10_000)),
        "{newest:?}"
    );
    let last = newest.last_failure.as_ref().unwrap();
    assert_eq!(
        (
            last.at.as_str(),
            last.phase.as_str(),
            last.cause,
            last.message.as_str()
        ),
        (
            "2023-11-14T22:13:20Z",
            "response body",
            "memory",
            "too much"
        )
    );
    // Nothing of any configuration is on any page.
    for secret in ["s3cret", "s4cret", "s5cret", "token"] {
        assert!(!text("/outrider", &state).contains(secret));
        assert!(!page("/outrider", &state).to_string().contains(secret));
    }
    let gone = Arc::downgrade(&old);
    drop(old);
    // The page gave its own hold on it to the drop queue.
    let deadline = Instant::now() + Duration::from_secs(10);
    while gone.strong_count() > 0 {
        assert!(Instant::now() < deadline, "the page keeps a generation");
        std::thread::yield_now();
    }
    assert_eq!(State::of(&registry).generations.len(), 1);
}
