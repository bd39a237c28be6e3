//! Calls of every host function that were found to be answered differently, and what each of them is answered,
//! for each version of the ABI: `guests/corpus`, a file for each function.
//!
//! A line is a call's arguments, `=`, and what the callbacks of one stream were answered one after the other
//! (request headers, request body, log, done, delete), or `trap`. Where the versions differ, there are three such
//! lists with `|` between them. `make fuzz` tries random arguments, and adds those that are answered as no other
//! ones were; `UPDATE_CORPUS=1` writes the answers again.
//!
//! The trap: one VM of each version gets all calls in order, as they are listed, so that numbers it has been given
//! mean something later. An answer may change when a line is put before it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use super::callers::{Functions, arguments, exchange, functions, leaping, module};
use super::fake::{Probe, load, source};
use crate::abi::Version;

/// A call in the corpus.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    /// The function's position.
    function: usize,
    arguments: Vec<i64>,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("guests/corpus")
}

/// `wasi_unstable` has the same functions behind it.
fn is_listed(module: &str) -> bool {
    module != "wasi_unstable"
}

/// So many probes there were: what they have shared is not there for the next one.
static PROBES: AtomicU64 = AtomicU64::new(0);

fn probe(functions: &Functions, version: Version) -> Probe {
    let mut source = source(&module(functions, version));
    source.clock = leaping();
    let number = PROBES.fetch_add(1, Ordering::Relaxed);
    source.options.vm_id = format!("corpus {number}");
    load(source, "{}").unwrap()
}

/// What a call is answered, in a few words.
fn answers(functions: &Functions, probe: &Probe, entry: &Entry) -> String {
    let (_, name, _) = &functions[entry.function];
    let came_to = exchange(probe, entry.function, &entry.arguments);
    let list: Vec<String> = came_to.answers.iter().map(ToString::to_string).collect();
    match came_to.fault {
        Some(_) => "trap".to_owned(),
        // Queues, and the numbers of shared values, are the process's, and so those of other tests.
        None if name.contains("_shared_") => format!("{} answers", list.len()),
        None => list.join(" "),
    }
}

/// The corpus, with what is recorded.
fn read(functions: &Functions) -> Vec<(Entry, String)> {
    let mut corpus = Vec::new();
    for (function, (module, name, parameters)) in functions.iter().enumerate() {
        if !is_listed(module) {
            continue;
        }
        let text = fs::read_to_string(folder().join(format!("{name}.txt"))).unwrap_or_default();
        for line in text.lines() {
            let (arguments, recorded) = line.split_once('=').unwrap();
            let arguments: Vec<i64> = arguments
                .split_whitespace()
                .map(|argument| argument.parse().unwrap())
                .collect();
            assert_eq!(arguments.len(), parameters.len(), "{name}: {line}");
            let entry = Entry {
                function,
                arguments,
            };
            corpus.push((entry, recorded.trim().to_owned()));
        }
    }
    corpus
}

/// What each call is answered now.
fn record(functions: &Functions, entries: &[Entry]) -> Vec<String> {
    let probes = Version::ALL.map(|version| probe(functions, version));
    entries
        .iter()
        .map(|entry| {
            let [first, second, third] = probes
                .each_ref()
                .map(|probe| answers(functions, probe, entry));
            if first == second && second == third {
                first
            } else {
                format!("{first} | {second} | {third}")
            }
        })
        .collect()
}

fn write(functions: &Functions, entries: &[Entry]) {
    fs::create_dir_all(folder()).unwrap();
    let recorded = record(functions, entries);
    for (function, (module, name, _)) in functions.iter().enumerate() {
        if !is_listed(module) {
            continue;
        }
        let mut text = String::new();
        for (entry, recorded) in entries.iter().zip(&recorded) {
            if entry.function == function {
                for argument in &entry.arguments {
                    write!(text, "{argument} ").unwrap();
                }
                writeln!(text, "= {recorded}").unwrap();
            }
        }
        fs::write(folder().join(format!("{name}.txt")), text).unwrap();
    }
}

#[test]
fn calls_are_answered_as_recorded() {
    let functions = functions();
    let corpus = read(&functions);
    let entries: Vec<Entry> = corpus.iter().map(|(entry, _)| entry.clone()).collect();
    for (function, (module, name, _)) in functions.iter().enumerate() {
        let is_called = entries.iter().any(|entry| entry.function == function);
        assert!(
            !is_listed(module) || is_called,
            "no call of {name} is recorded"
        );
    }
    if std::env::var_os("UPDATE_CORPUS").is_some() {
        write(&functions, &entries);
        return;
    }
    let now = record(&functions, &entries);
    let mut told = String::new();
    for ((entry, recorded), now) in corpus.iter().zip(&now) {
        if recorded != now {
            let (_, name, _) = &functions[entry.function];
            writeln!(told, "{name} {:?}: {now}, not {recorded}", entry.arguments).unwrap();
        }
    }
    assert!(
        told.is_empty(),
        "{told}where that is right: UPDATE_CORPUS=1 cargo test -p outrider-wasm-runtime corpus"
    );
}

/// How long to look, in seconds.
fn seconds() -> u64 {
    std::env::var("FUZZ_SECONDS").map_or(60, |text| text.parse().unwrap())
}

#[test]
#[ignore = "it takes as long as one wants: make fuzz"]
fn fuzz() {
    let functions = functions();
    let mut entries: Vec<Entry> = read(&functions)
        .into_iter()
        .map(|(entry, _)| entry)
        .collect();
    let probe = probe(&functions, Version::V0_2_1);
    let mut seen: BTreeSet<(usize, String)> = entries
        .iter()
        .map(|entry| (entry.function, answers(&functions, &probe, entry)))
        .collect();
    // Random bytes over the guest's own memory are answered by chance.
    let is_tried = |module: &str, name: &str| is_listed(module) && name != "random_get";
    let listed: Vec<usize> = (0..functions.len())
        .filter(|function| is_tried(&functions[*function].0, &functions[*function].1))
        .collect();
    let (mut runner, strategy) = (TestRunner::default(), arguments());
    let (mut tried, mut found) = (0_u64, 0);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(seconds()) {
        for function in &listed {
            let (_, name, parameters) = &functions[*function];
            let mut arguments = strategy.new_tree(&mut runner).unwrap().current();
            arguments.truncate(parameters.len());
            let entry = Entry {
                function: *function,
                arguments,
            };
            let answered = answers(&functions, &probe, &entry);
            tried += 1;
            assert!(
                answered != "trap" || name == "proc_exit",
                "{name} {:?}: the guest fails instead of being told",
                entry.arguments
            );
            if seen.insert((*function, answered)) {
                found += 1;
                entries.push(entry);
            }
        }
    }
    println!(
        "{tried} calls tried, {found} of them answered as none before, {} in the corpus",
        entries.len()
    );
    entries.sort_by_key(|entry| entry.function);
    write(&functions, &entries);
}
