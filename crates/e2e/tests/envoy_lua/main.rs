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

use outrider_e2e::Scripted;
use outrider_e2e::sides::Side;
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
