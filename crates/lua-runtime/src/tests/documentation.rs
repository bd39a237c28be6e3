//! The examples of docs/lua-sdk.md: each compiles and loads as a plugin; one that says what it prints
//! (`--> text` behind the line that does) runs, and prints that.

use super::fake::{FakeStream, Probe, probe};

const PAGE: &str = include_str!("../../../../docs/lua-sdk.md");

/// The page's blocks of Lua, with the line on which each begins.
fn examples() -> Vec<(usize, String)> {
    let mut examples = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (index, line) in PAGE.lines().enumerate() {
        match &mut open {
            None if line == "```lua" => open = Some((index + 1, String::new())),
            None => {}
            Some(_) if line == "```" => examples.extend(open.take()),
            Some((_, text)) => *text = format!("{text}{line}\n"),
        }
    }
    assert!(open.is_none(), "a block of Lua has no end");
    examples
}

fn load(example: &str) -> Probe {
    if example.contains("return handler") {
        probe(example)
    } else if example.contains("function handler:") {
        probe(&format!("local handler = {{}}\n{example}\nreturn handler"))
    } else {
        probe(&format!(
            "local handler = {{}}\nfunction handler:on_request_header()\n{example}\nend\nreturn handler"
        ))
    }
}

#[test]
fn examples_load_and_print_what_they_say() {
    let mut run = 0;
    for (line, example) in examples() {
        let mut expected = Vec::new();
        for text in example.lines() {
            if let Some((_, printed)) = text.split_once("--> ") {
                expected.push(printed.to_owned());
            }
        }
        // Examples do not say what their configuration is, so it is not shown to them.
        let text = example.replace("handler:on_configure(config)", "handler:on_example(config)");
        let probe = load(&text);
        if expected.is_empty() {
            continue;
        }
        let mut stream = FakeStream::new();
        if let Err(fault) = probe.request(&mut stream) {
            panic!("the example on line {line}: {fault}");
        }
        let printed: Vec<String> = stream
            .logged()
            .iter()
            .map(|line| line.replace('\t', "  "))
            .collect();
        assert_eq!(printed, expected, "the example on line {line}");
        run += 1;
    }
    assert!(run >= 5, "only {run} examples say what they print");
}
