//! The JSON Schemas that a plugin registers with `rider.json_validator`.

use jsonschema::Validator;
use serde_json::Value;

/// Compiled schemas, and where they were registered.
#[derive(Debug, Default)]
pub(crate) struct Schemas {
    base: Option<Schema>,
    route: Option<Schema>,
}

#[derive(Debug)]
struct Schema {
    validator: Validator,
    /// `file:line: `.
    place: String,
}

impl Schemas {
    /// Takes what the SDK reported: 2 and 3 are the schemas for base and route, 4 and 5 their places.
    /// The last registration holds.
    ///
    /// # Errors
    /// A schema is none.
    pub(crate) fn from_results(results: &[(i32, String)]) -> Result<Self, String> {
        let last = |wanted| {
            results
                .iter()
                .rev()
                .find(|(kind, _)| *kind == wanted)
                .map(|(_, text)| text.as_str())
        };
        let compile = |schema: Option<&str>, place: Option<&str>| {
            let Some(schema) = schema else {
                return Ok(None);
            };
            let place = place.unwrap_or_default().to_owned();
            let document: Value = serde_json::from_str(schema)
                .map_err(|error| format!("{place}the schema is no JSON: {error}"))?;
            let validator = jsonschema::validator_for(&document)
                .map_err(|error| format!("{place}this is no JSON Schema: {error}"))?;
            Ok::<_, String>(Some(Schema { validator, place }))
        };
        Ok(Self {
            base: compile(last(2), last(4))?,
            route: compile(last(3), last(5))?,
        })
    }

    /// Checks the parts of a configuration that are there.
    ///
    /// # Errors
    /// What does not fit, all of it.
    pub(crate) fn check(&self, base: Option<&str>, route: Option<&str>) -> Result<(), String> {
        for (schema, part, name) in [(&self.base, base, "base"), (&self.route, route, "route")] {
            let (Some(schema), Some(part)) = (schema, part) else {
                continue;
            };
            let document: Value = serde_json::from_str(part)
                .map_err(|error| format!("the configuration is no JSON: {error}"))?;
            let problems: Vec<String> = schema
                .validator
                .iter_errors(&document)
                .map(|error| match error.instance_path().as_str() {
                    "" => error.to_string(),
                    path => format!("{path}: {error}"),
                })
                .collect();
            if !problems.is_empty() {
                return Err(format!(
                    "{}the {name} configuration does not fit the schema registered here: {}",
                    schema.place,
                    problems.join("; ")
                ));
            }
        }
        Ok(())
    }
}
