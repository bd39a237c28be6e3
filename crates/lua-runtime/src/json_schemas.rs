//! JSON Schemas that a plugin compiles for the requests it serves (`envoy.json_schema`): one VM's, kept
//! by number, up to [`KEPT`] of them; the one that was not used for longest makes room, and is compiled
//! anew when it is needed. Those that check configurations are in `schema.rs`.
//!
//! The trap: validation runs in the host, where no hook of the time budget reaches, and a schema can be
//! made to try one branch after the other without end. So each subschema that has others gets a keyword
//! of ours that asks for the time, and leaves by unwinding when it is over ([`Step`]). It stands in
//! `allOf`, because the library comes to that before it tries branches and follows references, but to
//! keywords that it does not know last. Patterns are searched in linear time; what the library does
//! within one keyword is linear, too.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use jsonschema::{Draft, Keyword, PatternOptions, ValidationError, Validator};
use serde_json::{Map, Value, json};

/// How many are kept.
const KEPT: usize = 128;
/// The longest schema, in bytes.
const LONGEST: usize = 64 * 1024;
/// The longest document, in bytes. In memory, one can take thirty times as much.
const LONGEST_DOCUMENT: usize = 4 * 1024 * 1024;
/// How large a compiled pattern, and what its searches remember, may be, in bytes.
const LARGEST_PATTERN: usize = 128 * 1024;
/// How many messages a document gets, and how long one may be, in bytes.
const MOST_MESSAGES: usize = 16;
const LONGEST_MESSAGE: usize = 256;
/// The keyword that is put into subschemas.
const STEP: &str = "x-outrider-step";

/// Whether the time of the call that runs is over.
pub(crate) type IsOverTime = Arc<dyn Fn() -> bool + Send + Sync>;

/// What a document is, by a schema.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Validity {
    /// It is as the schema says.
    Valid,
    /// It is not; each message begins with the place in the document, unless that is the whole.
    Invalid(Vec<String>),
    /// The schema made room; compile it again.
    Gone,
    /// The call's time is over.
    OverTime,
}

/// One VM's schemas.
#[derive(Debug, Default)]
pub(crate) struct JsonSchemas {
    kept: BTreeMap<i32, Kept>,
    /// The number that was given last.
    last: i32,
    /// Counts uses.
    uses: u64,
}

#[derive(Debug)]
struct Kept {
    validator: Validator,
    used: u64,
}

impl JsonSchemas {
    /// Compiles a schema, and answers its number.
    ///
    /// # Errors
    /// It is none, or is refused; the reason is text for whoever wrote it.
    pub(crate) fn compile(&mut self, text: &[u8], is_over: IsOverTime) -> Result<i32, String> {
        if text.len() > LONGEST {
            return Err(format!(
                "the schema has {} bytes; {LONGEST} are allowed",
                text.len()
            ));
        }
        let mut schema: Value = serde_json::from_slice(text)
            .map_err(|error| format!("the schema is not JSON: {error}"))?;
        add_steps(&mut schema);
        // What `$schema` says wins; none is the draft that configurations have, too.
        let draft = Draft::Draft202012.detect(&schema);
        let validator = jsonschema::options()
            .with_draft(draft)
            .should_validate_formats(true)
            .with_pattern_options(
                PatternOptions::regex()
                    .size_limit(LARGEST_PATTERN)
                    .dfa_size_limit(LARGEST_PATTERN),
            )
            .with_keyword(STEP, move |_, _, _| {
                Ok(Box::new(Step {
                    is_over: Arc::clone(&is_over),
                }))
            })
            .build(&schema)
            .map_err(|error| format!("this is no JSON Schema: {}", message(&error)))?;
        if self.kept.len() >= KEPT {
            let oldest = self.kept.iter().min_by_key(|(_, kept)| kept.used);
            if let Some(number) = oldest.map(|(number, _)| *number) {
                self.kept.remove(&number);
            }
        }
        self.uses += 1;
        // After two billion of them, the oldest numbers are long gone.
        self.last = self.last.checked_add(1).unwrap_or(1);
        let kept = Kept {
            validator,
            used: self.uses,
        };
        self.kept.insert(self.last, kept);
        Ok(self.last)
    }

    /// Checks a document.
    pub(crate) fn validate(&mut self, number: i32, document: &[u8]) -> Validity {
        self.uses += 1;
        let Some(kept) = self.kept.get_mut(&number) else {
            return Validity::Gone;
        };
        kept.used = self.uses;
        if document.len() > LONGEST_DOCUMENT {
            return Validity::Invalid(vec![format!(
                "the document has {} bytes; {LONGEST_DOCUMENT} can be checked",
                document.len()
            )]);
        }
        let document: Value = match serde_json::from_slice(document) {
            Ok(document) => document,
            Err(error) => return Validity::Invalid(vec![format!("not JSON: {error}")]),
        };
        let validator = &kept.validator;
        let checked = catch_unwind(AssertUnwindSafe(|| check(validator, &document)));
        match checked {
            Ok(validity) => validity,
            Err(left) if left.is::<OverTime>() => Validity::OverTime,
            Err(panic) => resume_unwind(panic),
        }
    }
}

fn check(validator: &Validator, document: &Value) -> Validity {
    if validator.is_valid(document) {
        return Validity::Valid;
    }
    Validity::Invalid(
        validator
            .iter_errors(document)
            .take(MOST_MESSAGES)
            .map(|error| message(&error))
            .collect(),
    )
}

/// What is wrong, with its place where it is not the whole. A document's values are left out: they may
/// be large, and are the client's.
fn message(error: &ValidationError<'_>) -> String {
    let place = error.instance_path().as_str();
    let said = error.masked_with("the value");
    let mut message = if place.is_empty() {
        said.to_string()
    } else {
        format!("{place}: {said}")
    };
    if message.len() > LONGEST_MESSAGE {
        message.truncate(message.floor_char_boundary(LONGEST_MESSAGE));
        message.push('…');
    }
    message
}

/// What unwinds when time is over.
struct OverTime;

/// The keyword that looks at the time.
struct Step {
    is_over: IsOverTime,
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step").finish_non_exhaustive()
    }
}

impl<'i> Keyword<'i> for Step {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        Keyword::is_valid(self, instance);
        Ok(())
    }

    fn is_valid(&self, _: &'i Value) -> bool {
        if (self.is_over)() {
            // Not a panic: no hook is told, and nothing is printed.
            resume_unwind(Box::new(OverTime));
        }
        true
    }
}

/// Keywords whose members' values are schemas, whatever the members are called.
const MAPS: &[&str] = &[
    "properties",
    "patternProperties",
    "$defs",
    "definitions",
    "dependentSchemas",
    "dependencies",
];
/// Keywords whose value is data.
const DATA: &[&str] = &["const", "enum", "default", "examples", "required", "type"];

/// Puts [`STEP`] into every object that may be used as a schema and leads to others. In objects that
/// are none it has no meaning.
fn add_steps(schema: &mut Value) {
    match schema {
        Value::Object(keywords) => {
            let mut leads_on = keywords
                .keys()
                .any(|name| name.ends_with("Ref") || name == "$ref");
            for (name, value) in keywords.iter_mut() {
                if MAPS.contains(&name.as_str()) {
                    leads_on = true;
                    members(value).for_each(add_steps);
                } else if !DATA.contains(&name.as_str()) {
                    leads_on |= value.is_object() || value.is_array();
                    add_steps(value);
                }
            }
            if leads_on {
                let all = keywords.entry("allOf").or_insert_with(|| json!([]));
                // What is no array is refused for that.
                if let Some(all) = all.as_array_mut() {
                    all.insert(0, json!({STEP: true}));
                }
            }
        }
        Value::Array(schemas) => schemas.iter_mut().for_each(add_steps),
        _ => {}
    }
}

fn members(value: &mut Value) -> impl Iterator<Item = &mut Value> {
    value.as_object_mut().into_iter().flat_map(Map::values_mut)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    use super::*;

    fn never() -> IsOverTime {
        Arc::new(|| false)
    }

    fn compiled(schema: &Value) -> Result<(JsonSchemas, i32), String> {
        let mut schemas = JsonSchemas::default();
        let number = schemas.compile(schema.to_string().as_bytes(), never())?;
        Ok((schemas, number))
    }

    fn checked(schema: &Value, document: &str) -> Validity {
        let (mut schemas, number) = compiled(schema).unwrap();
        schemas.validate(number, document.as_bytes())
    }

    fn invalid(messages: &[&str]) -> Validity {
        Validity::Invalid(messages.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn what_does_not_fit_is_told_with_its_place_and_without_its_value() {
        let schema = json!({
            "type": "object",
            "required": ["id"],
            "properties": {
                "id": {"type": "integer", "minimum": 1},
                "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}},
                "mail": {"format": "email"},
            },
        });
        assert_eq!(
            checked(&schema, r#"{"id": 7, "tags": ["a"]}"#),
            Validity::Valid
        );
        assert_eq!(
            checked(
                &schema,
                r#"{"id": "secret", "tags": ["a", "B2"], "mail": "nobody"}"#
            ),
            invalid(&[
                "/id: the value is not of type \"integer\"",
                "/tags/1: the value does not match \"^[a-z]+$\"",
                "/mail: the value is not a \"email\"",
            ])
        );
        assert_eq!(
            checked(&schema, "{}"),
            invalid(&["\"id\" is a required property"])
        );
        assert_eq!(
            checked(&schema, "{"),
            invalid(&["not JSON: EOF while parsing an object at line 1 column 1"])
        );
        assert_eq!(
            checked(&schema, "\u{7f}"),
            invalid(&["not JSON: expected value at line 1 column 1"])
        );
    }

    #[test]
    fn messages_are_few_and_short() {
        let names: Vec<String> = (0..99).map(|i| format!("property-{i}")).collect();
        let schema = json!({"required": names, "maxProperties": 0, "enum": ["x".repeat(9999)]});
        let Validity::Invalid(messages) = checked(&schema, r#"{"y": 1}"#) else {
            panic!("it is valid")
        };
        assert_eq!(messages.len(), MOST_MESSAGES);
        assert!(
            messages
                .iter()
                .all(|message| message.len() <= LONGEST_MESSAGE + "…".len())
        );
    }

    #[test]
    fn data_in_a_schema_is_left_as_it_is() {
        for (schema, fits) in [
            (json!({"const": {"a": {}}}), r#"{"a": {}}"#),
            (json!({"enum": [{"a": 1}]}), r#"{"a": 1}"#),
            (
                json!({"properties": {"enum": {"const": {}}}}),
                r#"{"enum": {}}"#,
            ),
            (
                json!({"properties": {"properties": {"type": "null"}}}),
                r#"{"properties": null}"#,
            ),
            (json!({"additionalProperties": false}), "{}"),
        ] {
            assert_eq!(checked(&schema, fits), Validity::Valid, "{schema}");
        }
        // Drafts where `$ref` hides what is beside it.
        let old = json!({
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"n": {"type": "integer"}},
            "items": {"$ref": "#/definitions/n"},
        });
        assert_eq!(checked(&old, "[1]"), Validity::Valid);
        assert!(matches!(checked(&old, "[\"1\"]"), Validity::Invalid(_)));
    }

    #[test]
    fn what_is_no_schema_says_why() {
        let mut schemas = JsonSchemas::default();
        for (text, message) in [
            (
                r"{",
                "the schema is not JSON: EOF while parsing an object at line 1 column 1",
            ),
            (
                r#"{"type": "number-ish"}"#,
                "this is no JSON Schema: /type: ",
            ),
            (
                r##"{"$ref": "#/nowhere"}"##,
                "this is no JSON Schema: Pointer '/nowhere' does not exist",
            ),
            (
                r#"{"$ref": "https://example.com/other.json"}"#,
                "this is no JSON Schema: ",
            ),
            (r#"{"pattern": "(a)\\1"}"#, "this is no JSON Schema: "),
            (
                r#"{"pattern": "(?:a{1000}){1000}"}"#,
                "this is no JSON Schema: ",
            ),
            ("7", "this is no JSON Schema: "),
        ] {
            let refused = schemas.compile(text.as_bytes(), never()).unwrap_err();
            assert!(refused.starts_with(message), "{text}: {refused}");
        }
        let long = format!("[{}]", " ".repeat(LONGEST));
        assert_eq!(
            schemas.compile(long.as_bytes(), never()),
            Err("the schema has 65538 bytes; 65536 are allowed".to_owned())
        );
    }

    #[test]
    fn the_oldest_makes_room() {
        let mut schemas = JsonSchemas::default();
        let first = schemas.compile(b"true", never()).unwrap();
        let second = schemas.compile(b"true", never()).unwrap();
        for _ in 0..KEPT {
            assert_eq!(schemas.validate(first, b"1"), Validity::Valid);
            schemas.compile(b"true", never()).unwrap();
        }
        assert_eq!(schemas.validate(first, b"1"), Validity::Valid);
        assert_eq!(schemas.validate(second, b"1"), Validity::Gone);
        assert_eq!(schemas.kept.len(), KEPT);
    }

    /// Each level tries the next one twice: 2 to the power of 60 ways, all of them wrong.
    fn endless(ways: &str, draft: &str) -> Value {
        let mut levels = Map::new();
        for level in 0..60 {
            let next = json!({"$ref": format!("#/$defs/l{}", level + 1)});
            levels.insert(format!("l{level}"), json!({ways: [next, next]}));
        }
        levels.insert("l60".to_owned(), json!({"type": "null"}));
        json!({
            "$schema": format!("https://json-schema.org/draft/{draft}/schema"),
            "allOf": [{"$ref": "#/$defs/l0"}],
            "$defs": levels,
        })
    }

    #[test]
    fn a_schema_that_takes_forever_ends_with_the_time() {
        for schema in [
            endless("anyOf", "2020-12"),
            endless("oneOf", "2020-12"),
            endless("anyOf", "2019-09"),
        ] {
            let began = Instant::now();
            let is_over = Arc::new(move || began.elapsed() > Duration::from_millis(50));
            let mut schemas = JsonSchemas::default();
            let number = schemas
                .compile(schema.to_string().as_bytes(), is_over)
                .unwrap();
            assert_eq!(schemas.validate(number, b"1"), Validity::OverTime);
            assert!(began.elapsed() < Duration::from_secs(5));
        }
        let old = endless("anyOf", "2020-12").to_string();
        let old = old.replace(
            "https://json-schema.org/draft/2020-12/schema",
            "http://json-schema.org/draft-07/schema#",
        );
        let began = Instant::now();
        let mut schemas = JsonSchemas::default();
        let is_over = Arc::new(move || began.elapsed() > Duration::from_millis(50));
        let number = schemas.compile(old.as_bytes(), is_over).unwrap();
        assert_eq!(schemas.validate(number, b"1"), Validity::OverTime);
    }

    #[test]
    fn a_document_that_takes_long_ends_with_the_time() {
        let alternatives: Vec<_> = (0..2000).map(|i| json!({"const": i})).collect();
        let schema = json!({"items": {"anyOf": alternatives}});
        let document = format!("[{}0]", "1999,".repeat(300_000));
        let began = Instant::now();
        let is_over = Arc::new(move || began.elapsed() > Duration::from_millis(50));
        let mut schemas = JsonSchemas::default();
        let number = schemas
            .compile(schema.to_string().as_bytes(), is_over)
            .unwrap();
        assert_eq!(
            schemas.validate(number, document.as_bytes()),
            Validity::OverTime
        );
        assert!(began.elapsed() < Duration::from_secs(1));
    }

    #[test]
    fn subschemas_that_have_others_look_at_the_time() {
        let looks = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&looks);
        let is_over = Arc::new(move || counted.fetch_add(1, Ordering::Relaxed) > 100);
        let mut schemas = JsonSchemas::default();
        let schema = br#"{"items": {"properties": {"a": {"not": {"type": "null"}}}}}"#;
        let number = schemas.compile(schema, is_over).unwrap();
        assert_eq!(schemas.validate(number, br#"[{"a": 1}]"#), Validity::Valid);
        // The whole, `items`, and `a`.
        assert_eq!(looks.load(Ordering::Relaxed), 3);
        let many = format!("[{}0]", "0,".repeat(200));
        assert_eq!(
            schemas.validate(number, many.as_bytes()),
            Validity::OverTime
        );
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        for schema in [
            json!({"$ref": "#"}),
            json!({"allOf": [{"$ref": "#"}, {"not": {"$ref": "#"}}]}),
            json!({"properties": {"next": {"$ref": "#"}}, "type": "object"}),
        ] {
            let document = r#"{"next":"#.repeat(100) + "1" + &"}".repeat(100);
            let (mut schemas, number) = compiled(&schema).unwrap();
            schemas.validate(number, document.as_bytes());
        }
    }

    #[test]
    fn long_chains_of_references_do_not_end_the_stack() {
        let mut levels = Map::new();
        for level in 0..1500 {
            levels.insert(
                level.to_string(),
                json!({"$ref": format!("#/$defs/{}", level + 1)}),
            );
        }
        levels.insert("1500".to_owned(), json!({"type": "null"}));
        let schema = json!({"$ref": "#/$defs/0", "$defs": levels});
        assert!(schema.to_string().len() < LONGEST);
        assert_eq!(checked(&schema, "null"), Validity::Valid);
    }
}
