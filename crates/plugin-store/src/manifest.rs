//! `plugin.yaml`: read, and checked for what its types cannot say.

use std::ops::RangeInclusive;
use std::path::Path;

use outrider_plugin_formats::{Circuit, Manifest, Places, Problem, Runtime, WasmOptions};
use outrider_yaml::{Document, PathSegment};

const NAME_MEND: &str = "use lower-case letters, digits and hyphens, beginning with a letter";

/// A manifest and its file, for problems found later.
pub(crate) struct Located {
    pub(crate) manifest: Manifest,
    document: Document,
}

impl Located {
    /// A problem at the value that `path` leads to, or at its nearest parent that is there.
    pub(crate) fn problem(
        &self,
        path: &[&str],
        message: impl Into<String>,
        mend: impl Into<Option<String>>,
    ) -> Problem {
        let path: Vec<PathSegment> = path.iter().copied().map(PathSegment::from).collect();
        self.document
            .problem(self.document.locate(&path), message, mend)
    }

    /// Places of the manifest's values.
    pub(crate) fn places(&self) -> Places {
        self.document.places()
    }

    /// What the types of a manifest cannot say.
    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let Manifest {
            name,
            entry,
            failure_policy,
            budgets,
            circuit,
            runtime,
            build,
            wasm,
            ..
        } = &self.manifest;
        if !is_name(name) {
            problems.push(self.problem(
                &["name"],
                format!("`{name}` is not a plugin's name"),
                NAME_MEND.to_owned(),
            ));
        }
        if entry.as_deref().is_some_and(|entry| {
            Path::new(entry)
                .components()
                .any(|part| !matches!(part, std::path::Component::Normal(_)))
        }) {
            problems.push(self.problem(
                &["entry"],
                "the entry has to be inside the plugin's folder",
                "write its path relative to the folder, without `..`".to_owned(),
            ));
        }
        let mut range = |path: &[&str], value: u32, range: RangeInclusive<u32>| {
            if !range.contains(&value) {
                problems.push(self.problem(
                    path,
                    format!("{value} is out of range"),
                    format!("use a number from {} to {}", range.start(), range.end()),
                ));
            }
        };
        if let Some(policy) = failure_policy {
            range(
                &["failure_policy", "status"],
                policy.status.into(),
                200..=599,
            );
        }
        if let Some(budgets) = budgets {
            for (key, value, most) in [
                ("time_ms", budgets.time_ms, 60_000),
                ("memory_mib", budgets.memory_mib, 1024),
                ("share", budgets.share, 100),
            ] {
                if let Some(value) = value {
                    range(&["budgets", key], value, 1..=most);
                }
            }
        }
        if let Some(limits) = circuit.and_then(Circuit::limits) {
            let pauses = 1..=3_600_000;
            range(&["circuit", "failures"], limits.failures, 1..=1_000_000);
            range(&["circuit", "pause_ms"], limits.pause_ms, pauses.clone());
            range(
                &["circuit", "longest_pause_ms"],
                limits.longest_pause_ms,
                pauses,
            );
        }
        if *runtime != Runtime::Wasm {
            for (key, is_there) in [("build", build.is_some()), ("wasm", wasm.is_some())] {
                if is_there {
                    problems.push(self.problem(
                        &[key],
                        format!("`{key}` is for plugins whose runtime is `wasm`"),
                        "remove it, or set `runtime: wasm`".to_owned(),
                    ));
                }
            }
        }
        problems.extend(wasm.iter().flat_map(|wasm| self.environment_problems(wasm)));
        problems
    }

    /// What an environment cannot hold: its variables reach the guest as `NAME=value`, ended by a zero.
    fn environment_problems(&self, wasm: &WasmOptions) -> Vec<Problem> {
        let is_wrong =
            |(name, value): &(&String, &String)| !is_variable(name) || value.contains('\0');
        wasm.environment
            .iter()
            .filter(is_wrong)
            .map(|(name, _)| {
                self.problem(
                    &["wasm", "environment", name],
                    format!("`{name}` cannot be an environment variable"),
                    "use a name without `=`, and no zero bytes".to_owned(),
                )
            })
            .collect()
    }
}

/// Reads a manifest's text.
pub(crate) fn read(file: &Path, text: &str) -> Result<Located, Vec<Problem>> {
    let document = Document::parse(&file.display().to_string(), text)?;
    let manifest = document.read::<Manifest>()?;
    let located = Located { manifest, document };
    let problems = located.problems();
    if problems.is_empty() {
        Ok(located)
    } else {
        Err(problems)
    }
}

/// The manifest that a single file has.
pub(crate) fn implied(name: String, runtime: Runtime, entry: String) -> Manifest {
    Manifest {
        name,
        runtime,
        version: None,
        description: None,
        entry: Some(entry),
        group: outrider_plugin_formats::Group::default(),
        priority: 0,
        body: outrider_plugin_formats::BodyModes::default(),
        failure_policy: None,
        budgets: None,
        circuit: None,
        build: None,
        wasm: None,
    }
}

/// Whether `name` can be an environment variable's.
fn is_variable(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

/// Whether `name` can be a plugin's: lower-case letters, digits and hyphens, beginning with a letter.
pub fn is_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_lowercase())
        && name
            .chars()
            .all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-')
}

/// The nearest name to `text`: `Add_Header` is `add-header`.
pub(crate) fn name_from(text: &str) -> String {
    let name: String = text
        .chars()
        .map(|letter| {
            if letter.is_ascii_alphanumeric() {
                letter.to_ascii_lowercase()
            } else {
                '-'
            }
        })
        .collect();
    if is_name(&name) {
        name
    } else {
        format!("plugin-{}", name.trim_matches('-'))
            .trim_end_matches('-')
            .to_owned()
    }
}
