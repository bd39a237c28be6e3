//! Every case of every plugin in the catalog, replayed on the real Envoy over HTTP/1.1 and HTTP/2. The
//! same files run without Envoy in `plugin-testkit`; what they say has to be true of both.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;

use outrider_e2e::{command, envoy, module, root};
use outrider_lab::Protocol;
use outrider_plugin_replay::{Outcome, Subject, Tools, replay};
use outrider_plugin_store as plugin_store;
use outrider_plugin_testkit::load_cases;
use serde_json::json;

/// Every plugin with its cases.
fn subjects() -> Vec<Subject> {
    let folder = root().join("plugins/lua");
    let mut plugins: Vec<String> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    plugins.sort();
    let subjects: Vec<Subject> = plugins
        .into_iter()
        .map(|plugin| Subject {
            folder: folder.join(&plugin),
            cases: load_cases(&folder.join(&plugin).join("cases"))
                .unwrap_or_else(|problems| panic!("{problems:#?}")),
            budgets: json!(
                plugin_store::open(&folder.join(&plugin))
                    .unwrap()
                    .manifest
                    .budgets
            ),
            plugin,
            unfit: BTreeSet::new(),
        })
        .collect();
    let cases: usize = subjects.iter().map(|subject| subject.cases.len()).sum();
    assert!(cases >= 350, "only {cases} cases; are they all there?");
    subjects
}

fn replay_all(protocol: Protocol) {
    let subjects = subjects();
    let tools = Tools {
        outrider: command().unwrap(),
        envoy: Some(envoy().unwrap()),
        module: Some(module().unwrap()),
    };
    let outcomes = replay(&subjects, protocol, &tools).unwrap();
    let (mut told, mut wrong, mut not_replayed) = (String::new(), 0, Vec::new());
    for (subject, outcomes) in subjects.iter().zip(outcomes) {
        for (case, outcome) in subject.cases.iter().zip(outcomes) {
            match outcome {
                Outcome::Replayed(differences) if differences.is_empty() => {}
                Outcome::Replayed(differences) => {
                    wrong += 1;
                    writeln!(told, "{}:{}: {}", case.file, case.line, case.name).unwrap();
                    for difference in differences {
                        writeln!(told, "  {difference}").unwrap();
                    }
                }
                Outcome::NotReplayed(_) => not_replayed.push(case.name.as_str()),
            }
        }
    }
    assert_eq!(
        wrong, 0,
        "{wrong} cases came out differently on {protocol}:\n{told}"
    );
    // All others have to run.
    assert_eq!(
        not_replayed,
        [
            "in a sliding window, the time before counts by its share",
            "after a full window, a sliding one lets requests pass little by little",
        ]
    );
}

#[test]
fn every_case_over_http1() {
    replay_all(Protocol::Http1);
}

#[test]
fn every_case_over_http2() {
    replay_all(Protocol::Http2);
}
