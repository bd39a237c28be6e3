//! The same script in Envoy's own Lua filter and in Outrider, on two listeners of one Envoy: the same
//! requests have to lead to the same.
//!
//! Each file in `scripts/` begins with what is done with it (`--@ request …`), and says whether both do the
//! same (`--@ same`) or what differs (`--@ differs …`). What is said to differ has to differ: a difference
//! that has gone must not stay in the documents. `docs/envoy-lua.md` is written from the scripts and from
//! what Envoy says its objects have; `UPDATE_DOCS=1` writes it again.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test, its helpers included, fails by panicking"
)]

mod both;
mod page;
mod script;

use std::fmt::Write as _;

use outrider_e2e::sides::Side;
use outrider_e2e::{Gateway, GatewayOptions, Scripted};
use outrider_lab::client::Request;
use outrider_lab::echo::Echo;

use both::Both;
use script::{Promise, Script};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_do_the_same_in_both() {
    let scripts = Script::all();
    assert!(scripts.len() > 60, "only {} scripts", scripts.len());
    let echo = Echo::start("echo").await.unwrap();
    let calls = Scripted::start().await.unwrap();
    let mut both = Both::start(&scripts, &echo, &calls);
    let mut wrong = String::new();
    for (index, script) in scripts.iter().enumerate() {
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for number in 0..script.requests.len() {
            for (ends, outcomes) in [(Side::Envoy, &mut theirs), (Side::Outrider, &mut ours)] {
                calls.script(script.answer.answers(3));
                outcomes.push(
                    both.outcome(index, script, ends, number, &echo, &calls)
                        .await,
                );
            }
        }
        match &script.promise {
            Promise::Same if theirs != ours => {
                writeln!(
                    wrong,
                    "--- {}: Envoy's filter\n{theirs:#?}\n--- Outrider\n{ours:#?}\n--- log\n{}",
                    script.name,
                    both.last_lines(),
                )
                .unwrap();
            }
            Promise::Differs(what) if theirs == ours => {
                writeln!(
                    wrong,
                    "--- {}: this does not differ any more: {what}",
                    script.name
                )
                .unwrap();
            }
            Promise::Same | Promise::Differs(_) => {}
        }
        both.check_running();
    }
    assert!(wrong.is_empty(), "{wrong}");
    both.stop();
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_tells_every_function_of_envoys() {
    let scripts = Script::all();
    let registered = page::registered().await;
    let page = page::render(&scripts, &registered);
    let path = outrider_e2e::root().join("docs/envoy-lua.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/envoy-lua.md is not what the tests say; write it again with UPDATE_DOCS=1 cargo test -p \
         outrider-e2e --test envoy_lua"
    );
}

/// The files that a page shows after comments `<!-- file: PATH -->`.
fn files_of(page: &str) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(outrider_e2e::root().join("docs").join(page)).unwrap();
    text.split("<!-- file: ")
        .skip(1)
        .map(|part| {
            let (path, rest) = part.split_once(" -->\n```").unwrap();
            let (_, block) = rest.split_once('\n').unwrap();
            let (block, _) = block.split_once("```").unwrap();
            (path.to_owned(), block.to_owned())
        })
        .collect()
}

/// Starts the gateway of a page with its own addresses replaced.
fn gateway_of(page: &str, echo: &Echo) -> Gateway {
    let mut files = files_of(page);
    let place = files.iter().position(|(path, _)| path == "outrider.yaml");
    let (_, yaml) = files.remove(place.unwrap());
    let listeners = "    - {name: main, address: 127.0.0.1:10000}\n";
    assert!(yaml.contains(listeners), "{yaml}");
    let yaml = yaml
        .replace(
            listeners,
            "    - {name: main, address: '{listen}'}\n  admin: '{admin}'\n",
        )
        .replace("127.0.0.1:8080", &echo.address().to_string());
    let files: Vec<(&str, &str)> = files
        .iter()
        .map(|(path, text)| (path.as_str(), text.as_str()))
        .collect();
    Gateway::start_with(&yaml, &files, GatewayOptions::default()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn example_of_envoy_lua_page_runs() {
    let echo = Echo::start("echo").await.unwrap();
    let gateway = gateway_of("envoy-lua.md", &echo);
    let response = gateway.send(Request::get("/")).await.unwrap();
    let seen = response.json();
    assert_eq!(seen["headers"]["x-greeting"][0], "hello");
    assert_eq!(seen["headers"]["x-team"][0], "blue");
    assert_eq!(response.headers.get("x-users"), Some("204"));
    gateway.stop().unwrap();
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn example_of_rider_page_runs() {
    let echo = Echo::start("echo").await.unwrap();
    let gateway = gateway_of("rider.md", &echo);
    assert_eq!(gateway.send(Request::get("/")).await.unwrap().status, 200);
    let refused = gateway.send(Request::get("/admin")).await.unwrap();
    assert_eq!((refused.status, refused.text().as_str()), (403, "not here"));
    gateway.stop().unwrap();
    echo.stop().await;
}
