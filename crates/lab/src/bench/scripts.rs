//! The same work, written for each mechanism, with names made once and nothing that a careful author
//! would not write.
//!
//! What is read is added up and compared with what is expected, so that no compiler can leave a read
//! out. A difference is told in a header, `x-bench`; with [`Told::Always`] it is always told, by which
//! the benchmark sees, before it counts, that each mechanism does the same work.

use std::fmt::Write as _;

use super::workload::{VALUE, Work};

/// The header that is told in.
pub(crate) const TELL: &str = "x-bench";

/// Whether the work tells what came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// Only when it is not what is expected. This is what is measured.
    Differences,
    /// Always, and of responses too.
    Always,
}

/// The code of a plugin of Outrider. The number makes plugins of one chain different code, as those
/// of a real chain are.
pub(crate) fn outrider(work: Work, told: Told, number: usize) -> String {
    let mut text = format!("-- Plugin {number}.\nlocal handler = {{ version = \"v2\" }}\n");
    text.push_str(&names(work));
    text.push_str("\nfunction handler:on_request_header()\n");
    let mut body = String::new();
    if work.sets + work.reads + work.removals > 0 || told == Told::Always {
        body.push_str("  local req = envoy.req\n");
    }
    header_work(
        &mut body,
        work,
        told,
        &Calls {
            set: format!("req.set_header(names[i], \"{VALUE}\")"),
            read: "#req.get_header(names[i])".to_owned(),
            remove: "req.remove_header(names[i])".to_owned(),
            tell: format!("req.add_header(\"{TELL}\", \"headers \" .. bytes)"),
        },
    );
    text.push_str(&body);
    text.push_str("end\n");
    if work.body_reads > 0 {
        text.push_str(
            "\nfunction handler:on_request_body()\n  local get_body = envoy.req.get_body\n",
        );
        body_work(
            &mut text,
            work,
            told,
            "#get_body()",
            &format!("envoy.req.add_header(\"{TELL}\", \"body \" .. bytes)"),
        );
        text.push_str("end\n");
    }
    if work.responses {
        text.push_str("\nfunction handler:on_response_header()\n");
        if told == Told::Always {
            let _ = writeln!(text, "  envoy.resp.add_header(\"{TELL}\", \"response\")");
        }
        text.push_str("end\n");
    }
    text.push_str("\nreturn handler\n");
    text
}

/// A script for Envoy's Lua filter.
pub(crate) fn envoy(work: Work, told: Told) -> String {
    let mut text = names(work);
    text.push_str("\nfunction envoy_on_request(handle)\n");
    if work.sets + work.reads + work.removals > 0 || told == Told::Always {
        text.push_str("  local headers = handle:headers()\n");
    }
    header_work(
        &mut text,
        work,
        told,
        &Calls {
            set: format!("headers:replace(names[i], \"{VALUE}\")"),
            read: "#headers:get(names[i])".to_owned(),
            remove: "headers:remove(names[i])".to_owned(),
            tell: format!("headers:add(\"{TELL}\", \"headers \" .. bytes)"),
        },
    );
    if work.body_reads > 0 {
        text.push_str("  local body = handle:body()\n  local length = body:length()\n");
        body_work(
            &mut text,
            work,
            told,
            "#body:getBytes(0, length)",
            // The wrapper of the headers did not live through the wait for the body.
            &format!("handle:headers():add(\"{TELL}\", \"body \" .. bytes)"),
        );
    }
    text.push_str("end\n");
    if work.responses {
        text.push_str("\nfunction envoy_on_response(handle)\n");
        if told == Told::Always {
            let _ = writeln!(text, "  handle:headers():add(\"{TELL}\", \"response\")");
        }
        text.push_str("end\n");
    }
    text
}

/// The configuration of `bench-native`, and of the guests.
pub(crate) fn native(work: Work, told: Told) -> String {
    let mut text = format!(
        "sets={} reads={} removals={} body_reads={}",
        work.sets, work.reads, work.removals, work.body_reads
    );
    if told == Told::Differences {
        let _ = write!(
            text,
            " header_bytes={} body_bytes={}",
            work.header_bytes(),
            work.body_bytes()
        );
    } else if work.responses {
        text.push_str(" responses=1");
    }
    text
}

struct Calls {
    set: String,
    read: String,
    remove: String,
    tell: String,
}

fn names(work: Work) -> String {
    let count = work.sets.max(work.reads).max(work.removals);
    if count == 0 {
        return String::new();
    }
    format!("local names = {{}}\nfor i = 1, {count} do names[i] = \"x-h-\" .. i end\n")
}

fn header_work(text: &mut String, work: Work, told: Told, calls: &Calls) {
    let mut lines = Vec::new();
    if work.sets > 0 {
        lines.push(format!("for i = 1, {} do {} end", work.sets, calls.set));
    }
    if work.reads > 0 || told == Told::Always {
        lines.push("local bytes = 0".to_owned());
    }
    if work.reads > 0 {
        lines.push(format!(
            "for i = 1, {} do bytes = bytes + {} end",
            work.reads, calls.read
        ));
    }
    if work.removals > 0 {
        lines.push(format!(
            "for i = 1, {} do {} end",
            work.removals, calls.remove
        ));
    }
    match told {
        Told::Always => lines.push(calls.tell.clone()),
        Told::Differences if work.reads > 0 => lines.push(format!(
            "if bytes ~= {} then {} end",
            work.header_bytes(),
            calls.tell
        )),
        Told::Differences => {}
    }
    for line in lines {
        let _ = writeln!(text, "  {line}");
    }
}

fn body_work(text: &mut String, work: Work, told: Told, read: &str, tell: &str) {
    let tell = match told {
        Told::Always => tell.to_owned(),
        Told::Differences => format!("if bytes ~= {} then {tell} end", work.body_bytes()),
    };
    let _ = writeln!(
        text,
        "  local bytes = 0\n  for i = 1, {} do bytes = bytes + {read} end\n  {tell}",
        work.body_reads
    );
}
