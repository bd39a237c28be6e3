//! Wrong gateways: each file's problems, all of them, as users see them.

#[path = "support/folder.rs"]
mod support;

use std::fmt::Write as _;

use outrider_gateway::compile;

#[test]
fn problems() {
    insta::glob!("broken/*.yaml", |path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        let compiled = compile(name, &support::Folder::new("broken"));
        assert!(compiled.plan.is_none(), "{name}");
        let mut text = String::new();
        for problem in &compiled.problems {
            assert!(
                problem.line > 0 || problem.message.contains("cannot be read"),
                "no place: {problem}"
            );
            writeln!(text, "{problem}").unwrap();
        }
        assert!(!text.is_empty(), "{name}");
        insta::assert_snapshot!(text);
    });
}

#[test]
fn a_file_that_is_not_there() {
    let compiled = compile("nowhere.yaml", &support::Folder::new("broken"));
    let problems: Vec<String> = compiled.problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        problems,
        ["nowhere.yaml: the file cannot be read: there is no such file"]
    );
    assert_eq!(compiled.files, ["nowhere.yaml"]);
}

fn warnings(file: &str) -> String {
    let compiled = compile(file, &support::Folder::new("warned"));
    assert!(compiled.plan.is_some(), "{:?}", compiled.problems);
    let lines = compiled.warnings.iter().map(ToString::to_string);
    lines.collect::<Vec<_>>().join("\n")
}

/// What Envoy serves and clients refuse is no reason not to start.
#[test]
fn warnings_of_certificates() {
    insta::assert_snapshot!(warnings("certificates.yaml"));
}

#[test]
fn warnings_of_mistakes() {
    insta::assert_snapshot!(warnings("mistakes.yaml"));
}
