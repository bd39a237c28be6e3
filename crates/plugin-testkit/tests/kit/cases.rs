//! Cases as data: what is wrong with a file is told with its place, and what came out differently is
//! told so that one can mend it.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::scripted::Build;
use outrider_plugin_api::{
    Call, ConfiguredPlugin, Decision, HeaderMap, Interest, LoadError, Metrics, Plugin,
    PluginStatus, Reply, ScopedConfig, Slot, Stream,
};
use outrider_plugin_formats::{Places, PluginCode, PluginPackage};
use outrider_plugin_testkit::{
    Arrival, Case, LoadedPlugin, load_cases, read_cases, run_case, run_cases,
};
use serde_json::{Value, json};

fn problems(text: &str) -> String {
    let problems = read_cases("cases.yaml", text).unwrap_err();
    problems
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn a_file_is_one_case_or_a_list() {
    let one = "name: a\nexpect: {details: x}";
    assert_eq!(read_cases("f", one).unwrap().len(), 1);
    let list = "- name: a\n  expect: {details: x}\n- name: b\n  refused: no\n";
    let cases = read_cases("f", list).unwrap();
    assert_eq!(cases.len(), 2);
    assert_eq!(cases.last().unwrap().line, 3);
}

#[test]
fn what_is_wrong_with_a_file_is_told() {
    let texts = [
        "[]",
        "- name: never fails\n  request: {path: /}\n",
        "- name: a\n  expcet: {details: x}\n- name: b\n  expect: {response: {stauts: 200}}\n",
        "- name: a\n  expect: {details: x}\n- name: a\n  expect: {details: x}\n",
        "- name: a\n  refused: no\n  expect: {details: x}\n",
        "- name: a\n  request: {body: x, chunks: [y]}\n  expect: {details: x}\n",
        "- name: a\n  request: {body: x, trailers: {a: b}}\n  expect: {details: x}\n",
        "- name: a\n  expect: {upstream_request: nothing}\n",
        "- name: a\n  body_limit: 64\n  expect: {details: x}\n",
        "- name: a\n  expect: {response: {headers: {retry-after: 120}}}\n",
        "- name: a\n  callouts: [{expect: {upstream: b}, answer: {failure: broken}}]\n  expect: {details: x}\n",
    ];
    let told = texts.map(|text| format!("{text}=> {}", problems(text)));
    insta::assert_snapshot!(told.join("\n\n"));
}

#[test]
fn a_folder_without_cases_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let problems = load_cases(folder.path()).unwrap_err();
    assert!(
        problems
            .first()
            .unwrap()
            .to_string()
            .contains("there are no cases")
    );
    fs::write(folder.path().join("b.yaml"), "name: b\nrefused: x").unwrap();
    fs::write(folder.path().join("a.yaml"), "name: a\nrefused: x").unwrap();
    let names: Vec<_> = load_cases(folder.path())
        .unwrap()
        .into_iter()
        .map(|case| case.name)
        .collect();
    assert_eq!(names, ["a", "b"]);
    let problems = load_cases(&folder.path().join("nowhere")).unwrap_err();
    assert!(
        problems
            .first()
            .unwrap()
            .to_string()
            .contains("this folder is not there")
    );
}

/// Sets the header that its configuration names, and answers where that says a status.
#[derive(Debug)]
struct Setting;

impl Plugin for Setting {
    fn status(&self) -> PluginStatus {
        PluginStatus::default()
    }

    fn interest(&self) -> Interest {
        Interest {
            request_headers: true,
            ..Interest::default()
        }
    }

    fn configure(
        &self,
        config: &ScopedConfig,
        _metrics: &mut dyn Metrics,
    ) -> Result<Arc<dyn ConfiguredPlugin>, LoadError> {
        let config: Value = serde_json::from_str(&config.effective).unwrap();
        let name = config["set"].as_str().map(str::to_owned);
        if name.as_deref() == Some("bad") {
            return Err(LoadError {
                plugin: "setting".into(),
                message: "`bad` is no header".into(),
            });
        }
        let status = config["status"].as_u64();
        let on_call = move |_: &mut Slot, _: Call, stream: &mut dyn Stream| {
            if let Some(name) = &name {
                stream
                    .set_header(HeaderMap::RequestHeaders, name.as_bytes(), b"set")
                    .unwrap();
            }
            Ok(match status {
                None => Decision::Continue,
                Some(status) => Decision::Reply(Box::new(Reply {
                    status: u16::try_from(status).unwrap(),
                    ..Reply::default()
                })),
            })
        };
        Ok(Arc::new(
            Build::new("setting", self.interest(), on_call).plugin(),
        ))
    }
}

fn setting() -> LoadedPlugin {
    let schema = json!({
        "type": "object",
        "additionalProperties": false,
        "properties": {"set": {"type": "string"}, "status": {"type": "integer"}},
    });
    LoadedPlugin::new("setting", |_| Ok(Arc::new(Setting)))
        .with_schema(&schema)
        .unwrap()
}

fn case(text: &str) -> Case {
    read_cases("cases.yaml", text).unwrap().remove(0)
}

fn outcome(text: &str) -> String {
    run_case(&setting(), &case(text)).to_string()
}

#[test]
fn right_cases_are_right() {
    for text in [
        "{name: a, config: {set: x-a}, expect: {upstream_request: {headers: {x-a: set, x-b: null}}}}",
        "{name: a, config: {set: x-a}, route_config: {set: null}, expect: {upstream_request: {headers: {x-a: null}}}}",
        "{name: a, config: {status: 403}, expect: {upstream_request: none, response: {status: 403}, details: outrider.setting}}",
        "{name: a, config: {set: bad}, refused: is no header}",
        "{name: a, config: {sett: x}, refused: sett}",
        "{name: a, request: {chunks: [a, b]}, upstream: {body: c}, expect: {upstream_request: {method: POST, body: ab}, response: {body_contains: c}}}",
        "{name: a, upstream: {body: '{\"b\": [1.0, null], \"a\": 19.99}'}, expect: {response: {body_json: {a: 19.99, b: [1, null]}}}}",
    ] {
        assert!(
            run_case(&setting(), &case(text)).is_right(),
            "{}",
            outcome(text)
        );
    }
}

#[test]
fn what_came_out_differently_is_told() {
    let texts = [
        "{name: a, config: {set: x-a}, expect: {upstream_request: {method: PUT, headers: {x-a: [b, c], x-n: d, host: null}, body: b}, response: {status: 404, body_contains: x}, delay_ms: 5, log: [hello], details: d, fault: broken}}",
        "{name: a, config: {status: 403}, expect: {upstream_request: {path: /}}}",
        "{name: a, upstream: {body: '{\"a\": [1]}'}, expect: {response: {body_json: {a: [2]}}}}",
        "{name: a, expect: {upstream_request: none}}",
        "{name: a, config: {set: bad}, expect: {details: x}}",
        "{name: a, refused: no}",
        "{name: a, config: {set: 1}, refused: no header}",
        "{name: a, steps: [{expect: {response: {status: 200}}}, {callouts: [{expect: {upstream: auth}}], expect: {response: {status: 201}}}]}",
    ];
    let told = texts.map(|text| format!("{text}\n=> {}", outcome(text)));
    insta::assert_snapshot!(told.join("\n\n"));
}

#[test]
fn results_have_the_order_of_the_cases() {
    let cases: Vec<_> = (0..100)
        .map(|number| {
            case(&format!(
                "{{name: c{number}, expect: {{response: {{status: {}}}}}}}",
                200 + number % 2
            ))
        })
        .collect();
    let results = run_cases(&setting(), &cases);
    assert_eq!(results.len(), 100);
    for (number, result) in results.iter().enumerate() {
        assert_eq!(result.name, format!("c{number}"));
        assert_eq!(result.is_right(), number % 2 == 0);
    }
    assert!(run_cases(&setting(), &[]).is_empty());
}

/// How often a case is run: once for each way in which what it sends can arrive.
#[test]
fn only_bodies_can_arrive_in_several_ways() {
    let runs = |text: &str| {
        let loads = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&loads);
        let plugin = LoadedPlugin::new("setting", move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
            Ok(Arc::new(Setting))
        });
        run_case(&plugin, &case(text));
        loads.load(Ordering::Relaxed)
    };
    assert_eq!(runs("{name: a, refused: x}"), 1);
    assert_eq!(runs("{name: a, expect: {response: {status: 200}}}"), 1);
    for message in [
        "request: {body: x}",
        "request: {chunks: [x]}",
        "upstream: {body: x}",
        "upstream: {chunks: [x], trailers: {a: b}}",
    ] {
        let text = format!("{{name: a, {message}, expect: {{response: {{status: 200}}}}}}");
        assert_eq!(runs(&text), Arrival::ALL.len(), "{text}");
        let text = format!(
            "{{name: a, steps: [{{expect: {{response: {{status: 200}}}}}}, {{{message}, expect: {{response: {{status: 200}}}}}}]}}"
        );
        assert_eq!(runs(&text), Arrival::ALL.len(), "{text}");
    }
}

#[test]
fn a_difference_of_one_way_names_it() {
    let code = "return { version = 'v2', on_response_body = function(_, last)
      if last and envoy.resp.get_body() == '' then envoy.resp.set_body('!') end
    end }";
    let manifest = json!({"name": "marking", "runtime": "lua", "body": "stream"});
    let plugin = LoadedPlugin::from_package(&PluginPackage {
        manifest: serde_json::from_value(manifest).unwrap(),
        places: Places::default(),
        digest: String::new(),
        code: PluginCode::Files([("main.lua".to_owned(), code.to_owned())].into()),
        schema: None,
        folder: "marking".to_owned(),
    })
    .unwrap();
    let case = case("{name: a, upstream: {chunks: [b]}, expect: {response: {body: b}}}");
    insta::assert_snapshot!(run_case(&plugin, &case).to_string());
}
