//! The page of a report, and the short forms of it for the terminal. Functions: the same report gives
//! the same text, so a page can be checked against its raw file.

mod detail;
mod text;

#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use super::report::{Instructions, Judged, Report};
use super::variant::EMPTY;
use super::workload::{Mechanism, Shape, WORKLOADS};
use text::{Table, number, ratio};

/// The page.
pub fn page(report: &Report) -> String {
    let mut page = String::from(
        "# What a Lua plugin costs

This page is written by `make bench`, from [lua.json](lua.json), which is the raw result. It says what a plugin adds to a
request in a stock Envoy: as an Outrider plugin in Lua, as a script of Envoy's own Lua filter, and as native code in a
dynamic module that does the same and wastes nothing.\n\n",
    );
    page.push_str(&verdicts(&report.instructions));
    page.push_str("\n## Instructions that are added to a request\n\n");
    page.push_str(&added(&report.instructions).markdown());
    page.push('\n');
    page.push_str(&baselines(&report.instructions));
    page.push_str(&workloads());
    page.push_str(&detail::composition(&report.instructions));
    if let Some(time) = &report.time {
        page.push_str(&detail::time(time));
    }
    if let Some(memory) = &report.memory {
        page.push_str(&detail::memory(memory));
    }
    page.push_str(&detail::method(report));
    page
}

/// What was measured, for a terminal.
pub fn summary(report: &Report) -> String {
    let instructions = &report.instructions;
    let mut text = String::new();
    if !instructions.counted.is_empty() {
        let _ = write!(
            text,
            "Instructions that are added to a request\n\n{}\n{}{}",
            added(instructions).plain(),
            baselines(instructions),
            verdicts(instructions)
        );
    }
    if let Some(time) = &report.time {
        let _ = write!(
            text,
            "\nCPU time of Envoy for a request, in microseconds\n\n{}",
            detail::times(time).plain()
        );
    }
    if let Some(memory) = &report.memory {
        let _ = write!(text, "\nMemory\n\n{}", detail::sizes(memory).plain());
    }
    text
}

/// The dearest functions of modules, for whoever makes them cheaper.
pub fn functions(report: &Report) -> String {
    let mut text = String::new();
    for counted in &report.instructions.counted {
        let Some(mechanism) = counted.mechanism else {
            continue;
        };
        let _ = writeln!(text, "\n{}, {}", counted.workload, mechanism.title());
        for function in &counted.per_request.functions {
            let _ = writeln!(
                text,
                "{:>9}  {}",
                number(function.instructions),
                function.name
            );
        }
        let _ = writeln!(text, "  into Envoy (calls, instructions with all below)");
        for function in &counted.per_request.into_envoy {
            let _ = writeln!(
                text,
                "{:>6.1} {:>9}  {}",
                function.calls,
                number(function.instructions),
                function.name
            );
        }
    }
    text
}

/// One line for each target.
fn verdicts(instructions: &Instructions) -> String {
    let mut text = String::new();
    for judged in instructions.judged() {
        let Judged {
            target,
            ratio: came,
        } = judged;
        let _ = writeln!(
            text,
            "- **{}** costs {} of {}; the target is at most {}: {}.",
            target.workload,
            ratio(came),
            of(target.compared_with),
            target.limit,
            if judged.is_met() {
                "met"
            } else {
                "**not met**"
            }
        );
    }
    text
}

fn of(mechanism: Mechanism) -> &'static str {
    match mechanism {
        Mechanism::OutriderLua => "Outrider Lua",
        Mechanism::EnvoyLua => "what Envoy's Lua filter costs",
        Mechanism::Native => "what native code costs",
    }
}

/// Workloads by mechanisms.
fn added(instructions: &Instructions) -> Table {
    let mut head = vec!["workload".to_owned()];
    head.extend(Mechanism::ALL.map(|mechanism| mechanism.title().to_owned()));
    head.extend(["of Envoy's Lua".to_owned(), "of native".to_owned()]);
    let mut table = Table::new(head);
    let names = WORKLOADS.iter().map(|workload| workload.name);
    for name in std::iter::once(EMPTY).chain(names) {
        let cells: Vec<_> = Mechanism::ALL
            .into_iter()
            .map(|mechanism| instructions.added(name, mechanism))
            .collect();
        if cells.iter().all(Option::is_none) {
            continue;
        }
        let mut row = vec![name.to_owned()];
        row.extend(
            cells
                .into_iter()
                .map(|cell| cell.map_or_else(String::new, number)),
        );
        for other in [Mechanism::EnvoyLua, Mechanism::Native] {
            let of = instructions.ratio(name, Mechanism::OutriderLua, other);
            row.push(of.map_or_else(String::new, ratio));
        }
        table.row(row);
    }
    table
}

fn baselines(instructions: &Instructions) -> String {
    let mut text = String::new();
    for shape in Shape::ALL {
        let (Some(base), Some(noise)) = (instructions.base(shape), instructions.noise(shape))
        else {
            continue;
        };
        let _ = writeln!(
            text,
            "- Without any filter, a {} takes {} instructions in Envoy; measured twice, it differed by {}.",
            shape.describe(),
            number(base),
            number(noise)
        );
    }
    text.push('\n');
    text
}

fn workloads() -> String {
    let mut text = String::from("The workloads:\n\n");
    let mut table = Table::new(
        ["workload", "what is done", "the request"]
            .map(str::to_owned)
            .to_vec(),
    );
    table.row(vec![
        EMPTY.to_owned(),
        "Outrider is in the chain and no plugin is in use".to_owned(),
        Shape::Plain.describe(),
    ]);
    for workload in &WORKLOADS {
        table.row(vec![
            workload.name.to_owned(),
            workload.about.to_owned(),
            workload.shape.describe(),
        ]);
    }
    text.push_str(&table.words());
    text
}
