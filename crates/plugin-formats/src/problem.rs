//! What is wrong with something that a user wrote.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// One problem of a file: where, what, and how to mend it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Problem {
    /// The file, as the user named it.
    pub file: String,
    /// Line, from 1; 0, and absent in JSON, where the problem is the whole file's.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub line: usize,
    /// Column in characters, from 1; 0, and absent in JSON, where the problem is the whole line's.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub column: usize,
    /// What is wrong, one sentence without a full stop.
    pub message: String,
    /// How to mend it, one sentence without a full stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands over a reference"
)]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// Places of the values of one file, by their keys joined by dots: `budgets.time_ms`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    /// The file, as messages name it.
    pub file: String,
    /// Line and column of each value, both from 1.
    pub by_key: BTreeMap<String, (usize, usize)>,
}

impl Places {
    /// Returns whether the file has a value for a key.
    pub fn has(&self, key: &str) -> bool {
        self.by_key.contains_key(key)
    }

    /// Returns line and column of a key's value, or of the nearest one around it; `(0, 0)`, the whole file,
    /// without either.
    pub fn of(&self, key: &str) -> (usize, usize) {
        let around = |key: &str| key.rsplit_once('.').map(|(around, _)| around.to_owned());
        let mut keys = std::iter::successors(Some(key.to_owned()), |key| around(key));
        keys.find_map(|key| self.by_key.get(&key).copied())
            .unwrap_or_default()
    }
}

impl fmt::Display for Problem {
    /// `file:line:column: message; mend`, the form that editors and terminals make clickable.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
            if self.column > 0 {
                write!(f, ":{}", self.column)?;
            }
        }
        write!(f, ": {}", self.message)?;
        if let Some(mend) = &self.mend {
            write!(f, "; {mend}")?;
        }
        Ok(())
    }
}
