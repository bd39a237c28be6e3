//! Metadata: where it is read from, and values that are more than one text or number.
//!
//! Envoy keeps metadata as protobuf's `Struct`, by namespace. It lets modules read texts, numbers, truth
//! values and lists of these; what is nested deeper can be written, but not read back.

use crate::memory::ENTRY_COST;
use crate::stream::Scalar;

/// Where metadata is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MetadataSource {
    /// The stream's own, which filters write.
    Dynamic,
    /// The matched route's.
    Route,
    /// That of the upstream that the route leads to.
    Cluster,
    /// That of the upstream's endpoint, once one is chosen.
    Host,
    /// That of the locality of the upstream's endpoint.
    Locality,
}

/// A value of metadata, of any depth.
#[derive(Debug, Clone, PartialEq)]
pub enum MetadataTree {
    /// Nothing.
    Null,
    /// Truth value.
    Bool(bool),
    /// Number.
    Number(f64),
    /// Text. Envoy takes it only in UTF-8.
    String(Vec<u8>),
    /// Values in order.
    List(Vec<Self>),
    /// Values by name.
    Map(Vec<(Vec<u8>, Self)>),
}

impl MetadataTree {
    /// The bytes of its texts and names, and the cost of an entry for each value in a list, of two in a map.
    pub fn size(&self) -> usize {
        match self {
            Self::Null | Self::Bool(_) | Self::Number(_) => 0,
            Self::String(text) => text.len(),
            Self::List(values) => values.iter().map(|value| ENTRY_COST + value.size()).sum(),
            Self::Map(values) => {
                let members = values.iter();
                members
                    .map(|(name, value)| 2 * ENTRY_COST + name.len() + value.size())
                    .sum()
            }
        }
    }

    /// The value, if it is no list, no map and not nothing.
    pub fn scalar(&self) -> Option<Scalar<'_>> {
        Some(match self {
            Self::String(text) => Scalar::String(text),
            Self::Number(number) => Scalar::Number(*number),
            Self::Bool(value) => Scalar::Bool(*value),
            Self::Null | Self::List(_) | Self::Map(_) => return None,
        })
    }
}

impl From<Scalar<'_>> for MetadataTree {
    fn from(value: Scalar<'_>) -> Self {
        match value {
            Scalar::String(text) => Self::String(text.to_vec()),
            Scalar::Number(number) => Self::Number(number),
            Scalar::Bool(value) => Self::Bool(value),
        }
    }
}

impl From<&str> for MetadataTree {
    fn from(text: &str) -> Self {
        Self::String(text.as_bytes().to_vec())
    }
}

impl From<f64> for MetadataTree {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<bool> for MetadataTree {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}
