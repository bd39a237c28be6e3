//! What differs from Envoy's own Wasm filter: the reasons, and exactly which lines (`differences.txt`, written by the
//! comparison and read by the page).

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::outcomes::Outcomes;

/// Scripts that do not do the same in both, and why. A name ends with `*` for all scripts that begin so.
pub(crate) const DIFFERENCES: &[(&[&str], &str)] = &[
    (
        &["trap-*", "allocator-*", "exit"],
        "A guest that fails ends its stream by the plugin's failure policy, which answers 500 unless it says otherwise, \
         in whatever callback it was, and the VM is replaced; Envoy answers 503, or resets the stream. \
         Such a failure is `proc_exit` of WASI, too, after which Envoy goes on in the guest, and one in the guest's \
         allocator, after which Envoy's host function answers 6.",
    ),
    (
        &["bad-pointers"],
        "`fd_fdstat_get` looks at its pointer: 21 where it lies outside of the memory.",
    ),
    (
        &["body-announced"],
        "A body whose length was announced in `content-length` keeps that length: a change of it is refused with 10, and \
         the log says why. Envoy makes it, and cuts off what is too much, or breaks the exchange. Remove the header first, \
         or hold the headers back until the body is there.",
    ),
    (
        &["foreign"],
        "`set_envoy_filter_state` takes any key, where Envoy knows only those that something in it has registered. \
         Expressions (`expr_create`, `expr_evaluate`, `expr_delete`) are not there: 1.",
    ),
    (
        &["foreign-weak-keys"],
        "RSA signs with SHA-256, SHA-384 and SHA-512, and with keys of 2,048 to 4,096 bits whose exponent is at least 65537; \
         it checks with keys of 1,024 to 8,192 bits. ECDSA has the curves P-256, P-384 and P-521. The result says so of \
         others, for which Envoy also makes and checks signatures.",
    ),
    (
        &[
            "grpc-call-fails",
            "grpc-call-refused",
            "grpc-call-timeout",
            "grpc-stream",
            "grpc-stream-tick",
            "http-call-refused",
            "http-call-reset",
        ],
        "Texts of failures lack the details that Envoy adds to them in braces or as a `reset reason`: it does not tell \
         them to modules.",
    ),
    (
        &[
            "grpc-stream-closed",
            "http-call-in-log",
            "http-call-not-waited",
        ],
        "Callouts belong to their stream: when it is over, the root is told that nothing comes of those under way (an \
         HTTP call: no headers; gRPC: 14), and a new one is refused with 10. In Envoy they belong to the root, and go \
         on.",
    ),
    (
        &["http-call-bad"],
        "A callout without a stream, as from `proxy_on_configure`, is made on the main thread: a cluster that is not \
         there is told later, as an answer without headers or gRPC's status 14. gRPC's exchanges without a stream also \
         end, with 14, when Envoy takes a new configuration of the filter.",
    ),
    (
        &["headers-request"],
        "A header cannot be given an empty value: Envoy takes that from a module for the wish to remove it.",
    ),
    (
        &["headers-set-pairs", "headers-set-pairs-bad"],
        "Where a guest replaces all headers of a message, its pseudo headers and the headers of the connection stay, \
         and keep their places.",
    ),
    (
        &["http-call-default-timeout"],
        "A callout has one authority: a `host` header beside another `:authority` is refused with 2; Envoy joins both.",
    ),
    (
        &["maps-request-body", "maps-response-body", "trailers-added"],
        "Trailers that are not there cannot be added with the last part of a body: 2.",
    ),
    (
        &["properties-*"],
        "Envoy does not show modules, and so not to guests: its node, the response's size and flags, total sizes, names \
         of virtual hosts and filter chains, the duration of upstream connections' establishment (1); of metadata they \
         see texts, numbers and truth values (by name), and neither lists, nested structures, nor all of it at once.",
    ),
    (
        &["reply-odd", "reply-odd-code"],
        "A reply has the status of a final response, 200 to 599: others are refused with 2. Envoy sends them, and a \
         client takes what follows an interim status for the beginning of another response.",
    ),
    (
        &["reply-grpc"],
        "A guest sees its reply to a gRPC request as it made it; Envoy shows it what gRPC makes of that, headers alone. \
         The client gets the same.",
    ),
    (
        &["reply-own-headers", "reply-head"],
        "Of its own reply a guest sees `content-type` before `content-length`, and cannot remove either: the client gets \
         both. Its reply to a HEAD request has a body that it sees and the client does not get; in Envoy it ends with the \
         headers.",
    ),
];

/// What differs in many scripts, and is taken out of what is compared.
pub(crate) const EVERYWHERE: &[&str] = &[
    "Envoy sends `x-forwarded-for` with the callouts of a module, and not with those of its own Wasm filter.",
    "How a failure is told in the log is each one's own: Outrider's line names plugin, phase, callback and cause.",
    "Envoy configures a plugin in three VMs on one worker (a trial, the main thread's, the worker's), Outrider in two.",
];

/// By case (`script (version of the ABI)`): lines of Envoy's with `-`, of Outrider's with `+`, and the line before with
/// two spaces.
pub(crate) type Differing = Outcomes;

/// Whether a name of [`DIFFERENCES`] stands for a script.
pub(crate) fn stands_for(name: &str, script: &str) -> bool {
    name.strip_suffix('*')
        .map_or(name == script, |beginning| script.starts_with(beginning))
}

/// The script of a case's name.
pub(crate) fn script_of(case: &str) -> &str {
    case.split(' ').next().unwrap_or(case)
}

fn path() -> PathBuf {
    outrider_e2e::root().join("crates/e2e/tests/wasm_oracle/differences.txt")
}

/// What is kept of the last comparison.
pub(crate) fn kept() -> Differing {
    let mut differing = Differing::new();
    let mut case = String::new();
    for line in std::fs::read_to_string(path()).unwrap_or_default().lines() {
        if let Some(name) = line.strip_prefix("## ") {
            name.clone_into(&mut case);
            differing.insert(case.clone(), Vec::new());
        } else if let Some(lines) = differing.get_mut(&case)
            && !line.is_empty()
        {
            lines.push(line.to_owned());
        }
    }
    differing
}

/// Keeps what a whole comparison has shown.
pub(crate) fn keep(differing: &Differing) {
    let mut text =
        "What differs between Envoy's Wasm filter (-) and Outrider (+), script by script.\n"
            .to_owned();
    for (case, lines) in differing {
        write!(text, "\n## {case}\n{}\n", lines.join("\n")).unwrap();
    }
    std::fs::write(path(), text).unwrap();
}
