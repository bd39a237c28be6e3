//! What is missing or in the way around the gateway: one clear sentence, and exit code 3.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use outrider_e2e::{Run, free_address, outrider};
use outrider_lab::tls::Identity;
use tempfile::TempDir;

const GATEWAY: &str = "gateway:
  listeners:
    - name: main
      address: LISTEN
projects:
  - name: shop
    hosts: ['*']
    routes: [{match: {prefix: /}, respond: {status: 200}}]
";

/// Runs `outrider up` where it has to fail. The sentence is the one line that begins with `error:`.
fn up(folder: &Path, yaml: &str, variables: &[(&str, &str)]) -> (Run, String) {
    fs::write(folder.join("outrider.yaml"), yaml).unwrap();
    let run = outrider(folder, &["up", "outrider.yaml"], variables).unwrap();
    let errors: Vec<&str> = run
        .stderr
        .lines()
        .filter(|line| line.starts_with("error:"))
        .collect();
    let [sentence] = errors.as_slice() else {
        panic!("not one sentence: {run}");
    };
    let sentence = (*sentence).to_owned();
    (run, sentence)
}

fn yaml() -> String {
    GATEWAY.replace("LISTEN", &free_address().unwrap().to_string())
}

fn script(folder: &Path, name: &str, code: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{code}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.display().to_string()
}

#[test]
fn no_envoy() {
    let folder = TempDir::new().unwrap();
    let missing = folder.path().join("nothing").display().to_string();
    let (run, sentence) = up(folder.path(), &yaml(), &[("OUTRIDER_ENVOY", &missing)]);
    assert_eq!(run.code, 3, "{run}");
    assert_eq!(sentence, format!("error: there is no Envoy at {missing}"));
}

#[test]
fn an_envoy_of_a_wrong_version() {
    let folder = TempDir::new().unwrap();
    let version = "0123456789012345678901234567890123456789/1.31.2/Clean/RELEASE/BoringSSL";
    let old = script(
        folder.path(),
        "envoy",
        &format!("echo; echo 'envoy  version: {version}'"),
    );
    let (run, sentence) = up(folder.path(), &yaml(), &[("OUTRIDER_ENVOY", &old)]);
    assert_eq!(run.code, 3, "{run}");
    for part in ["1.31.2", "1.40.0 or later", "outrider envoy install"] {
        assert!(sentence.contains(part), "{sentence}");
    }
}

#[test]
fn something_that_is_no_envoy() {
    let folder = TempDir::new().unwrap();
    let other = script(folder.path(), "envoy", "echo hello");
    let (run, sentence) = up(folder.path(), &yaml(), &[("OUTRIDER_ENVOY", &other)]);
    assert_eq!(run.code, 3, "{run}");
    assert!(sentence.contains("is not an Envoy"), "{sentence}");
}

#[test]
fn no_module() {
    let folder = TempDir::new().unwrap();
    let missing = folder.path().join("nothing.so").display().to_string();
    let (run, sentence) = up(folder.path(), &yaml(), &[("OUTRIDER_MODULE", &missing)]);
    assert_eq!(run.code, 3, "{run}");
    assert_eq!(sentence, format!("error: there is no module at {missing}"));
}

#[test]
fn a_module_that_is_none() {
    let folder = TempDir::new().unwrap();
    let text = folder.path().join("liboutrider.so");
    fs::write(&text, "this is no library").unwrap();
    let text = text.display().to_string();
    let (run, sentence) = up(folder.path(), &yaml(), &[("OUTRIDER_MODULE", &text)]);
    assert_eq!(run.code, 3, "{run}");
    assert!(
        sentence.contains("Envoy cannot load Outrider's module"),
        "{sentence}"
    );
}

#[test]
fn a_port_in_use() {
    let folder = TempDir::new().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let yaml = GATEWAY.replace("LISTEN", &address.to_string());
    let (run, sentence) = up(folder.path(), &yaml, &[]);
    assert_eq!(run.code, 3, "{run}");
    assert!(
        sentence.starts_with("error: outrider.yaml:4:"),
        "{sentence}"
    );
    assert!(
        sentence.contains(&format!("{address} is in use by another process")),
        "{sentence}"
    );
}

#[test]
fn bad_tls_files() {
    let folder = TempDir::new().unwrap();
    let identity = Identity::generate(&["localhost"]).unwrap();
    let other = Identity::generate(&["localhost"]).unwrap();
    let path = folder.path();
    fs::write(path.join("good.pem"), &identity.certificate).unwrap();
    fs::write(path.join("good.key"), &identity.private_key).unwrap();
    fs::write(path.join("other.key"), &other.private_key).unwrap();
    fs::write(path.join("text.pem"), "no certificate").unwrap();
    for (certificate, key, names) in [
        ("text.pem", "good.key", "text.pem"),
        ("good.pem", "text.pem", "text.pem"),
        ("missing.pem", "good.key", "missing.pem"),
        ("good.pem", "other.key", "key"),
        ("good.pem", "good.key, client_ca: text.pem", "text.pem"),
        // It looks like a PEM file, and Envoy finds no certificate in it.
        ("good.pem", "good.key, client_ca: other.key", "other.key"),
    ] {
        let tls =
            format!("      tls: {{certificate: {certificate}, private_key: {key}}}\nprojects:");
        let yaml = yaml().replace("projects:", &tls);
        fs::write(path.join("outrider.yaml"), &yaml).unwrap();
        let run = outrider(path, &["up", "outrider.yaml"], &[]).unwrap();
        assert!(run.code == 1 || run.code == 3, "{certificate} {key}: {run}");
        let told = format!("{}{}", run.stdout, run.stderr);
        assert!(
            told.contains("outrider.yaml:5:"),
            "{certificate} {key} has no place: {run}"
        );
        assert!(told.contains(names), "{certificate} {key}: {run}");
    }
}

#[test]
fn wrong_use_of_the_command_line() {
    let folder = TempDir::new().unwrap();
    for arguments in [&["upp"][..], &["up"], &["up", "a.yaml", "--no-such-option"]] {
        let run = outrider(folder.path(), arguments, &[]).unwrap();
        assert_eq!(run.code, 2, "{arguments:?}: {run}");
        assert!(run.stderr.contains("error:"), "{run}");
    }
    let run = outrider(folder.path(), &["up", "missing.yaml"], &[]).unwrap();
    assert_eq!(run.code, 1, "{run}");
    assert!(run.stderr.contains("missing.yaml"), "{run}");
}
