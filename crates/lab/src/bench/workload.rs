//! What is measured: the workloads. A further one is a line of [`WORKLOADS`].

use serde::{Deserialize, Serialize};

use super::mechanism::Family;

/// How many bytes a request's body has.
pub(crate) const BODY_BYTES: usize = 1024;
/// The value of every header that is set, sent and read.
pub(crate) const VALUE: &str = "value";

/// What the client sends, and who answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// A GET without further headers; Envoy answers it itself.
    Plain,
    /// The same with ten headers to read.
    TenHeaders,
    /// A POST with a body; an upstream answers it. (Envoy's own answer would come before the body
    /// does, and close the connection, where no filter waits for the body.)
    Body,
    /// A GET as a browser sends it, with a query; Envoy answers it itself.
    Browser,
    /// A GET in a lane, with a trace id of its own; Envoy answers it itself. No workload of the families has it.
    Traced,
}

impl Shape {
    /// All that workloads have; each has its baseline.
    pub const ALL: [Self; 4] = [Self::Plain, Self::TenHeaders, Self::Body, Self::Browser];

    /// In words, for the page.
    pub fn describe(self) -> String {
        match self {
            Self::Plain => "`GET`, answered by Envoy (`direct_response`)".to_owned(),
            Self::TenHeaders => "`GET` with 10 headers, answered by Envoy".to_owned(),
            Self::Body => {
                format!("`POST` with a body of {BODY_BYTES} bytes, answered by an upstream")
            }
            Self::Browser => {
                "`GET` with a query and a browser's headers, answered by Envoy".to_owned()
            }
            Self::Traced => "`GET` in a lane, with a `traceparent`, answered by Envoy".to_owned(),
        }
    }

    /// A name for files and the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::TenHeaders => "ten-headers",
            Self::Body => "body",
            Self::Browser => "browser",
            Self::Traced => "traced",
        }
    }
}

/// What is done to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) sets: usize,
    pub(crate) reads: usize,
    pub(crate) removals: usize,
    pub(crate) body_reads: usize,
    /// Whether there is a handler for responses, too.
    pub(crate) responses: bool,
}

impl Work {
    const NOTHING: Self = Self {
        sets: 0,
        reads: 0,
        removals: 0,
        body_reads: 0,
        responses: false,
    };

    /// How many bytes the reads of headers bring.
    pub(crate) fn header_bytes(self) -> usize {
        self.reads * VALUE.len()
    }

    /// How many bytes the reads of the body bring.
    pub(crate) fn body_bytes(self) -> usize {
        self.body_reads * BODY_BYTES
    }
}

/// One row of the results.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) shape: Shape,
    pub(crate) work: Work,
    /// How many plugins, or filters, do it one after another.
    pub(crate) copies: usize,
    /// What it is measured with.
    pub(crate) families: &'static [Family],
    /// Coraza does it, instead of a guest that does what `work` says.
    pub(crate) is_firewall: bool,
    /// It is counted with so many times fewer requests than others, because each takes that much longer.
    pub(crate) divisor: u64,
}

impl Workload {
    const DEFAULT: Self = Self {
        name: "",
        about: "",
        shape: Shape::Plain,
        work: Work::NOTHING,
        copies: 1,
        families: &Family::ALL,
        is_firewall: false,
        divisor: 1,
    };
}

const NORMAL: Work = Work {
    sets: 20,
    reads: 10,
    removals: 20,
    ..Work::NOTHING
};

/// Every workload, in the order of the page.
pub(crate) const WORKLOADS: [Workload; 7] = [
    Workload {
        name: "no-op",
        about: "a handler for requests and one for responses, both empty",
        shape: Shape::Plain,
        work: Work {
            responses: true,
            ..Work::NOTHING
        },
        ..Workload::DEFAULT
    },
    Workload {
        name: "no-op-request",
        about: "an empty handler for requests only",
        // An SDK for Wasm exports the handlers of all phases.
        families: &[Family::Lua],
        ..Workload::DEFAULT
    },
    Workload {
        name: "simple",
        about: "10 request headers read",
        shape: Shape::TenHeaders,
        work: Work {
            reads: 10,
            ..Work::NOTHING
        },
        ..Workload::DEFAULT
    },
    Workload {
        name: "normal",
        about: "20 request headers set, 10 of them read, the 20 removed",
        shape: Shape::Plain,
        work: NORMAL,
        ..Workload::DEFAULT
    },
    Workload {
        name: "complex",
        about: "normal, and the whole body read 30 times",
        shape: Shape::Body,
        work: Work {
            body_reads: 30,
            ..NORMAL
        },
        ..Workload::DEFAULT
    },
    Workload {
        name: "chain-of-5",
        about: "five times no-op, one after another",
        shape: Shape::Plain,
        work: Work {
            responses: true,
            ..Work::NOTHING
        },
        copies: 5,
        ..Workload::DEFAULT
    },
    Workload {
        name: "coraza",
        about: "Coraza's firewall with the OWASP core rule set, in Go, looks at the request and its answer",
        shape: Shape::Browser,
        families: &[Family::Wasm],
        is_firewall: true,
        divisor: 5,
        ..Workload::DEFAULT
    },
];
