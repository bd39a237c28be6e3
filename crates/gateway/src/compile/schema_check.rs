//! A configuration against its plugin's JSON Schema, in words and with keys.

use std::collections::BTreeSet;

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{ValidationError, Validator};
use outrider_yaml::{PathSegment, suggest};
use serde_json::Value;

use super::known_names;
use crate::annotations;

/// The `format` of a text that names an upstream of the gateway.
const UPSTREAM: &str = "outrider-upstream";

/// A compiled schema.
pub(super) struct Checker {
    validator: Validator,
    /// For did-you-mean.
    schema: Value,
}

/// One way in which a configuration does not satisfy its schema.
pub(super) struct Violation {
    /// Where in the configuration, a JSON pointer.
    pub(super) pointer: String,
    pub(super) place: Place,
    pub(super) message: String,
    pub(super) mend: String,
}

/// What a violation is placed at.
pub(super) enum Place {
    /// The value at the pointer.
    Value,
    /// This key of the mapping at the pointer.
    Key(String),
    /// The `use` item: what is missing is nowhere.
    Item,
}

impl Checker {
    /// The error is a sentence.
    pub(super) fn new(schema: &Value) -> Result<Self, String> {
        let validator = jsonschema::validator_for(schema).map_err(|error| error.to_string())?;
        Ok(Self {
            validator,
            schema: schema.clone(),
        })
    }

    pub(super) fn violations(&self, config: &Value) -> Vec<Violation> {
        let shown = annotations::without_secrets(&self.schema, config);
        self.validator
            .iter_errors(config)
            .flat_map(|error| self.violation(&error, &shown))
            .collect()
    }

    /// The texts of the format [`UPSTREAM`] that are none of `upstreams`, the names that are declared: probable mistakes, as
    /// a plugin says itself what it does without the upstream.
    pub(super) fn undeclared(
        &self,
        config: &Value,
        upstreams: &BTreeSet<String>,
    ) -> Vec<Violation> {
        let mut found: Vec<Violation> = Vec::new();
        // What is too much to look at is not warned of.
        let _too_much = annotations::describe(&self.schema, config, &mut |path, value, schema| {
            let Some(name) = value.as_str() else { return };
            let is_upstream = schema.get("format").and_then(Value::as_str) == Some(UPSTREAM);
            let pointer = pointer(path);
            if !is_upstream
                || upstreams.contains(name)
                || found.iter().any(|known| known.pointer == pointer)
            {
                return;
            }
            let names = upstreams.iter().map(String::as_str);
            found.push(Violation {
                message: format!(
                    "{} names the upstream `{name}`, which is not declared",
                    what(&pointer)
                ),
                mend: known_names(name, names, "upstreams:"),
                pointer,
                place: Place::Value,
            });
        });
        found
    }

    /// `shown` is the configuration without its secrets.
    fn violation(&self, error: &ValidationError<'_>, shown: &Value) -> Vec<Violation> {
        let pointer = error.instance_path().as_str().to_owned();
        let at = |place, message: String, mend: String| Violation {
            pointer: pointer.clone(),
            place,
            message,
            mend,
        };
        // Within a secret nothing is shown.
        let seen = shown.pointer(&pointer);
        let is_secret = seen != Some(error.instance().as_ref());
        let found = match seen {
            Some(seen) => short(seen),
            None => "a secret".to_owned(),
        };
        let what = what(&pointer);
        let value = |message: String, mend: &str| vec![at(Place::Value, message, mend.to_owned())];
        match error.kind() {
            ValidationErrorKind::AdditionalProperties { unexpected }
            | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
                let known = self.known_keys(error);
                unexpected
                    .iter()
                    .map(|key| {
                        let mend = match suggest(key, known.iter().map(String::as_str)) {
                            Some(near) => format!("did you mean `{near}`?"),
                            None if known.is_empty() => "remove it".to_owned(),
                            None => format!("known here: {}", list(known.iter())),
                        };
                        at(
                            Place::Key(key.clone()),
                            format!("unknown key `{key}`"),
                            mend,
                        )
                    })
                    .collect()
            }
            ValidationErrorKind::Required { property } => {
                let key = property.as_str().unwrap_or_default();
                let message = if pointer.is_empty() {
                    format!("the key `{key}` is missing from its configuration")
                } else {
                    format!("{what} has no `{key}`")
                };
                let place = if pointer.is_empty() {
                    Place::Item
                } else {
                    Place::Value
                };
                vec![at(place, message, format!("add `{key}:`"))]
            }
            ValidationErrorKind::Type { kind } => {
                let expected = match kind {
                    TypeKind::Single(kind) => type_words(kind.as_str()).to_owned(),
                    TypeKind::Multiple(kinds) => kinds
                        .iter()
                        .map(|kind| type_words(kind.as_str()))
                        .collect::<Vec<_>>()
                        .join(" or "),
                };
                value(format!("{what} has to be {expected}, and is {found}"), "")
            }
            ValidationErrorKind::Enum { options } => {
                let words: Vec<String> = options
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|option| {
                        option
                            .as_str()
                            .map_or_else(|| option.to_string(), str::to_owned)
                    })
                    .collect();
                let near = error
                    .instance()
                    .as_str()
                    .and_then(|word| suggest(word, words.iter().map(String::as_str)));
                let mend = match near {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("write one of {}", list(words.iter())),
                };
                vec![at(Place::Value, format!("{what} cannot be {found}"), mend)]
            }
            ValidationErrorKind::Constant { expected_value } => value(
                format!("{what} has to be {expected_value}, and is {found}"),
                "",
            ),
            ValidationErrorKind::Minimum { limit } => value(
                format!("{what} has to be {limit} or more, and is {found}"),
                "",
            ),
            ValidationErrorKind::Maximum { limit } => value(
                format!("{what} has to be {limit} or less, and is {found}"),
                "",
            ),
            ValidationErrorKind::ExclusiveMinimum { limit } => value(
                format!("{what} has to be above {limit}, and is {found}"),
                "",
            ),
            ValidationErrorKind::ExclusiveMaximum { limit } => value(
                format!("{what} has to be below {limit}, and is {found}"),
                "",
            ),
            ValidationErrorKind::MinLength { limit } => value(
                format!("{what} has to have {limit} characters or more, and is {found}"),
                "",
            ),
            ValidationErrorKind::MaxLength { limit } => value(
                format!("{what} has to have {limit} characters or fewer, and is {found}"),
                "",
            ),
            ValidationErrorKind::MinItems { limit } => {
                value(format!("{what} has to have {limit} items or more"), "")
            }
            ValidationErrorKind::MaxItems { limit } => {
                value(format!("{what} has to have {limit} items or fewer"), "")
            }
            ValidationErrorKind::MinProperties { limit } => {
                value(format!("{what} has to have {limit} keys or more"), "")
            }
            ValidationErrorKind::MaxProperties { limit } => {
                value(format!("{what} has to have {limit} keys or fewer"), "")
            }
            ValidationErrorKind::Pattern { pattern } => value(
                format!("{what} has to match `{pattern}`, and is {found}"),
                "",
            ),
            ValidationErrorKind::FalseSchema => {
                value(format!("{what} may not be here"), "remove it")
            }
            ValidationErrorKind::UniqueItems => {
                value(format!("{what} has an item twice"), "keep one of the two")
            }
            ValidationErrorKind::AnyOf { .. } | ValidationErrorKind::OneOfNotValid { .. } => {
                if let Some(keys) = self.alternative_keys(error) {
                    let message = format!("{what} has none of {}", list(keys.iter()));
                    return value(message, "add one of them");
                }
                let forms = self.forms(error);
                let mend = if forms.is_empty() {
                    "see the plugin's README".to_owned()
                } else {
                    format!("write {}", forms.join(", or "))
                };
                let words = self.words(error);
                let near = (error.instance().as_str())
                    .and_then(|word| suggest(word, words.iter().map(String::as_str)));
                let mend = match near {
                    Some(near) => format!("did you mean `{near}`? {mend}"),
                    None => mend,
                };
                value(format!("{what} cannot be {found}"), &mend)
            }
            ValidationErrorKind::OneOfMultipleValid { .. } => match self.alternative_keys(error) {
                Some(keys) => value(
                    format!("{what} has more than one of {}", list(keys.iter())),
                    "keep one of them; `null` removes what a wider scope gave",
                ),
                None => value(
                    format!(
                        "{what} has more than one of the forms of which its `config.schema.json` allows one"
                    ),
                    "see the plugin's README",
                ),
            },
            _ if is_secret => value(format!("{what}: {}", error.masked_with("a secret")), ""),
            _ => value(format!("{what}: {error}"), ""),
        }
    }

    /// The keys of which one is needed, where all that an `anyOf` or `oneOf` has is such keys.
    fn alternative_keys(&self, error: &ValidationError<'_>) -> Option<Vec<String>> {
        let alternatives = self
            .schema
            .pointer(error.schema_path().as_str())?
            .as_array()?;
        alternatives
            .iter()
            .map(|alternative| match alternative.as_object() {
                Some(only) if only.len() == 1 => match only.get("required")?.as_array()?.as_slice()
                {
                    [Value::String(key)] => Some(key.clone()),
                    _ => None,
                },
                _ => None,
            })
            .collect()
    }

    /// The alternatives of an `anyOf` or `oneOf`.
    fn alternatives(&self, error: &ValidationError<'_>) -> Vec<&Value> {
        let alternatives = self.schema.pointer(error.schema_path().as_str());
        alternatives
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .map(|alternative| self.resolved(alternative))
            .collect()
    }

    /// What a schema refers to within its document, or itself.
    fn resolved<'s>(&'s self, schema: &'s Value) -> &'s Value {
        let reference = schema.get("$ref").and_then(Value::as_str);
        reference
            .and_then(|reference| self.schema.pointer(reference.strip_prefix('#')?))
            .unwrap_or(schema)
    }

    /// The alternatives in words; those that no words are known for are left out.
    fn forms(&self, error: &ValidationError<'_>) -> Vec<String> {
        let alternatives = self.alternatives(error);
        alternatives.into_iter().filter_map(form).collect()
    }

    /// The words that the alternatives allow.
    fn words(&self, error: &ValidationError<'_>) -> Vec<String> {
        let alternatives = self.alternatives(error);
        let constants = alternatives.iter().filter_map(|schema| schema.get("const"));
        let options = alternatives.iter().filter_map(|schema| schema.get("enum"));
        options
            .filter_map(Value::as_array)
            .flatten()
            .chain(constants)
            .filter_map(|word| Some(word.as_str()?.to_owned()))
            .collect()
    }

    /// The keys that the schema names beside the keyword that refused one.
    fn known_keys(&self, error: &ValidationError<'_>) -> Vec<String> {
        let path = error.schema_path().as_str();
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        self.schema
            .pointer(parent)
            .and_then(|schema| schema.get("properties"))
            .and_then(Value::as_object)
            .map(|properties| properties.keys().cloned().collect())
            .unwrap_or_default()
    }
}

/// A place in a configuration, in a message.
/// A path as a JSON pointer (RFC 6901).
fn pointer(path: &[PathSegment]) -> String {
    path.iter()
        .map(|step| match step {
            PathSegment::Key(key) => format!("/{}", key.replace('~', "~0").replace('/', "~1")),
            PathSegment::Index(index) => format!("/{index}"),
        })
        .collect()
}

fn what(pointer: &str) -> String {
    match pointer.strip_prefix('/') {
        None => "the configuration".to_owned(),
        Some(path) => format!(
            "`{}`",
            path.replace('/', ".").replace("~1", "/").replace("~0", "~")
        ),
    }
}

/// What a schema allows, in words: `` `second` or `minute` ``, `a whole number, 1 or more`, `a mapping with `day``.
fn form(schema: &Value) -> Option<String> {
    if let Some(word) = schema.get("const") {
        return Some(format!("`{}`", plain(word)));
    }
    if let Some(options) = schema.get("enum").and_then(Value::as_array) {
        let words: Vec<String> = options.iter().map(plain).collect();
        return Some(list(words.iter()));
    }
    let kind = schema.get("type").and_then(Value::as_str)?;
    let number = |key: &str| schema.get(key).map(ToString::to_string);
    let words = type_words(kind).to_owned();
    Some(match kind {
        "integer" | "number" => match (number("minimum"), number("maximum")) {
            (Some(least), Some(most)) => format!("{words} from {least} to {most}"),
            (Some(least), None) => format!("{words}, {least} or more"),
            (None, Some(most)) => format!("{words}, {most} or less"),
            (None, None) => words,
        },
        "string" => match schema.get("pattern").and_then(Value::as_str) {
            Some(pattern) => format!("{words} that matches `{pattern}`"),
            None => words,
        },
        "object" => {
            let required = schema.get("required").and_then(Value::as_array);
            let keys: Vec<String> = required.into_iter().flatten().map(plain).collect();
            if keys.is_empty() {
                words
            } else {
                format!("{words} with {}", list(keys.iter()))
            }
        }
        _ => words,
    })
}

/// A value as one writes it: a text without quotation marks.
fn plain(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

fn list<'w>(words: impl Iterator<Item = &'w String>) -> String {
    words
        .map(|word| format!("`{word}`"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn type_words(kind: &str) -> &str {
    match kind {
        "array" => "a list",
        "boolean" => "`true` or `false`",
        "integer" => "a whole number",
        "null" => "`null`",
        "number" => "a number",
        "object" => "a mapping",
        "string" => "text",
        other => other,
    }
}

fn short(value: &Value) -> String {
    const LONGEST: usize = 40;
    match value {
        Value::Object(_) => "a mapping".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::String(text) if text.chars().count() <= LONGEST => format!("the text `{text}`"),
        Value::String(text) => {
            format!(
                "the text `{}...`",
                text.chars().take(LONGEST).collect::<String>()
            )
        }
        Value::Null => "nothing".to_owned(),
        other => other.to_string(),
    }
}
