//! `docs/proxy-wasm-support.md`, from the scripts, from what the probe imports and exports, and from what the
//! comparison with Envoy's filter has shown to differ.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use crate::building;
use crate::differences::{DIFFERENCES, Differing, EVERYWHERE, script_of, stands_for};
use crate::script::{Script, Setting};

/// What the page begins with.
const PREFACE: &str = include_str!("preface.md");

/// Callbacks of the guest: how the probe calls them, since which version, and which scripts show them.
const CALLBACKS: &[(&str, &str, &str)] = &[
    (
        "proxy_on_context_create",
        "root and stream contexts",
        "life",
    ),
    ("proxy_on_vm_start", "once for each root context", "life"),
    (
        "proxy_on_configure",
        "`false`: the update is refused",
        "life metrics",
    ),
    (
        "proxy_validate_configuration",
        "never called, as in Envoy",
        "life",
    ),
    (
        "proxy_on_tick",
        "on the worker whose VM asked",
        "ticks pause-tick",
    ),
    (
        "proxy_on_queue_ready",
        "on the worker that registered last",
        "shared-queue",
    ),
    (
        "proxy_on_request_headers",
        "0.1.0: without `end_of_stream`",
        "life headers-request pause-request-headers headers-return-3",
    ),
    (
        "proxy_on_request_body",
        "",
        "life body-get body-request-buffered pause-request-body body-return-3",
    ),
    (
        "proxy_on_request_trailers",
        "",
        "life trailers-request pause-request-trailers",
    ),
    (
        "proxy_on_request_metadata",
        "never called: modules do not see HTTP/2 METADATA frames",
        "life",
    ),
    (
        "proxy_on_response_headers",
        "0.1.0: without `end_of_stream`",
        "life headers-response pause-response-headers",
    ),
    (
        "proxy_on_response_body",
        "",
        "life body-response-buffered pause-response-body",
    ),
    (
        "proxy_on_response_trailers",
        "",
        "life trailers-response pause-response-trailers",
    ),
    (
        "proxy_on_response_metadata",
        "never called: modules do not see HTTP/2 METADATA frames",
        "life",
    ),
    (
        "proxy_on_http_call_response",
        "on the root context, once for each token",
        "http-call http-call-refused http-call-timeout http-call-not-waited",
    ),
    ("proxy_on_grpc_receive_initial_metadata", "", "grpc-stream"),
    ("proxy_on_grpc_receive", "", "grpc-call grpc-stream"),
    ("proxy_on_grpc_receive_trailing_metadata", "", "grpc-stream"),
    (
        "proxy_on_grpc_close",
        "",
        "grpc-stream grpc-call-fails grpc-call-refused",
    ),
    (
        "proxy_on_foreign_function",
        "never called: no foreign function of ours calls back",
        "foreign",
    ),
    (
        "proxy_on_log",
        "before `proxy_on_done`, as in Envoy",
        "life maps-log",
    ),
    (
        "proxy_on_done",
        "`false` waits for `proxy_done`",
        "life done",
    ),
    ("proxy_on_delete", "", "life"),
];

/// Callbacks that are not for HTTP.
const NETWORK: &[&str] = &[
    "proxy_on_new_connection",
    "proxy_on_downstream_data",
    "proxy_on_upstream_data",
    "proxy_on_downstream_connection_close",
    "proxy_on_upstream_connection_close",
];

/// Calls of WASI that Envoy's filter declares with parameters that no guest has: the probe cannot import them.
const NOT_IN_THE_PROBE: &[(&str, &str)] = &[
    (
        "path_link",
        "answers 58, as all that touches files; Envoy's filter refuses guests that import it",
    ),
    (
        "path_symlink",
        "answers 58, as all that touches files; Envoy's filter refuses guests that import it",
    ),
];

/// Imports (module and name) and exports of a Wasm file.
struct Interface {
    imports: BTreeSet<(String, String)>,
    exports: BTreeSet<String>,
}

/// Reads the import and export sections: <https://webassembly.github.io/spec/core/binary/modules.html>.
fn interface(file: &Path) -> Interface {
    let bytes = std::fs::read(file).unwrap();
    let mut reader = Reader {
        bytes: &bytes,
        at: 8,
    };
    let mut interface = Interface {
        imports: BTreeSet::new(),
        exports: BTreeSet::new(),
    };
    while reader.at < bytes.len() {
        let (section, length) = (reader.byte(), reader.number());
        let end = reader.at + length;
        match section {
            2 => {
                for _ in 0..reader.number() {
                    let import = (reader.name(), reader.name());
                    // The probe imports functions only.
                    assert_eq!(reader.byte(), 0);
                    reader.number();
                    interface.imports.insert(import);
                }
            }
            7 => {
                for _ in 0..reader.number() {
                    interface.exports.insert(reader.name());
                    reader.byte();
                    reader.number();
                }
            }
            _ => {}
        }
        reader.at = end;
    }
    interface
}

struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl Reader<'_> {
    fn byte(&mut self) -> u8 {
        self.at += 1;
        self.bytes[self.at - 1]
    }

    fn number(&mut self) -> usize {
        let mut number = 0;
        for shift in (0..).step_by(7) {
            let byte = self.byte();
            number |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        number
    }

    fn name(&mut self) -> String {
        let length = self.number();
        self.at += length;
        String::from_utf8(self.bytes[self.at - length..self.at].to_vec()).unwrap()
    }
}

fn link(script: &str) -> String {
    format!("[{script}](../crates/wasm-runtime/guests/scripts/{script}.txt)")
}

fn links(scripts: impl IntoIterator<Item = String>) -> String {
    let links: Vec<String> = scripts.into_iter().map(|script| link(&script)).collect();
    let shown = links
        .get(..links.len().min(4))
        .unwrap_or_default()
        .join(", ");
    match links.len() {
        0..=4 => shown,
        more => format!("{shown} and {} more", more - 4),
    }
}

/// The number of a difference in the page's list, from 1.
fn number_of(script: &str) -> usize {
    let position = DIFFERENCES
        .iter()
        .position(|(names, _)| names.iter().any(|name| stands_for(name, script)));
    position.unwrap_or_else(|| panic!("{script} differs, and no reason is listed")) + 1
}

/// Whether a line of a difference reports a call of this function.
fn reports(line: &str, function: &str) -> bool {
    let short = function.strip_prefix("proxy_").unwrap_or(function);
    let mut words = line
        .split_whitespace()
        .skip_while(|word| !matches!(*word, "call" | "size" | "quiet" | "raw" | "let"));
    let called = match words.next() {
        Some("let") => words.nth(2),
        Some(_) => words.next(),
        None => None,
    };
    called.is_some_and(|name| name == short || name == function)
}

/// What is said of a function: where lines that report it differ, the numbers of the differences.
fn verdict(function: &str, differing: &Differing) -> String {
    let numbers: BTreeSet<usize> = differing
        .iter()
        .filter(|(_, lines)| {
            lines
                .iter()
                .any(|line| !line.starts_with(' ') && reports(line, function))
        })
        .map(|(case, _)| number_of(script_of(case)))
        .collect();
    as_in_envoy_but(&numbers)
}

fn as_in_envoy_but(numbers: &BTreeSet<usize>) -> String {
    if numbers.is_empty() {
        return "as in Envoy".to_owned();
    }
    let numbers: Vec<String> = numbers
        .iter()
        .map(|number| format!("[{number}](#difference-{number})"))
        .collect();
    format!("as in Envoy, but {}", numbers.join(", "))
}

fn versions(of: impl Fn(&str) -> bool) -> String {
    building::ABIS
        .iter()
        .map(|abi| if of(abi) { " yes |" } else { " |" })
        .collect()
}

/// `"a\0b"` in a script is the property `a.b`.
fn property_of(line: &str) -> Option<String> {
    let (_, rest) = line.split_once("get_property \"")?;
    let (path, _) = rest.split_once('"')?;
    Some(path.replace("\\0", "."))
}

/// The page. Fails when the probe imports a function that no script calls, exports one that no row names, or a
/// difference has no reason.
pub(crate) fn render(scripts: &[Script], differing: &Differing) -> String {
    let differing = &comparable(scripts, differing);
    let interfaces: BTreeMap<&str, Interface> = building::ABIS
        .iter()
        .map(|abi| (*abi, interface(&building::probe(abi))))
        .collect();
    let calling = |function: &str| -> Vec<String> {
        scripts
            .iter()
            .filter(|script| script.calls(function))
            .map(|script| script.name.clone())
            .collect()
    };
    let imported = |module: &str| -> BTreeSet<String> {
        interfaces
            .values()
            .flat_map(|interface| &interface.imports)
            .filter(|(of, _)| of == module)
            .map(|(_, name)| name.clone())
            .collect()
    };
    let mut page = PREFACE.to_owned();
    page.push_str(
        "\n## Host functions\n\nIn module `env`.\n\n| function | 0.1.0 | 0.2.0 | 0.2.1 | in Outrider | shown by |\n\
         |---|---|---|---|---|---|\n",
    );
    for function in imported("env") {
        let shown_by = calling(&function);
        assert!(!shown_by.is_empty(), "no script calls {function}");
        writeln!(
            page,
            "| `{function}` |{} {} | {} |",
            versions(|abi| interfaces[abi]
                .imports
                .contains(&("env".to_owned(), function.clone()))),
            verdict(&function, differing),
            links(shown_by)
        )
        .unwrap();
    }
    page.push_str(
        "| `envoy_resolve_dns` | | | | **not supported**: a guest that imports it is refused | |\n\
         \nOutrider offers each of them to guests of every version; the columns say in which versions Envoy's filter \
         has it, and the probe was run with it.\n",
    );
    page.push_str(
        "\n## Callbacks of the guest\n\n| export | in Outrider | shown by |\n|---|---|---|\n",
    );
    for (export, note, shown_by) in CALLBACKS {
        for script in shown_by.split(' ') {
            assert!(
                scripts.iter().any(|known| known.name == script),
                "there is no script {script}"
            );
        }
        let note = if note.is_empty() { "called" } else { note };
        let shown_by = links(shown_by.split(' ').map(ToOwned::to_owned));
        writeln!(page, "| `{export}` | {note} | {shown_by} |").unwrap();
    }
    for export in NETWORK {
        writeln!(
            page,
            "| `{export}` | **not there yet**: network filters (L4) | |"
        )
        .unwrap();
    }
    for interface in interfaces.values() {
        for export in &interface.exports {
            let is_told = CALLBACKS.iter().any(|(name, ..)| name == export)
                || export.starts_with("proxy_abi_version")
                || ["memory", "proxy_on_memory_allocate"].contains(&export.as_str());
            assert!(is_told, "the probe exports {export}, which no row names");
        }
    }
    page.push_str(
        "\nBesides: `memory`; `malloc` or `proxy_on_memory_allocate`, whichever there is; `_initialize` and then `main` or \
         `__main_void`, or `_start`; a start section; one of `proxy_abi_version_0_1_0`, `_0_2_0`, `_0_2_1`.\n",
    );
    page.push_str("\n## WASI\n\nIn `wasi_snapshot_preview1` and in `wasi_unstable`.\n\n| call | in Outrider | shown by |\n|---|---|---|\n");
    for call in imported("wasi_snapshot_preview1") {
        let shown_by = calling(&call);
        assert!(!shown_by.is_empty(), "no script calls {call}");
        writeln!(
            page,
            "| `{call}` | {} | {} |",
            verdict(&call, differing),
            links(shown_by)
        )
        .unwrap();
    }
    for (call, what) in NOT_IN_THE_PROBE {
        writeln!(page, "| `{call}` | {what} | |").unwrap();
    }
    properties(&mut page, scripts, differing);
    foreign_functions(&mut page, scripts, differing);
    page.push_str(
        "\n## Differences\n\nEach is held by a comparison; [differences.txt](../crates/e2e/tests/wasm_oracle/differences.txt) has the exact lines. \
         What is no script's own:\n",
    );
    for reason in EVERYWHERE {
        write!(page, "\n- {reason}").unwrap();
    }
    page.push('\n');
    for (index, (names, reason)) in DIFFERENCES.iter().enumerate() {
        let number = index + 1;
        let shown_by: Vec<String> = scripts
            .iter()
            .map(|script| script.name.clone())
            .filter(|script| names.iter().any(|name| stands_for(name, script)))
            .collect();
        for name in *names {
            let has_gone = !differing
                .keys()
                .any(|case| stands_for(name, script_of(case)));
            assert!(!has_gone, "{name} does not differ any more: {reason}");
        }
        write!(
            page,
            "\n### Difference {number}\n\n{reason}\n\nShown by {}.\n",
            links(shown_by)
        )
        .unwrap();
    }
    page.push_str("\n## What ends or hangs an Envoy with its own Wasm filter\n\nThe same guests cost one request in Outrider, or nothing.\n\n");
    for script in scripts
        .iter()
        .filter(|script| script.has(Setting::BreaksEnvoy))
    {
        writeln!(
            page,
            "- {} ({})",
            script.about.trim_end_matches('.'),
            link(&script.name)
        )
        .unwrap();
    }
    page
}

/// What differs where there is something to compare with: Envoy goes on.
fn comparable(scripts: &[Script], differing: &Differing) -> Differing {
    let breaks = |case: &str| {
        scripts
            .iter()
            .any(|script| script.name == script_of(case) && script.has(Setting::BreaksEnvoy))
    };
    differing
        .iter()
        .filter(|(case, _)| !breaks(case))
        .map(|(case, lines)| (case.clone(), lines.clone()))
        .collect()
}

/// The phases in which every property is asked for, as scripts are named.
const PHASES: &[(&str, &str)] = &[
    ("configure", "configuration"),
    ("request-headers", "request headers"),
    ("request-body", "request body"),
    ("response-headers", "response headers"),
    ("response-body", "response body"),
    ("log", "log"),
];

fn properties(page: &mut String, scripts: &[Script], differing: &Differing) {
    page.push_str(
        "\n## Properties\n\nEach asked for when the plugin is configured, with request headers, request body, response headers, \
         response body and in the log phase: what comes back, or that nothing does, is compared in each.\n\n\
         | property | in Outrider |\n|---|---|\n",
    );
    let asked: BTreeSet<String> = scripts
        .iter()
        .filter(|script| script.name.starts_with("properties-"))
        .flat_map(|script| {
            script
                .text
                .lines()
                .filter_map(property_of)
                .collect::<Vec<_>>()
        })
        .collect();
    assert!(asked.len() > 80, "only {} properties", asked.len());
    for property in asked {
        let mut where_it_differs: BTreeMap<usize, BTreeSet<&str>> = BTreeMap::new();
        for (case, lines) in differing {
            let script = script_of(case);
            let Some(phase) = script.strip_prefix("properties-") else {
                continue;
            };
            let differs = lines.iter().any(|line| {
                !line.starts_with(' ') && property_of(line).as_deref() == Some(&property)
            });
            if differs {
                let phase = PHASES
                    .iter()
                    .find_map(|(name, told)| (*name == phase).then_some(*told));
                where_it_differs
                    .entry(number_of(script))
                    .or_default()
                    .insert(phase.unwrap_or("where it is there"));
            }
        }
        let name = match property.trim_matches('.') {
            "" => "(nothing but separators)".to_owned(),
            name => format!("`{name}`"),
        };
        if where_it_differs.is_empty() {
            writeln!(page, "| {name} | as in Envoy |").unwrap();
            continue;
        }
        let phases: BTreeSet<&str> = where_it_differs.values().flatten().copied().collect();
        let numbers: BTreeSet<usize> = where_it_differs.keys().copied().collect();
        let phases: Vec<&str> = phases.into_iter().collect();
        writeln!(
            page,
            "| {name} | {} ({}) |",
            as_in_envoy_but(&numbers),
            phases.join(", ")
        )
        .unwrap();
    }
    page.push_str(
        "\nWhat `proxy_set_property` sets is read back by its name in every phase of the stream, its log phase included.\n",
    );
}

fn foreign_functions(page: &mut String, scripts: &[Script], differing: &Differing) {
    page.push_str("\n## Foreign functions\n\n| function | in Outrider |\n|---|---|\n");
    let name_of = |line: &str| -> Option<String> {
        let (_, rest) = line.split_once("call_foreign_function \"")?;
        let (name, _) = rest.split_once('"')?;
        (!name.is_empty() && name != "none").then(|| name.to_owned())
    };
    let called: BTreeSet<String> = scripts
        .iter()
        .flat_map(|script| script.text.lines().filter_map(name_of).collect::<Vec<_>>())
        .collect();
    for name in called {
        let numbers: BTreeSet<usize> = differing
            .iter()
            .filter(|(_, lines)| {
                lines
                    .iter()
                    .any(|line| !line.starts_with(' ') && name_of(line).as_deref() == Some(&name))
            })
            .map(|(case, _)| number_of(script_of(case)))
            .collect();
        writeln!(page, "| `{name}` | {} |", as_in_envoy_but(&numbers)).unwrap();
    }
}
