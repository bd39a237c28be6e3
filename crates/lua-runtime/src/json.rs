//! JSON documents, parsed piece by piece within the time of the call that asks for it.
//!
//! `serde_json` itself cannot be stopped. So its events go to a [`Sink`], and every [`PERIOD`] of them the
//! time is checked. Between two events lies one text or one number; a document with a long one is read
//! through [`Checked`], which checks the time, too.

use std::fmt;
use std::io::{self, Read};

use outrider_vm_pool::drop_later;
use serde::Deserializer;
use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Events between two checks of the time.
const PERIOD: u32 = 128;
/// Bytes between two checks of the time.
const BYTES: usize = 4096;
/// Longest text or number that is parsed without a check of the time, in bytes.
const LONG: usize = 64 * 1024;
/// Escapes within half of that which are parsed without a check of the time.
const ESCAPES: usize = 1024;

/// Why a document was not parsed.
#[derive(Debug)]
pub(crate) enum JsonError {
    /// It is not JSON.
    Syntax(serde_json::Error),
    /// The call's time is over.
    OverTime,
    /// The sink refused a piece: the document takes more memory than there is.
    TooLarge,
}

/// What takes a document's pieces, in reading order. `false`, or `None`: no room.
pub(crate) trait Sink {
    /// Identifies a container that has begun.
    type Place;

    fn null(&mut self) -> bool;
    fn truth(&mut self, truth: bool) -> bool;
    fn number(&mut self, number: Number) -> bool;
    fn text(&mut self, text: &str) -> bool;
    /// The name of a member, whose value comes next.
    fn name(&mut self, name: &str) -> bool;
    fn begin(&mut self, is_object: bool) -> Option<Self::Place>;
    /// `count` is the number of values or members.
    fn end(&mut self, place: Self::Place, count: usize);
}

/// Why the parser was stopped.
#[derive(Debug, Clone, Copy)]
enum Stop {
    Time,
    Room,
}

struct Events<'a, S> {
    sink: &'a mut S,
    is_over: &'a dyn Fn() -> bool,
    count: u32,
    stop: Option<Stop>,
}

impl<S: Sink> Events<'_, S> {
    fn stop<T, E: serde::de::Error>(&mut self, why: Stop) -> Result<T, E> {
        self.stop = Some(why);
        Err(E::custom("stopped"))
    }

    fn went_in<E: serde::de::Error>(&mut self, fits: bool) -> Result<(), E> {
        if !fits {
            return self.stop(Stop::Room);
        }
        self.count += 1;
        if self.count == PERIOD {
            self.count = 0;
            if (self.is_over)() {
                return self.stop(Stop::Time);
            }
        }
        Ok(())
    }
}

impl<'de, S: Sink> DeserializeSeed<'de> for &mut Events<'_, S> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, S: Sink> Visitor<'de> for &mut Events<'_, S> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        let fits = self.sink.null();
        self.went_in(fits)
    }

    fn visit_bool<E: serde::de::Error>(self, truth: bool) -> Result<(), E> {
        let fits = self.sink.truth(truth);
        self.went_in(fits)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<(), E> {
        let fits = self.sink.number(number.into());
        self.went_in(fits)
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<(), E> {
        let fits = self.sink.number(number.into());
        self.went_in(fits)
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<(), E> {
        let number = Number::from_f64(number).unwrap_or_else(|| 0.into());
        let fits = self.sink.number(number);
        self.went_in(fits)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        let fits = self.sink.text(text);
        self.went_in(fits)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<(), A::Error> {
        let Some(place) = self.sink.begin(false) else {
            return self.stop(Stop::Room);
        };
        self.went_in(true)?;
        let mut count = 0;
        while values.next_element_seed(&mut *self)?.is_some() {
            count += 1;
        }
        self.sink.end(place, count);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let Some(place) = self.sink.begin(true) else {
            return self.stop(Stop::Room);
        };
        self.went_in(true)?;
        let mut count = 0;
        while members.next_key_seed(Name(&mut *self))?.is_some() {
            members.next_value_seed(&mut *self)?;
            count += 1;
        }
        self.sink.end(place, count);
        Ok(())
    }
}

/// Reads the name of a member of an object.
struct Name<'e, 'a, S>(&'e mut Events<'a, S>);

impl<'de, S: Sink> DeserializeSeed<'de> for Name<'_, '_, S> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<S: Sink> Visitor<'_> for Name<'_, '_, S> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<(), E> {
        let fits = self.0.sink.name(name);
        self.0.went_in(fits)
    }
}

/// A document's bytes, which end with an error when the time is over.
struct Checked<'a> {
    rest: &'a [u8],
    read: usize,
    is_over: &'a dyn Fn() -> bool,
}

impl Read for Checked<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read += buffer.len();
        if self.read >= BYTES {
            self.read = 0;
            if (self.is_over)() {
                return Err(io::Error::from(io::ErrorKind::TimedOut));
            }
        }
        self.rest.read(buffer)
    }
}

/// Whether a text or a number of the document may take longer to parse than there may be between two checks
/// of the time: one that is long, or one of many escapes.
fn may_take_long(document: &[u8]) -> bool {
    document.len() > LONG
        && document.chunks(LONG / 2).any(|part| {
            memchr::memchr(b'"', part).is_none()
                || memchr::memchr_iter(b'\\', part).nth(ESCAPES).is_some()
        })
}

/// From here on, without its sign, a number may be an integer that the parser tells as a fraction, for want of bits.
pub(crate) const HUGE: f64 = 9_223_372_036_854_775_808.0;

/// The numbers of a document of JSON that the parser tells as fractions, and that are [`HUGE`] or larger: their texts, in
/// order. `None`: the time is over.
pub(crate) fn huge_numbers<'d>(
    document: &'d [u8],
    is_over: &dyn Fn() -> bool,
) -> Option<Vec<&'d str>> {
    let mut found = Vec::new();
    let mut checked = 0;
    let mut at = 0;
    while let Some(byte) = document.get(at) {
        if at - checked >= BYTES {
            checked = at;
            if is_over() {
                return None;
            }
        }
        let rest = document.get(at..).unwrap_or_default();
        at += match byte {
            b'"' => text_length(rest),
            b'-' | b'0'..=b'9' => {
                let is_end =
                    |byte: &u8| !matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9');
                let length = rest.iter().position(is_end).unwrap_or(rest.len());
                let token = rest.get(..length).unwrap_or_default();
                let token = str::from_utf8(token).unwrap_or_default();
                let is_told = token.parse::<u64>().is_ok() || token.parse::<i64>().is_ok();
                if !is_told && token.parse().is_ok_and(|value: f64| value.abs() >= HUGE) {
                    found.push(token);
                }
                length
            }
            _ => 1,
        };
    }
    Some(found)
}

/// Length of a text with its quotation marks, the first of which `rest` begins with.
fn text_length(rest: &[u8]) -> usize {
    let mut at = 1;
    while let Some(next) = rest
        .get(at..)
        .and_then(|rest| memchr::memchr2(b'"', b'\\', rest))
    {
        if rest.get(at + next) == Some(&b'"') {
            return at + next + 1;
        }
        at += next + 2;
    }
    rest.len()
}

/// Parses a document.
pub(crate) fn parse<S: Sink>(
    document: &[u8],
    sink: &mut S,
    is_over: &dyn Fn() -> bool,
) -> Result<(), JsonError> {
    let mut events = Events {
        sink,
        is_over,
        count: 0,
        stop: None,
    };
    let parsed = if may_take_long(document) {
        let mut parser = serde_json::Deserializer::from_reader(Checked {
            rest: document,
            read: 0,
            is_over,
        });
        events.deserialize(&mut parser).and_then(|()| parser.end())
    } else {
        let mut parser = serde_json::Deserializer::from_slice(document);
        events.deserialize(&mut parser).and_then(|()| parser.end())
    };
    match (parsed, events.stop) {
        (Ok(()), _) => Ok(()),
        (Err(_), Some(Stop::Time)) => Err(JsonError::OverTime),
        (Err(_), Some(Stop::Room)) => Err(JsonError::TooLarge),
        (Err(error), None) if error.is_io() => Err(JsonError::OverTime),
        (Err(error), None) => Err(JsonError::Syntax(error)),
    }
}

/// A document as a [`Value`], whose memory is estimated as it grows.
struct Tree {
    /// Containers that have begun, and the name of the member that comes next.
    open: Vec<(Value, Option<String>)>,
    done: Option<Value>,
    /// Bytes that may still be taken.
    room: usize,
    /// Whether an object has two members of one name; the last one is kept.
    has_duplicate_name: bool,
}

/// Values that are dropped where they were used; more of them are dropped on the drop queue's thread.
const DROPPED_AT_ONCE: usize = 1000;
/// Estimated bytes of the smallest value of a [`Tree`].
const SMALLEST: usize = 40;

/// Drops a document of `size` estimated bytes.
fn drop_document(document: impl Send + 'static, size: usize) {
    if size > DROPPED_AT_ONCE * SMALLEST {
        drop_later(document);
    }
}

/// A parsed document; a large one is freed on the drop queue's thread.
#[derive(Debug)]
pub(crate) struct Document {
    value: Value,
    size: usize,
}

impl Document {
    pub(crate) fn value(&self) -> &Value {
        &self.value
    }
}

impl Drop for Document {
    fn drop(&mut self) {
        drop_document(std::mem::take(&mut self.value), self.size);
    }
}

impl Tree {
    fn put(&mut self, value: Value, size: usize) -> bool {
        let Some(room) = self.room.checked_sub(size + SMALLEST) else {
            return false;
        };
        self.room = room;
        self.attach(value);
        true
    }

    fn attach(&mut self, value: Value) {
        match self.open.last_mut() {
            None => self.done = Some(value),
            Some((Value::Array(values), _)) => values.push(value),
            Some((Value::Object(members), name)) => {
                let replaced = members.insert(name.take().unwrap_or_default(), value);
                self.has_duplicate_name |= replaced.is_some();
            }
            Some(_) => {}
        }
    }
}

/// Parses a document to a [`Value`] that takes about `memory` bytes at most. Of two members of one name the last
/// is kept.
pub(crate) fn parse_value(
    document: &[u8],
    memory: usize,
    is_over: &dyn Fn() -> bool,
) -> Result<Value, JsonError> {
    parse_tree(document, memory, is_over).map(|(value, _, _)| value)
}

/// Parses a document as [`parse_value`] does. Returns `None` if an object has two members of one name: two readers
/// of such a document may read different values.
pub(crate) fn parse_unambiguous(
    document: &[u8],
    memory: usize,
    is_over: &dyn Fn() -> bool,
) -> Result<Option<Document>, JsonError> {
    let (value, size, has_duplicate_name) = parse_tree(document, memory, is_over)?;
    let document = Document { value, size };
    Ok((!has_duplicate_name).then_some(document))
}

/// Returns the document, its estimated size in bytes, and whether an object has two members of one name.
fn parse_tree(
    document: &[u8],
    memory: usize,
    is_over: &dyn Fn() -> bool,
) -> Result<(Value, usize, bool), JsonError> {
    let mut tree = Tree {
        open: Vec::new(),
        done: None,
        room: memory,
        has_duplicate_name: false,
    };
    let parsed = parse(document, &mut tree, is_over);
    let size = memory.saturating_sub(tree.room);
    let has_duplicate_name = tree.has_duplicate_name;
    match parsed {
        Ok(()) => Ok((tree.done.unwrap_or_default(), size, has_duplicate_name)),
        Err(error) => {
            drop_document(tree, size);
            Err(error)
        }
    }
}

impl Sink for Tree {
    type Place = ();

    fn null(&mut self) -> bool {
        self.put(Value::Null, 0)
    }

    fn truth(&mut self, truth: bool) -> bool {
        self.put(Value::Bool(truth), 0)
    }

    fn number(&mut self, number: Number) -> bool {
        self.put(Value::Number(number), 0)
    }

    fn text(&mut self, text: &str) -> bool {
        self.put(Value::String(text.to_owned()), text.len() + 32)
    }

    fn name(&mut self, name: &str) -> bool {
        let Some(room) = self.room.checked_sub(name.len() + 96) else {
            return false;
        };
        self.room = room;
        if let Some((_, next)) = self.open.last_mut() {
            *next = Some(name.to_owned());
        }
        true
    }

    fn begin(&mut self, is_object: bool) -> Option<()> {
        let room = self.room.checked_sub(96)?;
        self.room = room;
        let value = if is_object {
            Value::Object(Map::new())
        } else {
            Value::Array(Vec::new())
        };
        self.open.push((value, None));
        Some(())
    }

    fn end(&mut self, (): (), _: usize) {
        if let Some((value, _)) = self.open.pop() {
            self.attach(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn value(document: &str) -> Value {
        parse_value(document.as_bytes(), 1 << 20, &|| false).unwrap()
    }

    #[test]
    fn documents_are_what_the_library_makes_of_them() {
        for document in [
            "null",
            " [1, -2, 3.5, 1e300, 18446744073709551615, true, false, null] ",
            r#"{"a": {"b": [{}, []]}, "c": "\u00e4\n", "a": 2}"#,
            r#""text""#,
        ] {
            let expected: Value = serde_json::from_str(document).unwrap();
            assert_eq!(value(document), expected, "{document}");
            let long = format!("{document}{}", " ".repeat(LONG));
            assert_eq!(value(&long), expected, "{document}");
        }
        for document in [
            "",
            "[1,",
            "nul",
            "[1] 2",
            "\"\\x\"",
            "[1}",
            "{\"a\" 1}",
            "\u{7f}",
        ] {
            let expected = serde_json::from_str::<Value>(document).unwrap_err();
            let found = parse_value(document.as_bytes(), 1 << 20, &|| false).unwrap_err();
            let JsonError::Syntax(found) = found else {
                panic!("{document}: {found:?}")
            };
            assert_eq!(found.to_string(), expected.to_string(), "{document}");
        }
    }

    #[test]
    fn parser_checks_the_time_at_least_once_for_each_piece_of_work() {
        let documents = [
            format!("[{}0]", "0,".repeat(100_000)),
            format!("[{}0]", "[],".repeat(100_000)),
            format!("{{{}\"z\":0}}", "\"a\":0,".repeat(50_000)),
            format!("\"{}\"", "a".repeat(1_000_000)),
            format!("\"{}\"", "\\u0041".repeat(100_000)),
            format!("\"{}\"", "\\\",".repeat(200_000)),
            "1".repeat(400_000),
            format!("[{}1]", " ".repeat(400_000)),
        ];
        for document in documents {
            let checks = Cell::new(0);
            let is_over = || {
                checks.set(checks.get() + 1);
                false
            };
            let _ = parse_value(document.as_bytes(), usize::MAX, &is_over);
            assert!(
                checks.get() > 90,
                "{:.20}: {} checks",
                document,
                checks.get()
            );
            let checks = Cell::new(0);
            let is_over = || {
                checks.set(checks.get() + 1);
                checks.get() > 5
            };
            let parsed = parse_value(document.as_bytes(), usize::MAX, &is_over);
            assert!(matches!(parsed, Err(JsonError::OverTime)), "{document:.20}");
            // A reader that failed may be asked once more.
            assert!(checks.get() <= 8, "{document:.20}: {} checks", checks.get());
        }
    }

    #[test]
    fn document_with_two_members_of_one_name_is_ambiguous() {
        let parsed = |document: &str| parse_unambiguous(document.as_bytes(), 1 << 20, &|| false);
        for document in [
            r#"{"a": 1, "a": 1}"#,
            r#"{"a": 1, "b": 2, "\u0061": 3}"#,
            r#"[[{"a": {}, "a": []}]]"#,
            r#"{"a": {"b": 1}, "c": {"": 1, "": 2}}"#,
        ] {
            let found = parsed(document);
            assert!(matches!(found, Ok(None)), "{document}");
            let long = format!("{document}{}", " ".repeat(LONG));
            assert!(matches!(parsed(&long), Ok(None)), "{document}");
        }
        let document = r#"{"a": {"a": [{"a": 1}, {"a": 1}]}, "A": 1}"#;
        let found = parsed(document).unwrap().unwrap();
        assert_eq!(*found.value(), value(document));
    }

    #[test]
    fn document_that_takes_more_memory_than_allowed_is_refused() {
        for piece in ["0,", "\"\",", "[],", "{},", "{\"a\":0},"] {
            let document = format!("[{}0]", piece.repeat(1000));
            let memory = 32 * 1000;
            let parsed = parse_value(document.as_bytes(), memory, &|| false);
            assert!(matches!(parsed, Err(JsonError::TooLarge)), "{piece}");
            assert!(parse_value(document.as_bytes(), 10 * memory, &|| false).is_ok());
        }
    }
}
