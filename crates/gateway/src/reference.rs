//! What may be written in `outrider.yaml`, for editors (JSON Schema) and for people (Markdown): both
//! from the comments of the model.

mod page;

use schemars::schema_for;
use serde_json::Value;

use crate::model::File;

/// JSON Schema of `outrider.yaml`.
pub fn schema() -> Value {
    let mut schema = schema_for!(File);
    schema.insert("title".to_owned(), "outrider.yaml".into());
    schema.to_value()
}

/// The text of `docs/configuration.md`.
pub fn reference() -> String {
    page::page(&schema())
}
