//! Query parameters, percent-decoded. Long queries check the time while they are decoded.

use std::ops::Range;

/// Where a parameter lies in the decoded bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) name: Range<usize>,
    pub(crate) value: Range<usize>,
}

/// The query of a path, without its `?`.
pub(crate) fn of_path(path: &[u8]) -> &[u8] {
    let start = path.iter().position(|byte| *byte == b'?');
    let query = start.and_then(|start| path.get(start + 1..));
    let query = query.unwrap_or_default();
    query.split(|byte| *byte == b'#').next().unwrap_or_default()
}

/// Bytes that are decoded between two checks of the time: some tenths of a millisecond.
const PIECE: usize = 64 * 1024;

/// Decodes at most `limit` parameters of a query into `decoded`, which is emptied first. A parameter
/// without `=` has an empty value; a `%` that starts no valid escape stands for itself. Returns `None` once
/// `is_over` returns true, which is asked after each [`PIECE`].
pub(crate) fn decode(
    query: &[u8],
    limit: usize,
    decoded: &mut Vec<u8>,
    is_over: &dyn Fn() -> bool,
) -> Option<Vec<Span>> {
    decoded.clear();
    let mut spans = Vec::new();
    let mut reader = Reader::default();
    let mut rest = query;
    while let Some((&byte, tail)) = rest.split_first() {
        reader.read += 1;
        if reader.read.is_multiple_of(PIECE) && is_over() {
            return None;
        }
        rest = tail;
        match (byte, tail) {
            (b'&', _) => {
                spans.extend(reader.end_parameter(decoded.len()));
                if spans.len() >= limit {
                    return Some(spans);
                }
            }
            (b'=', _) if reader.name.is_none() => reader.end_name(decoded.len()),
            (b'%', [high, low, after @ ..]) if let Some(escaped) = escape(*high, *low) => {
                decoded.push(escaped);
                rest = after;
                reader.is_filled = true;
            }
            _ => {
                decoded.push(if byte == b'+' { b' ' } else { byte });
                reader.is_filled = true;
            }
        }
    }
    if spans.len() < limit {
        spans.extend(reader.end_parameter(decoded.len()));
    }
    Some(spans)
}

/// The parameter that is being read.
#[derive(Debug, Default)]
struct Reader {
    /// Bytes of the query that were read.
    read: usize,
    /// Where the parameter starts in the decoded bytes, or its value after its name.
    start: usize,
    name: Option<Range<usize>>,
    is_filled: bool,
}

impl Reader {
    fn end_name(&mut self, end: usize) {
        self.name = Some(self.start..end);
        self.start = end;
        self.is_filled = true;
    }

    /// Returns the parameter, unless it is empty, and begins the next.
    fn end_parameter(&mut self, end: usize) -> Option<Span> {
        let last = self.start..end;
        self.start = end;
        let is_filled = std::mem::take(&mut self.is_filled);
        let span = match self.name.take() {
            Some(name) => Span { name, value: last },
            None => Span {
                name: last,
                value: end..end,
            },
        };
        is_filled.then_some(span)
    }
}

fn escape(high: u8, low: u8) -> Option<u8> {
    let (high, low) = hex(high).zip(hex(low))?;
    Some(high << 4 | low)
}

fn hex(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(path: &str, limit: usize) -> Vec<(String, String)> {
        let mut decoded = Vec::new();
        decode(of_path(path.as_bytes()), limit, &mut decoded, &|| false)
            .unwrap()
            .into_iter()
            .map(|span| {
                let text = |range| String::from_utf8_lossy(&decoded[range]).into_owned();
                (text(span.name), text(span.value))
            })
            .collect()
    }

    #[test]
    fn parameters_are_split_and_decoded() {
        let expected = [("a", "1"), ("b", "x y/ä"), ("flag", ""), ("a", "2=3")];
        assert_eq!(
            pairs("/p?a=1&b=x+y%2F%c3%A4&flag&&a=2=3#frag", 100),
            expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
    }

    #[test]
    fn broken_escapes_stand_for_themselves() {
        assert_eq!(
            pairs("/?x=100%&y=%zz&z=%4", 100),
            [("x", "100%"), ("y", "%zz"), ("z", "%4")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
    }

    #[test]
    fn the_limit_holds_and_a_path_without_query_has_none() {
        assert_eq!(pairs("/?a=1&b=2&c=3", 2).len(), 2);
        assert!(pairs("/plain", 100).is_empty());
    }

    #[test]
    fn long_query_ends_when_the_time_is_over() {
        for part in ["a", "&", "%41", "a=1&"] {
            let query = part.repeat(4 * PIECE);
            for most in 0..3 {
                let asked = std::cell::Cell::new(0);
                let found = decode(query.as_bytes(), usize::MAX, &mut Vec::new(), &|| {
                    asked.set(asked.get() + 1);
                    asked.get() > most
                });
                assert_eq!((found, asked.get()), (None, most + 1), "{part}");
            }
        }
    }
}
