//! What is wrong with something that a user wrote.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One problem of a file: where, what, and how to mend it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Problem {
    /// The file, as the user named it.
    pub file: String,
    /// Line, from 1; 0 where the problem is the whole file's.
    pub line: usize,
    /// Column in characters, from 1; 0 where the problem is the whole line's.
    pub column: usize,
    /// What is wrong, one sentence without a full stop.
    pub message: String,
    /// How to mend it, one sentence without a full stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
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
