//! A JSON document in the form in which the SDK reads it: its pieces in reading order, so that Lua
//! builds its tables itself, under its own memory budget, and Rust never calls into Lua for it.
//!
//! The document is parsed straight to the tape. The parser checks the call's time every few pieces, and
//! the tape never takes more than the VM's memory budget.

use serde_json::Number;

use crate::json::{self, JsonError, Sink};

use super::call::TapeItem;

/// The tape of a document, and the texts that it points to.
struct Tape<'a> {
    items: &'a mut Vec<TapeItem>,
    /// Has room for all texts from the beginning, so that none moves.
    texts: &'a mut Vec<u8>,
    /// In items.
    limit: usize,
}

impl Tape<'_> {
    fn push(&mut self, kind: i32, length: usize, data: *const u8, number: f64) -> bool {
        self.items.push(TapeItem {
            kind,
            length: i32::try_from(length).unwrap_or(i32::MAX),
            data,
            number,
        });
        self.items.len() <= self.limit
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
        self.push(3, 0, std::ptr::null(), number.as_f64().unwrap_or(f64::NAN))
    }

    fn text(&mut self, text: &str) -> bool {
        if self.texts.capacity() - self.texts.len() < text.len() {
            return false;
        }
        let from = self.texts.len();
        self.texts.extend_from_slice(text.as_bytes());
        let data = self.texts.get(from..).unwrap_or_default().as_ptr();
        self.push(4, text.len(), data, 0.0)
    }

    fn begin(&mut self, is_object: bool) -> Option<usize> {
        let place = self.items.len();
        self.plain(5 + i32::from(is_object)).then_some(place)
    }

    fn end(&mut self, place: usize, count: usize) {
        if let Some(item) = self.items.get_mut(place) {
            item.length = i32::try_from(count).unwrap_or(i32::MAX);
        }
    }
}

/// Parses a document to the tape, which points into `texts`. `memory` is the most that the tape may take, in bytes.
pub(super) fn parse(
    document: &[u8],
    items: &mut Vec<TapeItem>,
    texts: &mut Vec<u8>,
    memory: usize,
    is_over: &dyn Fn() -> bool,
) -> Result<(), JsonError> {
    items.clear();
    texts.clear();
    texts.reserve(document.len());
    let mut tape = Tape {
        items,
        texts,
        limit: memory / size_of::<TapeItem>(),
    };
    json::parse(document, &mut tape, is_over)
}
