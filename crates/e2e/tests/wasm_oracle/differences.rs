//! What differs from Envoy's own Wasm filter: the reasons, and exactly which lines (`differences.txt`, written by the
//! comparison and read by the page).

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::outcomes::Outcomes;

/// Scripts that do not do the same in both, and why. A name ends with `*` for all scripts that begin so.
pub(crate) const DIFFERENCES: &[(&[&str], &str)] = &[];

/// What differs in many scripts, and is taken out of what is compared.
pub(crate) const EVERYWHERE: &[&str] = &[
    "Envoy sends `x-forwarded-for` with the callouts of a module, and not with those of its own Wasm filter.",
    "How a failure is told in the log is each one's own: Outrider's line names plugin, phase, callback and cause.",
    "Envoy configures a plugin in three VMs on one worker (a trial, the main thread's, the worker's), Outrider in two.",
];

/// By case (`script (version of the ABI)`): lines of Envoy's with `-`, of Outrider's with `+`, and the line before with
/// two spaces.
pub(crate) type Differing = Outcomes;

/// Whether a name of [`DIFFERENCES`] stands for a script.
pub(crate) fn stands_for(name: &str, script: &str) -> bool {
    name.strip_suffix('*')
        .map_or(name == script, |beginning| script.starts_with(beginning))
}

/// The script of a case's name.
pub(crate) fn script_of(case: &str) -> &str {
    case.split(' ').next().unwrap_or(case)
}

fn path() -> PathBuf {
    outrider_e2e::root().join("crates/e2e/tests/wasm_oracle/differences.txt")
}

/// What is kept of the last comparison.
pub(crate) fn kept() -> Differing {
    let mut differing = Differing::new();
    let mut case = String::new();
    for line in std::fs::read_to_string(path()).unwrap_or_default().lines() {
        if let Some(name) = line.strip_prefix("## ") {
            name.clone_into(&mut case);
            differing.insert(case.clone(), Vec::new());
        } else if let Some(lines) = differing.get_mut(&case)
            && !line.is_empty()
        {
            lines.push(line.to_owned());
        }
    }
    differing
}

/// Keeps what a whole comparison has shown.
pub(crate) fn keep(differing: &Differing) {
    let mut text =
        "What differs between Envoy's Wasm filter (-) and Outrider (+), script by script.\n"
            .to_owned();
    for (case, lines) in differing {
        write!(text, "\n## {case}\n{}\n", lines.join("\n")).unwrap();
    }
    std::fs::write(path(), text).unwrap();
}
