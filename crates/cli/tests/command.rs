//! The command as scripts and people meet it: help, output, exit codes. No Envoy is needed here; what
//! needs one is in the end-to-end tests.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const GOOD: &str = "\
gateway:
  listeners:
    - {name: main, address: \"127.0.0.1:0\"}
  use:
    - {plugin: hello, config: {greeting: hi}}
plugins:
  hello: {source: hello}
projects:
  - name: shop
    hosts: [shop.example]
    routes:
      - {name: cart, match: {path: /cart}, to: shop, use: [{plugin: hello, config: {greeting: cart}}]}
      - {name: rest, match: {prefix: /}, to: shop}
upstreams:
  shop: {endpoints: [\"127.0.0.1:9\"]}
";

const BAD: &str = "\
gateway:
  listeners:
    - {name: main, adress: \"127.0.0.1:0\"}
  use:
    - {plugin: hello, config: {greeting: 1}}
plugins:
  hello: {source: hello}
  gone: {source: nowhere}
projects:
  - name: shop
    hosts: [shop.example]
    routes:
      - {name: cart, match: {path: /cart}, to: shopp}
upstreams:
  shop: {endpoints: [\"127.0.0.1:9\"]}
";

/// A folder with `gateway.yaml` and a plugin.
fn folder(gateway: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let plugin = folder.path().join("hello");
    fs::create_dir(&plugin).unwrap();
    fs::write(folder.path().join("gateway.yaml"), gateway).unwrap();
    fs::write(plugin.join("plugin.yaml"), "name: hello\nruntime: lua\n").unwrap();
    fs::write(
        plugin.join("config.schema.json"),
        r#"{"type": "object", "properties": {"greeting": {"type": "string"}}, "additionalProperties": false}"#,
    )
    .unwrap();
    fs::write(
        plugin.join("main.lua"),
        "return { version = 'v2', on_request_header = function() end }\n",
    )
    .unwrap();
    folder
}

fn outrider(folder: &Path, arguments: &[&str]) -> Output {
    command(folder, arguments).output().unwrap()
}

/// The command with nothing of the tester's own environment that it looks at.
fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outrider"));
    command
        .current_dir(folder)
        .args(arguments)
        .env_remove("OUTRIDER_ENVOY")
        .env_remove("OUTRIDER_MODULE")
        .env_remove("OUTRIDER_HOME")
        .env_remove("CLICOLOR_FORCE")
        .env("COLUMNS", "100");
    command
}

/// Exit code, standard output and standard error, as one text.
fn told(output: &Output) -> String {
    let section = |name: &str, bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let text = text.trim_end();
        if text.is_empty() {
            String::new()
        } else {
            format!("\n--- {name}\n{text}")
        }
    };
    format!(
        "exit code {}{}{}",
        output.status.code().unwrap(),
        section("standard output", &output.stdout),
        section("standard error", &output.stderr)
    )
}

#[test]
fn help() {
    let folder = tempfile::tempdir().unwrap();
    for (name, arguments) in [
        ("outrider", vec!["--help"]),
        ("up", vec!["up", "--help"]),
        ("check", vec!["check", "--help"]),
        ("explain", vec!["explain", "--help"]),
        ("render", vec!["render", "--help"]),
        ("render_envoy", vec!["render", "envoy", "--help"]),
        ("render_istio", vec!["render", "istio", "--help"]),
        ("lab", vec!["lab", "--help"]),
        ("lab_run", vec!["lab", "run", "--help"]),
        ("lab_report", vec!["lab", "report", "--help"]),
        ("lab_compare", vec!["lab", "compare", "--help"]),
        ("lab_stages", vec!["lab", "stages", "--help"]),
        ("lab_instructions", vec!["lab", "instructions", "--help"]),
        ("lab_lint", vec!["lab", "lint", "--help"]),
        ("lab_search", vec!["lab", "search", "--help"]),
        ("lab_load", vec!["lab", "load", "--help"]),
        ("lab_echo", vec!["lab", "echo", "--help"]),
        ("lanes", vec!["lanes", "--help"]),
        ("envoy", vec!["envoy", "--help"]),
        ("envoy_install", vec!["envoy", "install", "--help"]),
        ("envoy_path", vec!["envoy", "path", "--help"]),
        ("envoy_version", vec!["envoy", "version", "--help"]),
        ("schema", vec!["schema", "--help"]),
        ("completions", vec!["completions", "--help"]),
    ] {
        let output = outrider(folder.path(), &arguments);
        let text = told(&output);
        assert!(text.contains("Examples:"), "{name} has no examples");
        insta::assert_snapshot!(format!("help_{name}"), text);
    }
}

#[test]
fn check_of_a_good_file() {
    let folder = folder(GOOD);
    insta::assert_snapshot!(told(&outrider(folder.path(), &["check", "gateway.yaml"])));
}

#[test]
fn check_of_a_bad_file() {
    let folder = folder(BAD);
    insta::assert_snapshot!(told(&outrider(folder.path(), &["check", "gateway.yaml"])));
}

#[test]
fn check_for_scripts() {
    let folder = folder(BAD);
    let output = outrider(folder.path(), &["check", "gateway.yaml", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["ok"], false);
    let problems = answer["problems"].as_array().unwrap();
    assert!(problems.len() >= 4, "{answer:#}");
    assert_eq!(problems[0]["file"], "gateway.yaml");
    assert!(
        problems
            .iter()
            .all(|problem| problem["message"].is_string())
    );

    let folder = self::folder(GOOD);
    let output = outrider(folder.path(), &["check", "gateway.yaml", "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["ok"], true);
}

#[test]
fn check_of_plugins_that_do_not_load() {
    let folder = folder(GOOD);
    let main = folder.path().join("hello/main.lua");
    let check = |code: &str| {
        fs::write(&main, code).unwrap();
        told(&outrider(folder.path(), &["check", "gateway.yaml"]))
    };
    insta::assert_snapshot!(
        [
            check("return {\n  on_log = function( end\n}\n"),
            check("local lib = require 'lib.nowhere'\nreturn lib\n"),
            check("return { version = 'v2' }\n"),
            check("error('at the top')\n"),
            check("while true do end\n"),
            check(
                "return {\n  version = 'v2',\n  on_log = function() end,\n  on_configure = function(self, config)\n    if config.greeting == 'cart' then error('no carts here') end\n  end,\n}\n",
            ),
        ]
        .join("\n\n")
    );
}

#[test]
fn check_of_a_single_file_beside_the_gateways() {
    let folder = folder(&GOOD.replace("source: hello", "source: main.lua"));
    let check = |code: &str| {
        fs::write(folder.path().join("main.lua"), code).unwrap();
        told(&outrider(folder.path(), &["check", "gateway.yaml"]))
    };
    insta::assert_snapshot!(
        [
            check("oh\n"),
            check("return {}\n"),
            check(
                "return { on_log = function() end, on_configure = function() error('no') end }\n"
            ),
        ]
        .join("\n\n")
    );
}

#[test]
fn check_of_no_file() {
    let folder = tempfile::tempdir().unwrap();
    insta::assert_snapshot!(told(&outrider(folder.path(), &["check", "gateway.yaml"])));
}

#[test]
fn wrong_use() {
    let folder = tempfile::tempdir().unwrap();
    insta::assert_snapshot!(
        [
            vec!["chek", "gateway.yaml"],
            vec!["check"],
            vec!["explain", "gateway.yaml", "--host", "a"],
            vec![
                "explain",
                "gateway.yaml",
                "--host",
                "a",
                "--path",
                "/",
                "--header",
                "x"
            ],
        ]
        .map(|arguments| told(&outrider(folder.path(), &arguments)))
        .join("\n\n")
    );
}

#[test]
fn colour_is_for_terminals() {
    let folder = folder(BAD);
    let plain = outrider(folder.path(), &["check", "gateway.yaml"]);
    assert!(!plain.stdout.contains(&0x1b));
    let forced = command(folder.path(), &["check", "gateway.yaml"])
        .env("CLICOLOR_FORCE", "1")
        .output()
        .unwrap();
    assert!(forced.stdout.contains(&0x1b));
    let unwanted = command(folder.path(), &["check", "gateway.yaml"])
        .env("CLICOLOR_FORCE", "1")
        .env("NO_COLOR", "1")
        .output()
        .unwrap();
    assert!(!unwanted.stdout.contains(&0x1b));
}

#[test]
fn explain() {
    let folder = folder(GOOD);
    let ask = |path| {
        let arguments = [
            "explain",
            "gateway.yaml",
            "--host",
            "shop.example",
            "--path",
            path,
        ];
        told(&outrider(folder.path(), &arguments))
    };
    insta::assert_snapshot!(ask("/cart"));
    insta::assert_snapshot!(ask("/other?x=1"));
    let arguments = [
        "explain",
        "gateway.yaml",
        "--host",
        "nobody.example",
        "--path",
        "/",
        "--json",
    ];
    insta::assert_snapshot!(told(&outrider(folder.path(), &arguments)));
}

#[test]
fn render() {
    let folder = folder(GOOD);
    let output = outrider(
        folder.path(),
        &["render", "envoy", "gateway.yaml", "--output", "out"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", told(&output));
    let mut names: Vec<String> = fs::read_dir(folder.path().join("out"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    insta::assert_snapshot!(names.join("\n"));
    // What plugins are configured with is in there.
    let mode = |path: &str| {
        let metadata = fs::metadata(folder.path().join(path)).unwrap();
        std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o777
    };
    assert_eq!(mode("out"), 0o700);
    for name in &names {
        assert_eq!(mode(&format!("out/{name}")), 0o600, "{name}");
    }
    let printed = outrider(
        folder.path(),
        &["render", "envoy", "gateway.yaml", "--static"],
    );
    assert_eq!(printed.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&printed.stdout).contains("static_resources:"));
    let bad = self::folder(BAD);
    let output = outrider(bad.path(), &["render", "envoy", "gateway.yaml"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
}

/// A mesh with one plugin, and files of it.
#[test]
fn render_istio() {
    let folder = folder(
        "\
mesh: {plugins: [{name: greeting, on: gateway, labels: {istio: ingressgateway}, use: [hello]}]}
plugins:
  hello: {source: hello}
",
    );
    let printed = outrider(folder.path(), &["render", "istio", "gateway.yaml"]);
    insta::assert_snapshot!("render_istio", told(&printed));

    let kept = folder.path().join("kept");
    fs::create_dir(&kept).unwrap();
    fs::write(kept.join("all.yaml"), &printed.stdout).unwrap();
    fs::write(kept.join("notes.txt"), "no: [yaml").unwrap();
    let diff = ["render", "istio", "gateway.yaml", "--diff", "kept"];
    let same = outrider(folder.path(), &diff);
    assert_eq!(told(&same), "exit code 0");

    let text = String::from_utf8(printed.stdout).unwrap();
    let other = text.replace(
        "name: outrider-plugins-greeting",
        "name: outrider-plugins-old",
    );
    let changed = text.replace("enabled: true", "enabled: false");
    fs::write(kept.join("all.yaml"), format!("{changed}---\n{other}")).unwrap();
    insta::assert_snapshot!("render_istio_diff", told(&outrider(folder.path(), &diff)));

    fs::write(kept.join("all.yaml"), "a: [").unwrap();
    insta::assert_snapshot!(
        "render_istio_diff_broken",
        told(&outrider(folder.path(), &diff))
    );

    let apply = [
        "render",
        "istio",
        "gateway.yaml",
        "--apply",
        "--kubeconfig",
        "none",
    ];
    insta::assert_snapshot!(
        "render_istio_no_cluster",
        told(&outrider(folder.path(), &apply))
    );
}

#[test]
fn schema_and_completions() {
    let folder = tempfile::tempdir().unwrap();
    let schema = outrider(folder.path(), &["schema"]);
    let schema: Value = serde_json::from_slice(&schema.stdout).unwrap();
    assert!(schema["properties"]["gateway"].is_object());
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = outrider(folder.path(), &["completions", shell]);
        assert!(
            String::from_utf8_lossy(&script.stdout).contains("explain"),
            "{shell}"
        );
    }
}

/// An Envoy that only says its version, and a file that is as good as a module until it is loaded.
fn stand_ins(folder: &Path, version: &str) {
    let envoy = folder.join("envoy");
    let script = format!("#!/bin/sh\necho 'envoy  version: 0/{version}/Clean/RELEASE/BoringSSL'\n");
    fs::write(&envoy, script).unwrap();
    fs::set_permissions(&envoy, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(folder.join("module.so"), "").unwrap();
}

#[test]
fn envoy_path_and_version() {
    let folder = tempfile::tempdir().unwrap();
    stand_ins(folder.path(), "1.42.0");
    let here = folder.path().canonicalize().unwrap().display().to_string();
    let ask = |arguments: &[&str]| told(&outrider(folder.path(), arguments)).replace(&here, "HERE");
    insta::assert_snapshot!(
        [
            ask(&["envoy", "version", "--envoy", "./envoy"]),
            ask(&["envoy", "path", "--envoy", "envoy", "--json"]),
            ask(&["envoy", "path", "--envoy", "nowhere"]),
        ]
        .join("\n\n")
    );
}

#[test]
fn up_tells_what_is_in_the_way() {
    let folder = folder(GOOD);
    let here = folder.path().canonicalize().unwrap().display().to_string();
    let up = |arguments: &[&str]| {
        let arguments = [&["up", "gateway.yaml"], arguments].concat();
        told(&outrider(folder.path(), &arguments)).replace(&here, "HERE")
    };
    stand_ins(folder.path(), "1.39.0");
    let old = up(&["--envoy", "envoy"]);
    stand_ins(folder.path(), "1.40.0");
    let no_envoy = up(&["--envoy", "nowhere"]);
    let no_module = up(&["--envoy", "envoy", "--module", "nowhere.so"]);
    // It ends at once, as an Envoy that cannot start does.
    let ends = up(&["--envoy", "envoy", "--module", "module.so"]);
    fs::write(folder.path().join("gateway.yaml"), BAD).unwrap();
    let problems = up(&["--envoy", "envoy", "--module", "module.so"]);
    insta::assert_snapshot!([old, no_envoy, no_module, ends, problems].join("\n\n"));
}

#[test]
fn up_names_the_line_of_a_port_in_use() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let folder = folder(&GOOD.replace("127.0.0.1:0", &format!("127.0.0.1:{port}")));
    stand_ins(folder.path(), "1.40.0");
    let arguments = [
        "up",
        "gateway.yaml",
        "--envoy",
        "envoy",
        "--module",
        "module.so",
    ];
    let output = outrider(folder.path(), &arguments);
    insta::assert_snapshot!(told(&output).replace(&port.to_string(), "PORT"));
}

/// A gateway with one more line at its end.
fn with(addition: &str) -> String {
    format!("{GOOD}{addition}")
}

#[test]
fn check_of_special_files_ends_at_once() {
    let folder = folder(&with("include: [fifo.yaml, /dev/zero, hello, huge.yaml]\n"));
    let fifo = folder.path().join("fifo.yaml");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    let huge = fs::File::create(folder.path().join("huge.yaml")).unwrap();
    huge.set_len(1 << 40).unwrap();
    let begin = std::time::Instant::now();
    let output = outrider(folder.path(), &["check", "gateway.yaml"]);
    assert!(begin.elapsed().as_secs() < 20, "{:?}", begin.elapsed());
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        text.matches("it is not a regular file").count(),
        2,
        "{text}"
    );
    assert!(text.contains("it is a folder"), "{text}");
    assert!(text.contains("it is larger than 4 MiB"), "{text}");
}

#[test]
fn check_warns_of_upstreams_that_a_script_names_and_may_not_call() {
    const CALLS: &str = "return { on_request_header = function()\n  \
                         envoy.callout.start{cluster = \"shop\", path = \"/\"}\nend }\n";
    let folder = folder(GOOD);
    fs::write(folder.path().join("hello/main.lua"), CALLS).unwrap();
    let output = outrider(folder.path(), &["check", "gateway.yaml"]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("hello/main.lua:2"), "{text}");
    assert!(text.contains("`plugins.hello.allow.upstreams`"), "{text}");
    let typo = CALLS.replace("shop", "shpo");
    fs::write(folder.path().join("hello/main.lua"), typo).unwrap();
    let output = outrider(folder.path(), &["check", "gateway.yaml"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("there is no upstream `shpo`"), "{text}");
    assert!(text.contains("did you mean `shop`?"), "{text}");
    fs::write(folder.path().join("hello/main.lua"), CALLS).unwrap();
    for allow in ["all", "{upstreams: all}", "{upstreams: [shop]}"] {
        let gateway = GOOD.replace(
            "{source: hello}",
            &format!("{{source: hello, allow: {allow}}}"),
        );
        fs::write(folder.path().join("gateway.yaml"), gateway).unwrap();
        let output = outrider(folder.path(), &["check", "gateway.yaml"]);
        assert_eq!(output.status.code(), Some(0), "{}", told(&output));
        assert!(output.stderr.is_empty(), "{}", told(&output));
    }
    let gateway = GOOD.replace(
        "{source: hello}",
        "{source: hello, allow: {upstreams: [shpo]}}",
    );
    fs::write(folder.path().join("gateway.yaml"), gateway).unwrap();
    let output = outrider(folder.path(), &["check", "gateway.yaml"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        told(&output).contains("did you mean `shop`?"),
        "{}",
        told(&output)
    );
}

#[test]
fn check_warns_of_headers_and_filter_state_that_need_a_permission() {
    const STEERS: &str = "return { on_request_header = function()\n  \
                          envoy.req.set_header(\"X-Envoy-Max-Retries\", 9)\n  \
                          envoy.filter_state.set_typed('envoy.network.upstream_server_name', 'a')\n  \
                          envoy.req.get_header('x-envoy-retry-on')\n  \
                          envoy.req.set_header('x-envoy-internal', 1)\nend }\n";
    let folder = folder(GOOD);
    fs::write(folder.path().join("hello/main.lua"), STEERS).unwrap();
    let output = outrider(folder.path(), &["check", "gateway.yaml"]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.matches("warning:").count(), 2, "{text}");
    assert!(text.contains("hello/main.lua:2"), "{text}");
    assert!(text.contains("`router_headers: true`"), "{text}");
    assert!(text.contains("hello/main.lua:3"), "{text}");
    assert!(
        text.contains("`plugins.hello.allow.typed_filter_state`"),
        "{text}"
    );
    let allow = "{router_headers: true, typed_filter_state: [envoy.network.upstream_server_name]}";
    let gateway = GOOD.replace(
        "{source: hello}",
        &format!("{{source: hello, allow: {allow}}}"),
    );
    fs::write(folder.path().join("gateway.yaml"), gateway).unwrap();
    let output = outrider(folder.path(), &["check", "gateway.yaml"]);
    assert!(output.stderr.is_empty(), "{}", told(&output));
}

#[test]
fn render_has_a_cluster_for_callouts_of_each_upstream_that_a_plugin_may_call() {
    let gateway = GOOD.replace(
        "{source: hello}",
        "{source: hello, allow: {upstreams: [shop]}}",
    );
    let gateway = format!("{gateway}  other: {{endpoints: [\"127.0.0.1:9\"]}}\n");
    let folder = folder(&gateway);
    for arguments in [
        &["render", "envoy", "gateway.yaml", "--static"][..],
        &["render", "envoy", "gateway.yaml"],
    ] {
        let output = outrider(folder.path(), arguments);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.matches("name: shop/callouts\n").count(), 2, "{text}");
        assert!(text.contains("shop: shop/callouts"), "{text}");
        assert!(!text.contains("other/callouts"), "{text}");
    }
}

#[test]
fn check_refuses_bodies_of_responses_that_have_none() {
    for status in [204, 205, 304] {
        let gateway = GOOD.replace(
            "{name: cart, match: {path: /cart}, to: shop, use: [{plugin: hello, config: {greeting: cart}}]}",
            &format!("{{name: cart, match: {{path: /cart}}, respond: {{status: {status}, body: x}}}}"),
        );
        let folder = folder(&gateway);
        let output = outrider(folder.path(), &["check", "gateway.yaml"]);
        assert_eq!(output.status.code(), Some(1));
        let expected = format!("a response with status {status} has no body");
        assert!(told(&output).contains(&expected), "{}", told(&output));
    }
}

#[test]
fn explain_of_a_request_without_a_route_has_the_gateways_chain() {
    let folder = folder(&GOOD.replace("match: {prefix: /}", "match: {path: /only}"));
    for host in ["shop.example", "nobody.example"] {
        let arguments = ["explain", "gateway.yaml", "--host", host, "--path", "/none"];
        let output = outrider(folder.path(), &arguments);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            text.contains("unless one of these plugins answers"),
            "{text}"
        );
        assert!(text.contains("1. hello (lua"), "{text}");
    }
}

/// As a hook of a version control system, or a template, calls it.
#[test]
fn check_takes_several_files_and_the_standard_input() {
    let folder = folder(GOOD);
    let bad = GOOD.replace("to: shop, use", "to: shopp, use");
    let warned = GOOD.replace(
        "\nupstreams:\n",
        "\nupstreams:\n  unused: {endpoints: [\"127.0.0.1:9\"]}\n",
    );
    fs::write(folder.path().join("bad.yaml"), bad).unwrap();
    fs::write(folder.path().join("warned.yaml"), &warned).unwrap();
    let check = |arguments: &[&str]| {
        let mut all = vec!["check"];
        all.extend_from_slice(arguments);
        let output = outrider(folder.path(), &all);
        let told = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        (output.status.code(), told)
    };
    let (code, told) = check(&["gateway.yaml", "warned.yaml", "bad.yaml"]);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("gateway.yaml has no problems"), "{told}");
    assert!(told.contains("warned.yaml has no problems"), "{told}");
    assert!(told.contains("bad.yaml:12:"), "{told}");
    let (code, told) = check(&["gateway.yaml", "warned.yaml"]);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("uses the upstream `unused`"), "{told}");
    let (code, told) = check(&["gateway.yaml", "warned.yaml", "--deny-warnings"]);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("1 warning"), "{told}");
    let (code, told) = check(&["-", "-"]);
    assert!(code != Some(0) && told.contains("read once"), "{told}");

    let piped = |text: &str| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_outrider"))
            .args(["check", "-"])
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        let output = child.wait_with_output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
        )
    };
    assert_eq!(
        piped(GOOD),
        (Some(0), "ok: <stdin> has no problems\n".to_owned())
    );
    let (code, told) = piped(&GOOD.replace("greeting: hi", "greeting: 1"));
    assert_eq!(code, Some(1));
    assert!(told.starts_with("<stdin>:5:"), "{told}");
}

#[test]
fn check_resolves_names_where_it_is_asked_to() {
    let named = GOOD.replace(
        "endpoints: [\"127.0.0.1:9\"]",
        "endpoints: [\"localhost:9\", \"no-such-host.invalid:9\"]",
    );
    let folder = folder(&named);
    let told = |arguments: &[&str]| {
        let output = outrider(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(told(&["check", "gateway.yaml"]), "");
    let warned = told(&["check", "--resolve", "gateway.yaml"]);
    assert!(warned.contains("gateway.yaml:15:"), "{warned}");
    assert!(
        warned.contains("`no-such-host.invalid` cannot be resolved here"),
        "{warned}"
    );
    assert!(!warned.contains("localhost"), "{warned}");
}
