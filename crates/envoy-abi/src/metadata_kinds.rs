//! Kinds of metadata values, as they were found before.
//!
//! Envoy has one function for each kind, and each writes a line of level error to Envoy's log when the value is of
//! another one. So the kind that a key had last is tried first. The trap: a key may have another kind on the next
//! stream, so a kind that fails is no answer, and the others are tried then.

use std::cell::RefCell;
use std::collections::BTreeMap;

use smallvec::SmallVec;

/// Keys that a thread remembers; then it begins anew.
const MOST: usize = 1024;

/// The kind of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    String,
    Number,
    Bool,
    List,
}

/// Scalar kinds in the order in which they are tried where nothing is known.
const SCALARS: [Kind; 3] = [Kind::String, Kind::Number, Kind::Bool];

type Key = SmallVec<[u8; 96]>;

thread_local! {
    static KINDS: RefCell<BTreeMap<Key, Kind>> = RefCell::default();
}

fn key_of(source: u32, namespace: &[u8], key: &[u8]) -> Key {
    let mut name = Key::new();
    name.extend_from_slice(&source.to_ne_bytes());
    name.extend_from_slice(&namespace.len().to_ne_bytes());
    name.extend_from_slice(namespace);
    name.extend_from_slice(key);
    name
}

/// Returns the kind that a key had last, or `None` if it was never read or written on this thread.
pub(crate) fn known(source: u32, namespace: &[u8], key: &[u8]) -> Option<Kind> {
    KINDS.with_borrow(|kinds| kinds.get(&key_of(source, namespace, key)).copied())
}

/// Remembers the kind of a key's value.
pub(crate) fn remember(source: u32, namespace: &[u8], key: &[u8], kind: Kind) {
    KINDS.with_borrow_mut(|kinds| {
        if kinds.len() >= MOST {
            kinds.clear();
        }
        kinds.insert(key_of(source, namespace, key), kind);
    });
}

/// Returns the scalar kinds in the order in which they are tried, the known one first.
pub(crate) fn scalars(known: Option<Kind>) -> [Kind; 3] {
    let mut kinds = SCALARS;
    if let Some(place) = kinds.iter().position(|kind| Some(*kind) == known) {
        kinds.swap(0, place);
    }
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_kind_is_tried_first() {
        assert_eq!(scalars(None), SCALARS);
        assert_eq!(scalars(Some(Kind::List)), SCALARS);
        assert_eq!(scalars(Some(Kind::Bool))[0], Kind::Bool);
        assert_eq!(
            scalars(Some(Kind::Number)),
            [Kind::Number, Kind::String, Kind::Bool]
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "keeps thousands of keys, which takes Miri a minute")]
    fn kinds_are_remembered_by_source_namespace_and_key() {
        remember(1, b"ab", b"c", Kind::Number);
        assert_eq!(known(1, b"ab", b"c"), Some(Kind::Number));
        assert_eq!(known(2, b"ab", b"c"), None);
        assert_eq!(known(1, b"a", b"bc"), None);
        for key in 0..2 * MOST {
            remember(1, b"many", &key.to_ne_bytes(), Kind::String);
        }
        assert!(KINDS.with_borrow(BTreeMap::len) <= MOST);
    }
}
