//! From the parser's events to the tree, without recursion: a file's depth must not decide whether
//! the stack holds.

use std::borrow::Cow;
use std::collections::BTreeMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Tag};

use crate::node::{Entry, Location, Mapping, Node, Value};
use crate::{scalar, syntax};

/// Deeper than anything a person writes; serde and JSON Schema recurse over the tree later.
const DEEPEST: usize = 100;
/// Aliases copy what they repeat: the most nodes that all of them together may make.
const MOST_COPIED: usize = 100_000;

/// A fault of the text itself.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) location: Location,
    pub(crate) message: String,
    pub(crate) mend: Option<String>,
}

/// A collection that has begun and not ended.
enum Open {
    Sequence {
        location: Location,
        anchor: usize,
        items: Vec<Node>,
    },
    Mapping {
        location: Location,
        anchor: usize,
        entries: Vec<Entry>,
        /// Key text to its entry: a scan of `entries` would be quadratic.
        places: BTreeMap<String, Location>,
        key: Option<Key>,
    },
}

impl Open {
    fn location(&self) -> Location {
        match self {
            Self::Sequence { location, .. } | Self::Mapping { location, .. } => *location,
        }
    }
}

enum Key {
    Good(String, Location),
    /// Its value is read and dropped; the fault is already told.
    Bad,
}

#[derive(Default)]
pub(crate) struct Builder {
    open: Vec<Open>,
    anchors: BTreeMap<usize, (Node, usize)>,
    copied: usize,
    documents: usize,
    root: Option<Node>,
    faults: Vec<Fault>,
}

pub(crate) fn build(text: &str) -> Result<Node, Vec<Fault>> {
    let mut builder = Builder::default();
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        match event {
            Ok((event, span)) => {
                if !builder.take(event, span.start) {
                    break;
                }
            }
            Err(error) => {
                let (mut message, mend) = syntax::explain(error.info());
                if (error.info().contains("flow") || error.info() == "invalid indentation")
                    && let Some(begin) = builder.open.last().map(Open::location)
                {
                    message = format!("{message} (begun on line {})", begin.line);
                }
                builder.fault(location(*error.marker()), message, mend);
                break;
            }
        }
    }
    if builder.faults.is_empty() {
        Ok(builder.root.unwrap_or(Node {
            location: Location { line: 1, column: 1 },
            value: Value::Null,
        }))
    } else {
        Err(builder.faults)
    }
}

fn location(marker: Marker) -> Location {
    Location {
        line: marker.line().max(1),
        column: marker.col() + 1,
    }
}

impl Builder {
    fn fault(&mut self, location: Location, message: impl Into<String>, mend: Option<String>) {
        self.faults.push(Fault {
            location,
            message: message.into(),
            mend,
        });
    }

    /// Takes one event; false: it makes no sense to go on.
    fn take(&mut self, event: Event<'_>, start: Marker) -> bool {
        let location = location(start);
        match event {
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    self.fault(
                        location,
                        "a second document begins here",
                        Some("put it into a file of its own".to_owned()),
                    );
                    return false;
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                if self.waits_for_key() {
                    self.key(&text, style, location);
                } else {
                    let value = self.scalar(text, style, tag.as_deref(), location);
                    self.value(Node { location, value }, anchor);
                }
            }
            Event::Alias(anchor) => return self.alias(anchor, location),
            Event::SequenceStart(anchor, tag) => {
                self.collection_tag(tag, location);
                self.refuse_as_key(location);
                self.open.push(Open::Sequence {
                    location,
                    anchor,
                    items: Vec::new(),
                });
            }
            Event::MappingStart(anchor, tag) => {
                self.collection_tag(tag, location);
                self.refuse_as_key(location);
                self.open.push(Open::Mapping {
                    location,
                    anchor,
                    entries: Vec::new(),
                    places: BTreeMap::new(),
                    key: None,
                });
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open::Sequence {
                    location,
                    anchor,
                    items,
                }) => self.close(location, Value::Sequence(items), anchor),
                Some(Open::Mapping {
                    location,
                    anchor,
                    entries,
                    ..
                }) => self.close(location, Value::Mapping(Mapping::new(entries)), anchor),
                None => {}
            },
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
        if self.open.len() > DEEPEST {
            self.fault(
                location,
                format!("lists and mappings are nested more than {DEEPEST} deep"),
                Some("nest them less".to_owned()),
            );
            return false;
        }
        true
    }

    fn waits_for_key(&self) -> bool {
        matches!(self.open.last(), Some(Open::Mapping { key: None, .. }))
    }

    fn key(&mut self, text: &str, style: ScalarStyle, location: Location) {
        let mut fault = None;
        if let Some(Open::Mapping { places, key, .. }) = self.open.last_mut() {
            if text == "<<" && style == ScalarStyle::Plain {
                fault = Some((
                    "merge keys (`<<`) are not read".to_owned(),
                    "write the keys out, or repeat a whole value by an alias",
                ));
                *key = Some(Key::Bad);
            } else if let Some(first) = places.get(text) {
                fault = Some((
                    format!(
                        "the key `{text}` is here a second time, the first is on line {}",
                        first.line
                    ),
                    "keep one of the two",
                ));
                *key = Some(Key::Bad);
            } else {
                places.insert(text.to_owned(), location);
                *key = Some(Key::Good(text.to_owned(), location));
            }
        }
        if let Some((message, mend)) = fault {
            self.fault(location, message, Some(mend.to_owned()));
        }
    }

    /// A list or mapping where a key has to be: told, and then read as if it were a dropped value of
    /// a bad key, whose true value follows (see [`Builder::value`]).
    fn refuse_as_key(&mut self, location: Location) {
        if self.waits_for_key() {
            self.fault(
                location,
                "a list or a mapping cannot be a key",
                Some(
                    "use text as the key; if this is a template's `{{...}}`, put it in quotes"
                        .to_owned(),
                ),
            );
        }
    }

    fn scalar(
        &mut self,
        text: Cow<'_, str>,
        style: ScalarStyle,
        tag: Option<&Tag>,
        location: Location,
    ) -> Value {
        let plain = style == ScalarStyle::Plain;
        let resolved = match tag.map(core_tag) {
            None if plain => scalar::resolve(&text),
            None | Some(Some("str")) => Ok(Value::String(text.into_owned())),
            Some(Some(name @ ("null" | "bool" | "int" | "float"))) => scalar::resolve(&text)
                .and_then(|value| match (name, value) {
                    ("null", value @ Value::Null)
                    | ("bool", value @ Value::Bool(_))
                    | ("int", value @ Value::Integer(_))
                    | ("float", value @ Value::Float(_)) => Ok(value),
                    ("float", Value::Integer(value)) => Ok(Value::Float(value as f64)),
                    _ => Err(format!("`{text}` is no value for the tag `!!{name}`")),
                }),
            Some(_) => Err("only the tags of YAML's core schema are read".to_owned()),
        };
        resolved.unwrap_or_else(|message| {
            self.fault(location, message, None);
            Value::Null
        })
    }

    fn collection_tag(&mut self, tag: Option<Cow<'_, Tag>>, location: Location) {
        if tag.is_some_and(|tag| !matches!(core_tag(&tag), Some("seq" | "map"))) {
            self.fault(
                location,
                "only the tags of YAML's core schema are read",
                Some("remove the tag".to_owned()),
            );
        }
    }

    fn alias(&mut self, anchor: usize, location: Location) -> bool {
        let Some((node, size)) = self.anchors.get(&anchor) else {
            self.fault(
                location,
                "this alias names the value that it stands in",
                Some("name a value that ends before".to_owned()),
            );
            return false;
        };
        self.copied += size;
        if self.copied > MOST_COPIED {
            self.fault(
                location,
                format!("the file's aliases repeat more than {MOST_COPIED} values"),
                Some("write fewer aliases of aliases".to_owned()),
            );
            return false;
        }
        let node = node.clone();
        if self.waits_for_key() {
            if let Value::String(text) = &node.value {
                self.key(text, ScalarStyle::DoubleQuoted, location);
            } else {
                self.refuse_as_key(location);
                self.value(node, 0);
            }
        } else {
            self.value(node, 0);
        }
        true
    }

    fn close(&mut self, location: Location, value: Value, anchor: usize) {
        self.value(Node { location, value }, anchor);
    }

    /// Puts a finished value where it belongs.
    fn value(&mut self, node: Node, anchor: usize) {
        if anchor > 0 {
            let size = count(&node);
            self.anchors.insert(anchor, (node.clone(), size));
        }
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(Open::Sequence { items, .. }) => items.push(node),
            Some(Open::Mapping { entries, key, .. }) => match key.take() {
                // A collection that stood where a key has to be.
                None => *key = Some(Key::Bad),
                Some(Key::Bad) => {}
                Some(Key::Good(text, key_location)) => entries.push(Entry {
                    key: text,
                    key_location,
                    value: node,
                }),
            },
        }
    }
}

/// Nodes of a tree, itself included. Its depth is at most [`DEEPEST`].
fn count(node: &Node) -> usize {
    1 + match &node.value {
        Value::Sequence(items) => items.iter().map(count).sum(),
        Value::Mapping(mapping) => mapping
            .entries()
            .iter()
            .map(|entry| count(&entry.value))
            .sum(),
        _ => 0,
    }
}

/// The name of a tag of YAML's core schema, `int` for `!!int`.
fn core_tag(tag: &Tag) -> Option<&str> {
    tag.is_yaml_core_schema().then_some(tag.suffix.as_str())
}
