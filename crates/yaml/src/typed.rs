//! Types for the models of larger files: they know their places and survive faults around them.
//!
//! A type of one's own that checks its text says a complaint as `what is wrong; how to mend it`, through
//! `serde::de::Error::custom`, and it gets its place here.
//!
//! They read from a [`crate::Document`] only; from other deserializers they fail.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};

use crate::deserialize::name;
use crate::node::{Entry, Location, Mapping, Node, Value};

/// A value and where it begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Located<T> {
    /// Its first character.
    pub location: Location,
    /// The value.
    pub value: T,
}

/// The value of a key that may be missing, or be of a wrong type without keeping the values around it
/// from being read. Needs `#[serde(default)]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Field<T> {
    /// The key is not there.
    #[default]
    Missing,
    /// It is there, and its fault has been told.
    Wrong(Location),
    /// It is there.
    Given(Located<T>),
}

/// A mapping whose keys are names: keys with their places, in the order of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entries<T>(pub Vec<(Located<String>, T)>);

/// A value that may be written in several shapes. Derive it like this, with any of the variant names
/// `text`, `number`, `flag`, `list`, `mapping`, `nothing`; [`Shape`] itself is the common case.
///
/// ```
/// # use serde::Deserialize;
/// #[derive(Deserialize)]
/// #[serde(rename = "$shape", rename_all = "lowercase")]
/// enum Address {
///     Text(String),
///     List(Vec<String>),
/// }
/// # let document = outrider_yaml::Document::parse("a.yaml", "[x, y]").unwrap();
/// # assert!(matches!(document.read::<Address>().unwrap(), Address::List(list) if list.len() == 2));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(rename = "$shape", rename_all = "lowercase")]
pub enum Shape<T, M> {
    /// The short form.
    Text(T),
    /// The long form.
    Mapping(M),
}

impl<T> Field<T> {
    /// The value with its place, if it was read.
    pub fn get(&self) -> Option<&Located<T>> {
        match self {
            Self::Given(located) => Some(located),
            Self::Missing | Self::Wrong(_) => None,
        }
    }

    /// The value, if it was read.
    pub fn value(&self) -> Option<&T> {
        self.get().map(|located| &located.value)
    }

    /// Where the value is, right or wrong.
    pub fn location(&self) -> Option<Location> {
        match self {
            Self::Missing => None,
            Self::Wrong(location) => Some(*location),
            Self::Given(located) => Some(located.location),
        }
    }

    /// Whether the key is not there at all.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Missing)
    }
}

impl<T> Default for Entries<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// Reads line, column and then perhaps a value.
struct PlacedVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for PlacedVisitor<T> {
    type Value = (Location, Option<T>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value with its place")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let line = access.next_element()?.unwrap_or_default();
        let column = access.next_element()?.unwrap_or_default();
        Ok((Location { line, column }, access.next_element()?))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Located<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match deserializer.deserialize_newtype_struct(name::LOCATED, PlacedVisitor(PhantomData))? {
            (location, Some(value)) => Ok(Self { location, value }),
            (_, None) => Err(de::Error::custom("a value with its place is missing")),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(
            match deserializer
                .deserialize_newtype_struct(name::FIELD, PlacedVisitor(PhantomData))?
            {
                (location, Some(value)) => Self::Given(Located { location, value }),
                (location, None) => Self::Wrong(location),
            },
        )
    }
}

struct EntriesVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for EntriesVisitor<T> {
    type Value = Entries<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(line) = access.next_element()? {
            let (Some(column), Some(key), Some(value)) = (
                access.next_element()?,
                access.next_element()?,
                access.next_element()?,
            ) else {
                break;
            };
            let key = Located {
                location: Location { line, column },
                value: key,
            };
            entries.push((key, value));
        }
        Ok(Entries(entries))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(name::ENTRIES, EntriesVisitor(PhantomData))
    }
}

/// A tree as a part of a typed model: for values that something else gives a meaning to.
impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Located { location, value } = Located::deserialize(deserializer)?;
        Ok(Self { location, value })
    }
}

/// Any value, by its shape.
#[derive(serde::Deserialize)]
#[serde(rename = "$shape", rename_all = "lowercase")]
enum Any {
    Nothing(()),
    Flag(bool),
    Number(Number),
    Text(String),
    List(Vec<Node>),
    Mapping(Entries<Node>),
}

/// A number of either kind.
struct Number(Value);

struct NumberVisitor;

impl Visitor<'_> for NumberVisitor {
    type Value = Number;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number")
    }

    fn visit_i64<E>(self, value: i64) -> Result<Number, E> {
        Ok(Number(Value::Integer(value.into())))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Number, E> {
        Ok(Number(Value::Integer(value.into())))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Number, E> {
        Ok(Number(Value::Float(value)))
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberVisitor)
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Any::deserialize(deserializer)? {
            Any::Nothing(()) => Self::Null,
            Any::Flag(value) => Self::Bool(value),
            Any::Number(Number(value)) => value,
            Any::Text(value) => Self::String(value),
            Any::List(items) => Self::Sequence(items),
            Any::Mapping(Entries(entries)) => Self::Mapping(Mapping::new(
                entries
                    .into_iter()
                    .map(|(key, value)| Entry {
                        key: key.value,
                        key_location: key.location,
                        value,
                    })
                    .collect(),
            )),
        })
    }
}

macro_rules! same_schema_as_content {
    ($($name:ident)*) => {
        $(impl<T: JsonSchema> JsonSchema for $name<T> {
            fn inline_schema() -> bool {
                T::inline_schema()
            }

            fn schema_name() -> Cow<'static, str> {
                T::schema_name()
            }

            fn schema_id() -> Cow<'static, str> {
                T::schema_id()
            }

            fn json_schema(generator: &mut SchemaGenerator) -> Schema {
                T::json_schema(generator)
            }
        })*
    };
}

same_schema_as_content! { Located Field }

impl<T: JsonSchema> JsonSchema for Entries<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Entries_of_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "additionalProperties": generator.subschema_for::<T>(),
        })
    }
}

impl<T: JsonSchema, M: JsonSchema> JsonSchema for Shape<T, M> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("{}_or_{}", T::schema_name(), M::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [generator.subschema_for::<T>(), generator.subschema_for::<M>()],
        })
    }
}

impl JsonSchema for Node {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Any".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!(true)
    }
}
