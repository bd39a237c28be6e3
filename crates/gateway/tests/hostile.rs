//! Whatever stands in the files, the compiler ends, and every problem has a place and a sentence.

#![expect(clippy::indexing_slicing, reason = "helpers of tests fail as tests do")]

#[path = "support/folder.rs"]
mod support;

use outrider_gateway::{Compiled, Loader, PluginPackage, Problem, compile};
use proptest::prelude::*;

/// One changed file over a folder.
struct Changed {
    folder: support::Folder,
    text: String,
}

impl Loader for Changed {
    fn read(&self, path: &str) -> Result<String, String> {
        if path == "changed.yaml" {
            Ok(self.text.clone())
        } else {
            self.folder.read(path)
        }
    }

    fn matching(&self, pattern: &str) -> Result<Vec<String>, String> {
        self.folder.matching(pattern)
    }

    fn plugin(&self, source: &str) -> Result<PluginPackage, Vec<Problem>> {
        self.folder.plugin(source)
    }

    fn is_folder(&self, _path: &str) -> bool {
        true
    }

    fn absolute(&self, path: &str) -> String {
        self.folder.absolute(path)
    }
}

/// What is done to one line.
#[derive(Debug, Clone)]
enum Change {
    Remove,
    Repeat,
    Indent,
    Cut(usize),
    Replace(&'static str),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        Just(Change::Remove),
        Just(Change::Repeat),
        Just(Change::Indent),
        (0..60usize).prop_map(Change::Cut),
        prop::sample::select(vec![
            "", "5", "~", "[]", "{}", "text", "true", "-1", "1.5", "\"", "{", "- x", "&a *a", "\t",
            "é",
        ])
        .prop_map(Change::Replace),
    ]
}

fn changed(text: &str, changes: &[(usize, Change)]) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for (place, change) in changes {
        let place = place % lines.len().max(1);
        let Some(line) = lines.get(place).cloned() else {
            continue;
        };
        match change {
            Change::Remove => {
                lines.remove(place);
            }
            Change::Repeat => lines.insert(place, line),
            Change::Indent => lines[place] = format!("  {line}"),
            Change::Cut(at) => lines[place] = line.chars().take(*at).collect(),
            Change::Replace(by) => {
                let key = line.split_once(": ").map_or("", |(key, _)| key);
                lines[place] = format!("{key}: {by}");
            }
        }
    }
    lines.join("\n")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn changed_files(
        name in prop::sample::select(vec!["full.yaml", "tls.yaml", "scopes.yaml", "minimal.yaml"]),
        changes in prop::collection::vec((0..200usize, change()), 1..5),
    ) {
        let folder = support::Folder::new("gateways");
        let text = changed(&folder.read(name).unwrap(), &changes);
        let Compiled { plan, problems, .. } = compile("changed.yaml", &Changed { folder, text: text.clone() });
        prop_assert_eq!(plan.is_none(), !problems.is_empty(), "{}", text);
        for problem in problems {
            prop_assert!(problem.line > 0 && !problem.message.is_empty(), "{}\n{}", text, problem);
            prop_assert!(problem.line <= text.lines().count().max(1) + 1 || problem.file != "changed.yaml");
        }
    }
}
