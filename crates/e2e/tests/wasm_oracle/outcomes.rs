//! What is kept of the oracle's answers: a file for each script, with a part for each version of the ABI.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

/// Lines by case: `script (version of the ABI)`.
pub(crate) type Outcomes = BTreeMap<String, Vec<String>>;

fn folder() -> PathBuf {
    outrider_e2e::root().join("crates/wasm-runtime/guests/outcomes")
}

/// What is kept.
pub(crate) fn kept() -> Outcomes {
    let mut outcomes = Outcomes::new();
    for entry in fs::read_dir(folder()).unwrap() {
        let mut case = String::new();
        for line in fs::read_to_string(entry.unwrap().path()).unwrap().lines() {
            if let Some(name) = line.strip_prefix("## ") {
                name.clone_into(&mut case);
                outcomes.insert(case.clone(), Vec::new());
            } else if let Some(lines) = outcomes.get_mut(&case) {
                lines.push(line.to_owned());
            }
        }
    }
    outcomes
}

/// Keeps all of it anew.
pub(crate) fn keep(outcomes: &Outcomes) {
    let folder = folder();
    fs::create_dir_all(&folder).unwrap();
    for entry in fs::read_dir(&folder).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let mut files: BTreeMap<&str, String> = BTreeMap::new();
    for (case, lines) in outcomes {
        let script = case.split(' ').next().unwrap();
        let text = files.entry(script).or_default();
        write!(text, "## {case}\n{}\n", lines.join("\n")).unwrap();
    }
    for (script, text) in files {
        fs::write(folder.join(format!("{script}.txt")), text).unwrap();
    }
}
