//! Built-in plugins, and plugins in registries, as the command's users meet them.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "../../plugin-registry/tests/support/registry.rs"]
#[expect(dead_code, reason = "the registry's own tests use more of it")]
mod registry;
#[path = "../../plugin-registry/tests/support/server.rs"]
#[expect(dead_code, reason = "the registry's own tests use more of it")]
mod server;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use registry::Registry;

fn outrider(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_outrider"))
        .current_dir(folder)
        .args(arguments)
        .env_remove("CLICOLOR_FORCE")
        .env("COLUMNS", "100")
        .env("OUTRIDER_PLUGIN_CACHE", folder.join("cache"))
        .env("DOCKER_CONFIG", folder.join("no-docker"))
        .output()
        .unwrap()
}

/// Exit code and both outputs, as one text.
fn told(output: &Output) -> String {
    format!(
        "exit code {}\n{}{}",
        output.status.code().unwrap(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Runs the command, which has to end well, and returns what it printed.
fn done(folder: &Path, arguments: &[&str]) -> String {
    let output = outrider(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", told(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the command, which has to end with this code, and returns all that it printed.
fn fails(folder: &Path, code: i32, arguments: &[&str]) -> String {
    let output = outrider(folder, arguments);
    assert_eq!(
        output.status.code(),
        Some(code),
        "{arguments:?}: {}",
        told(&output)
    );
    told(&output)
}

const ROUTES: &str = "
projects:
  - name: shop
    hosts: ['*']
    routes:
      - {match: {prefix: /}, to: sessions}
upstreams:
  sessions: {endpoints: ['127.0.0.1:9']}
";

/// A gateway that uses the plugin `waf` of this source.
fn gateway(source: &str, more: &str) -> String {
    format!(
        "gateway:\n  listeners: [{{address: '127.0.0.1:0'}}]\n  use: [{{plugin: waf, config: {{origins: ['*']}}}}]\n\
         plugins:\n  waf: {{source: '{source}'}}\n{more}{ROUTES}"
    )
}

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../plugin-registry/testdata")
        .join(name)
}

#[test]
fn help_of_distribution() {
    let folder = tempfile::tempdir().unwrap();
    for command in [
        "list", "info", "update", "build", "strip", "push", "pull", "inspect", "sign", "verify",
    ] {
        let text = done(folder.path(), &["plugin", command, "--help"]);
        insta::assert_snapshot!(format!("help_plugin_{command}"), text);
    }
}

#[test]
fn list_names_all_builtin_plugins() {
    let folder = tempfile::tempdir().unwrap();
    insta::assert_snapshot!(done(folder.path(), &["plugin", "list"]));
    let list: Value =
        serde_json::from_str(&done(folder.path(), &["plugin", "list", "--json"])).unwrap();
    let plugins = list["plugins"].as_array().unwrap();
    let cors = plugins
        .iter()
        .find(|plugin| plugin["name"] == "cors")
        .unwrap();
    assert_eq!(cors["source"], "builtin:cors");
    assert_eq!(cors["language"], "Lua");
}

#[test]
fn info_shows_configuration_example_and_readme() {
    let folder = tempfile::tempdir().unwrap();
    let text = done(folder.path(), &["plugin", "info", "request-id"]);
    let (before, _) = text.split_once("README\n").unwrap();
    insta::assert_snapshot!(before);
    assert!(text.contains("# request-id"), "{text}");
    let error = fails(folder.path(), 1, &["plugin", "info", "request-ids"]);
    assert!(
        error.contains("did you mean `builtin:request-id`?"),
        "{error}"
    );
}

/// What `info` prints as an example is accepted as it is.
#[test]
fn examples_of_all_builtin_plugins_pass_check() {
    let folder = tempfile::tempdir().unwrap();
    let list: Value =
        serde_json::from_str(&done(folder.path(), &["plugin", "list", "--json"])).unwrap();
    let mut files = Vec::new();
    for plugin in list["plugins"].as_array().unwrap() {
        let name = plugin["name"].as_str().unwrap();
        let example = done(folder.path(), &["plugin", "info", name, "--example"]);
        let file = format!("{name}.yaml");
        fs::write(folder.path().join(&file), format!("{example}{ROUTES}")).unwrap();
        files.push(file);
    }
    let mut arguments = vec!["check"];
    arguments.extend(files.iter().map(String::as_str));
    done(folder.path(), &arguments);
}

#[test]
fn builtin_source_works_with_check_explain_and_render() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("gateway.yaml"), gateway("builtin:cors", "")).unwrap();
    done(path, &["check", "gateway.yaml"]);
    let text = done(path, &["explain", "gateway.yaml", "http://shop.test/"]);
    assert!(text.contains("waf"), "{text}");
    let text = done(path, &["render", "envoy", "gateway.yaml", "--static"]);
    assert!(
        text.contains("access-control-allow-origin"),
        "the code is not inside"
    );
    fs::write(path.join("gateway.yaml"), gateway("builtin:cros", "")).unwrap();
    let error = fails(path, 1, &["check", "gateway.yaml"]);
    assert!(
        error.contains("gateway.yaml:5:17: there is no built-in plugin `cros`"),
        "{error}"
    );
    assert!(error.contains("did you mean `builtin:cors`?"), "{error}");
}

/// A folder with a Lua plugin of this version.
fn plugin(folder: &Path, version: &str) {
    let _ = fs::remove_dir_all(folder.join("waf"));
    fs::create_dir_all(folder.join("waf/lib")).unwrap();
    let manifest = format!("name: waf\nruntime: lua\nversion: {version}\n");
    for (name, text) in [
        ("plugin.yaml", manifest.as_str()),
        ("config.schema.json", "{\"type\": \"object\"}\n"),
        ("README.md", "# WAF\n"),
        ("LICENSE", "Apache-2.0\n"),
        ("main.lua", "return require 'lib.waf'\n"),
        (
            "lib/waf.lua",
            "return {version = 'v2', on_request_header = function() end}\n",
        ),
    ] {
        fs::write(folder.join("waf").join(name), text).unwrap();
    }
}

#[test]
fn plugin_is_pushed_pinned_updated_and_served_offline() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let registry = Registry::start();
    let image = format!("oci://{}/waf:1.0", registry.host());
    plugin(path, "1.0.0");
    let first: Value =
        serde_json::from_str(&done(path, &["plugin", "push", "waf", &image, "--json"])).unwrap();
    let dry = done(
        path,
        &["plugin", "push", "waf", &image, "--json", "--dry-run"],
    );
    let dry: Value = serde_json::from_str(&dry).unwrap();
    assert_eq!(first["digest"], dry["digest"]);
    let first = first["digest"].as_str().unwrap().to_owned();
    fs::write(path.join("gateway.yaml"), gateway(&image, "")).unwrap();
    done(path, &["check", "gateway.yaml"]);

    let text = done(path, &["plugin", "update", "gateway.yaml"]);
    assert!(
        text.contains(&format!("added     {image}  {first} (1.0.0)")),
        "{text}"
    );
    let lock = fs::read_to_string(path.join("outrider.lock")).unwrap();
    assert!(
        lock.contains(&format!("\"{image}\": \"{first}\"")),
        "{lock}"
    );
    let text = done(path, &["plugin", "update", "gateway.yaml"]);
    assert!(text.contains("up to date"), "{text}");

    // The tag moves; the lock file holds.
    plugin(path, "1.1.0");
    done(path, &["plugin", "push", "waf", &image]);
    let text = done(path, &["render", "envoy", "gateway.yaml", "--static"]);
    assert!(
        text.contains("1.0.0") && !text.contains("1.1.0"),
        "the lock file does not hold"
    );
    let text = fails(path, 1, &["plugin", "update", "gateway.yaml", "--check"]);
    assert!(
        text.contains("(1.0.0) -> sha256:") && text.contains("(1.1.0)"),
        "{text}"
    );
    assert_eq!(
        fs::read_to_string(path.join("outrider.lock")).unwrap(),
        lock
    );
    done(path, &["plugin", "update", "gateway.yaml"]);
    let text = done(path, &["render", "envoy", "gateway.yaml", "--static"]);
    assert!(text.contains("1.1.0"), "{text}");

    // Without the registry, from the store.
    drop(registry);
    done(path, &["check", "gateway.yaml", "--offline"]);
    done(path, &["check", "gateway.yaml"]);
    fs::remove_dir_all(path.join("cache")).unwrap();
    let error = fails(path, 1, &["check", "gateway.yaml", "--offline"]);
    assert!(
        error.contains("gateway.yaml:5:17") && error.contains("--offline"),
        "{error}"
    );
    // A failed update leaves the lock file.
    let lock = fs::read_to_string(path.join("outrider.lock")).unwrap();
    let error = fails(path, 1, &["plugin", "update", "gateway.yaml"]);
    assert!(error.contains("cannot be reached"), "{error}");
    assert_eq!(
        fs::read_to_string(path.join("outrider.lock")).unwrap(),
        lock
    );
}

#[test]
fn pulled_folder_is_the_pushed_one_and_gives_the_same_image() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let registry = Registry::start();
    let image = format!("oci://{}/waf:1.0", registry.host());
    plugin(path, "1.0.0");
    done(path, &["plugin", "push", "waf", &image]);
    done(path, &["plugin", "pull", &image, "--into", "pulled"]);
    for name in [
        "plugin.yaml",
        "config.schema.json",
        "README.md",
        "LICENSE",
        "main.lua",
        "lib/waf.lua",
    ] {
        let read = |folder: &str| fs::read(path.join(folder).join(name)).unwrap();
        assert_eq!(read("pulled"), read("waf"), "{name}");
    }
    let digest = |folder: &str| -> Value {
        let text = done(
            path,
            &["plugin", "push", folder, &image, "--dry-run", "--json"],
        );
        serde_json::from_str::<Value>(&text).unwrap()["digest"].clone()
    };
    assert_eq!(digest("pulled"), digest("waf"));
    let error = fails(path, 3, &["plugin", "pull", &image, "--into", "pulled"]);
    assert!(error.contains("is there already"), "{error}");
    let text = done(path, &["plugin", "inspect", &image]);
    assert!(
        text.contains("layout      Outrider") && text.contains("waf 1.0.0 (Lua)"),
        "{text}"
    );
}

#[test]
fn signed_plugin_is_accepted_and_an_unsigned_one_refused_with_the_rules_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let registry = Registry::start();
    let image = format!("oci://{}/waf:1.0", registry.host());
    for name in ["key.pem", "key.pub"] {
        fs::copy(testdata(name), path.join(name)).unwrap();
    }
    plugin(path, "1.0.0");
    done(path, &["plugin", "push", "waf", &image]);
    let policy = format!(
        "plugin_policy:\n  - sources: ['oci://{}/*']\n    keys: [key.pub]\n",
        registry.host()
    );
    fs::write(path.join("gateway.yaml"), gateway(&image, &policy)).unwrap();
    let error = fails(path, 1, &["check", "gateway.yaml"]);
    assert!(error.contains("gateway.yaml:5:17"), "{error}");
    assert!(
        error.contains("rule at gateway.yaml:7: it is not signed"),
        "{error}"
    );
    let error = fails(path, 1, &["plugin", "verify", &image, "--key", "key.pub"]);
    assert!(error.contains("it is not signed"), "{error}");
    done(
        path,
        &[
            "plugin", "sign", &image, "--key", "key.pem", "--public", "key.pub",
        ],
    );
    let text = done(path, &["plugin", "verify", &image, "--key", "key.pub"]);
    assert!(
        text.contains("is signed by key.pub (bundle v0.3)"),
        "{text}"
    );
    done(path, &["check", "gateway.yaml"]);
    done(
        path,
        &[
            "plugin", "pull", &image, "--into", "pulled", "--key", "key.pub",
        ],
    );
    fs::copy(testdata("cosign/cosign.pub"), path.join("key.pub")).unwrap();
    let error = fails(path, 1, &["check", "gateway.yaml"]);
    assert!(error.contains("it is signed by another key"), "{error}");
    let error = fails(
        path,
        1,
        &[
            "plugin", "pull", &image, "--into", "again", "--key", "key.pub",
        ],
    );
    assert!(error.contains("it is signed by another key"), "{error}");
    assert!(!path.join("again").exists());
}

#[test]
fn strip_says_sizes_and_build_says_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let module = [
        b"\0asm\x01\0\0\0".as_slice(),
        &[0, 9, 4],
        b"name",
        &[0; 4],
        &[0, 4, 1, b'x', 1, 2],
    ]
    .concat();
    fs::write(path.join("plugin.wasm"), &module).unwrap();
    let text = done(
        path,
        &["plugin", "strip", "plugin.wasm", "--output", "small.wasm"],
    );
    assert!(
        text.contains("removed name: ") && text.contains("25 bytes before, 14 bytes after"),
        "{text}"
    );
    assert_eq!(fs::read(path.join("small.wasm")).unwrap().len(), 14);
    assert_eq!(fs::read(path.join("plugin.wasm")).unwrap(), module);
    let error = fails(path, 3, &["plugin", "strip", "nowhere.wasm"]);
    assert!(error.contains("nowhere.wasm cannot be read"), "{error}");

    fs::create_dir(path.join("guard")).unwrap();
    let manifest = |build: &str| {
        let text = format!("name: guard\nruntime: wasm\nbuild: {build}\n");
        fs::write(path.join("guard/plugin.yaml"), text).unwrap();
    };
    manifest("a-compiler-that-nobody-has --release");
    let error = fails(path, 1, &["plugin", "build", "guard"]);
    assert!(
        error.contains("`a-compiler-that-nobody-has` is missing"),
        "{error}"
    );
    manifest("cp ../small.wasm plugin.wasm");
    let text = done(path, &["plugin", "build", "guard"]);
    assert!(
        text.contains("built guard (sha256:") && text.contains("14 bytes"),
        "{text}"
    );
    manifest("'true'");
    fs::remove_file(path.join("guard/plugin.wasm")).unwrap();
    let error = fails(path, 1, &["plugin", "build", "guard"]);
    assert!(
        error.contains("plugin.wasm, is not in its folder"),
        "{error}"
    );
}
