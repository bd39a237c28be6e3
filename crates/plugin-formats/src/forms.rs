//! Values that are written as a word or as a mapping. serde's untagged enumerations try each form and keep none of their
//! errors; these report the error of the form that was written.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, IntoDeserializer as _, MapAccess, Visitor};

/// Reads a word as a `W`, or a mapping as an `M`. `expected` names both for a value of another kind.
pub(crate) fn word_or_mapping<'de, D, W, M, T>(
    deserializer: D,
    expected: &'static str,
    word: fn(W) -> T,
    mapping: fn(M) -> T,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    W: Deserialize<'de>,
    M: Deserialize<'de>,
{
    deserializer.deserialize_any(Form {
        expected,
        word,
        mapping,
        forms: PhantomData,
    })
}

struct Form<W, M, T> {
    expected: &'static str,
    word: fn(W) -> T,
    mapping: fn(M) -> T,
    forms: PhantomData<(W, M)>,
}

impl<'de, W: Deserialize<'de>, M: Deserialize<'de>, T> Visitor<'de> for Form<W, M, T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<T, E> {
        W::deserialize(word.into_deserializer()).map(self.word)
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<T, A::Error> {
        M::deserialize(MapAccessDeserializer::new(access)).map(self.mapping)
    }
}
