//! When a plugin that fails again and again is not called for a while.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::forms::word_or_mapping;

/// A plugin's circuit: `off`, or its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Circuit {
    /// It is called however often it fails: `circuit: off`.
    Off(CircuitOff),
    /// It is not called for a while after so many failures.
    On(CircuitLimits),
}

impl<'de> Deserialize<'de> for Circuit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        word_or_mapping(deserializer, "`off` or a mapping", Self::Off, Self::On)
    }
}

/// The word for a plugin that is always called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CircuitOff {
    /// It is called however often it fails.
    Off,
}

/// When a circuit opens, and for how long. While it is open, streams get the failure policy for the
/// cause `circuit`; then single streams are served on trial, and three good ones close it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CircuitLimits {
    /// So many streams have to fail by time or memory within 10 seconds, and one in ten of all.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub failures: u32,
    /// How long it is open at first, in milliseconds; each opening that follows soon doubles that.
    #[schemars(range(min = 1, max = 3_600_000))]
    pub pause_ms: u32,
    /// The longest pause, in milliseconds.
    #[schemars(range(min = 1, max = 3_600_000))]
    pub longest_pause_ms: u32,
}

impl Default for CircuitLimits {
    fn default() -> Self {
        Self {
            failures: 20,
            pause_ms: 1000,
            longest_pause_ms: 60_000,
        }
    }
}

impl Default for Circuit {
    fn default() -> Self {
        Self::On(CircuitLimits::default())
    }
}

impl Circuit {
    /// Whether it is as it is where nobody says anything.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Its limits, unless it is off.
    pub fn limits(self) -> Option<CircuitLimits> {
        match self {
            Self::Off(_) => None,
            Self::On(limits) => Some(limits),
        }
    }
}
