//! The tree: values with their places. No parsing here, and no meaning.

use std::fmt;

/// A place in a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// From 1; 0 where the file as a whole is meant.
    pub line: usize,
    /// In characters, from 1; 0 where the line as a whole is meant.
    pub column: usize,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A value and its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Where it begins.
    pub location: Location,
    /// What it is.
    pub value: Value,
}

/// What a node is.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `null`, `~`, or nothing at all.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number, in the range of `i64` and `u64` together.
    Integer(i128),
    /// Any other finite number.
    Float(f64),
    /// Text.
    String(String),
    /// A list.
    Sequence(Vec<Node>),
    /// Keys and values.
    Mapping(Mapping),
}

/// Keys and values in the order of the file; keys are unique.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Mapping {
    entries: Vec<Entry>,
}

/// One key with its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The key's text; `404:` and `true:` are the texts `404` and `true`.
    pub key: String,
    /// Where the key begins.
    pub key_location: Location,
    /// Its value.
    pub value: Node,
}

/// One step of a path into a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathSegment {
    /// A mapping's key.
    Key(String),
    /// A sequence's index, from 0.
    Index(usize),
}

impl From<&str> for PathSegment {
    fn from(key: &str) -> Self {
        Self::Key(key.to_owned())
    }
}

impl From<usize> for PathSegment {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}

impl Mapping {
    pub(crate) fn new(entries: Vec<Entry>) -> Self {
        Self { entries }
    }

    /// The entry of `key`.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// All entries, in the order of the file.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

impl Node {
    /// What it is, in words that follow "found": `the text \`x\``, `a list`, `nothing`.
    pub fn describe(&self) -> String {
        match &self.value {
            Value::Null => "nothing".to_owned(),
            Value::Bool(value) => format!("`{value}`"),
            Value::Integer(value) => format!("the number {value}"),
            Value::Float(value) => format!("the number {value}"),
            Value::String(value) => describe_text(value),
            Value::Sequence(_) => "a list".to_owned(),
            Value::Mapping(_) => "a mapping".to_owned(),
        }
    }

    /// Its text, if it is text.
    pub fn as_str(&self) -> Option<&str> {
        match &self.value {
            Value::String(value) => Some(value),
            _ => None,
        }
    }

    /// Its items, if it is a list.
    pub fn as_sequence(&self) -> Option<&[Node]> {
        match &self.value {
            Value::Sequence(items) => Some(items),
            _ => None,
        }
    }

    /// Its keys and values, if it is a mapping.
    pub fn as_mapping(&self) -> Option<&Mapping> {
        match &self.value {
            Value::Mapping(mapping) => Some(mapping),
            _ => None,
        }
    }

    /// The node one step in.
    pub fn step(&self, segment: &PathSegment) -> Option<&Self> {
        match (&self.value, segment) {
            (Value::Mapping(mapping), PathSegment::Key(key)) => mapping.get(key),
            (Value::Mapping(mapping), PathSegment::Index(index)) => mapping.get(&index.to_string()),
            (Value::Sequence(items), PathSegment::Index(index)) => items.get(*index),
            (Value::Sequence(items), PathSegment::Key(key)) => {
                items.get(key.parse::<usize>().ok()?)
            }
            _ => None,
        }
    }

    /// The node at the end of `path`, if all of it is there.
    pub fn at(&self, path: &[PathSegment]) -> Option<&Self> {
        path.iter()
            .try_fold(self, |node, segment| node.step(segment))
    }

    /// Where the node at the end of `path` begins; where the path ends early, the last node on it.
    pub fn locate(&self, path: &[PathSegment]) -> Location {
        let mut node = self;
        for segment in path {
            match node.step(segment) {
                Some(next) => node = next,
                None => break,
            }
        }
        node.location
    }

    /// Like [`Node::locate`], for a JSON pointer (RFC 6901) such as `/plugins/0/name`.
    pub fn locate_pointer(&self, pointer: &str) -> Location {
        let path: Vec<PathSegment> = pointer
            .split('/')
            .skip(1)
            .map(|segment| PathSegment::Key(segment.replace("~1", "/").replace("~0", "~")))
            .collect();
        self.locate(&path)
    }

    /// The same value as JSON, without the places.
    pub fn to_json(&self) -> serde_json::Value {
        match &self.value {
            Value::Null => serde_json::Value::Null,
            Value::Bool(value) => (*value).into(),
            Value::Integer(value) => serde_json::Number::from_i128(*value)
                .map_or(serde_json::Value::Null, serde_json::Value::Number),
            Value::Float(value) => serde_json::Number::from_f64(*value)
                .map_or(serde_json::Value::Null, serde_json::Value::Number),
            Value::String(value) => value.as_str().into(),
            Value::Sequence(items) => items.iter().map(Self::to_json).collect(),
            Value::Mapping(mapping) => serde_json::Value::Object(
                mapping
                    .entries
                    .iter()
                    .map(|entry| (entry.key.clone(), entry.value.to_json()))
                    .collect(),
            ),
        }
    }
}

/// Text in words that follow "found", cut where it is long.
pub(crate) fn describe_text(text: &str) -> String {
    const LONGEST: usize = 40;
    let line = text.lines().next().unwrap_or_default();
    let short: String = line.chars().take(LONGEST).collect();
    if short == text {
        format!("the text `{text}`")
    } else {
        format!("the text `{short}...`")
    }
}
