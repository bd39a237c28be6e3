//! `outrider plugin` as those who write plugins meet it: what `new` makes is a plugin that works, and
//! `test` says what is wrong with one that does not.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn outrider(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_outrider"))
        .current_dir(folder)
        .args(arguments)
        .env_remove("CLICOLOR_FORCE")
        .env("COLUMNS", "100")
        .output()
        .unwrap()
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

/// The same without the time that the run took.
fn told_without_time(output: &Output) -> String {
    let text = told(output);
    let (before, rest) = text.rsplit_once(" (").unwrap();
    let (time, after) = rest.split_once(" ms)").unwrap();
    assert!(time.parse::<u32>().is_ok(), "{text}");
    format!("{before} (TIME){after}")
}

/// Runs the command, which has to end well, and returns what it printed.
fn done(folder: &Path, arguments: &[&str]) -> String {
    let output = outrider(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", told(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// The plugin `hello`, made by the command.
fn hello() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    done(folder.path(), &["plugin", "new", "lua", "hello"]);
    folder
}

/// Every file below `folder`, and its text.
fn files(folder: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().display().to_string();
                found.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// Changes one text of a file, which has to be there.
fn change(file: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains(from), "{}: {from}", file.display());
    fs::write(file, text.replace(from, to)).unwrap();
}

#[test]
fn help() {
    let folder = tempfile::tempdir().unwrap();
    for (name, arguments) in [
        ("plugin", vec!["plugin", "--help"]),
        ("plugin_new", vec!["plugin", "new", "--help"]),
        ("plugin_test", vec!["plugin", "test", "--help"]),
    ] {
        let text = told(&outrider(folder.path(), &arguments));
        assert!(text.contains("Examples:"), "{name} has no examples");
        insta::assert_snapshot!(format!("help_{name}"), text);
    }
    let script = done(folder.path(), &["completions", "bash"]);
    assert!(script.contains("outrider__subcmd__plugin,test"));
}

#[test]
fn new_makes_a_plugin() {
    let folder = tempfile::tempdir().unwrap();
    let output = outrider(folder.path(), &["plugin", "new", "lua", "hello"]);
    let made = files(folder.path());
    let tree: Vec<_> = made.iter().map(|(name, _)| name.as_str()).collect();
    insta::assert_snapshot!(format!(
        "{}\n\n--- tree\n{}",
        told(&output),
        tree.join("\n")
    ));
    for (name, text) in &made {
        assert!(!text.contains("my-plugin"), "{name}");
    }
}

/// Building it takes a compiler's time: that is `make test-plugins`.
#[test]
fn new_makes_a_plugin_in_rust() {
    let folder = tempfile::tempdir().unwrap();
    let output = outrider(folder.path(), &["plugin", "new", "rust", "hello"]);
    let made = files(folder.path());
    let tree: Vec<_> = made.iter().map(|(name, _)| name.as_str()).collect();
    insta::assert_snapshot!(format!(
        "{}\n\n--- tree\n{}",
        told(&output),
        tree.join("\n")
    ));
    for (name, text) in &made {
        assert!(!text.contains("my-plugin"), "{name}");
    }
    // Whoever has not built it is told how.
    let untested = told(&outrider(folder.path(), &["plugin", "test", "hello"]));
    assert!(untested.contains("cargo build --release"), "{untested}");
}

#[test]
fn new_overwrites_nothing_and_takes_no_bad_name() {
    let folder = hello();
    let before = files(folder.path());
    fs::create_dir(folder.path().join("empty")).unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    let new = |name, into| {
        told(&outrider(
            folder.path(),
            &["plugin", "new", "lua", name, "--into", into],
        ))
    };
    insta::assert_snapshot!(
        [
            new("hello", "."),
            new("empty", "."),
            new("other", "file"),
            new("Hello", "."),
            new("../hello", "."),
            new("null", "."),
            told(&outrider(
                folder.path(),
                &["plugin", "new", "cobol", "hello"]
            )),
        ]
        .join("\n\n")
    );
    fs::remove_file(folder.path().join("file")).unwrap();
    assert_eq!(files(folder.path()), before);
}

#[test]
fn a_new_plugin_does_what_its_cases_say() {
    let folder = hello();
    insta::assert_snapshot!(told_without_time(&outrider(
        folder.path(),
        &["plugin", "test"]
    )));
    // It ships with as many cases as a plugin of the catalog needs, and they are about all of it.
    let answer: Value =
        serde_json::from_str(&done(folder.path(), &["plugin", "test", "hello", "--json"])).unwrap();
    assert!(answer["plugins"][0]["cases"].as_array().unwrap().len() >= 6);
}

/// What `new` prints is pasted into a gateway's file, wherever the plugin was made.
#[test]
fn a_new_plugin_can_be_used_as_new_says() {
    for (name, into) in [("hello", "."), ("on", "plug ins/it's"), ("x2", "./a/b")] {
        let folder = tempfile::tempdir().unwrap();
        let printed = done(
            folder.path(),
            &["plugin", "new", "lua", name, "--into", into],
        );
        let (_, excerpt) = printed.split_once("  gateway:\n").unwrap();
        let excerpt: Vec<_> = excerpt
            .lines()
            .take_while(|line| !line.is_empty())
            .map(|line| line.strip_prefix("  ").unwrap())
            .collect();
        let gateway = format!(
            "gateway:\n  listeners:\n    - address: 127.0.0.1:0\n{}\n",
            excerpt.join("\n")
        );
        fs::write(folder.path().join("outrider.yaml"), gateway).unwrap();
        done(folder.path(), &["check", "outrider.yaml"]);
        // The command for its cases is what a shell understands.
        let (_, command) = printed.split_once("\n  outrider plugin test ").unwrap();
        let argument = command.lines().next().unwrap();
        let shell = Command::new("sh")
            .args(["-c", &format!("\"$0\" plugin test {argument}")])
            .arg(env!("CARGO_BIN_EXE_outrider"))
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(shell.status.success(), "{}", told(&shell));
    }
}

/// The examples of a new plugin's README: a whole gateway, and a list of uses to put into one.
#[test]
fn a_new_plugin_s_readme_is_right() {
    let folder = hello();
    let readme = fs::read_to_string(folder.path().join("hello/README.md")).unwrap();
    let blocks: Vec<_> = readme
        .split("```yaml\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    let (gateways, uses): (Vec<_>, Vec<_>) = blocks
        .into_iter()
        .partition(|block| block.starts_with("gateway:"));
    assert_eq!((gateways.len(), uses.len()), (1, 1));
    let file = folder.path().join("try.yaml");
    let check = || {
        let output = outrider(folder.path(), &["check", "try.yaml"]);
        assert!(output.status.success(), "{}", told(&output));
    };
    fs::write(&file, gateways[0]).unwrap();
    check();
    let used = uses[0].replace('\n', "\n  ");
    change(
        &file,
        "  use:\n    - hello\n",
        &format!("  {}\n", used.trim_end()),
    );
    check();
    // The check was one: a word that the schema does not know is found.
    change(&file, "values:", "vlaues:");
    assert_eq!(
        outrider(folder.path(), &["check", "try.yaml"])
            .status
            .code(),
        Some(1)
    );
    let schema = fs::read_to_string(folder.path().join("hello/config.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    for key in schema["properties"].as_object().unwrap().keys() {
        assert!(readme.contains(&format!("| `{key}` |")), "{key}");
    }
}

#[test]
fn wrong_cases_are_told_with_place_and_difference() {
    let folder = hello();
    done(
        folder.path(),
        &["plugin", "new", "lua", "other", "--into", "plugins"],
    );
    let main = folder.path().join("hello/main.lua");
    change(&main, "\"400\"", "\"401\"");
    change(
        &main,
        "  envoy.req.set_header(settings.header, value)",
        "  envoy.req.set_header(settings.head, value)",
    );
    change(
        &folder.path().join("hello/config.schema.json"),
        "\"pattern\": \"^[A-Za-z0-9-]+$\",",
        "",
    );
    let output = outrider(folder.path(), &["plugin", "test", "hello", "plugins"]);
    insta::assert_snapshot!(told_without_time(&output));

    let output = outrider(folder.path(), &["plugin", "test", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["ok"], false);
    let [first, second] = answer["plugins"].as_array().unwrap().as_slice() else {
        unreachable!("{answer:#}");
    };
    assert_eq!(first["ok"], false);
    assert_eq!(first["folder"], "hello");
    assert_eq!(second["ok"], true);
    assert_eq!(second["plugin"], "other");
    insta::assert_snapshot!(format!("{:#}", first["cases"][0]));
}

/// A plugin that logs and fails: its log is shown, its failure once, and what follows from it on request.
#[test]
fn logs_of_wrong_cases_are_shown_and_a_failure_is_told_once() {
    let folder = hello();
    let code = "
local handler = { version = 'v2' }
function handler:on_request_header()
    print('path is ' .. envoy.req.get_header(':path'))
    if envoy.req.get_header(':path') ~= '/fine' then local x = nil; x.y = 1 end
end
return handler
";
    let cases = "
- name: fine
  request: {path: /fine}
  expect: {response: {status: 200}}
- name: first
  request: {path: /a}
  expect: {upstream_request: {headers: {x-a: b}}, response: {status: 200}}
- name: second
  request: {path: /b}
  expect: {response: {status: 201}}
";
    std::fs::write(folder.path().join("hello/main.lua"), code).unwrap();
    let place = folder.path().join("hello/cases");
    std::fs::remove_dir_all(&place).unwrap();
    std::fs::create_dir(&place).unwrap();
    std::fs::write(place.join("hello.yaml"), cases.trim_start()).unwrap();
    let short = outrider(folder.path(), &["plugin", "test", "hello"]);
    insta::assert_snapshot!("a_failure_told_once", told_without_time(&short));
    let long = outrider(folder.path(), &["plugin", "test", "hello", "-v"]);
    insta::assert_snapshot!("a_failure_told_in_full", told_without_time(&long));
    let one = outrider(
        folder.path(),
        &["plugin", "test", "hello", "--case", "fine"],
    );
    assert_eq!(one.status.code(), Some(0), "{}", told(&one));
    assert!(told(&one).contains("1 case of 1 plugin"), "{}", told(&one));
    let none = outrider(
        folder.path(),
        &["plugin", "test", "hello", "--case", "nothing"],
    );
    assert_eq!(none.status.code(), Some(1), "{}", told(&none));
    assert!(
        told(&none).contains("no case has \"nothing\" in its name"),
        "{}",
        told(&none)
    );
    let json = outrider(folder.path(), &["plugin", "test", "hello", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let logs = &json["plugins"][0]["cases"][1]["logs"];
    assert_eq!(logs[0]["message"], "path is /a", "{json}");
}

#[test]
fn what_keeps_cases_from_running_is_told_with_its_place() {
    let test = |break_it: &dyn Fn(&Path)| {
        let folder = hello();
        break_it(&folder.path().join("hello"));
        told_without_time(&outrider(folder.path(), &["plugin", "test"]))
    };
    insta::assert_snapshot!(
        [
            // All at once: the code's and the cases'.
            test(&|plugin| {
                change(
                    &plugin.join("main.lua"),
                    "return handler",
                    "return handler)",
                );
                change(&plugin.join("cases/hello.yaml"), "expect:", "expects:");
            }),
            test(&|plugin| change(&plugin.join("plugin.yaml"), "runtime: lua", "runtime: luna")),
            test(&|plugin| change(&plugin.join("main.lua"), "return handler", "")),
            test(&|plugin| change(
                &plugin.join("config.schema.json"),
                "\"object\"",
                "\"objekt\""
            )),
            test(&|plugin| fs::remove_dir_all(plugin.join("cases")).unwrap()),
            test(&|plugin| fs::remove_file(plugin.join("cases/hello.yaml")).unwrap()),
        ]
        .join("\n\n")
    );
}

#[test]
fn where_there_is_no_plugin_nothing_passes() {
    let folder = hello();
    let test = |folders: &[&str]| {
        let arguments = [&["plugin", "test"], folders].concat();
        told_without_time(&outrider(folder.path(), &arguments))
    };
    insta::assert_snapshot!(
        [
            test(&["hello/cases"]),
            test(&["nowhere", "hello/main.lua", "hello"]),
        ]
        .join("\n\n")
    );
}

#[test]
fn each_plugin_below_a_folder_runs_once() {
    let folder = hello();
    let at = |path: &str| {
        done(
            folder.path(),
            &["plugin", "new", "lua", "other", "--into", path],
        );
    };
    at("deep/er");
    // Neither what is hidden, nor a build system's cache.
    at(".old");
    at("build/out");
    fs::write(folder.path().join("build/CACHEDIR.TAG"), "").unwrap();
    // Nor what lies in a plugin's folder, which is its own business.
    at("hello/vendor");
    let output = done(
        folder.path(),
        &["plugin", "test", "--json", ".", "hello", "deep", "./hello"],
    );
    let answer: Value = serde_json::from_str(&output).unwrap();
    let found: Vec<_> = answer["plugins"]
        .as_array()
        .unwrap()
        .iter()
        .map(|plugin| plugin["folder"].as_str().unwrap())
        .collect();
    assert_eq!(found, ["deep/er/other", "hello"]);
}

/// The first five minutes of the guide, on top of what `new` makes, and the failure that it shows.
#[test]
fn the_guide_begins_with_a_new_plugin() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/plugin-guide.md");
    let guide = fs::read_to_string(guide).unwrap();
    let begin = "outrider plugin new lua maintenance";
    assert!(guide.find(begin).unwrap() < guide.find("<!-- file:").unwrap());
    let folder = tempfile::tempdir().unwrap();
    done(folder.path(), &begin.split(' ').skip(1).collect::<Vec<_>>());
    for block in guide.split("<!-- file: maintenance/").skip(1) {
        let (path, rest) = block.split_once(" -->\n```").unwrap();
        let (_, rest) = rest.split_once('\n').unwrap();
        let (text, _) = rest.split_once("```").unwrap();
        let file = folder.path().join("maintenance").join(path);
        assert!(file.exists(), "new did not make {path}");
        fs::write(file, text).unwrap();
    }
    done(folder.path(), &["plugin", "test", "maintenance"]);
    let main = folder.path().join("maintenance/main.lua");
    change(&main, "config.retry_after or 60", "60");
    let output = outrider(folder.path(), &["plugin", "test", "maintenance"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let (failure, _) = text.split_once("\n\n").unwrap();
    assert!(
        guide.contains(&format!("```text\n{failure}\n```")),
        "{text}"
    );
}
