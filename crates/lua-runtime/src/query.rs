//! Query parameters, percent-decoded.

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

/// Decodes at most `limit` parameters of a query into `decoded`, which is emptied first. A parameter
/// without `=` has an empty value; a `%` that starts no valid escape stands for itself.
pub(crate) fn decode(query: &[u8], limit: usize, decoded: &mut Vec<u8>) -> Vec<Span> {
    decoded.clear();
    query
        .split(|byte| *byte == b'&')
        .filter(|parameter| !parameter.is_empty())
        .take(limit)
        .map(|parameter| {
            let mut halves = parameter.splitn(2, |byte| *byte == b'=');
            let name = append(halves.next().unwrap_or_default(), decoded);
            let value = append(halves.next().unwrap_or_default(), decoded);
            Span { name, value }
        })
        .collect()
}

fn append(text: &[u8], decoded: &mut Vec<u8>) -> Range<usize> {
    let start = decoded.len();
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        let escape = match (byte, tail) {
            (b'%', [high, low, ..]) => hex(*high).zip(hex(*low)),
            _ => None,
        };
        if let Some((high, low)) = escape {
            decoded.push(high << 4 | low);
            rest = tail.get(2..).unwrap_or_default();
        } else {
            decoded.push(if byte == b'+' { b' ' } else { byte });
            rest = tail;
        }
    }
    start..decoded.len()
}

fn hex(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(path: &str, limit: usize) -> Vec<(String, String)> {
        let mut decoded = Vec::new();
        decode(of_path(path.as_bytes()), limit, &mut decoded)
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
}
