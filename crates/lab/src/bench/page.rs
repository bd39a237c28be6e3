//! The page of a report, and the short forms of it for the terminal. Functions: the same report gives
//! the same text, so a page can be checked against its raw file.

mod detail;
mod text;
mod wasm;

#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use super::mechanism::{Family, Guest, Mechanism};
use super::profile::Part;
use super::report::{Instructions, Judged, Report};
use super::variant::EMPTY;
use super::workload::Shape;
use text::{Table, number, ratio};

/// The page.
pub fn page(report: &Report) -> String {
    let family = report.family;
    let mut page = String::from(match family {
        Family::Lua => {
            "# What a Lua plugin costs

This page is written by `make bench`, from [lua.json](lua.json), which is the raw result. It says what a plugin adds to a
request in a stock Envoy: as an Outrider plugin in Lua, as a script of Envoy's own Lua filter, and as native code in a
dynamic module that does the same and wastes nothing.\n\n"
        }
        Family::Wasm => {
            "# What a Wasm plugin costs

This page is written by `make bench`, from [wasm.json](wasm.json), which is the raw result. It says what a plugin adds to a
request in a stock Envoy: as a guest in Outrider, which runs it in Wasmtime, as the **same file** in Envoy's own Wasm filter,
which runs it in V8, and as native code in a dynamic module that does the same and wastes nothing. The guests were written in
Rust, C++ and Go. [What a Lua plugin costs](lua.md) is told elsewhere.\n\n"
        }
    });
    page.push_str(&verdicts(family, &report.instructions));
    page.push_str("\n## Instructions that are added to a request\n\n");
    page.push_str(&added(family, &report.instructions).markdown());
    page.push('\n');
    page.push_str(&baselines(&report.instructions));
    page.push_str(&workloads(family));
    page.push_str(&detail::composition(family, &report.instructions));
    if let Some(time) = &report.time {
        page.push_str(&detail::time(family, time));
    }
    if let Some(memory) = &report.memory {
        page.push_str(&match family {
            Family::Lua => detail::memory(memory),
            Family::Wasm => wasm::memory(memory),
        });
    }
    if let Some(ready) = &report.ready {
        page.push_str(&wasm::ready(ready));
    }
    page.push_str(&detail::method(report));
    page
}

/// What was measured, for a terminal.
pub fn summary(report: &Report) -> String {
    let instructions = &report.instructions;
    let family = report.family;
    let mut text = String::new();
    if !instructions.counted.is_empty() {
        let _ = write!(
            text,
            "Instructions that are added to a request\n\n{}\n{}{}",
            added(family, instructions).plain(),
            baselines(instructions),
            verdicts(family, instructions)
        );
    }
    if let Some(time) = &report.time {
        let _ = write!(
            text,
            "\nCPU time of Envoy for a request, in microseconds\n\n{}",
            detail::times(family, time).plain()
        );
    }
    if let Some(memory) = &report.memory {
        let sizes = match family {
            Family::Lua => detail::sizes(memory),
            Family::Wasm => wasm::sizes(memory),
        };
        let _ = write!(text, "\nMemory\n\n{}", sizes.plain());
    }
    if let Some(ready) = &report.ready {
        let _ = write!(text, "\nStarts\n\n{}", wasm::starts(ready).plain());
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
        for part in Part::ALL {
            let added = report.instructions.added_part(counted, part);
            if let Some(added) = added.filter(|added| added.abs() >= 1.0) {
                let _ = writeln!(text, "{:>9}  {}", number(added), part.title(report.family));
            }
        }
        let _ = writeln!(text, "  functions");
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
fn verdicts(family: Family, instructions: &Instructions) -> String {
    let mut text = String::new();
    for judged in instructions.judged(family) {
        let Judged {
            target,
            ratio: came,
        } = judged;
        let _ = writeln!(
            text,
            "- **{}** costs {} of {}; the target is at most {}: {}.",
            match target.of {
                Mechanism::OutriderLua => target.workload.to_owned(),
                other => format!("{}, {}", target.workload, other.title()),
            },
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
        Mechanism::EnvoyLua => "what Envoy's Lua filter costs",
        Mechanism::Native => "what native code costs",
        Mechanism::EnvoyRust | Mechanism::EnvoyCpp | Mechanism::EnvoyGo => {
            "what the same file costs in Envoy's Wasm filter"
        }
        other => other.title(),
    }
}

/// Workloads by mechanisms.
fn added(family: Family, instructions: &Instructions) -> Table {
    match family {
        Family::Lua => added_by_lua(instructions),
        Family::Wasm => added_by_wasm(instructions),
    }
}

fn added_by_lua(instructions: &Instructions) -> Table {
    let mechanisms = Family::Lua.mechanisms().iter().copied();
    let mut head = vec!["workload".to_owned()];
    head.extend(
        mechanisms
            .clone()
            .map(|mechanism| mechanism.title().to_owned()),
    );
    head.extend(["of Envoy's Lua".to_owned(), "of native".to_owned()]);
    let mut table = Table::new(head);
    for name in names(Family::Lua) {
        let cells: Vec<_> = mechanisms
            .clone()
            .map(|mechanism| instructions.added(name, mechanism))
            .collect();
        if cells.iter().all(Option::is_none) {
            continue;
        }
        let mut row = vec![name.to_owned()];
        row.extend(cells.into_iter().map(|cell| some(cell, number)));
        for other in [Mechanism::EnvoyLua, Mechanism::Native] {
            let of = instructions.ratio(name, Mechanism::OutriderLua, other);
            row.push(some(of, ratio));
        }
        table.row(row);
    }
    table
}

fn added_by_wasm(instructions: &Instructions) -> Table {
    let head = [
        "workload, guest",
        "Outrider",
        "Envoy's Wasm filter",
        "native module",
        "of Envoy's Wasm",
        "of native",
    ];
    let mut table = Table::new(head.map(str::to_owned).to_vec());
    for name in names(Family::Wasm) {
        for guest in Guest::ALL {
            let (ours, theirs) = (guest.outrider(), guest.envoy());
            let cells = [ours, theirs].map(|mechanism| instructions.added(name, mechanism));
            if cells.iter().all(Option::is_none) {
                continue;
            }
            let native = instructions.added(name, Mechanism::Native);
            let title = if name == EMPTY {
                name.to_owned()
            } else {
                format!("{name}, {}", guest.title())
            };
            let mut row = vec![title];
            row.extend(cells.into_iter().map(|cell| some(cell, number)));
            row.push(some(native, number));
            row.extend(
                [theirs, Mechanism::Native]
                    .map(|other| some(instructions.ratio(name, ours, other), ratio)),
            );
            table.row(row);
        }
    }
    table
}

/// What the rows are.
fn names(family: Family) -> impl Iterator<Item = &'static str> {
    std::iter::once(EMPTY).chain(family.workloads().map(|workload| workload.name))
}

fn some(number: Option<f64>, show: fn(f64) -> String) -> String {
    number.map_or_else(String::new, show)
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

fn workloads(family: Family) -> String {
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
    for workload in family.workloads() {
        table.row(vec![
            workload.name.to_owned(),
            workload.about.to_owned(),
            workload.shape.describe(),
        ]);
    }
    text.push_str(&table.words());
    text
}
