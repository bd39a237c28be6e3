use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use outrider_plugin_formats::{BodyMode, Group, PluginCode, Runtime, WasmResults};

use super::*;

fn plugin<C: AsRef<[u8]>>(files: &[(&str, C)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    folder
}

fn files(package: &PluginPackage) -> &BTreeMap<String, String> {
    match &package.code {
        PluginCode::Files(files) => files,
        PluginCode::Module(module) => panic!("{module:?}"),
    }
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
        files(&package).keys().collect::<Vec<_>>(),
        ["lib/a.lua", "linked.lua", "main.lua"]
    );
    assert_eq!(package.manifest.group, Group::Authn);
    assert_eq!(package.manifest.body.response(), BodyMode::Stream);
    assert_eq!(package.manifest.entry.as_deref(), Some("main.lua"));
    assert_eq!(package.digest, digest(files(&package)));
    assert_eq!(package.schema.unwrap()["type"], "object");
    assert_eq!(Path::new(&package.folder), folder.path());
}

#[test]
fn a_single_file() {
    let folder = plugin(&[("Add_Header.lua", "return {}\n"), ("other.lua", "x")]);
    let package = open(&folder.path().join("Add_Header.lua")).unwrap();
    assert_eq!(package.manifest.name, "add-header");
    assert_eq!(package.manifest.runtime, Runtime::Lua);
    assert_eq!(package.manifest.entry.as_deref(), Some("Add_Header.lua"));
    assert_eq!(files(&package).len(), 1);
    assert_eq!(Path::new(&package.folder), folder.path());
}

/// The smallest module there is.
const MODULE: &[u8] = b"\0asm\x01\0\0\0";
/// What `sha256sum` prints of it.
const MODULE_DIGEST: &str =
    "sha256:93a44bbb96c751218e4c00d479e4c14358122a389acca16205b1e4d0dc5f9476";

#[test]
fn a_folder_with_a_module() {
    let manifest = "name: guard\nruntime: wasm\nbudgets: {time_ms: 5}\nwasm:\n  results: relaxed\n  \
                    environment: {MODE: strict}\n  vm_configuration: {deep: [1]}\n";
    let folder = plugin(&[
        (MANIFEST, manifest.as_bytes()),
        (SCHEMA, br#"{"type": "object"}"#),
        ("plugin.wasm", MODULE),
        // None of the plugin's: what its build needs, and what that leaves behind.
        ("build/tool.lua", b"\xff"),
        ("other.wasm", b"text"),
    ]);
    let package = open(folder.path()).unwrap();
    assert_eq!(package.manifest.runtime, Runtime::Wasm);
    assert_eq!(package.manifest.entry.as_deref(), Some("plugin.wasm"));
    let budgets = package.manifest.budgets.unwrap();
    let budgets = budgets.over(outrider_plugin_formats::Budgets::of(Runtime::Wasm));
    assert_eq!((budgets.time_ms, budgets.memory_mib), (5, 64));
    let wasm = package.manifest.wasm.unwrap();
    assert_eq!(wasm.results, WasmResults::Relaxed);
    assert_eq!(wasm.environment["MODE"], "strict");
    assert_eq!(wasm.vm_configuration_bytes(), br#"{"deep":[1]}"#);
    assert_eq!(package.schema.unwrap()["type"], "object");
    assert_eq!(package.digest, MODULE_DIGEST);
    let PluginCode::Module(module) = package.code else {
        panic!("not a module");
    };
    assert_eq!(&*module.bytes, MODULE);
    assert_eq!(Path::new(&module.file), folder.path().join("plugin.wasm"));
}

#[test]
fn a_single_module() {
    let folder = plugin(&[("Add_Header.wasm", MODULE)]);
    let package = open(&folder.path().join("Add_Header.wasm")).unwrap();
    assert_eq!(package.manifest.name, "add-header");
    assert_eq!(package.manifest.runtime, Runtime::Wasm);
    assert_eq!(package.manifest.entry.as_deref(), Some("Add_Header.wasm"));
    assert_eq!(package.digest, MODULE_DIGEST);
}

#[test]
fn modules_that_cannot_be_used() {
    let of = |manifest: &str, module: Option<&[u8]>| {
        let manifest = format!("name: guard\nruntime: wasm\n{manifest}");
        let mut files: Vec<(&str, &[u8])> = vec![(MANIFEST, manifest.as_bytes())];
        files.extend(module.map(|module| ("plugin.wasm", module)));
        let folder = plugin(&files);
        told(folder.path(), folder.path())
    };
    let mut all = vec![
        of("", None),
        of("build: make plugins-rust", None),
        of("entry: out/guard.wasm\nbuild: cargo build", None),
        of("entry: ../guard.wasm", None),
        of(
            "wasm: {environment: {\"A=B\": x}, result: relaxed}",
            Some(MODULE),
        ),
        of("wasm: {environment: {\"A=B\": x}}", Some(MODULE)),
        problems(&[
            (
                MANIFEST,
                "name: a\nruntime: lua\nbuild: make\nwasm: {trace: true}\n",
            ),
            ("main.lua", "return {}"),
        ]),
    ];
    let kinds: [&[u8]; 9] = [
        b"",
        b"\0as",
        b"\0asm\x01\0",
        b"\0asm\x01\0\0\0\x01\x05\x60",
        b"\0asm\x0d\0\x01\0",
        b"\0asm\x02\0\0\0",
        b" (module)",
        b"\x1f\x8b\x08\0",
        b"#!/bin/sh",
    ];
    all.extend(kinds.map(|module| of("", Some(module))));
    let folder = plugin(&[(MANIFEST, "name: guard\nruntime: wasm\n")]);
    let outside = plugin(&[("built.wasm", MODULE)]);
    symlink(
        outside.path().join("built.wasm"),
        folder.path().join("plugin.wasm"),
    )
    .unwrap();
    let leaves = told(folder.path(), folder.path());
    all.push(leaves.replace(&outside.path().display().to_string(), "OUTSIDE"));
    insta::assert_snapshot!(all.join("\n"));
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
