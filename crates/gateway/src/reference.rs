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
    let mut schema = schema.to_value();
    join_lines(&mut schema);
    schema
}

/// Comments are broken into lines to fit the source; descriptions are not.
fn join_lines(value: &mut Value) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                match value {
                    Value::String(text) if key == "description" => *text = text.replace('\n', " "),
                    value => join_lines(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(join_lines),
        _ => {}
    }
}

/// The text of `docs/configuration.md`.
pub fn reference() -> String {
    page::page(&schema())
}
