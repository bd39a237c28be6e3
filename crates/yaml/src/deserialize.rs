//! serde over the located tree.
//!
//! Beside serde's own data model it answers to the names in [`name`], by which the types of
//! [`crate::typed`] learn places, choose among shapes, and go on after a fault.
//!
//! The trap: an untagged enum or `#[serde(flatten)]` makes serde copy values before it reads them, and
//! with the copy all places are gone. Write an enum with [`crate::Shape`]'s name instead.

use std::cell::RefCell;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeSeed, Deserializer, EnumAccess, Expected, IntoDeserializer, MapAccess,
    SeqAccess, Unexpected, VariantAccess, Visitor,
};

use crate::failure::{Failure, unknown};
use crate::node::{Entry, Location, Node, Value};

/// Names by which types ask for more than serde's data model offers.
pub(crate) mod name {
    /// A sequence of line, column, value.
    pub(crate) const LOCATED: &str = "$outrider::located";
    /// The same, but a value that cannot be read is told and left out.
    pub(crate) const FIELD: &str = "$outrider::field";
    /// A sequence of line, column, key, value for each entry of a mapping.
    pub(crate) const ENTRIES: &str = "$outrider::entries";
    /// An enum whose variant is the node's shape.
    pub(crate) const SHAPE: &str = "$shape";
}

/// What was told on the way.
#[derive(Debug, Default)]
pub(crate) struct Told {
    failures: RefCell<Vec<Failure>>,
}

impl Told {
    pub(crate) fn tell(&self, failure: Failure) {
        self.failures.borrow_mut().push(failure);
    }

    pub(crate) fn into_failures(self) -> Vec<Failure> {
        self.failures.into_inner()
    }
}

/// Reads one node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    pub(crate) node: &'a Node,
    pub(crate) told: &'a Told,
}

impl<'a> Reader<'a> {
    fn of(self, node: &'a Node) -> Self {
        Self { node, ..self }
    }

    fn wrong_type(self, expected: &dyn Expected) -> Failure {
        let found = match &self.node.value {
            Value::Null => Unexpected::Unit,
            Value::Bool(value) => Unexpected::Bool(*value),
            Value::Integer(value) => match u64::try_from(*value) {
                Ok(value) => Unexpected::Unsigned(value),
                Err(_) => Unexpected::Signed(i64::try_from(*value).unwrap_or(i64::MIN)),
            },
            Value::Float(value) => Unexpected::Float(*value),
            Value::String(value) => Unexpected::Str(value),
            Value::Sequence(_) => Unexpected::Seq,
            Value::Mapping(_) => Unexpected::Map,
        };
        <Failure as de::Error>::invalid_type(found, expected).at(self.node.location)
    }

    fn any<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        match &self.node.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Integer(value) => match (u64::try_from(*value), i64::try_from(*value)) {
                (Ok(value), _) => visitor.visit_u64(value),
                (_, Ok(value)) => visitor.visit_i64(value),
                _ => Err(self.wrong_type(&visitor)),
            },
            Value::Float(value) => visitor.visit_f64(*value),
            Value::String(value) => visitor.visit_str(value),
            Value::Sequence(items) => {
                let mut items = Items {
                    reader: self,
                    left: items.iter(),
                };
                let value = visitor.visit_seq(&mut items)?;
                match items.left.len() {
                    0 => Ok(value),
                    more => Err(Failure::new(
                        format!("the list has {more} values too many"),
                        None,
                    )),
                }
            }
            Value::Mapping(mapping) => visitor.visit_map(Keys {
                reader: self,
                left: mapping.entries().iter(),
                known: None,
                value: None,
            }),
        }
    }
}

macro_rules! as_any {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
            self.any(visitor).map_err(|failure| failure.at(self.node.location))
        })*
    };
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = Failure;

    as_any! {
        deserialize_any deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_i128 deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
        deserialize_f32 deserialize_f64 deserialize_char deserialize_str deserialize_string
        deserialize_bytes deserialize_byte_buf deserialize_unit deserialize_seq deserialize_map
        deserialize_identifier
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_unit()
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        match self.node.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Failure> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        _length: usize,
        visitor: V,
    ) -> Result<V::Value, Failure> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _length: usize,
        visitor: V,
    ) -> Result<V::Value, Failure> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        asked: &'static str,
        visitor: V,
    ) -> Result<V::Value, Failure> {
        match asked {
            name::LOCATED | name::FIELD => visitor.visit_seq(Placed {
                reader: self,
                step: 0,
                lenient: asked == name::FIELD,
            }),
            name::ENTRIES => match &self.node.value {
                Value::Mapping(mapping) => visitor.visit_seq(Flat {
                    reader: self,
                    left: mapping.entries().iter(),
                    current: None,
                    step: 0,
                }),
                _ => Err(self.wrong_type(&"a mapping")),
            },
            _ => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        let Value::Mapping(mapping) = &self.node.value else {
            return Err(self.wrong_type(&"a mapping"));
        };
        for entry in mapping.entries() {
            if !fields.contains(&entry.key.as_str()) {
                self.told
                    .tell(unknown("key", &entry.key, fields).at(entry.key_location));
            }
        }
        visitor
            .visit_map(Keys {
                reader: self,
                left: mapping.entries().iter(),
                known: Some(fields),
                value: None,
            })
            .map_err(|failure| failure.at(self.node.location))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        asked: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        let here = self.node.location;
        if asked == name::SHAPE {
            let shape = shape(&self.node.value);
            if !variants.contains(&shape) {
                let expected = variants
                    .iter()
                    .map(|variant| shape_words(variant))
                    .collect::<Vec<_>>()
                    .join(" or ");
                return Err(self.wrong_type(&expected.as_str()));
            }
            return visitor.visit_enum(Variant {
                name: shape,
                content: Some(self),
            });
        }
        match &self.node.value {
            Value::String(name) => visitor
                .visit_enum(Variant {
                    name,
                    content: None,
                })
                .map_err(|failure| failure.at(here)),
            Value::Mapping(mapping) => match mapping.entries() {
                [entry] => visitor
                    .visit_enum(Variant {
                        name: &entry.key,
                        content: Some(self.of(&entry.value)),
                    })
                    .map_err(|failure| failure.at(entry.key_location)),
                _ => Err(self.wrong_type(&"a mapping with one key")),
            },
            _ => {
                let words: Vec<String> = variants.iter().map(|word| format!("`{word}`")).collect();
                Err(self.wrong_type(&words.join(" or ").as_str()))
            }
        }
    }
}

fn shape(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "flag",
        Value::Integer(_) | Value::Float(_) => "number",
        Value::String(_) => "text",
        Value::Sequence(_) => "list",
        Value::Mapping(_) => "mapping",
    }
}

fn shape_words(shape: &str) -> &str {
    match shape {
        "flag" => "`true` or `false`",
        "number" => "a number",
        "list" => "a list",
        "mapping" => "a mapping",
        other => other,
    }
}

struct Items<'a> {
    reader: Reader<'a>,
    left: std::slice::Iter<'a, Node>,
}

impl<'de> SeqAccess<'de> for &mut Items<'_> {
    type Error = Failure;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Failure> {
        let Some(node) = self.left.next() else {
            return Ok(None);
        };
        seed.deserialize(self.reader.of(node))
            .map(Some)
            .map_err(|failure| failure.at(node.location))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left.len())
    }
}

struct Keys<'a> {
    reader: Reader<'a>,
    left: std::slice::Iter<'a, Entry>,
    /// Where given, other keys are passed over: they have been told.
    known: Option<&'static [&'static str]>,
    value: Option<&'a Node>,
}

impl<'de> MapAccess<'de> for Keys<'_> {
    type Error = Failure;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Failure> {
        for entry in self.left.by_ref() {
            if self
                .known
                .is_some_and(|known| !known.contains(&entry.key.as_str()))
            {
                continue;
            }
            self.value = Some(&entry.value);
            let key: StrDeserializer<'_, Failure> = entry.key.as_str().into_deserializer();
            return seed
                .deserialize(key)
                .map(Some)
                .map_err(|failure| failure.at(entry.key_location));
        }
        Ok(None)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Failure> {
        match self.value.take() {
            Some(node) => seed
                .deserialize(self.reader.of(node))
                .map_err(|failure| failure.at(node.location)),
            None => Err(<Failure as de::Error>::custom(
                "a value was asked for before its key",
            )),
        }
    }
}

/// One value with its place.
struct Placed<'a> {
    reader: Reader<'a>,
    step: usize,
    lenient: bool,
}

impl<'de> SeqAccess<'de> for Placed<'_> {
    type Error = Failure;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Failure> {
        let Location { line, column } = self.reader.node.location;
        self.step += 1;
        match self.step {
            1 => seed.deserialize(line.into_deserializer()).map(Some),
            2 => seed.deserialize(column.into_deserializer()).map(Some),
            3 => match seed.deserialize(self.reader) {
                Ok(value) => Ok(Some(value)),
                Err(failure) if self.lenient => {
                    self.reader.told.tell(failure.at(self.reader.node.location));
                    Ok(None)
                }
                Err(failure) => Err(failure.at(self.reader.node.location)),
            },
            _ => Ok(None),
        }
    }
}

/// A mapping's entries as one sequence of line, column, key, value, line, ...
struct Flat<'a> {
    reader: Reader<'a>,
    left: std::slice::Iter<'a, Entry>,
    current: Option<&'a Entry>,
    step: usize,
}

impl<'de> SeqAccess<'de> for Flat<'_> {
    type Error = Failure;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Failure> {
        if self.step == 0 {
            self.current = self.left.next();
        }
        let Some(entry) = self.current else {
            return Ok(None);
        };
        let step = self.step;
        self.step = (self.step + 1) % 4;
        match step {
            0 => seed.deserialize(entry.key_location.line.into_deserializer()),
            1 => seed.deserialize(entry.key_location.column.into_deserializer()),
            2 => {
                let key: StrDeserializer<'_, Failure> = entry.key.as_str().into_deserializer();
                seed.deserialize(key)
            }
            _ => seed
                .deserialize(self.reader.of(&entry.value))
                .map_err(|failure| failure.at(entry.value.location)),
        }
        .map(Some)
    }
}

struct Variant<'a> {
    name: &'a str,
    content: Option<Reader<'a>>,
}

impl<'de, 'a> EnumAccess<'de> for Variant<'a> {
    type Error = Failure;
    type Variant = Content<'a>;

    fn variant_seed<T: DeserializeSeed<'de>>(
        self,
        seed: T,
    ) -> Result<(T::Value, Content<'a>), Failure> {
        let name: StrDeserializer<'_, Failure> = self.name.into_deserializer();
        Ok((seed.deserialize(name)?, Content(self.content)))
    }
}

struct Content<'a>(Option<Reader<'a>>);

impl Content<'_> {
    fn reader(&self) -> Result<Reader<'_>, Failure> {
        self.0.ok_or_else(|| {
            Failure::new(
                "this word needs a value",
                Some("write `word: value`".to_owned()),
            )
        })
    }
}

impl<'de> VariantAccess<'de> for Content<'_> {
    type Error = Failure;

    fn unit_variant(self) -> Result<(), Failure> {
        match self.0 {
            None => Ok(()),
            Some(reader) => Err(reader.wrong_type(&"a word alone")),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Failure> {
        let reader = self.reader()?;
        seed.deserialize(reader)
            .map_err(|failure| failure.at(reader.node.location))
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        _length: usize,
        visitor: V,
    ) -> Result<V::Value, Failure> {
        self.reader()?.deserialize_seq(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        self.reader()?.deserialize_struct("", fields, visitor)
    }
}
