//! `docs/security.md` and `docs/operations.md`: each promise names a test, or a command, that exists.

use std::fs;
use std::path::{Path, PathBuf};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// The links of a text: what is shown, and where it leads.
fn links(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split('[').skip(1).filter_map(|rest| {
        let (shown, rest) = rest.split_once("](")?;
        let (target, _) = rest.split_once(')')?;
        Some((shown, target))
    })
}

#[test]
fn every_promise_names_a_test_or_a_command_that_exists() {
    let page = fs::read_to_string(docs().join("security.md")).unwrap();
    let makefile = fs::read_to_string(docs().join("../Makefile")).unwrap();
    let (_, promises) = page.split_once("## What is promised").unwrap();
    let (promises, _) = promises.split_once("## Limits in numbers").unwrap();
    let mut count = 0;
    for row in promises.lines().filter(|line| line.starts_with("| ")) {
        let columns: Vec<_> = row.trim_matches('|').split(" | ").collect();
        let [_, evidence] = columns.as_slice() else {
            panic!("a row has a promise and what shows it: {row}")
        };
        if evidence.trim() == "shown by" {
            continue;
        }
        count += 1;
        let mut named = 0;
        for (shown, target) in links(evidence) {
            let file = docs().join(target);
            let text = fs::read_to_string(&file)
                .unwrap_or_else(|error| panic!("{}: {error}\n{row}", file.display()));
            let name = shown.trim_matches('`');
            assert!(
                target.ends_with(name) || text.contains(&format!("fn {name}(")),
                "{target} has no test `{name}`: {row}"
            );
            named += 1;
        }
        for command in evidence.split('`').filter(|part| part.starts_with("make ")) {
            let target = command.trim_start_matches("make ");
            assert!(
                makefile
                    .lines()
                    .any(|line| line.starts_with(&format!("{target}:"))),
                "the Makefile has no target {target}: {row}"
            );
            named += 1;
        }
        assert!(named > 0, "a promise without a test: {row}");
    }
    assert!(count >= 12, "{count} promises");
}

#[test]
fn tests_that_the_operations_page_names_exist() {
    let page = fs::read_to_string(docs().join("operations.md")).unwrap();
    let mut count = 0;
    for (shown, target) in links(&page) {
        let file = docs().join(target);
        let text =
            fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let name = shown.trim_matches('`');
        assert!(
            target.ends_with(name) || text.contains(&format!("fn {name}(")),
            "{target} has no test `{name}`"
        );
        count += 1;
    }
    assert!(count >= 15, "{count} links");
}
