//! What is measured: the workloads, and who does them. A further mechanism is a line of
//! [`Mechanism`] and its way to be configured (`filters`); a further workload is a line of [`WORKLOADS`].

use serde::{Deserialize, Serialize};

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
}

impl Shape {
    /// All of them; each has its baseline.
    pub const ALL: [Self; 3] = [Self::Plain, Self::TenHeaders, Self::Body];

    /// In words, for the page.
    pub fn describe(self) -> String {
        match self {
            Self::Plain => "`GET`, answered by Envoy (`direct_response`)".to_owned(),
            Self::TenHeaders => "`GET` with 10 headers, answered by Envoy".to_owned(),
            Self::Body => {
                format!("`POST` with a body of {BODY_BYTES} bytes, answered by an upstream")
            }
        }
    }

    /// A name for files and the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::TenHeaders => "ten-headers",
            Self::Body => "body",
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
}

const NORMAL: Work = Work {
    sets: 20,
    reads: 10,
    removals: 20,
    ..Work::NOTHING
};

/// Every workload, in the order of the page.
pub(crate) const WORKLOADS: [Workload; 6] = [
    Workload {
        name: "no-op",
        about: "a handler for requests and one for responses, both empty",
        shape: Shape::Plain,
        work: Work {
            responses: true,
            ..Work::NOTHING
        },
        copies: 1,
    },
    Workload {
        name: "no-op-request",
        about: "an empty handler for requests only",
        shape: Shape::Plain,
        work: Work::NOTHING,
        copies: 1,
    },
    Workload {
        name: "simple",
        about: "10 request headers read",
        shape: Shape::TenHeaders,
        work: Work {
            reads: 10,
            ..Work::NOTHING
        },
        copies: 1,
    },
    Workload {
        name: "normal",
        about: "20 request headers set, 10 of them read, the 20 removed",
        shape: Shape::Plain,
        work: NORMAL,
        copies: 1,
    },
    Workload {
        name: "complex",
        about: "normal, and the whole body read 30 times",
        shape: Shape::Body,
        work: Work {
            body_reads: 30,
            ..NORMAL
        },
        copies: 1,
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
    },
];

/// Who does the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mechanism {
    /// A Lua plugin in Outrider.
    OutriderLua,
    /// A script in Envoy's own Lua filter.
    EnvoyLua,
    /// Native code in a dynamic module: `bench-native`.
    Native,
}

impl Mechanism {
    /// All of them, in the order of the page's columns.
    pub const ALL: [Self; 3] = [Self::OutriderLua, Self::EnvoyLua, Self::Native];

    /// A name for files and the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::OutriderLua => "outrider-lua",
            Self::EnvoyLua => "envoy-lua",
            Self::Native => "native",
        }
    }

    /// The column's title.
    pub fn title(self) -> &'static str {
        match self {
            Self::OutriderLua => "Outrider Lua",
            Self::EnvoyLua => "Envoy's Lua filter",
            Self::Native => "native module",
        }
    }
}

/// What issue and release notes promise: `of` costs at most `limit` times what `compared_with` does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) workload: &'static str,
    pub(crate) of: Mechanism,
    pub(crate) compared_with: Mechanism,
    pub(crate) limit: f64,
}

const fn target(workload: &'static str, compared_with: Mechanism, limit: f64) -> Target {
    Target {
        workload,
        of: Mechanism::OutriderLua,
        compared_with,
        limit,
    }
}

/// What is aimed at.
pub(crate) const TARGETS: [Target; 5] = [
    target("no-op", Mechanism::EnvoyLua, 0.4),
    target("normal", Mechanism::EnvoyLua, 0.58),
    target("normal", Mechanism::Native, 1.1),
    target("complex", Mechanism::EnvoyLua, 0.5),
    target("chain-of-5", Mechanism::EnvoyLua, 0.2),
];
