//! The pages for people.
//!
//! The trap: names, versions, scopes and messages come from others. What would move a terminal's cursor
//! or begin a line is written as an escape.

use std::fmt::Write as _;

use outrider_plugin_formats::Runtime;

use super::file::File;
use super::state::{Age, Circuit, Generation, Plugin, State, Vm, moment};

/// The first page: everything.
pub(super) fn all(state: &State) -> String {
    let mut page = format!(
        "Outrider {}, for Envoy's dynamic-module ABI {}; {} of {} metrics are used\n\
         /outrider/file, /outrider/generations and /outrider/plugins show a part of this; ?format=json: as JSON\n\n",
        state.version, state.abi, state.metrics.used, state.metrics.capacity
    );
    if state.file.is_some() {
        page += &file(state.file.as_ref());
        page.push('\n');
    }
    page += &generations(state);
    page.push('\n');
    page += &plugins(state);
    page
}

/// The gateway's file.
pub(super) fn file(file: Option<&File>) -> String {
    let Some(File { path, refused }) = file else {
        return "no file was named: this Envoy does not run under `outrider up`, or began a moment ago\n".to_owned();
    };
    let path = plain(path);
    let Some(refused) = refused else {
        return format!("{path} is served\n");
    };
    let mut text = format!(
        "{path} was REFUSED at {}; what worked goes on\n",
        moment(refused.time())
    );
    for line in refused.reason.lines() {
        let _ = writeln!(text, "  {}", plain(line));
    }
    text
}

/// The generations.
pub(super) fn generations(state: &State) -> String {
    if state.generations.is_empty() {
        return "no generation: Envoy has no filter of this module\n".to_owned();
    }
    let rows = state.generations.iter().map(generation);
    table(
        ["generation", "filter", "since", "age", "routes", "plugins"],
        rows.collect(),
    )
}

fn generation(generation: &Generation) -> [String; 6] {
    let age = match generation.age {
        Age::Newest => "newest",
        Age::Older => "older",
    };
    [
        generation.id.to_string(),
        plain(&generation.filter),
        generation.since.clone(),
        age.to_owned(),
        generation.routes.to_string(),
        generation
            .plugins
            .iter()
            .map(|name| plain(name))
            .collect::<Vec<_>>()
            .join(", "),
    ]
}

/// The plugins.
pub(super) fn plugins(state: &State) -> String {
    if state.plugins.is_empty() {
        return "no plugin\n".to_owned();
    }
    let pages: Vec<String> = state.plugins.iter().map(plugin).collect();
    pages.join("\n")
}

fn plugin(plugin: &Plugin) -> String {
    let mut page = format!(
        "plugin {}, generation {} of filter {}\n",
        plain(&plugin.name),
        plugin.generation,
        plain(&plugin.filter)
    );
    let mut line = |what: &str, value: String| {
        // Writing to a string cannot fail.
        let _written = writeln!(page, "  {what:<15} {value}");
    };
    let version = plugin
        .version
        .as_deref()
        .map_or_else(|| "none given".to_owned(), plain);
    let runtime = match plugin.runtime {
        Runtime::Lua => "lua",
        Runtime::Wasm => "wasm",
    };
    line(
        "version",
        format!("{version}, {runtime}, {}", plain(&plugin.digest)),
    );
    let at_gateway = if plugin.enabled { "on" } else { "off" };
    line(
        "configurations",
        format!("{}, at the gateway {at_gateway}", plugin.configurations),
    );
    line(
        "calls",
        format!("{}, of which {} replied", plugin.calls, plugin.replies),
    );
    line("failures", failures(plugin));
    if let Some(last) = &plugin.last_failure {
        line(
            "last failure",
            format!(
                "{} in {} ({}): {}",
                last.at,
                last.phase,
                last.cause,
                plain(&last.message)
            ),
        );
    }
    for status in &plugin.circuits {
        line("circuit", circuit(status));
    }
    line(
        "budgets",
        format!(
            "{} ms a call, {} a VM, {} % of a worker",
            plugin.time_budget_ms,
            size(plugin.memory_budget_bytes),
            plugin.share
        ),
    );
    for status in &plugin.vms {
        line("VM", vm(status));
    }
    for memory in &plugin.spare_vms_memory_bytes {
        line("VM", format!("spare: {}", size(*memory)));
    }
    if let Some(dropped) = plugin.log_lines_dropped {
        line("log file", format!("{dropped} lines dropped"));
    }
    if plugin.share_waits > 0 {
        line("CPU share", format!("{} waits", plugin.share_waits));
    }
    page
}

fn failures(plugin: &Plugin) -> String {
    let some: Vec<String> = plugin
        .failures
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(cause, count)| format!("{count} {cause}"))
        .collect();
    if some.is_empty() {
        "none".to_owned()
    } else {
        some.join(", ")
    }
}

fn circuit(status: &Circuit) -> String {
    let mut text = format!(
        "{} at {}, openings: {}, failures within 10 s: {}",
        status.state,
        plain(&status.scope),
        status.openings,
        status.failures_in_window
    );
    if let Some(at) = &status.retry_at {
        // Writing to a string cannot fail.
        let _ = write!(text, ", tried again at {at}");
    }
    if let Some(last) = &status.last_failure {
        // Writing to a string cannot fail.
        let _ = write!(text, "; the last was: {}", plain(last));
    }
    text
}

fn vm(status: &Vm) -> String {
    let memory = status.memory_bytes.map_or_else(|| "gone".to_owned(), size);
    let mut text = format!("worker {}: {memory}", status.worker);
    if status.replacements > 0 {
        // Writing to a string cannot fail.
        let _ = write!(text, ", replacements: {}", status.replacements);
    }
    if let Some(trouble) = &status.trouble {
        // Writing to a string cannot fail.
        let _ = write!(text, ", not replaced yet: {}", plain(trouble));
    }
    text
}

/// Bytes, in KiB or MiB with one digit behind the point.
fn size(bytes: usize) -> String {
    const KIB: usize = 1024;
    const MIB: usize = 1024 * KIB;
    let (unit, name) = if bytes < MIB {
        (KIB, "KiB")
    } else {
        (MIB, "MiB")
    };
    let tenths = bytes.saturating_mul(10) / unit;
    match (tenths / 10, tenths % 10) {
        (whole, 0) => format!("{whole} {name}"),
        (whole, rest) => format!("{whole}.{rest} {name}"),
    }
}

/// Rows below their headings; the last column is as wide as it is.
fn table<const N: usize>(headings: [&str; N], rows: Vec<[String; N]>) -> String {
    let mut widths = headings.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut page = String::new();
    for row in std::iter::once(headings.map(ToOwned::to_owned)).chain(rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            // Writing to a string cannot fail.
            let _written = write!(line, "{cell:<width$}  ");
        }
        page += line.trim_end();
        page.push('\n');
    }
    page
}

/// A text from elsewhere on one line, with nothing in it that a terminal would obey.
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        let obeyed = character.is_control()
            || matches!(character, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if obeyed {
            plain.extend(character.escape_default());
        } else {
            plain.push(character);
        }
    }
    plain
}
