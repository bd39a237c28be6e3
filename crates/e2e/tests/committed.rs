//! The repository's content: no run folder, no link out of the tree, and no path of the machine that
//! a file was written on. A file that breaks one of these works on one machine only.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use outrider_e2e::root;
use regex::bytes::Regex;

/// Mode of a symbolic link in git's index.
const LINK_MODE: &str = "120000";

/// A file in git's index.
struct Committed {
    path: PathBuf,
    is_link: bool,
}

/// Returns every file in git's index.
fn committed() -> Vec<Committed> {
    let output = Command::new("git")
        .args(["ls-files", "--stage", "-z"])
        .current_dir(root())
        .output()
        .unwrap_or_else(|error| panic!("this test reads the committed files from git: {error}"));
    assert!(
        output.status.success(),
        "`git ls-files` failed; run this test in a clone: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let listing = String::from_utf8(output.stdout).unwrap();
    let files: Vec<Committed> = listing
        .split_terminator('\0')
        .map(|entry| {
            let (meta, path) = entry.split_once('\t').unwrap();
            Committed {
                path: PathBuf::from(path),
                is_link: meta.starts_with(LINK_MODE),
            }
        })
        .collect();
    assert!(files.len() > 100, "only {} committed files", files.len());
    files
}

/// Matches an absolute path below a folder that differs from machine to machine, and the folders
/// in which build tools keep their own state.
fn machine_path() -> Regex {
    let user = r"/(?:root|Users)/[A-Za-z0-9_.-]";
    let home = r"/home/[A-Za-z0-9_.-]+/";
    let scratch =
        r"/(?:tmp|var/tmp|private/tmp)/[A-Za-z0-9_.-]*(?:tmp|outrider|target)[A-Za-z0-9_.-]*/";
    let checkout = r"/work/[A-Za-z0-9_.-]+/";
    Regex::new(&format!(
        r#"(?:^|[\s"'=:(`])(?:{user}|{home}|{scratch}|{checkout})"#
    ))
    .unwrap()
}

fn is_in_run_folder(path: &Path) -> bool {
    path.components()
        .any(|part| part.as_os_str() == ".outrider" || part.as_os_str() == ".envoy")
}

/// Returns why a link is refused, or `None` if it leads to a file of the repository.
fn link_problem(path: &Path) -> Option<String> {
    let target = fs::read_link(root().join(path)).unwrap();
    if target.is_absolute() {
        return Some(format!(
            "{} is an absolute link to {}",
            path.display(),
            target.display()
        ));
    }
    let mut depth = path.components().count() - 1;
    for part in target.components() {
        let Some(next) = (if part == Component::ParentDir {
            depth.checked_sub(1)
        } else {
            Some(depth + 1)
        }) else {
            return Some(format!("{} leads out of the repository", path.display()));
        };
        depth = next;
    }
    let leads_nowhere = !root().join(path).exists();
    leads_nowhere.then(|| {
        format!(
            "{} is a dangling link to {}",
            path.display(),
            target.display()
        )
    })
}

#[test]
fn committed_links_are_relative_and_lead_to_files() {
    let problems: Vec<String> = committed()
        .iter()
        .filter(|file| file.is_link)
        .filter_map(|file| link_problem(&file.path))
        .collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn run_folders_are_not_committed() {
    let found: Vec<PathBuf> = committed()
        .into_iter()
        .map(|file| file.path)
        .filter(|path| is_in_run_folder(path))
        .collect();
    assert!(found.is_empty(), "git rm --cached these: {found:?}");
}

#[test]
fn run_folders_are_ignored_at_every_depth() {
    for path in [".outrider/x", "examples/wasm/.outrider/x", "a/b/.envoy/x"] {
        let status = Command::new("git")
            .args(["check-ignore", "--quiet", "--no-index", path])
            .current_dir(root())
            .status()
            .unwrap();
        assert!(status.success(), ".gitignore does not cover {path}");
    }
}

#[test]
fn committed_files_name_no_path_of_a_machine() {
    let pattern = machine_path();
    let mut problems = Vec::new();
    for file in committed().iter().filter(|file| !file.is_link) {
        // A deleted file stays in the index until the deletion is staged.
        let Ok(content) = fs::read(root().join(&file.path)) else {
            continue;
        };
        for (number, line) in content.split(|byte| *byte == b'\n').enumerate() {
            if let Some(found) = pattern.find(line) {
                problems.push(format!(
                    "{}:{}: {}",
                    file.path.display(),
                    number + 1,
                    String::from_utf8_lossy(found.as_bytes())
                ));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn machine_path_pattern_finds_homes_and_scratch_folders() {
    let pattern = machine_path();
    let slash = "/";
    for path in [
        format!("\"{slash}root/project"),
        format!("link {slash}home/eric/x"),
        format!("'{slash}tmp/.tmpAbC123/liboutrider.so"),
        format!("={slash}work/main/crates"),
    ] {
        assert!(pattern.is_match(path.as_bytes()), "{path}");
    }
    for path in [
        "/tmp/x",
        "/home",
        "GET /root HTTP/1.1",
        "/workers/1/x",
        "a/work/main/b",
    ] {
        assert!(!pattern.is_match(path.as_bytes()), "{path}");
    }
}
