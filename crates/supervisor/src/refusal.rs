//! What is told to the module's page on Envoy's admin port, and to its gauge: whether what the file says is served.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;

/// The module's page.
pub(crate) const PAGE: &str = "/outrider/file";

/// Bytes of a reason that are told.
const LONGEST: usize = 16 * 1024;

/// Why what the file says is not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Seconds since 1970.
    at: u64,
    reason: String,
}

impl Refusal {
    pub(crate) fn now(reason: &str) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let mut reason = reason.to_owned();
        if reason.len() > LONGEST {
            reason.truncate(reason.floor_char_boundary(LONGEST));
            reason.push_str("\n...");
        }
        Self {
            at: since.map_or(0, |since| since.as_secs()),
            reason,
        }
    }
}

/// The body for [`PAGE`].
pub(crate) fn message(file: &Path, refusal: Option<&Refusal>) -> String {
    let refused = refusal.map(|Refusal { at, reason }| json!({ "at": at, "reason": reason }));
    json!({ "path": file.display().to_string(), "refused": refused }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_reasons_are_cut_at_a_character() {
        let refusal = Refusal::now(&"ä".repeat(LONGEST));
        assert!(refusal.reason.ends_with("ä\n..."));
        assert!(refusal.reason.len() <= LONGEST + 4);
    }
}
