//! What may happen when a plugin fails, and what it may use.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::forms::word_or_mapping;
use crate::manifest::Runtime;

/// Why a plugin failed on a stream.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A handler raised an error.
    Error,
    /// A call used up its time budget.
    Time,
    /// The VM used up its memory budget.
    Memory,
    /// The plugin is not there: its route names one that the gateway does not have, or it could not
    /// be started on this worker.
    Unavailable,
    /// It failed so often that it is not called for a while: its circuit is open.
    Circuit,
    /// It used more CPU of this worker than its share, or all plugins together did.
    Share,
}

/// What a stream gets when a plugin fails on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FailureAction {
    /// The stream goes on as if the plugin were not there.
    Open,
    /// The stream ends with a local reply.
    Closed,
}

/// A plugin's failure policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "FailurePolicyForm", into = "FailurePolicyForm")]
pub struct FailurePolicy {
    /// For causes that `causes` does not name.
    pub default: FailureAction,
    /// Status code of the reply of a closed failure.
    pub status: u16,
    /// By cause.
    pub causes: BTreeMap<Cause, FailureAction>,
}

impl Default for FailurePolicy {
    /// Closed, with status 500: a plugin that fails must not let through what it would have stopped.
    fn default() -> Self {
        Self {
            default: FailureAction::Closed,
            status: 500,
            causes: BTreeMap::new(),
        }
    }
}

impl FailurePolicy {
    /// The action for one cause.
    pub fn action(&self, cause: Cause) -> FailureAction {
        self.causes.get(&cause).copied().unwrap_or(self.default)
    }
}

/// How a failure policy is written: a word, or the long form.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
enum FailurePolicyForm {
    Word(FailureAction),
    Long(FailurePolicyLong),
}

impl<'de> Deserialize<'de> for FailurePolicyForm {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        word_or_mapping(
            deserializer,
            "`open`, `closed` or a mapping",
            Self::Word,
            Self::Long,
        )
    }
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FailurePolicyLong {
    /// For causes that `causes` does not name. Default: `closed`.
    #[serde(default = "closed")]
    default: FailureAction,
    /// Status code of the reply of a closed failure. Default: 500.
    #[serde(default = "internal_server_error")]
    #[schemars(range(min = 200, max = 599))]
    status: u16,
    /// By cause: `error`, `time`, `memory`, `unavailable`, `circuit`, `share`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    causes: BTreeMap<Cause, FailureAction>,
}

fn closed() -> FailureAction {
    FailureAction::Closed
}

fn internal_server_error() -> u16 {
    500
}

impl From<FailurePolicyForm> for FailurePolicy {
    fn from(form: FailurePolicyForm) -> Self {
        match form {
            FailurePolicyForm::Word(default) => Self {
                default,
                ..Self::default()
            },
            FailurePolicyForm::Long(FailurePolicyLong {
                default,
                status,
                causes,
            }) => Self {
                default,
                status,
                causes,
            },
        }
    }
}

impl From<FailurePolicy> for FailurePolicyForm {
    fn from(
        FailurePolicy {
            default,
            status,
            causes,
        }: FailurePolicy,
    ) -> Self {
        if status == internal_server_error() && causes.is_empty() {
            Self::Word(default)
        } else {
            Self::Long(FailurePolicyLong {
                default,
                status,
                causes,
            })
        }
    }
}

/// Per cent of one worker's CPU time that a plugin may use unless `budgets.share` says otherwise.
const DEFAULT_SHARE: u32 = 20;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_default_share(share: &u32) -> bool {
    *share == DEFAULT_SHARE
}

/// What one plugin may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Budgets {
    /// Time of one call of a handler, in milliseconds.
    #[schemars(range(min = 1, max = 60000))]
    pub time_ms: u32,
    /// Memory of one VM (one worker's copy of the plugin), in MiB.
    #[schemars(range(min = 1, max = 1024))]
    pub memory_mib: u32,
    /// Per cent of one worker's CPU time over a short window.
    #[schemars(range(min = 1, max = 100))]
    #[serde(skip_serializing_if = "is_default_share")]
    pub share: u32,
}

impl Default for Budgets {
    fn default() -> Self {
        Self::of(Runtime::Lua)
    }
}

impl Budgets {
    /// What a plugin of a runtime may use where nobody says anything. A Wasm guest brings its allocator
    /// and its language's runtime along, and its memory never shrinks.
    pub fn of(runtime: Runtime) -> Self {
        Self {
            time_ms: 20,
            memory_mib: match runtime {
                Runtime::Lua => 16,
                Runtime::Wasm => 64,
            },
            share: DEFAULT_SHARE,
        }
    }
}

/// What one plugin may use, as far as somebody says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BudgetsForm {
    /// Time of one call of a handler, in milliseconds. Default: 20.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 60000))]
    pub time_ms: Option<u32>,
    /// Memory of one VM (one worker's copy of the plugin), in MiB. Default: 16 for `lua`, 64 for `wasm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub memory_mib: Option<u32>,
    /// Per cent of one worker's CPU time over a short window. Default: 20.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub share: Option<u32>,
}

impl BudgetsForm {
    /// `otherwise` with what is said here in its place.
    pub fn over(self, otherwise: Budgets) -> Budgets {
        Budgets {
            time_ms: self.time_ms.unwrap_or(otherwise.time_ms),
            memory_mib: self.memory_mib.unwrap_or(otherwise.memory_mib),
            share: self.share.unwrap_or(otherwise.share),
        }
    }
}
