//! What Envoy's own Wasm filter does with a guest: the oracle for ours. Scripts in
//! `crates/wasm-runtime/guests/scripts` say what the probe beside them calls in which callback; what came of it
//! (responses, requests to upstreams, log lines, the order of callbacks) is kept in `guests/outcomes`, and compared with
//! what the stock Envoy does now. The same guest and the same script in Outrider, on a second listener of the same Envoy,
//! have to do the same; where they do not, [`differences::DIFFERENCES`] says why, and `differences.txt` has the lines.
//! `docs/proxy-wasm-support.md` is written from the scripts and that table. `UPDATE_DOCS=1` writes all of it again.
//!
//! The trap: lines are compared after what varies from run to run (addresses, dates) is taken out of them; a script that
//! reports anything else that varies has to say `size` in front of it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test, its helpers included, fails by panicking"
)]

mod both;
#[path = "../../../wasm-runtime/guests/building.rs"]
mod building;
mod differences;
mod outcomes;
mod page;
mod script;

use std::time::{Duration, Instant};

use outrider_e2e::Scripted;
use outrider_e2e::sides::Side;
use outrider_lab::echo::Echo;

use both::{Both, Case, Sides};
use outcomes::Outcomes;
use script::{Script, Setting};

/// How many cases one Envoy has: each of them is several VMs of V8's.
const AT_ONCE: usize = 40;

/// Every script with every version of the ABI that it is for.
fn cases(scripts: Vec<Script>) -> Vec<Case> {
    scripts
        .into_iter()
        .flat_map(|script| {
            let abis = script.abis.clone();
            abis.into_iter().map(move |abi| Case {
                script: script.clone(),
                abi,
            })
        })
        .collect()
}

/// What was done with a case, request by request.
async fn run(
    both: &Both,
    index: usize,
    case: &Case,
    side: Side,
    echo: &Echo,
    calls: &Scripted,
) -> Vec<String> {
    let mut lines = Vec::new();
    for number in 0..case.script.requests.len() {
        calls.script(case.script.answer.answers(2));
        lines.push(format!("--- request {}", number + 1));
        lines.extend(both.outcome(index, case, side, number, echo, calls).await);
    }
    lines
}

/// Lines of one side only, those of both left out but for the one before.
fn difference(theirs: &[String], ours: &[String]) -> Vec<String> {
    // The longest common subsequence, from behind.
    let mut lengths = vec![vec![0_usize; ours.len() + 1]; theirs.len() + 1];
    for (one, their) in theirs.iter().enumerate().rev() {
        for (other, our) in ours.iter().enumerate().rev() {
            lengths[one][other] = if their == our {
                lengths[one + 1][other + 1] + 1
            } else {
                lengths[one + 1][other].max(lengths[one][other + 1])
            };
        }
    }
    let mut lines = Vec::new();
    let mut context: Option<&String> = None;
    let (mut one, mut other) = (0, 0);
    while one < theirs.len() || other < ours.len() {
        if one < theirs.len() && other < ours.len() && theirs[one] == ours[other] {
            context = Some(&theirs[one]);
            (one, other) = (one + 1, other + 1);
            continue;
        }
        lines.extend(context.take().map(|line| format!("  {line}")));
        let is_theirs = other == ours.len()
            || (one < theirs.len() && lengths[one + 1][other] >= lengths[one][other + 1]);
        if is_theirs {
            lines.push(format!("- {}", theirs[one]));
            one += 1;
        } else {
            lines.push(format!("+ {}", ours[other]));
            other += 1;
        }
    }
    lines
}

/// The scripts whose names begin as `$ONLY_SCRIPT` says, for who works on one of them; all without it.
fn wanted(name: &str) -> bool {
    std::env::var("ONLY_SCRIPT").map_or(true, |beginning| name.starts_with(&beginning))
}

/// The cases in groups of which each has an Envoy of its own; those that look at every level apart.
fn groups(sides: Sides) -> Vec<Vec<Case>> {
    let scripts = Script::all()
        .into_iter()
        .filter(|script| wanted(&script.name))
        .filter(|script| sides == Sides::Both || !script.has(Setting::BreaksEnvoy))
        .collect();
    let (levels, plain): (Vec<Case>, Vec<Case>) = cases(scripts)
        .into_iter()
        .partition(|case| case.script.has(Setting::AllLevels));
    let chunks = |cases: &[Case]| -> Vec<Vec<Case>> {
        cases.chunks(AT_ONCE).map(<[Case]>::to_vec).collect()
    };
    [chunks(&plain), chunks(&levels)].concat()
}

/// What the two sides do with every case; where there is only one, the other does nothing.
async fn outcomes(sides: Sides) -> (Outcomes, Outcomes) {
    let echo = Echo::start("echo").await.unwrap();
    let calls = Scripted::start().await.unwrap();
    let (mut theirs, mut ours) = (Outcomes::new(), Outcomes::new());
    for group in groups(sides) {
        let mut both = Both::start(&group, sides, &echo, &calls).unwrap();
        for (index, case) in group.iter().enumerate() {
            let lines = if case.script.has(Setting::BreaksEnvoy) {
                vec!["Envoy ends, or hangs".to_owned()]
            } else {
                run(&both, index, case, Side::Envoy, &echo, &calls).await
            };
            theirs.insert(case.name(), lines);
            if sides == Sides::Both {
                let lines = run(&both, index, case, Side::Outrider, &echo, &calls).await;
                ours.insert(case.name(), lines);
            }
            if let Err(error) = both.check_running() {
                panic!("{}: {error:#}", case.name());
            }
        }
        both.stop();
    }
    echo.stop().await;
    (theirs, ours)
}

/// Whether what is kept is to be written anew: only where every script was run.
fn is_to_be_kept() -> bool {
    std::env::var_os("UPDATE_DOCS").is_some() && std::env::var_os("ONLY_SCRIPT").is_none()
}

/// What is kept of Envoy's own filter is what it does: the oracle has not changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoys_filter_does_what_is_kept_of_it() {
    let (now, _) = outcomes(Sides::OnlyEnvoy).await;
    if is_to_be_kept() {
        outcomes::keep(&now);
    }
    let mut kept = outcomes::kept();
    kept.retain(|case, _| wanted(case));
    let changed = changes(&kept, &now);
    assert!(
        changed.is_empty(),
        "Envoy's filter does not do what is kept of it (-) but (+); where that is right: UPDATE_DOCS=1 cargo test -p \
         outrider-e2e --test wasm_oracle. {changed:#?}"
    );
}

/// What differs, case by case; what only one of them has differs in all lines.
fn changes(theirs: &Outcomes, ours: &Outcomes) -> Outcomes {
    let nothing = Vec::new();
    theirs
        .keys()
        .chain(ours.keys())
        .map(|case| {
            let theirs = theirs.get(case).unwrap_or(&nothing);
            let ours = ours.get(case).unwrap_or(&nothing);
            (case.clone(), difference(theirs, ours))
        })
        .filter(|(_, lines)| !lines.is_empty())
        .collect()
}

/// What is said to break Envoy with its own filter has to do so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_that_break_envoys_filter_do() {
    let echo = Echo::start("echo").await.unwrap();
    let calls = Scripted::start().await.unwrap();
    let mut broken = 0;
    for script in Script::all() {
        if !script.has(Setting::BreaksEnvoy) {
            continue;
        }
        broken += 1;
        let case = Case {
            script,
            abi: "0.2.1",
        };
        let only = [case.clone()];
        let mut both = Both::start(&only, Sides::OnlyEnvoy, &echo, &calls).unwrap();
        let sent = case.script.requests.first().unwrap();
        let target = both.target(0, &case, Side::Envoy, sent.protocol);
        let answer = target
            .send(sent.request.clone().timeout(Duration::from_secs(2)))
            .await;
        let began = Instant::now();
        let mut has_ended = false;
        while !has_ended && began.elapsed() < Duration::from_secs(2) {
            has_ended = both.check_running().is_err();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(
            has_ended || answer.is_err(),
            "{}: Envoy answers, and goes on: {answer:?}",
            case.script.name
        );
    }
    assert!(broken > 3, "only {broken} such scripts");
    echo.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outrider_does_the_same_but_for_what_is_listed() {
    let (theirs, ours) = outcomes(Sides::Both).await;
    let now = changes(&theirs, &ours);
    if is_to_be_kept() {
        differences::keep(&now);
    }
    let mut kept = differences::kept();
    kept.retain(|case, _| wanted(case));
    let mut changed = changes(&kept, &now);
    // The end of an upstream's response comes with its last part or after it, by chance.
    changed.retain(|_, lines| {
        lines.iter().any(|line| {
            !line.starts_with("  ")
                && !line.contains("Info stream response_body(")
                && !line.contains("Info stream response_headers(")
        })
    });
    assert!(
        changed.is_empty(),
        "what differs is not what is kept in differences.txt (-) but (+); where that is right: UPDATE_DOCS=1 cargo test -p \
         outrider-e2e --test wasm_oracle, and read the difference. {changed:#?}"
    );
}

#[test]
fn the_page_tells_every_function() {
    let page = page::render(&Script::all(), &differences::kept());
    let path = outrider_e2e::root().join("docs/proxy-wasm-support.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/proxy-wasm-support.md is not what the tests say; write it again with UPDATE_DOCS=1 cargo test -p \
         outrider-e2e --test wasm_oracle, twice where the comparison has changed"
    );
}
