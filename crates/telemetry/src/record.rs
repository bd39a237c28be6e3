//! Encoding of one record: the id of its access log, then the fields in the order in which the access log has them.
//!
//! A record is self-contained: the stream is gone when it is read. Numbers take 8 bytes; texts their bytes and 4 of length,
//! and 4 more where they were cut.

use crate::event::{Address, HeaderMap, LogEvent, MetadataValue, Number, Text};

/// A field that a record may have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Field {
    Header(HeaderMap, Box<[u8]>),
    Text(Text),
    Address(Address),
    Number(Number),
    Metadata(Box<[u8]>, Box<[u8]>),
}

/// A length that stands for "absent".
const ABSENT: u32 = u32::MAX;
/// The bit of a length that says that the value was cut: its whole length follows.
const CUT: u32 = 1 << 31;
/// A number that stands for "absent".
const NO_NUMBER: i64 = i64::MIN;

/// Kinds of metadata values.
mod kind {
    pub(super) const ABSENT: u8 = 0;
    pub(super) const TEXT: u8 = 1;
    pub(super) const NUMBER: u8 = 2;
    pub(super) const NO: u8 = 3;
    pub(super) const YES: u8 = 4;
}

fn put_text(record: &mut Vec<u8>, text: Option<&[u8]>, limit: usize) {
    let Some(text) = text else {
        record.extend_from_slice(&ABSENT.to_le_bytes());
        return;
    };
    match text.get(..limit) {
        Some(kept) if text.len() > limit => {
            record.extend_from_slice(&(kept.len() as u32 | CUT).to_le_bytes());
            record.extend_from_slice(&(text.len() as u32).to_le_bytes());
            record.extend_from_slice(kept);
        }
        _ => {
            record.extend_from_slice(&(text.len() as u32).to_le_bytes());
            record.extend_from_slice(text);
        }
    }
}

/// Appends the fields of a stream; texts are cut after `limit` bytes.
pub(crate) fn encode(
    record: &mut Vec<u8>,
    fields: &[Field],
    limit: usize,
    event: &mut impl LogEvent,
) {
    for field in fields {
        match field {
            Field::Header(map, name) => put_text(record, event.header(*map, name), limit),
            Field::Text(text) => put_text(record, event.text(*text), limit),
            Field::Number(number) => {
                let number = event.number(*number).unwrap_or(NO_NUMBER);
                record.extend_from_slice(&number.to_le_bytes());
            }
            Field::Address(address) => match event.address(*address) {
                Some((text, port)) => {
                    put_text(record, Some(text), limit);
                    record.extend_from_slice(&port.to_le_bytes());
                }
                None => put_text(record, None, limit),
            },
            Field::Metadata(namespace, path) => match event.metadata(namespace, path) {
                None => record.push(kind::ABSENT),
                Some(MetadataValue::Bool(false)) => record.push(kind::NO),
                Some(MetadataValue::Bool(true)) => record.push(kind::YES),
                Some(MetadataValue::Number(number)) => {
                    record.push(kind::NUMBER);
                    record.extend_from_slice(&number.to_le_bytes());
                }
                Some(MetadataValue::Text(text)) => {
                    record.push(kind::TEXT);
                    put_text(record, Some(text), limit);
                }
            },
        }
    }
}

/// A text of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stored<'r> {
    /// What was kept.
    pub(crate) bytes: &'r [u8],
    /// Length before it was cut, if it was.
    pub(crate) cut_from: Option<u32>,
}

/// A field of a record.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum StoredField<'r> {
    Absent,
    Text(Stored<'r>),
    Number(i64),
    Address(&'r [u8], u32),
    Double(f64),
    Bool(bool),
}

/// The fields of a record, decoded.
#[derive(Debug)]
pub struct Values<'r> {
    fields: Vec<StoredField<'r>>,
}

struct Reader<'r>(&'r [u8]);

impl<'r> Reader<'r> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn bytes(&mut self, length: usize) -> Option<&'r [u8]> {
        let (first, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(first)
    }

    /// A text, or the note that there is none.
    fn text(&mut self) -> Option<StoredField<'r>> {
        let length = u32::from_le_bytes(self.array()?);
        if length == ABSENT {
            return Some(StoredField::Absent);
        }
        let cut_from = if length & CUT == 0 {
            None
        } else {
            Some(u32::from_le_bytes(self.array()?))
        };
        let bytes = self.bytes((length & !CUT) as usize)?;
        Some(StoredField::Text(Stored { bytes, cut_from }))
    }

    fn field(&mut self, field: &Field) -> Option<StoredField<'r>> {
        Some(match field {
            Field::Header(..) | Field::Text(_) => self.text()?,
            Field::Number(_) => match i64::from_le_bytes(self.array()?) {
                NO_NUMBER => StoredField::Absent,
                number => StoredField::Number(number),
            },
            Field::Address(_) => match self.text()? {
                StoredField::Text(text) => {
                    StoredField::Address(text.bytes, u32::from_le_bytes(self.array()?))
                }
                _ => StoredField::Absent,
            },
            Field::Metadata(..) => match self.array::<1>()? {
                [kind::TEXT] => self.text()?,
                [kind::NUMBER] => StoredField::Double(f64::from_le_bytes(self.array()?)),
                [kind::NO] => StoredField::Bool(false),
                [kind::YES] => StoredField::Bool(true),
                _ => StoredField::Absent,
            },
        })
    }
}

impl<'r> Values<'r> {
    /// Decodes what [`encode`] wrote for the same fields; `None` if it is something else.
    pub(crate) fn decode(record: &'r [u8], fields: &[Field]) -> Option<Self> {
        let mut decoded = Vec::with_capacity(fields.len());
        let mut reader = Reader(record);
        for field in fields {
            decoded.push(reader.field(field)?);
        }
        reader.0.is_empty().then_some(Self { fields: decoded })
    }

    pub(crate) fn get(&self, place: usize) -> StoredField<'r> {
        self.fields
            .get(place)
            .copied()
            .unwrap_or(StoredField::Absent)
    }

    pub(crate) fn number(&self, place: usize) -> Option<i64> {
        match self.get(place) {
            StoredField::Number(number) => Some(number),
            _ => None,
        }
    }
}
