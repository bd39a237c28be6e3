use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use outrider_plugin_formats::{BodyMode, Group, Runtime};

use super::*;

fn plugin(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    folder
}

/// The problems, one a line, with the plugin's folder as `PLUGIN`.
fn told(source: &Path, folder: &Path) -> String {
    open(source)
        .unwrap_err()
        .iter()
        .map(|problem| {
            problem
                .to_string()
                .replace(&folder.display().to_string(), "PLUGIN")
        })
        .collect::<Vec<_>>()
        .join("\n")
}

fn problems(files: &[(&str, &str)]) -> String {
    let folder = plugin(files);
    told(folder.path(), folder.path())
}

const MANIFEST_TEXT: &str = "name: example\nruntime: lua\n";

#[test]
fn the_digest_of_known_files() {
    let files = [
        ("main.lua", "return {}\n"),
        ("lib/a.lua", "local a = 'ä'\nreturn a\n"),
    ]
    .map(|(path, content)| (path.to_owned(), content.to_owned()))
    .into();
    assert_eq!(
        digest(&files),
        "sha256:af33824a40d44b1b13b9b2d121449ccce7ec8399b671f418dcf6586238cbe6e4"
    );
}

#[test]
fn a_folder() {
    let folder = plugin(&[
        (
            MANIFEST,
            "name: example\nruntime: lua\ngroup: authn\nbody: {response: stream}\n",
        ),
        (SCHEMA, r#"{"type": "object"}"#),
        ("main.lua", "return require 'lib.a'\n"),
        ("lib/a.lua", "return {}\n"),
        ("lib/.#a.lua", "half-written"),
        ("README.md", "# Example\n"),
    ]);
    // As Kubernetes mounts files.
    symlink("lib/a.lua", folder.path().join("linked.lua")).unwrap();
    let package = open(folder.path()).unwrap();
    assert_eq!(
        package.files.keys().collect::<Vec<_>>(),
        ["lib/a.lua", "linked.lua", "main.lua"]
    );
    assert_eq!(package.manifest.group, Group::Authn);
    assert_eq!(package.manifest.body.response(), BodyMode::Stream);
    assert_eq!(package.manifest.entry.as_deref(), Some("main.lua"));
    assert_eq!(package.schema.unwrap()["type"], "object");
    assert_eq!(package.digest, digest(&package.files));
    assert_eq!(Path::new(&package.folder), folder.path());
}

#[test]
fn a_single_file() {
    let folder = plugin(&[("Add_Header.lua", "return {}\n"), ("other.lua", "x")]);
    let package = open(&folder.path().join("Add_Header.lua")).unwrap();
    assert_eq!(package.manifest.name, "add-header");
    assert_eq!(package.manifest.runtime, Runtime::Lua);
    assert_eq!(package.manifest.entry.as_deref(), Some("Add_Header.lua"));
    assert_eq!(package.files.len(), 1);
    assert_eq!(Path::new(&package.folder), folder.path());
}

#[test]
fn what_is_no_plugin() {
    let folder = plugin(&[("notes.txt", "x"), ("sub/main.lua", "return {}")]);
    insta::assert_snapshot!(
        ["nowhere", "notes.txt", "sub"]
            .map(|source| told(&folder.path().join(source), folder.path()))
            .join("\n")
    );
}

#[test]
fn a_wrong_manifest() {
    insta::assert_snapshot!(
        [
            "name: Example\nruntime: lua\nentry: ../x.lua\nfailure_policy: {status: 42}\nbudgets: {time_ms: 0, memory_mib: 4096}\n",
            "name: example\nruntime: lau\n",
            "name: example\nruntime: lua\nprioritty: 3\n",
            "name: example\nname: other\nruntime: lua\n",
            "runtime: lua\n",
            "name: [\n",
            "name: example\nruntime: lua\nfailure_policy: opn\n",
        ]
        .map(|text| problems(&[(MANIFEST, text), ("main.lua", "return {}")]))
        .join("\n")
    );
}

#[test]
fn a_missing_entry() {
    insta::assert_snapshot!(
        [
            problems(&[(MANIFEST, MANIFEST_TEXT)]),
            problems(&[(MANIFEST, MANIFEST_TEXT), ("other.lua", "")]),
            problems(&[
                (MANIFEST, "name: a\nruntime: lua\nentry: scr/init.lua\n"),
                ("src/init.lua", ""),
                ("a.lua", ""),
            ]),
        ]
        .join("\n")
    );
}

#[test]
fn files_that_cannot_be_used() {
    let folder = plugin(&[
        (MANIFEST, MANIFEST_TEXT),
        (SCHEMA, "{\n  \"type\": object\n}"),
        ("main.lua", "return {}"),
        ("big.lua", &"-".repeat(1024 * 1024 + 1)),
        ("largest.lua", &"-".repeat(1024 * 1024)),
        ("sub/x.lua", ""),
    ]);
    let inside = folder.path();
    fs::write(inside.join("latin.lua"), b"-- good\n-- \xe9\n").unwrap();
    let outside = plugin(&[("secret.lua", "return 1")]);
    symlink(outside.path().join("secret.lua"), inside.join("leaves.lua")).unwrap();
    symlink("nowhere.lua", inside.join("dangling.lua")).unwrap();
    symlink(".", inside.join("ring")).unwrap();
    let told = told(inside, inside).replace(&outside.path().display().to_string(), "OUTSIDE");
    insta::assert_snapshot!(told);
}
