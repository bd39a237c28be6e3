//! serde's complaints in plain words, with a place.

use std::fmt::{self, Display};

use serde::de::{self, Expected, Unexpected};

use crate::node::{Location, describe_text};
use crate::suggest::suggest;

/// Why a value could not be read. Its place is put on by the first reader that it passes.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) location: Option<Location>,
    pub(crate) message: String,
    pub(crate) mend: Option<String>,
}

impl Failure {
    pub(crate) fn new(message: impl Into<String>, mend: Option<String>) -> Self {
        Self {
            location: None,
            message: message.into(),
            mend,
        }
    }

    /// Puts it at `location`, unless it already has a place.
    pub(crate) fn at(mut self, location: Location) -> Self {
        self.location.get_or_insert(location);
        self
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl de::Error for Failure {
    fn custom<T: Display>(message: T) -> Self {
        let message = message.to_string();
        if message.starts_with("data did not match any variant of untagged enum") {
            // serde tries each form and keeps none of their complaints.
            return Self::new(
                "this value has none of the forms that it may have here",
                Some("look for a misspelt key or a wrong word in it".to_owned()),
            );
        }
        // A type's own complaint may say how to mend it: `what is wrong; how to mend it`.
        match message.split_once("; ") {
            Some((message, mend)) => Self::new(message, Some(mend.to_owned())),
            None => Self::new(message, None),
        }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let expected = expected_words(&expected.to_string());
        let mend = match (expected.as_str(), found) {
            ("text", Unexpected::Bool(value)) => Some(format!("put it in quotes: \"{value}\"")),
            ("text", Unexpected::Unsigned(value)) => Some(format!("put it in quotes: \"{value}\"")),
            ("text", Unexpected::Signed(value)) => Some(format!("put it in quotes: \"{value}\"")),
            ("text", Unexpected::Float(value)) => Some(format!("put it in quotes: \"{value}\"")),
            (_, Unexpected::Str(text))
                if expected.contains("number") && text.parse::<f64>().is_ok() =>
            {
                Some(format!("write it without quotes: {text}"))
            }
            ("`true` or `false`", Unexpected::Str(text)) => {
                truth(text).map(|value| format!("write {value}"))
            }
            (_, Unexpected::Unit) => Some("write a value, or remove the key".to_owned()),
            _ => None,
        };
        Self::new(
            format!("expected {expected}, found {}", found_words(found)),
            mend,
        )
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }

    fn invalid_length(length: usize, expected: &dyn Expected) -> Self {
        Self::new(format!("expected {expected}, found {length} values"), None)
    }

    fn unknown_variant(found: &str, expected: &'static [&'static str]) -> Self {
        unknown("word", found, expected)
    }

    fn unknown_field(found: &str, expected: &'static [&'static str]) -> Self {
        unknown("key", found, expected)
    }

    fn missing_field(field: &'static str) -> Self {
        Self::new(
            format!("the key `{field}` is missing"),
            Some(format!("add `{field}:`")),
        )
    }
}

/// What YAML 1.1 took for a truth value and 1.2 takes for text.
fn truth(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "yes" | "on" | "y" | "true" => Some(true),
        "no" | "off" | "n" | "false" => Some(false),
        _ => None,
    }
}

/// An unknown key or word, with the one that was meant, or all there are.
pub(crate) fn unknown(what: &str, found: &str, expected: &[&str]) -> Failure {
    let mend = match suggest(found, expected.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None if expected.is_empty() => "remove it".to_owned(),
        None => format!("known here: {}", list(expected)),
    };
    Failure::new(format!("unknown {what} `{found}`"), Some(mend))
}

fn list(words: &[&str]) -> String {
    words
        .iter()
        .map(|word| format!("`{word}`"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn found_words(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(value) => format!("`{value}`"),
        Unexpected::Unsigned(value) => format!("the number {value}"),
        Unexpected::Signed(value) => format!("the number {value}"),
        Unexpected::Float(value) => format!("the number {value}"),
        Unexpected::Str(text) => describe_text(text),
        Unexpected::Unit | Unexpected::Option => "nothing".to_owned(),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "a mapping".to_owned(),
        other => other.to_string(),
    }
}

fn expected_words(expected: &str) -> String {
    match expected {
        "a string" | "string" | "variant identifier" => "text".to_owned(),
        "a boolean" => "`true` or `false`".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "a mapping".to_owned(),
        "u8" => range(u8::MIN, u8::MAX),
        "u16" => range(u16::MIN, u16::MAX),
        "u32" => range(u32::MIN, u32::MAX),
        "i32" => range(i32::MIN, i32::MAX),
        "u64" | "usize" => "a whole number, 0 or more".to_owned(),
        "i64" | "isize" => "a whole number".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        _ if expected.starts_with("struct ") => "a mapping".to_owned(),
        _ => expected.to_owned(),
    }
}

fn range(least: impl Display, most: impl Display) -> String {
    format!("a whole number from {least} to {most}")
}
