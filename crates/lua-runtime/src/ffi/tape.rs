//! A JSON document in the form in which the SDK reads it: its pieces in reading order, so that Lua
//! builds its tables itself, under its own memory budget, and Rust never calls into Lua for it.
//!
//! The document is parsed straight to the tape. The parser checks the call's time every few pieces, and
//! the tape never takes more than the VM's memory budget.

use std::collections::BTreeMap;

use serde_json::Number;

use crate::json::{self, HUGE, JsonError, Sink};

use super::call::TapeItem;

/// The tape of a document, and the texts that it points to.
struct Tape<'a> {
    items: &'a mut Vec<TapeItem>,
    /// Has room for all texts from the beginning, so that none moves.
    texts: &'a mut Vec<u8>,
    /// In items.
    limit: usize,
    /// Whether there is a number of [`HUGE`] or more: it may be an integer, of which the parser tells no digits.
    has_huge: bool,
    shapes: &'a mut Shapes,
}

/// The shapes of a document's objects: those with the same names in the same order have one. They are told apart by a hash
/// (FNV-1a). Who finds two objects with one hash gets some members in another order, and nothing else.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    /// The names so far of the containers that have begun.
    open: Vec<u64>,
    /// Their hashes: most documents have few.
    few: Vec<u64>,
    more: BTreeMap<u64, usize>,
}

impl Shapes {
    const EMPTY: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    const FEW: usize = 16;

    fn name(&mut self, name: &str) {
        if let Some(hash) = self.open.last_mut() {
            for byte in name.bytes().chain([0xff]) {
                *hash = (*hash ^ u64::from(byte)).wrapping_mul(Self::PRIME);
            }
        }
    }

    /// The number of the shape that the innermost container has, from 0.
    fn end(&mut self) -> usize {
        let hash = self.open.pop().unwrap_or(Self::EMPTY);
        if let Some(place) = self.few.iter().position(|known| *known == hash) {
            return place;
        }
        if self.few.len() < Self::FEW {
            self.few.push(hash);
            return self.few.len() - 1;
        }
        let next = Self::FEW + self.more.len();
        *self.more.entry(hash).or_insert(next)
    }

    fn len(&self) -> usize {
        self.open.len() + self.more.len()
    }

    fn clear(&mut self) {
        self.open.clear();
        self.few.clear();
        self.more.clear();
    }
}

/// Integers from here on are not all numbers of Lua.
const LARGE: u64 = 1 << 53;

const NUMBER: i32 = 3;
const OBJECT: i32 = 6;
/// An integer, as its digits.
const INTEGER: i32 = 7;

impl Tape<'_> {
    fn push(&mut self, kind: i32, length: usize, data: *const u8, number: f64) -> bool {
        self.items.push(TapeItem {
            kind,
            length: i32::try_from(length).unwrap_or(i32::MAX),
            data,
            number,
        });
        self.items.len() + self.shapes.len() <= self.limit
    }

    fn put_text(&mut self, kind: i32, text: &str, number: f64) -> bool {
        if self.texts.capacity() - self.texts.len() < text.len() {
            return false;
        }
        let from = self.texts.len();
        self.texts.extend_from_slice(text.as_bytes());
        let data = self.texts.get(from..).unwrap_or_default().as_ptr();
        self.push(kind, text.len(), data, number)
    }

    /// Puts digits in the place of integers that are not told exactly.
    fn restore_huge(
        &mut self,
        document: &[u8],
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), JsonError> {
        let tokens = json::huge_numbers(document, is_over).ok_or(JsonError::OverTime)?;
        let is_huge = |item: &TapeItem| item.kind == NUMBER && item.number.abs() >= HUGE;
        let huge: Vec<usize> = (self.items.iter().enumerate())
            .filter_map(|(place, item)| is_huge(item).then_some(place))
            .collect();
        for (place, token) in huge.into_iter().zip(tokens) {
            if token.contains(['.', 'e', 'E']) {
                continue;
            }
            let number = self.items.get(place).map_or(0.0, |item| item.number);
            if !self.put_text(INTEGER, token, number) {
                return Err(JsonError::TooLarge);
            }
            if let (Some(item), Some(place)) = (self.items.pop(), self.items.get_mut(place)) {
                *place = item;
            }
        }
        Ok(())
    }

    fn plain(&mut self, kind: i32) -> bool {
        self.push(kind, 0, std::ptr::null(), 0.0)
    }
}

impl Sink for Tape<'_> {
    type Place = usize;

    fn null(&mut self) -> bool {
        self.plain(0)
    }

    fn truth(&mut self, truth: bool) -> bool {
        self.plain(1 + i32::from(truth))
    }

    fn number(&mut self, number: Number) -> bool {
        let value = number.as_f64().unwrap_or(f64::NAN);
        let size = number
            .as_u64()
            .or_else(|| number.as_i64().map(i64::unsigned_abs));
        match size {
            Some(size) if size > LARGE => self.put_text(INTEGER, &number.to_string(), value),
            _ => {
                self.has_huge |= value.abs() >= HUGE;
                self.push(NUMBER, 0, std::ptr::null(), value)
            }
        }
    }

    fn text(&mut self, text: &str) -> bool {
        self.put_text(4, text, 0.0)
    }

    fn name(&mut self, name: &str) -> bool {
        self.shapes.name(name);
        self.put_text(4, name, 0.0)
    }

    fn begin(&mut self, is_object: bool) -> Option<usize> {
        let place = self.items.len();
        self.shapes.open.push(Shapes::EMPTY);
        self.plain(if is_object { OBJECT } else { 5 })
            .then_some(place)
    }

    fn end(&mut self, place: usize, count: usize) {
        let shape = self.shapes.end();
        #[expect(clippy::cast_precision_loss, reason = "a tape is shorter than 2^53")]
        let shape = shape as f64;
        if let Some(item) = self.items.get_mut(place) {
            item.length = i32::try_from(count).unwrap_or(i32::MAX);
            item.number = shape;
        }
    }
}

/// Parses a document to the tape, which points into `texts`. `memory` is the most that the tape may take, in bytes.
pub(super) fn parse(
    document: &[u8],
    items: &mut Vec<TapeItem>,
    texts: &mut Vec<u8>,
    shapes: &mut Shapes,
    memory: usize,
    is_over: &dyn Fn() -> bool,
) -> Result<(), JsonError> {
    items.clear();
    texts.clear();
    shapes.clear();
    texts.reserve(document.len());
    let mut tape = Tape {
        items,
        texts,
        limit: memory / size_of::<TapeItem>(),
        has_huge: false,
        shapes,
    };
    json::parse(document, &mut tape, is_over)?;
    if tape.has_huge {
        tape.restore_huge(document, is_over)?;
    }
    Ok(())
}
