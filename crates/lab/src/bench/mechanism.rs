//! Mechanisms that do a workload's work, in the families that are compared with each other, and what is aimed at.
//! A further mechanism is a line of [`Mechanism`] and its way to be configured (`filters`).

use serde::{Deserialize, Serialize};

use super::workload::{WORKLOADS, Workload};

/// Plugins of one kind: each has a report and a page of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// Scripts.
    #[default]
    Lua,
    /// Plugins compiled to WebAssembly.
    Wasm,
}

impl Family {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Lua, Self::Wasm];

    /// A name for files and the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lua => "lua",
            Self::Wasm => "wasm",
        }
    }

    /// Its mechanisms, in the order of the page's columns.
    pub fn mechanisms(self) -> &'static [Mechanism] {
        match self {
            Self::Lua => &[
                Mechanism::OutriderLua,
                Mechanism::EnvoyLua,
                Mechanism::Native,
            ],
            Self::Wasm => &[
                Mechanism::OutriderRust,
                Mechanism::EnvoyRust,
                Mechanism::OutriderCpp,
                Mechanism::EnvoyCpp,
                Mechanism::OutriderGo,
                Mechanism::EnvoyGo,
                Mechanism::Native,
            ],
        }
    }

    /// Its workloads, in the order of the page.
    pub(crate) fn workloads(self) -> impl Iterator<Item = &'static Workload> {
        WORKLOADS
            .iter()
            .filter(move |workload| workload.families.contains(&self))
    }

    /// The mechanism of Outrider that stands first.
    pub(crate) fn first(self) -> Mechanism {
        match self {
            Self::Lua => Mechanism::OutriderLua,
            Self::Wasm => Mechanism::OutriderRust,
        }
    }

    /// What is aimed at.
    pub(crate) fn targets(self) -> Vec<Target> {
        match self {
            Self::Lua => LUA_TARGETS.to_vec(),
            Self::Wasm => Guest::ALL
                .into_iter()
                .flat_map(|guest| {
                    WASM_TARGETS.map(|(workload, limit)| Target {
                        workload,
                        of: guest.outrider(),
                        compared_with: guest.envoy(),
                        limit,
                    })
                })
                .chain([Target {
                    workload: "coraza",
                    of: Mechanism::OutriderGo,
                    compared_with: Mechanism::EnvoyGo,
                    limit: 1.0,
                }])
                .collect(),
        }
    }
}

/// What a guest was written in; the same file runs in both hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guest {
    Rust,
    Cpp,
    Go,
}

impl Guest {
    pub(crate) const ALL: [Self; 3] = [Self::Rust, Self::Cpp, Self::Go];

    /// Its folder.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rust => "rust",
            Self::Cpp => "cpp",
            Self::Go => "go",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Rust => "Rust",
            Self::Cpp => "C++",
            Self::Go => "Go",
        }
    }

    pub(crate) fn outrider(self) -> Mechanism {
        match self {
            Self::Rust => Mechanism::OutriderRust,
            Self::Cpp => Mechanism::OutriderCpp,
            Self::Go => Mechanism::OutriderGo,
        }
    }

    pub(crate) fn envoy(self) -> Mechanism {
        match self {
            Self::Rust => Mechanism::EnvoyRust,
            Self::Cpp => Mechanism::EnvoyCpp,
            Self::Go => Mechanism::EnvoyGo,
        }
    }
}

/// Mechanism that does a workload's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mechanism {
    /// A Lua plugin in Outrider.
    OutriderLua,
    /// A script in Envoy's own Lua filter.
    EnvoyLua,
    /// Native code in a dynamic module: `bench-native`.
    Native,
    /// A guest in Rust, in Outrider.
    OutriderRust,
    /// The same file in Envoy's own Wasm filter.
    EnvoyRust,
    /// A guest in C++, in Outrider.
    OutriderCpp,
    /// The same file in Envoy's own Wasm filter.
    EnvoyCpp,
    /// A guest in Go, in Outrider.
    OutriderGo,
    /// The same file in Envoy's own Wasm filter.
    EnvoyGo,
}

impl Mechanism {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::OutriderLua,
        Self::EnvoyLua,
        Self::Native,
        Self::OutriderRust,
        Self::EnvoyRust,
        Self::OutriderCpp,
        Self::EnvoyCpp,
        Self::OutriderGo,
        Self::EnvoyGo,
    ];

    /// A name for files and the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::OutriderLua => "outrider-lua",
            Self::EnvoyLua => "envoy-lua",
            Self::Native => "native",
            Self::OutriderRust => "outrider-rust",
            Self::EnvoyRust => "envoy-rust",
            Self::OutriderCpp => "outrider-cpp",
            Self::EnvoyCpp => "envoy-cpp",
            Self::OutriderGo => "outrider-go",
            Self::EnvoyGo => "envoy-go",
        }
    }

    /// The column's title.
    pub fn title(self) -> &'static str {
        match self {
            Self::OutriderLua => "Outrider Lua",
            Self::EnvoyLua => "Envoy's Lua filter",
            Self::Native => "native module",
            Self::OutriderRust => "Outrider, Rust",
            Self::EnvoyRust => "Envoy's Wasm filter, Rust",
            Self::OutriderCpp => "Outrider, C++",
            Self::EnvoyCpp => "Envoy's Wasm filter, C++",
            Self::OutriderGo => "Outrider, Go",
            Self::EnvoyGo => "Envoy's Wasm filter, Go",
        }
    }

    /// What Envoy itself has for the same, if this is Outrider.
    pub(crate) fn counterpart(self) -> Option<Self> {
        match self {
            Self::OutriderLua => Some(Self::EnvoyLua),
            Self::OutriderRust => Some(Self::EnvoyRust),
            Self::OutriderCpp => Some(Self::EnvoyCpp),
            Self::OutriderGo => Some(Self::EnvoyGo),
            _ => None,
        }
    }

    /// Whether it does a workload.
    pub(crate) fn does(self, workload: &Workload) -> bool {
        !workload.is_firewall || matches!(self, Self::OutriderGo | Self::EnvoyGo)
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

const fn lua(workload: &'static str, compared_with: Mechanism, limit: f64) -> Target {
    Target {
        workload,
        of: Mechanism::OutriderLua,
        compared_with,
        limit,
    }
}

const LUA_TARGETS: [Target; 5] = [
    lua("no-op", Mechanism::EnvoyLua, 0.4),
    lua("normal", Mechanism::EnvoyLua, 0.58),
    lua("normal", Mechanism::Native, 1.1),
    lua("complex", Mechanism::EnvoyLua, 0.5),
    lua("chain-of-5", Mechanism::EnvoyLua, 0.2),
];

/// For each guest, compared with the same file in Envoy's Wasm filter.
const WASM_TARGETS: [(&str, f64); 3] = [("no-op", 0.5), ("normal", 0.33), ("chain-of-5", 0.3)];
