//! JSON Schemas that a plugin compiles for the requests it serves (`envoy.json_schema`): one VM's, kept
//! by number, up to [`KEPT`] of them; the one that was not used for longest makes room, and is compiled
//! anew when it is needed. Those that check configurations are in `schema.rs`.
//!
//! The trap: validation runs in the host, where no hook of the time budget reaches, and a schema can be
//! made to try one branch after the other without end. So each subschema gets a keyword of ours that checks
//! the time, and leaves by unwinding when it is over ([`Step`]). It stands in `allOf`, because the library comes
//! to that before it tries branches and follows references, but to keywords that it does not know last. Patterns
//! are searched in linear time, and texts are bounded by the size of the schema's largest pattern; what the
//! library does within one keyword is linear, too.
//!
//! The library collects all errors of a keyword before the first can be taken. So the same keyword counts the
//! subschemas that are tried for errors, and beyond [`MOST_ERRORS`] only the first error is reported.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use jsonschema::{Draft, Keyword, PatternOptions, ValidationError, Validator};
use regex_automata::nfa::thompson::{self, NFA};
use serde_json::{Map, Number, Value, json};

use crate::json::{self, JsonError};
use crate::pattern_cost;

/// How many are kept.
const KEPT: usize = 128;
/// The longest schema, in bytes.
const LONGEST: usize = 64 * 1024;
/// The longest document, in bytes. In memory, one can take thirty times as much.
const LONGEST_DOCUMENT: usize = 4 * 1024 * 1024;
/// How large a compiled pattern, and what its searches remember, may be, in bytes.
const LARGEST_PATTERN: usize = 128 * 1024;
/// States of all patterns of a schema that is compiled on a worker: some milliseconds' work.
const MOST_STATES: usize = 8192;
/// What a pattern costs beside its states.
const PATTERN_COST: usize = 16;
/// Subschemas of a schema that is compiled on a worker: some milliseconds' work, too.
const MOST_SUBSCHEMAS: usize = 1000;
/// Errors that may be collected, by an estimate: tried subschemas times the largest subschema.
const MOST_ERRORS: usize = 20_000;
/// Steps that a pattern may take for one text: its states times the text's bytes.
const MOST_STEPS: usize = 1 << 22;
/// How many messages a document gets, and how long one may be, in bytes.
const MOST_MESSAGES: usize = 16;
const LONGEST_MESSAGE: usize = 256;
/// The message for a document that its readers may read differently.
const AMBIGUOUS: &str = "an object has two members of one name";
/// The longest pattern in a document that the format `regex` accepts, in bytes.
const LONGEST_PATTERN: usize = 4096;
/// Values that are hashed between two checks of the time.
const CHECK_PERIOD: u32 = 64;
/// The keyword whose implementation is [`UniqueItems`].
const UNIQUE: &str = "uniqueItems";
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

struct Kept {
    validator: Validator,
    /// Subschemas that may be tried before the validator gives up.
    tries: Arc<AtomicUsize>,
    /// Tries while errors are collected.
    tries_for_errors: usize,
    /// The longest text that its patterns are tried on, in bytes.
    longest_text: usize,
    is_over: IsOverTime,
    used: u64,
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").finish_non_exhaustive()
    }
}

impl JsonSchemas {
    /// Compiles a schema, and answers its number.
    ///
    /// # Errors
    /// It is none, or is refused; the reason is text for whoever wrote it.
    /// On a worker only small schemas are compiled ([`MOST_STATES`], [`MOST_SUBSCHEMAS`]).
    pub(crate) fn compile(
        &mut self,
        text: &[u8],
        is_on_worker: bool,
        is_over: IsOverTime,
    ) -> Result<i32, String> {
        if text.len() > LONGEST {
            return Err(format!(
                "the schema has {} bytes; {LONGEST} are allowed",
                text.len()
            ));
        }
        let mut schema: Value = serde_json::from_slice(text)
            .map_err(|error| format!("the schema is not JSON: {error}"))?;
        let mut size = SchemaSize {
            is_on_worker,
            ..SchemaSize::default()
        };
        add_steps(&mut schema, &mut size);
        size.check()?;
        let tries = Arc::new(AtomicUsize::new(usize::MAX));
        let (step_tries, step_is_over) = (Arc::clone(&tries), Arc::clone(&is_over));
        let patterns = jsonschema::options()
            .should_validate_formats(true)
            .build(&json!({"format": "regex"}))
            .map_err(|error| error.to_string())?;
        let unique_is_over = Arc::clone(&is_over);
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
                    is_over: Arc::clone(&step_is_over),
                    tries: Arc::clone(&step_tries),
                }))
            })
            .with_keyword(UNIQUE, move |_, value, _| {
                Ok(Box::new(UniqueItems {
                    is_required: value == &Value::Bool(true),
                    is_over: Arc::clone(&unique_is_over),
                    hashers: (RandomState::new(), RandomState::new()),
                }))
            })
            .with_format("regex", move |text: &str| {
                text.len() <= LONGEST_PATTERN
                    && pattern_cost::check(text, true).is_ok()
                    && patterns.is_valid(&json!(text))
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
            tries,
            tries_for_errors: (MOST_ERRORS / size.largest.max(1)).max(2 * MOST_MESSAGES),
            longest_text: MOST_STEPS / size.states.max(1),
            is_over,
            used: self.uses,
        };
        self.kept.insert(self.last, kept);
        Ok(self.last)
    }

    /// Checks a document, which may take about `memory` bytes.
    pub(crate) fn validate(&mut self, number: i32, document: &[u8], memory: usize) -> Validity {
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
        let longest = kept.longest_text;
        if document.len() > longest && longest_text(document) > longest {
            return Validity::Invalid(vec![format!(
                "the document has a text of more than {longest} bytes, which the patterns of the schema cannot check"
            )]);
        }
        let document = match json::parse_unambiguous(document, memory, &*kept.is_over) {
            Ok(Some(document)) => document,
            Ok(None) => return Validity::Invalid(vec![AMBIGUOUS.to_owned()]),
            Err(JsonError::Syntax(error)) => {
                return Validity::Invalid(vec![format!("not JSON: {error}")]);
            }
            Err(JsonError::TooLarge) => {
                return Validity::Invalid(vec![format!(
                    "the document takes more than the memory budget of {memory} bytes"
                )]);
            }
            Err(JsonError::OverTime) => return Validity::OverTime,
        };
        kept.check(document.value())
    }
}

impl Kept {
    fn check(&self, document: &Value) -> Validity {
        let first = |error: Option<ValidationError<'_>>| {
            Validity::Invalid(error.iter().map(message).collect())
        };
        match self.within(usize::MAX, || self.validator.is_valid(document)) {
            Ok(true) => return Validity::Valid,
            Ok(false) => {}
            Err(_) => return Validity::OverTime,
        }
        let messages = self.within(self.tries_for_errors, || {
            let errors = self.validator.iter_errors(document).take(MOST_MESSAGES);
            errors.map(|error| message(&error)).collect()
        });
        match messages {
            Ok(messages) => Validity::Invalid(messages),
            Err(Left::Time) => Validity::OverTime,
            Err(Left::Tries) => self
                .within(usize::MAX, || {
                    first(self.validator.validate(document).err())
                })
                .unwrap_or(Validity::OverTime),
        }
    }

    /// Runs the validator as long as there is time, and for so many subschemas.
    fn within<T>(&self, tries: usize, run: impl FnOnce() -> T) -> Result<T, Left> {
        self.tries.store(tries, Ordering::Relaxed);
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(done) => Ok(done),
            Err(left) => match left.downcast::<Left>() {
                Ok(left) => Err(*left),
                Err(panic) => resume_unwind(panic),
            },
        }
    }
}

/// Returns the length of the longest part of a document that may be one text, in bytes.
fn longest_text(document: &[u8]) -> usize {
    let (mut from, mut longest) = (0, 0);
    for quote in memchr::memchr_iter(b'"', document) {
        let is_escaped = quote.checked_sub(1).and_then(|at| document.get(at)) == Some(&b'\\');
        if !is_escaped {
            longest = longest.max(quote - from);
            from = quote;
        }
    }
    longest.max(document.len() - from)
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

/// Why the validator was left, by unwinding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Time,
    Tries,
}

/// The keyword that checks the time and counts the tried subschemas.
struct Step {
    is_over: IsOverTime,
    tries: Arc<AtomicUsize>,
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
        let tries = self.tries.load(Ordering::Relaxed);
        self.tries.store(tries.saturating_sub(1), Ordering::Relaxed);
        let left = if (self.is_over)() {
            Left::Time
        } else if tries == 0 {
            Left::Tries
        } else {
            return true;
        };
        // Not a panic: no panic hook runs, and nothing is printed.
        resume_unwind(Box::new(left))
    }
}

/// `uniqueItems`: as the library's, but it checks the time.
struct UniqueItems {
    is_required: bool,
    is_over: IsOverTime,
    hashers: (RandomState, RandomState),
}

impl fmt::Debug for UniqueItems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UniqueItems").finish_non_exhaustive()
    }
}

impl UniqueItems {
    fn note_value(&self, count: &mut u32) {
        *count += 1;
        if count.is_multiple_of(CHECK_PERIOD) && (self.is_over)() {
            // Not a panic: no panic hook runs, and nothing is printed.
            resume_unwind(Box::new(Left::Time))
        }
    }

    fn hash_one(&self, value: impl Hash) -> u128 {
        let (high, low) = &self.hashers;
        u128::from(high.hash_one(&value)) << 64 | u128::from(low.hash_one(&value))
    }

    /// Returns a hash that equal values have, and others but by a chance of 2^-128 have not.
    fn hash(&self, value: &Value, count: &mut u32) -> u128 {
        self.note_value(count);
        match value {
            Value::Null => self.hash_one(0_u8),
            Value::Bool(truth) => self.hash_one((1_u8, truth)),
            // Equal numbers may be written differently: as `1` and `1.0`.
            Value::Number(number) => match integer(number) {
                Some(integer) => self.hash_one((2_u8, integer)),
                None => self.hash_one((3_u8, number.as_f64().map(f64::to_bits))),
            },
            Value::String(text) => self.hash_one((4_u8, text)),
            Value::Array(values) => values.iter().fold(5, |hash: u128, value| {
                self.hash_one((hash, self.hash(value, count)))
            }),
            // Members have no order.
            Value::Object(members) => self.hash_one(members.iter().fold(6, |sum: u128, member| {
                let (name, value) = member;
                sum.wrapping_add(self.hash_one((name, self.hash(value, count))))
            })),
        }
    }
}

/// Returns the number as an integer, or `None` if it is none.
fn integer(number: &Number) -> Option<i128> {
    let whole = number.as_i64().map(i128::from);
    whole
        .or_else(|| number.as_u64().map(i128::from))
        .or_else(|| {
            let number = number.as_f64()?;
            #[expect(
                clippy::cast_possible_truncation,
                reason = "the number is whole and within 2^100"
            )]
            (number.fract() == 0.0 && number.abs() < 2_f64.powi(100)).then_some(number as i128)
        })
}

impl<'i> Keyword<'i> for UniqueItems {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        if Keyword::is_valid(self, instance) {
            return Ok(());
        }
        Err(ValidationError::custom("the value has non-unique elements"))
    }

    fn is_valid(&self, instance: &'i Value) -> bool {
        let Value::Array(values) = instance else {
            return true;
        };
        if !self.is_required || values.len() < 2 {
            return true;
        }
        // A tree, as a hash table moves all of its values at once when it grows.
        let (mut count, mut seen) = (0, BTreeSet::new());
        values
            .iter()
            .all(|value| seen.insert(self.hash(value, &mut count)))
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

/// Bounds of a schema.
#[derive(Debug, Default)]
struct SchemaSize {
    is_on_worker: bool,
    /// Members of the largest subschema, with those of its values, which is how many errors it may have at most.
    largest: usize,
    /// States of the largest pattern.
    states: usize,
    /// States of all patterns, and [`PATTERN_COST`] for each.
    all_states: usize,
    subschemas: usize,
    /// A pattern that takes too long to compile, and why.
    costly: Option<String>,
}

impl SchemaSize {
    /// # Errors
    /// The schema takes too long to compile.
    fn check(&mut self) -> Result<(), String> {
        if let Some(problem) = self.costly.take() {
            return Err(problem);
        }
        if self.is_on_worker && (self.all_states > MOST_STATES || self.subschemas > MOST_SUBSCHEMAS)
        {
            return Err(
                "the schema takes long to compile, so this is not done in a handler: call compile while the plugin \
                 loads or in on_configure"
                    .to_owned(),
            );
        }
        Ok(())
    }

    fn note_pattern(&mut self, pattern: &str) {
        if let Err(problem) = pattern_cost::check(pattern, true) {
            self.costly = Some(format!("the pattern {pattern} {problem}"));
        }
        // Enough is known.
        if self.costly.is_some() || (self.is_on_worker && self.all_states > MOST_STATES) {
            return;
        }
        let states = NFA::compiler()
            .configure(thompson::Config::new().nfa_size_limit(Some(LARGEST_PATTERN)))
            .build(pattern)
            // The library reads it differently, or refuses it.
            .map_or(LARGEST_PATTERN / 64, |nfa| nfa.states().len());
        self.states = self.states.max(states);
        self.all_states += PATTERN_COST + states;
    }

    fn note_keyword(&mut self, name: &str, value: &Value) {
        match (name, value) {
            ("pattern", Value::String(pattern)) => self.note_pattern(pattern),
            ("patternProperties", Value::Object(patterns)) => {
                patterns
                    .keys()
                    .for_each(|pattern| self.note_pattern(pattern));
            }
            _ => {}
        }
    }
}

/// Puts [`STEP`] into every object that may be used as a schema. In objects that are none it has no meaning.
fn add_steps(schema: &mut Value, size: &mut SchemaSize) {
    if size.is_on_worker && size.subschemas > MOST_SUBSCHEMAS {
        // It is refused.
        return;
    }
    match schema {
        Value::Object(keywords) => {
            size.subschemas += 1;
            let mut largest = 0;
            for (name, value) in keywords.iter_mut() {
                size.note_keyword(name, value);
                largest += 1 + match value {
                    Value::Array(values) => values.len(),
                    Value::Object(members) => members.len(),
                    _ => 0,
                };
                if MAPS.contains(&name.as_str()) {
                    members(value).for_each(|schema| add_steps(schema, size));
                } else if !DATA.contains(&name.as_str()) {
                    add_steps(value, size);
                }
            }
            size.largest = size.largest.max(largest);
            let all = keywords.entry("allOf").or_insert_with(|| json!([]));
            // What is no array is refused for that.
            if let Some(all) = all.as_array_mut() {
                all.insert(0, json!({STEP: true}));
            }
        }
        Value::Array(schemas) => schemas
            .iter_mut()
            .for_each(|schema| add_steps(schema, size)),
        _ => {}
    }
}

fn members(value: &mut Value) -> impl Iterator<Item = &mut Value> {
    value.as_object_mut().into_iter().flat_map(Map::values_mut)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::time::{Duration, Instant};

    use super::*;

    const MEMORY: usize = 1 << 30;

    fn never() -> IsOverTime {
        Arc::new(|| false)
    }

    fn compiled(schema: &Value) -> Result<(JsonSchemas, i32), String> {
        let mut schemas = JsonSchemas::default();
        let number = schemas.compile(schema.to_string().as_bytes(), false, never())?;
        Ok((schemas, number))
    }

    fn checked(schema: &Value, document: &str) -> Validity {
        let (mut schemas, number) = compiled(schema).unwrap();
        schemas.validate(number, document.as_bytes(), MEMORY)
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
            let refused = schemas
                .compile(text.as_bytes(), false, never())
                .unwrap_err();
            assert!(refused.starts_with(message), "{text}: {refused}");
        }
        let long = format!("[{}]", " ".repeat(LONGEST));
        assert_eq!(
            schemas.compile(long.as_bytes(), false, never()),
            Err("the schema has 65538 bytes; 65536 are allowed".to_owned())
        );
    }

    #[test]
    fn the_oldest_makes_room() {
        let mut schemas = JsonSchemas::default();
        let first = schemas.compile(b"true", false, never()).unwrap();
        let second = schemas.compile(b"true", false, never()).unwrap();
        for _ in 0..KEPT {
            assert_eq!(schemas.validate(first, b"1", MEMORY), Validity::Valid);
            schemas.compile(b"true", false, never()).unwrap();
        }
        assert_eq!(schemas.validate(first, b"1", MEMORY), Validity::Valid);
        assert_eq!(schemas.validate(second, b"1", MEMORY), Validity::Gone);
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
                .compile(schema.to_string().as_bytes(), false, is_over)
                .unwrap();
            assert_eq!(schemas.validate(number, b"1", MEMORY), Validity::OverTime);
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
        let number = schemas.compile(old.as_bytes(), false, is_over).unwrap();
        assert_eq!(schemas.validate(number, b"1", MEMORY), Validity::OverTime);
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
            .compile(schema.to_string().as_bytes(), false, is_over)
            .unwrap();
        assert_eq!(
            schemas.validate(number, document.as_bytes(), MEMORY),
            Validity::OverTime
        );
        assert!(began.elapsed() < Duration::from_secs(1));
    }

    #[test]
    fn every_subschema_checks_the_time() {
        let looks = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&looks);
        let is_over = Arc::new(move || counted.fetch_add(1, Ordering::Relaxed) > 100);
        let mut schemas = JsonSchemas::default();
        let schema = br#"{"items": {"properties": {"a": {"not": {"type": "null"}}}}}"#;
        let number = schemas.compile(schema, false, is_over).unwrap();
        assert_eq!(
            schemas.validate(number, br#"[{"a": 1}]"#, MEMORY),
            Validity::Valid
        );
        // The whole, `items`, and `a`; what `not` has fails by its type first.
        assert_eq!(looks.load(Ordering::Relaxed), 3);
        let many = format!("[{}0]", "0,".repeat(200));
        assert_eq!(
            schemas.validate(number, many.as_bytes(), MEMORY),
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
            schemas.validate(number, document.as_bytes(), MEMORY);
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

    /// How often the time is checked for a document.
    fn checks(schema: &Value, document: &str) -> u32 {
        let count = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&count);
        let is_over = Arc::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            false
        });
        let mut schemas = JsonSchemas::default();
        let number = schemas
            .compile(schema.to_string().as_bytes(), false, is_over)
            .unwrap();
        schemas.validate(number, document.as_bytes(), MEMORY);
        count.load(Ordering::Relaxed)
    }

    #[test]
    fn leaves_of_a_schema_check_the_time_for_every_value() {
        let many = |value: &str| format!("[{}0]", format!("{value},").repeat(10_000));
        let values: Vec<_> = (0..5000).collect();
        for (items, value) in [
            (json!({"enum": values}), "4999"),
            (json!({"minLength": 1}), "\"x\""),
            (json!({"type": "integer"}), "1"),
            (json!({"const": 1}), "1"),
            (json!({"multipleOf": 1}), "1"),
            (json!({"properties": {}}), "{}"),
        ] {
            let schema = json!({ "items": items });
            assert!(checks(&schema, &many(value)) >= 10_000, "{schema}");
        }
    }

    #[test]
    fn errors_of_a_document_are_few_however_many_it_has() {
        let schema = json!({"items": {"type": "string"}});
        let (mut schemas, number) = compiled(&schema).unwrap();
        let tries = Arc::clone(&schemas.kept[&number].tries);
        let document = format!("[{}1]", "1,".repeat(1_000_000));
        let validity = schemas.validate(number, document.as_bytes(), MEMORY);
        assert_eq!(
            validity,
            invalid(&["/0: the value is not of type \"string\""])
        );
        assert!(tries.load(Ordering::Relaxed) > usize::MAX - 10);
        // A large subschema counts for as many errors as it may have.
        let names: Vec<String> = (0..4000).map(|i| format!("p{i}")).collect();
        let schema = json!({"items": {"required": names}});
        let (mut schemas, number) = compiled(&schema).unwrap();
        let document = format!("[{}{{}}]", "{},".repeat(10_000));
        let Validity::Invalid(messages) = schemas.validate(number, document.as_bytes(), MEMORY)
        else {
            panic!("it is valid")
        };
        assert_eq!(messages.len(), 1);
    }

    #[test]
    fn text_that_a_pattern_would_take_long_for_is_not_checked() {
        let schema = json!({"items": {"pattern": "(a|b)*a(a|b){200}$"}});
        let long = format!("[\"{}\"]", "a".repeat(1_000_000));
        let Validity::Invalid(messages) = checked(&schema, &long) else {
            panic!("it is valid")
        };
        assert!(messages[0].contains("a text of more than"), "{messages:?}");
        let short = format!("[\"{}\"]", "a".repeat(300));
        assert_eq!(checked(&schema, &short), Validity::Valid);
        let many = format!("[{}0]", "\"x\\\"y\",".repeat(100_000));
        assert!(longest_text(many.as_bytes()) < 10);
    }

    #[test]
    fn unique_items_are_found_as_the_library_finds_them() {
        let schema = json!({"uniqueItems": true});
        let library = jsonschema::validator_for(&schema).unwrap();
        for document in [
            "[]",
            "[1, 2, 3]",
            "[1, 1.0]",
            "[0, -0.0]",
            "[1, true, \"1\", null, [1], {\"a\": 1}]",
            "[0, false]",
            "[9007199254740993, 9007199254740992]",
            "[18446744073709551615, 18446744073709551615]",
            "[1.5, 1.5]",
            "[1e300, 2e300]",
            "[{\"a\": 1, \"b\": 2}, {\"b\": 2, \"a\": 1}]",
            "[{\"a\": 1, \"b\": 2}, {\"b\": 1, \"a\": 2}]",
            "[[1, 2], [2, 1]]",
            "[[1, [2]], [1, [2.0]]]",
            "[[], {}]",
            "[[[]], [[]]]",
            "{\"a\": [1, 1]}",
        ] {
            let value: Value = serde_json::from_str(document).unwrap();
            let found = checked(&schema, document);
            assert_eq!(
                found == Validity::Valid,
                library.is_valid(&value),
                "{document}"
            );
        }
        let message = "the value has non-unique elements";
        assert_eq!(checked(&schema, "[1, 1]"), invalid(&[message]));
        let inner = json!({"properties": {"a": {"uniqueItems": true}}});
        let found = checked(&inner, "{\"a\": [1, 1]}");
        assert_eq!(found, invalid(&[&format!("/a: {message}")]));
        let schema = json!({"uniqueItems": false});
        assert_eq!(checked(&schema, "[1, 1]"), Validity::Valid);
    }

    #[test]
    fn unique_items_check_the_time_while_they_are_compared() {
        let schema = json!({"uniqueItems": true});
        let numbers: Vec<_> = (0..50_000).collect();
        let flat = json!(numbers).to_string();
        // As many checks for one large value, and a base line without the keyword.
        for document in [flat.clone(), format!("[{flat}, 1]")] {
            let without = checks(&json!({}), &document);
            assert!(checks(&schema, &document) > without + 500);
        }
    }

    #[test]
    fn format_regex_accepts_patterns_of_bounded_length() {
        let schema = json!({"format": "regex"});
        assert_eq!(checked(&schema, "\"^a(?=b)[c-d]+$\""), Validity::Valid);
        assert_ne!(checked(&schema, "\"a(b\""), Validity::Valid);
        let long = format!("\"{}\"", "(a|b)".repeat(1000));
        assert_ne!(checked(&schema, &long), Validity::Valid);
    }

    #[test]
    fn object_with_two_members_of_one_name_is_invalid() {
        let schema = json!({"properties": {"a": {"type": "integer"}}});
        let expected = invalid(&[AMBIGUOUS]);
        assert_eq!(checked(&schema, r#"{"a": "x", "a": 1}"#), expected);
        assert_eq!(
            checked(&schema, r#"{"b": [{"c": 1, "\u0063": 1}]}"#),
            expected
        );
    }

    #[test]
    fn document_that_takes_more_memory_than_the_budget_is_not_checked() {
        let (mut schemas, number) = compiled(&json!({})).unwrap();
        let document = format!("[{}\"\"]", "\"\",".repeat(100_000));
        let Validity::Invalid(messages) = schemas.validate(number, document.as_bytes(), 1 << 20)
        else {
            panic!("it is valid")
        };
        assert!(
            messages[0].contains("memory budget of 1048576 bytes"),
            "{messages:?}"
        );
    }

    #[test]
    fn schema_that_takes_long_to_compile_is_not_compiled_on_a_worker() {
        let patterns: Vec<_> = (0..1000)
            .map(|number| json!({"pattern": format!("a{number}")}))
            .collect();
        for schema in [
            json!({"allOf": vec![json!({}); 3000]}),
            json!({"anyOf": patterns}),
            json!({"items": vec![json!({"pattern": "\\w\\w\\w"}); 20]}),
        ] {
            let mut schemas = JsonSchemas::default();
            let refused = schemas.compile(schema.to_string().as_bytes(), true, never());
            assert!(refused.unwrap_err().contains("takes long to compile"));
        }
        let mut schemas = JsonSchemas::default();
        let large = json!({"allOf": vec![json!({}); 3000]}).to_string();
        assert!(schemas.compile(large.as_bytes(), false, never()).is_ok());
        let costly = json!({"pattern": "(?i)[\u{1}-\u{10ffff}]"}).to_string();
        let refused = schemas.compile(costly.as_bytes(), false, never());
        assert!(refused.unwrap_err().contains("too large classes"));
    }
}
