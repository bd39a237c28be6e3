//! Every golden gateway and every example is taken by the command and by the real Envoy: the static
//! form by `envoy --mode validate`, the form with files by an Envoy that serves.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use outrider_e2e::{Guest, Output, envoy, finish, free_address, module, outrider, root};
use outrider_envoy_process::{Envoy, Level, Options};
use outrider_lab::tls::Identity;
use regex::Regex;
use serde_json::Value;
use tempfile::TempDir;

/// A file, its name in messages, and the folder that has to be copied with it.
struct Golden {
    name: String,
    folder: PathBuf,
    file: PathBuf,
}

fn yaml_files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "yaml")
        })
        .collect();
    files.sort();
    files
}

/// The compiler's golden gateways, and the examples.
fn goldens() -> Vec<Golden> {
    let tests = root().join("crates/gateway/tests");
    let mut goldens: Vec<Golden> = yaml_files(&tests.join("gateways"))
        .into_iter()
        .map(|file| Golden {
            name: format!("gateways/{}", file.file_name().unwrap().display()),
            file: file.strip_prefix(&tests).unwrap().to_owned(),
            folder: tests.clone(),
        })
        .collect();
    let compiled = goldens.len();
    let mut examples: Vec<PathBuf> = fs::read_dir(root().join("examples"))
        .unwrap()
        .map(|entry| entry.unwrap().path().join("outrider.yaml"))
        .filter(|file| file.is_file())
        .collect();
    examples.sort();
    let examples = examples.into_iter().map(|file| Golden {
        name: file.strip_prefix(root()).unwrap().display().to_string(),
        file: file.strip_prefix(root()).unwrap().to_owned(),
        folder: root(),
    });
    goldens.extend(examples);
    assert!(
        compiled >= 3 && goldens.len() >= compiled + 3,
        "the goldens are elsewhere now"
    );
    goldens
}

/// A copy in which every certificate is there, and every port is free.
fn copy(golden: &Golden) -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let parts: &[&str] = if golden.folder == root() {
        &["examples", "plugins/lua", "plugins/rust"]
    } else {
        &["gateways", "plugins"]
    };
    for part in parts {
        copy_folder(&golden.folder.join(part), &folder.path().join(part));
    }
    // Built files are not kept: a guest takes the place of the module that the golden gateway has none of.
    for guard in ["plugins/guard", "gateways/plugins/guard"] {
        let guard = folder.path().join(guard);
        if guard.is_dir() {
            let module = Guest::telling("golden").module().unwrap();
            fs::write(guard.join("plugin.wasm"), module).unwrap();
        }
    }
    let file = folder.path().join(&golden.file);
    let text = fs::read_to_string(&file).unwrap();
    let address =
        Regex::new(r#"(address|admin): *"?(?:127\.0\.0\.1|0\.0\.0\.0|\[::1?\]):\d+"?"#).unwrap();
    let text = address
        .replace_all(&text, |found: &regex::Captures<'_>| {
            format!("{}: {}", &found[1], free_address().unwrap())
        })
        .into_owned();
    fs::write(&file, &text).unwrap();
    // Envoy does not make the folder of an access log.
    fs::create_dir_all(file.parent().unwrap().join("logs")).unwrap();
    let names = Regex::new(r"[\w./-]+\.(?:pem|key|crt)").unwrap();
    for line in text.lines() {
        if names.is_match(line) {
            write_certificates(file.parent().unwrap(), line, &names);
        }
    }
    (folder, file)
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// One identity for all: a certificate and its key match whatever they are called.
fn write_certificates(folder: &Path, line: &str, names: &Regex) {
    static IDENTITY: std::sync::LazyLock<Identity> = std::sync::LazyLock::new(|| {
        Identity::generate(&["localhost", "shop.example.com"]).unwrap()
    });
    for name in names.find_iter(line) {
        let file = folder.join(name.as_str());
        if file.exists() {
            continue;
        }
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let is_key = line.contains(&format!("private_key: {}", name.as_str()))
            || line.contains(&format!("private_key: \"{}", name.as_str()));
        let text = if is_key {
            &IDENTITY.private_key
        } else {
            &IDENTITY.certificate
        };
        fs::write(file, text).unwrap();
    }
}

fn module_folder() -> PathBuf {
    module().unwrap().parent().unwrap().to_owned()
}

#[test]
fn every_golden_passes_check_and_the_static_form_passes_validate() {
    for golden in goldens() {
        let (folder, file) = copy(&golden);
        let file = file.display().to_string();
        let run = outrider(folder.path(), &["check", &file], &[]).unwrap();
        assert_eq!(run.code, 0, "{}: {run}", golden.name);

        let run = outrider(folder.path(), &["render", "envoy", &file, "--static"], &[]).unwrap();
        assert_eq!(run.code, 0, "{}: {run}", golden.name);
        let rendered = folder.path().join("static.yaml");
        fs::write(&rendered, &run.stdout).unwrap();
        let mut validate = Command::new(envoy().unwrap());
        validate
            .args([
                "--mode",
                "validate",
                "--reject-unknown-dynamic-fields",
                "--config-path",
            ])
            .arg(&rendered)
            .env("ENVOY_DYNAMIC_MODULES_SEARCH_PATH", module_folder());
        let run = finish(validate).unwrap();
        assert_eq!(run.code, 0, "{}: {run}", golden.name);
        assert!(run.stdout.contains("OK"), "{}: {run}", golden.name);
    }
}

#[test]
fn the_form_with_files_serves_without_the_command() {
    for golden in goldens() {
        let (folder, file) = copy(&golden);
        let output = folder.path().join("rendered");
        let run = outrider(
            folder.path(),
            &[
                "render",
                "envoy",
                &file.display().to_string(),
                "--output",
                &output.display().to_string(),
            ],
            &[],
        )
        .unwrap();
        assert_eq!(run.code, 0, "{}: {run}", golden.name);
        let bootstrap = ["bootstrap.yaml", "bootstrap.json", "envoy.yaml"]
            .map(|name| output.join(name))
            .into_iter()
            .find(|path| path.is_file())
            .unwrap_or_else(|| panic!("{}: no bootstrap in {run}", golden.name));
        let log = Output::default();
        let sink = log.clone();
        let mut options = Options::new(envoy().unwrap(), bootstrap);
        options.concurrency = Some(1);
        options.module_folder = Some(module_folder());
        options.log_sink = Some(Box::new(move |line| {
            // Hundreds of lines say what this Envoy was built with.
            if line.level >= Level::Warning || line.component == "dynamic_modules" {
                sink.push(line.to_string());
            }
        }));
        let mut envoy = Envoy::start(options).unwrap();
        envoy
            .wait_ready(Duration::from_mins(1))
            .unwrap_or_else(|error| panic!("{}: {error}\n{}", golden.name, log.text()));
        let refused: Vec<_> = envoy
            .stats("(update_rejected|config_fail|update_failure)$")
            .unwrap()
            .into_iter()
            .filter(|(name, count)| *count > 0 && !name.starts_with("cluster."))
            .collect();
        assert!(
            refused.is_empty(),
            "{}: {refused:?}\n{}",
            golden.name,
            log.text()
        );
        let listeners = envoy.admin_get("/listeners?format=json").unwrap().body;
        let listeners: Value = serde_json::from_str(&listeners).unwrap();
        let count = listeners["listener_statuses"]
            .as_array()
            .map_or(0, Vec::len);
        assert!(
            count > 0,
            "{}: it serves nothing\n{}",
            golden.name,
            log.text()
        );
        envoy.stop(Duration::from_secs(5));
    }
}
