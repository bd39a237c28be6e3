//! The parts of the page behind the first table.

use std::fmt::Write as _;

use super::super::mechanism::{Family, Mechanism};
use super::super::profile::Part;
use super::super::report::{Counted, Instructions, Memory, Report, Times, median};
use super::super::variant::{BASELINE, TWIN};
use super::super::workload::{BODY_BYTES, Shape};
use super::names;
use super::text::{Table, memory as kibibytes, number, ratio};

/// Fewer instructions than this are not worth a line of the page.
const WORTH_A_LINE: f64 = 20.0;

/// What the cost consists of.
pub(super) fn composition(family: Family, instructions: &Instructions) -> String {
    let mut page = String::from(
        "
## What the cost is made of

Counted, from callgrind's own costs: whose code the added instructions are. Envoy's part holds what it does for having
the filter at all (native no-op is that and next to nothing else) and what it does when a plugin asks it for something,
which the second table of each workload takes apart, with all that is called from there.\n",
    );
    for name in names(family) {
        let counted: Vec<_> = family
            .mechanisms()
            .iter()
            .copied()
            .filter_map(|mechanism| Some((mechanism, instructions.find(name, mechanism)?)))
            .collect();
        if counted.is_empty() {
            continue;
        }
        let _ = writeln!(page, "\n### {name}\n");
        page.push_str(&parts(family, instructions, name, &counted).markdown());
        let calls = calls(&counted);
        if !calls.is_empty() {
            let _ = write!(page, "\n{}", calls.markdown());
        }
        if let Some(gap) = gap(family, instructions, name) {
            let _ = writeln!(page, "\n{}", gap.trim_end());
        }
        if name == "coraza" {
            page.push_str(super::wasm::CORAZA);
        }
    }
    if family == Family::Wasm {
        page.push_str(&super::wasm::left(instructions));
    }
    page
}

fn parts(
    family: Family,
    instructions: &Instructions,
    name: &str,
    counted: &[(Mechanism, &Counted)],
) -> Table {
    let mut head = vec!["whose code".to_owned()];
    head.extend(
        counted
            .iter()
            .map(|(mechanism, _)| mechanism.title().to_owned()),
    );
    let mut table = Table::new(head);
    for part in Part::ALL {
        let costs: Vec<_> = counted
            .iter()
            .map(|(_, counted)| instructions.added_part(counted, part).unwrap_or(0.0))
            .collect();
        if costs.iter().all(|cost| cost.abs() < WORTH_A_LINE) {
            continue;
        }
        let mut row = vec![part.title(family).to_owned()];
        row.extend(costs.into_iter().map(number));
        table.row(row);
    }
    let mut row = vec!["all".to_owned()];
    row.extend(counted.iter().map(|(mechanism, _)| {
        instructions
            .added(name, *mechanism)
            .map_or_else(String::new, number)
    }));
    table.row(row);
    table
}

/// Envoy's functions that modules called.
fn calls(counted: &[(Mechanism, &Counted)]) -> Table {
    let modules: Vec<_> = counted
        .iter()
        .filter(|(_, counted)| !counted.per_request.into_envoy.is_empty())
        .collect();
    let mut head = vec!["asked of Envoy".to_owned()];
    for (mechanism, _) in &modules {
        head.push(format!("calls, {}", mechanism.title()));
        head.push("instructions".to_owned());
    }
    let mut table = Table::new(head);
    let mut names: Vec<&str> = Vec::new();
    for (_, counted) in &modules {
        for function in &counted.per_request.into_envoy {
            if function.instructions >= WORTH_A_LINE && !names.contains(&function.name.as_str()) {
                names.push(&function.name);
            }
        }
    }
    for name in names {
        let mut row = vec![format!(
            "`{}`",
            name.trim_start_matches("envoy_dynamic_module_callback_")
        )];
        for (_, counted) in &modules {
            let found = counted
                .per_request
                .into_envoy
                .iter()
                .find(|one| one.name == name);
            row.push(found.map_or_else(String::new, |one| format!("{:.1}", one.calls)));
            row.push(found.map_or_else(String::new, |one| number(one.instructions)));
        }
        table.row(row);
    }
    table
}

/// For a target that is not met: how much is too much, and how much of the cost is Outrider's to save.
fn gap(family: Family, instructions: &Instructions, name: &str) -> Option<String> {
    let missed: Vec<_> = instructions
        .judged(family)
        .into_iter()
        .filter(|judged| judged.target.workload == name && !judged.is_met())
        .collect();
    if missed.is_empty() {
        return None;
    }
    let mut text = String::new();
    for judged in missed {
        let target = judged.target;
        let added = instructions.added(name, target.of)?;
        let limit = target.limit * instructions.added(name, target.compared_with)?;
        let _ = write!(
            text,
            "At most {} of {} would be {} instructions; it is {} ({}), {} too many. ",
            target.limit,
            target.compared_with.title(),
            number(limit),
            number(added),
            ratio(judged.ratio),
            number(added - limit),
        );
        let rust = instructions
            .find(name, target.of)
            .and_then(|ours| instructions.added_part(ours, Part::Module));
        if let Some(rust) = rust {
            let _ = write!(
                text,
                "Without any of the module's own Rust it would be {} ({}). ",
                number(added - rust),
                ratio((added - rust) / instructions.added(name, target.compared_with)?),
            );
        }
    }
    if let (Some(ours), Some(native)) = (
        instructions.find(name, family.first()),
        instructions.find(name, Mechanism::Native),
    ) {
        let beyond: Vec<_> = Part::ALL
            .into_iter()
            .filter_map(|part| {
                let ours = instructions.added_part(ours, part)?;
                let more = ours - instructions.added_part(native, part)?;
                (more.abs() >= WORTH_A_LINE)
                    .then(|| format!("{} {}", part.title(family), number(more)))
            })
            .collect();
        let _ = write!(
            text,
            "Native code, which wastes nothing, takes {}. What Outrider takes beyond it: {}.",
            number(instructions.added(name, Mechanism::Native)?),
            beyond.join("; ")
        );
    }
    Some(text)
}

/// CPU time.
pub(super) fn time(family: Family, times: &Times) -> String {
    let rounds = times
        .timed
        .first()
        .map_or(0, |timed| timed.microseconds.len());
    let mut page = format!(
        "
## CPU time of Envoy

Microseconds for each request, kernel included, by the kernel's clock of each thread: {} connections, {} ms under load by
turns in one Envoy, {rounds} rounds whose order rotates. The median, and the median of what it was above the baseline of
the same round. The second baseline shows how much of a difference is none. Instructions are the better measure of small
costs; this shows that they are not beside the point.\n\n",
        times.connections, times.slice_ms
    );
    page.push_str(&self::times(family, times).markdown());
    let floors: Vec<_> = Shape::ALL
        .into_iter()
        .filter_map(|shape| {
            let of = |name: &str| {
                let is = |one: &&super::super::report::Timed| {
                    one.workload == name && one.mechanism.is_none() && one.shape == shape
                };
                times.timed.iter().find(is)
            };
            let (base, twin) = (of(BASELINE)?, of(TWIN)?);
            let apart: Vec<_> = base
                .microseconds
                .iter()
                .zip(&twin.microseconds)
                .map(|(base, twin)| (base - twin).abs())
                .collect();
            Some(format!("{:.2} ({})", median(&apart)?, shape.name()))
        })
        .collect();
    let _ = writeln!(
        page,
        "\nWithin one round, two listeners without any filter differ by, at the median: {} µs.",
        floors.join(", ")
    );
    page
}

/// Each variant's CPU time.
pub(super) fn times(family: Family, times: &Times) -> Table {
    let mut table = Table::new(
        [
            "what",
            "µs for a request",
            "added",
            match family {
                Family::Lua => "of Envoy's Lua",
                Family::Wasm => "of Envoy's Wasm",
            },
        ]
        .map(str::to_owned)
        .to_vec(),
    );
    let added = |workload: &str, mechanism: Mechanism| {
        let of = |timed: &&super::super::report::Timed| {
            timed.workload == workload && timed.mechanism == Some(mechanism)
        };
        Some(times.medians(times.timed.iter().find(of)?)?.1)
    };
    for timed in &times.timed {
        let Some((whole, more)) = times.medians(timed) else {
            continue;
        };
        let name = match timed.mechanism {
            Some(mechanism) => format!("{}, {}", timed.workload, mechanism.title()),
            None => format!("{} ({})", timed.workload, timed.shape.name()),
        };
        let of = match timed.mechanism {
            Some(mechanism) => mechanism
                .counterpart()
                .and_then(|other| added(&timed.workload, other))
                .map(|other| ratio(more / other)),
            None => None,
        };
        let more = if timed.mechanism.is_none() && timed.workload == BASELINE {
            String::new()
        } else {
            format!("{more:+.2}")
        };
        table.row(vec![
            name,
            format!("{whole:.2}"),
            more,
            of.unwrap_or_default(),
        ]);
    }
    table
}

/// Memory.
pub(super) fn memory(memory: &Memory) -> String {
    let mut page = format!(
        "
## Memory

Differences in anonymous memory (heap, stacks, compiled Lua) between Envoys that differ in one thing only, after some
requests on every worker (and, with routes, on every route). A plugin reads its configuration and sets a header. Envoy's
Lua filter has no configuration, so there a route's is a script of its own, in `LuaPerRoute`. {} more plugins (filters)
tell what one takes, {} routes what routes take. What one plugin adds to one more worker is so small that the
allocator's pages blur it.\n\n",
        memory.more_plugins, memory.routes
    );
    page.push_str(&sizes(memory).markdown());
    page
}

/// What things take.
pub(super) fn sizes(memory: &Memory) -> Table {
    let mut table = Table::new(
        [
            "what",
            Mechanism::OutriderLua.title(),
            Mechanism::EnvoyLua.title(),
        ]
        .map(str::to_owned)
        .to_vec(),
    );
    let both = |of: &dyn Fn(Mechanism) -> Option<f64>| {
        [Mechanism::OutriderLua, Mechanism::EnvoyLua]
            .map(|mechanism| of(mechanism).map_or_else(String::new, kibibytes))
    };
    let mut add = |what: &str, of: &dyn Fn(Mechanism) -> Option<f64>| {
        let [ours, theirs] = both(of);
        table.row(vec![what.to_owned(), ours, theirs]);
    };
    add("one VM: one plugin on one more worker", &|mechanism| {
        memory.vm(mechanism)
    });
    add("one plugin, one worker", &|mechanism| {
        memory.plugin(mechanism, 1)
    });
    add("one plugin, two workers", &|mechanism| {
        memory.plugin(mechanism, 2)
    });
    add("one more worker, with one plugin", &|mechanism| {
        memory.worker(mechanism)
    });
    add(
        "1,000 routes with configuration, one worker",
        &|mechanism| memory.thousand_routes(mechanism, 1),
    );
    add(
        "1,000 routes with configuration, two workers",
        &|mechanism| memory.thousand_routes(mechanism, 2),
    );
    table
}

/// How, where, and how again.
pub(super) fn method(report: &Report) -> String {
    let environment = &report.environment;
    let [fewer, more] = report.instructions.requests;
    let mut page = format!(
        "
## How it was counted

- **Instructions.** Each variant is a stock Envoy with one worker under `valgrind --tool=callgrind`, started twice: it
  answers {} requests, or {}, on one HTTP/1.1 connection that is kept, one after another. (The longer run's total - the
  shorter one's) / {} is what a request takes: start, end, and the compiling of traces cancel out. All threads count,
  user mode only.
- **Added** is what that is above Envoy without any filter, the mean of two such baselines of the same requests.
",
        number(fewer as f64),
        number(more as f64),
        number((more - fewer) as f64),
    );
    page.push_str(&match report.family {
        Family::Lua => equal_work(report.compared),
        Family::Wasm => super::wasm::method(report.compared),
    });
    page.push_str("\n## Where\n\n");
    let mut table = Table::new(["what", "which"].map(str::to_owned).to_vec());
    for (what, which) in [
        ("date", environment.date.clone()),
        ("Envoy", environment.envoy.clone()),
        ("Outrider", environment.commit.clone()),
        ("its module, SHA-256", environment.module.clone()),
        ("native module, SHA-256", environment.native_module.clone()),
        ("valgrind", environment.valgrind.clone()),
        (
            "processor",
            format!(
                "{} ({} seen)",
                environment.processor, environment.processors
            ),
        ),
        ("kernel", environment.kernel.clone()),
    ] {
        table.row(vec![what.to_owned(), which]);
    }
    page.push_str(&table.words());
    page.push_str(
        "
## Again

```sh
make bench                                                      # all of this; needs valgrind
target/release/outrider-bench --workload no-op --functions      # one workload, and the module's dearest functions
target/release/outrider-bench --help
```
",
    );
    page
}

/// How mechanisms of Lua were made comparable.
fn equal_work(compared: usize) -> String {
    format!(
        "- **Equal work.** Before anything is counted, each script and the native module ran in three forms before an echo
  service, and what arrived there was compared with what the work should do to it: {compared} comparisons. What is read is added
  up and compared with what is expected in all three, so nothing can be left out. Names are made once, loops are plain.
- **Bodies.** The body has {BODY_BYTES} bytes and is held back until it is complete, by each mechanism in its own way. A read
  is a call of the API that brings the whole of it as a Lua string: `envoy.req.get_body()` in Outrider, which hands out
  the same string while the body stays what it is; `body:getBytes(0, length)` in Envoy's filter, of a body that was asked
  for once, which makes the string each time. Native code asks Envoy for the slices each time and needs no copy. An
  upstream answers these requests: Envoy's own answer would come before the body and close the connection of the
  baseline.
- **Both directions.** no-op has a handler for requests and one for responses; Envoy's Lua filter then runs a coroutine
  for each. no-op-request is the same with the first one only. A native module is called for both in any case.
- **Chains.** Five plugins in one Outrider filter, with code of their own; five Lua filters; five native filters. (One
  of each is the line no-op.)\n"
    )
}
