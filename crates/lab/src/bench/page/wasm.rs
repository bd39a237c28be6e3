//! The parts of the page that only Wasm plugins have.

use std::fmt::Write as _;

use super::super::mechanism::{Family, Guest, Mechanism};
use super::super::profile::Part;
use super::super::report::{Held, Instructions, Judged, Memory, Ready};
use super::super::workload::{BODY_BYTES, WORKLOADS};
use super::text::{Table, memory as kibibytes, number};

/// What a start with a large module, compiled before, may take beyond one without, in milliseconds.
const READY_LIMIT: f64 = 50.0;

/// What the guest's own code costs, and why. Its numbers were counted by hand, most of them with this program.
pub(super) const CORAZA: &str = "
What closes the gap is the guest's own code, as Cranelift compiles it; the host is less than a hundredth of the cost. In the run of
`92984aa` Go's code was compiled as it is, and Coraza cost 1.29 of what it costs in Envoy's Wasm filter. Go's compiler makes each
function one loop around a jump table, so each jump from part to part was an iteration: by instruction (callgrind's `--dump-instr`)
8.7 % looked whether the call's time was over, 3.3 % brought the index within the table, and 57 % were moves, as all values of a
function had to be somewhere at the loop's beginning.

Since then jumps forward, nine of ten in Coraza, are made direct before a module is compiled, and three of four loops are none any
more ([jumps.rs](../../crates/wasm-runtime/src/jumps.rs)): 50.7 M instructions instead of 67.5 M, over 600 requests. For a
while checks of the deadline stood only at loops and recursive calls, and not, as Wasmtime's epochs have them, at the beginning of each
function: 46.9 M instead of 50.1 M, over 400 requests; of the guests' own code for no-op that was 11 % in Rust, and 6 % in Go. They
missed calls that used up their budget without a loop, so guests are compiled with epochs again. What else was tried, in instructions
of the guest's own code for no-op:

| what | Go | Rust | why it is not so |
| --- | ---: | ---: | --- |
| no epoch checks at all | -5 % | -16 % | nothing would end an endless loop |
| Cranelift's inlining | -5 % | -1 % | to compile Coraza takes 11 GB of memory instead of 0.8, and three times as long; its code is half as large again |
| no guards against speculation beyond a table's or memory's end | -0.6 % | -2.4 % | other plugins and Envoy are in the same memory |
| tables filled at once | -0.7 % | -2.3 % | each VM would fill all of its table when it is made |

Accesses to memory are without checks as it is: what lies beyond is not mapped. V8, too, has no guards against speculation since
[2021](https://github.com/nodejs/node/commit/01e7d1f349); Outrider keeps them, as they cost little. The index of a jump table is
kept within it by Cranelift in any case.

One run of Go's garbage collector takes as much as some eight such requests, so the number depends on how many fall among those that are
counted: by some 5 %.
";

/// How often a guest is entered for a request without a body of its own: for its context and the request's headers,
/// the response's headers, the response's body, and its end.
const ENTRIES: f64 = 4.0;
/// Instructions of an entry in Wasmtime's public interface, and in what it needs of the C library. Counted by hand, from
/// the functions of a run for no-op (`--functions`).
const ENTRY: f64 = 227.0;

/// What is left for Outrider's own code by targets that are not met.
pub(super) fn left(instructions: &Instructions) -> String {
    let head = [
        "workload, guest",
        "the target",
        "Envoy's part",
        "the guest's own code",
        "entries",
        "left for Outrider",
        "its Rust now",
    ];
    let mut table = Table::new(head.map(str::to_owned).to_vec());
    for judged in instructions.judged(Family::Wasm) {
        if let Some(row) = row_of_what_is_left(instructions, &judged) {
            table.row(row);
        }
    }
    let idle = instructions
        .find("no plugin", Mechanism::OutriderRust)
        .and_then(|counted| instructions.added_part(counted, Part::Module));
    let (false, Some(idle)) = (table.is_empty(), idle) else {
        return String::new();
    };
    format!(
        "
### What targets leave

Of a target that is not met, much is spent before Outrider has done anything: what Envoy does for having a filter and for
what is asked of it, the guest's own code as Cranelift compiles it, and entering the guest. Wasmtime's public interface and its
thread-local state take {ENTRY:.0} instructions for an entry (`TypedFunc::call` 131, `tls_get` and `tls_set` 52, `__tls_get_addr` 44), and a
request is {ENTRIES:.0} of them for each plugin. Without any plugin, Outrider's own Rust takes {} for a request.

{}",
        number(idle),
        table.markdown()
    )
}

fn row_of_what_is_left(instructions: &Instructions, judged: &Judged) -> Option<Vec<String>> {
    let target = judged.target;
    let workload = WORKLOADS.iter().find(|one| one.name == target.workload)?;
    if judged.is_met() || workload.is_firewall {
        return None;
    }
    let counted = instructions.find(target.workload, target.of)?;
    let part = |part| instructions.added_part(counted, part);
    let limit = target.limit * instructions.added(target.workload, target.compared_with)?;
    let envoy = part(Part::Envoy)? + part(Part::Allocator)?;
    let guest = part(Part::Compiled)?;
    let entries = ENTRY * ENTRIES * workload.copies as f64;
    Some(vec![
        format!("{}, {}", target.workload, target.of.title()),
        number(limit),
        number(envoy),
        number(guest),
        number(entries),
        number(limit - envoy - guest - entries),
        number(part(Part::Module)?),
    ])
}

/// What VMs take.
pub(super) fn memory(memory: &Memory) -> String {
    let mut page = format!(
        "
## Memory

Differences in anonymous memory (`Anonymous` of `/proc/PID/smaps_rollup`: heap, stacks, the guests' memories, machine code
that was made in the process) between Envoys that differ in one thing only, after some requests on every worker. {} more
plugins of the same file, each with a VM of its own, tell what one takes. Not in it are pages of files: Outrider maps a
module's compiled code from its cache, which all Envoys of a machine share, where V8 has it in memory of its own. On its
main thread each plugin has a VM more, in both hosts. Coraza is one plugin with its core rule set. As it takes long
to make, Outrider has [one VM of it to spare](../wasm-plugins.md#when-it-fails) besides, which runs of `92984aa` and before
do not have.\n\n",
        memory.more_plugins
    );
    page.push_str(&sizes(memory).markdown());
    page
}

/// What things take.
pub(super) fn sizes(memory: &Memory) -> Table {
    let head = ["what", "Outrider", "Envoy's Wasm filter"];
    let mut table = Table::new(head.map(str::to_owned).to_vec());
    let mut add = |what: String, guest: Guest, of: &dyn Fn(Mechanism) -> Option<f64>| {
        let mut row = vec![what];
        row.extend(
            [guest.outrider(), guest.envoy()]
                .map(|mechanism| of(mechanism).map_or_else(String::new, kibibytes)),
        );
        table.row(row);
    };
    for guest in Guest::ALL {
        let title = guest.title();
        add(
            format!("{title}, one VM: one plugin on one more worker"),
            guest,
            &|mechanism| memory.vm(mechanism),
        );
        add(
            format!("{title}, one plugin, one worker"),
            guest,
            &|mechanism| memory.plugin(mechanism, 1),
        );
    }
    let coraza = |mechanism, workers| {
        Some(
            memory.kib(Some(mechanism), Held::Firewall, workers)?
                - memory.kib(None, Held::One, workers)?,
        )
    };
    add(
        "Coraza, one VM: one more worker".to_owned(),
        Guest::Go,
        &|mechanism| Some(coraza(mechanism, 2)? - coraza(mechanism, 1)?),
    );
    add("Coraza, one worker".to_owned(), Guest::Go, &|mechanism| {
        coraza(mechanism, 1)
    });
    table
}

/// How long starts take.
pub(super) fn ready(ready: &Ready) -> String {
    let mut page = format!(
        "
## From load to ready

Milliseconds from the start of Envoy's process until it has answered a request, with a module of {:.0} MB: Coraza, without
its rule set, whose compiling is the guest's own work in every host. Outrider finds the module's compiled code in its cache,
as after each `outrider up` but the first; Envoy's Wasm filter compiles it. The smallest of the rounds, which were in turns.\n\n",
        ready.module_bytes as f64 / 1e6
    );
    page.push_str(&starts(ready).markdown());
    if let Some((_, beyond)) = ready.least(Some(Mechanism::OutriderGo)) {
        let _ = writeln!(
            page,
            "\n- **Load to ready of the cached module** takes {beyond:.1} ms; the target is under {READY_LIMIT} ms: {}. It has the \
             check of the kept file, its mapping, and the start of {} VMs, one on the main thread and one on the worker, \
             each with the start of the guest itself.",
            if beyond < READY_LIMIT {
                "met"
            } else {
                "**not met**"
            },
            2
        );
    }
    page
}

/// Each kind of start.
pub(super) fn starts(ready: &Ready) -> Table {
    let head = ["what", "rounds", "ms", "beyond no filter"];
    let mut table = Table::new(head.map(str::to_owned).to_vec());
    for start in &ready.starts {
        let Some((least, beyond)) = ready.least(start.mechanism) else {
            continue;
        };
        table.row(vec![
            match start.mechanism {
                Some(mechanism) => mechanism.title().to_owned(),
                None => "no filter".to_owned(),
            },
            start.milliseconds.len().to_string(),
            format!("{least:.1}"),
            match start.mechanism {
                Some(_) => format!("{beyond:.1}"),
                None => String::new(),
            },
        ]);
    }
    table
}

/// What is to be known of how it was counted, beyond what is so for all plugins.
pub(super) fn method(compared: usize) -> String {
    format!(
        "- **Warm.** Callgrind counts from when Envoy has started, has compiled what it compiles, and has answered 1,000 requests:
  V8 compiles on threads of its own, whose counts differ from run to run.
- **Equal work.** Before anything is counted, each guest in both hosts and the native module ran in three forms before
  an echo service, and what arrived there was compared with what the work should do to it; Coraza had to pass what is
  measured and to refuse an attack: {compared} comparisons. What is read is added up and compared with what is expected in all
  of them, so nothing can be left out. Names are made once, loops are plain.
- **The same file.** `crates/lab/guests` has the guests: one file for each language, which does what its configuration says,
  with the SDK of its language (in C++, in the shape of the official SDK, which is in no package registry). SDKs export all
  callbacks, so a request is seven of them: its context is made, request headers, response headers, response body, log,
  done, delete. Outrider calls the first two as one, and the last three.
- **Envoy's filter** is `envoy.filters.http.wasm` with `envoy.wasm.runtime.v8`, which compiles with its optimizing compiler
  before the first request. Outrider's compiled code comes from its cache.
- **Bodies.** The body has {BODY_BYTES} bytes and is held back until it is complete (`allow_on_headers_stop_iteration`). A read is a
  host call that copies the whole of it into the guest's memory. Native code asks Envoy for the slices each time and
  needs no copy. An upstream answers these requests.
- **Chains.** Five plugins in one Outrider filter, five of Envoy's Wasm filters, five native filters; each plugin has a VM of
  its own, in both hosts.
- **Coraza** has the core rule set as recommended, and lets the request pass. It is counted with a fifth of the
  requests, as each takes that much longer.\n"
    )
}
