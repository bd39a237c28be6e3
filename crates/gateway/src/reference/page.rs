//! The configuration reference as one page.

use serde_json::Value;

pub(super) fn page(_schema: &Value) -> String {
    String::new()
}
