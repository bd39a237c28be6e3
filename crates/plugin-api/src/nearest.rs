//! Did-you-mean for names that plugins write.

/// Longest name that is compared, in bytes.
const LONGEST: usize = 64;

/// Returns the candidate that `name` most likely meant: at most one edit for every three letters, a swap of
/// neighbours counting as one. `None` if none is near.
pub fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > LONGEST {
        return None;
    }
    candidates
        .filter(|candidate| candidate.len() <= LONGEST)
        .map(|candidate| (distance(name.as_bytes(), candidate.as_bytes()), candidate))
        .filter(|(distance, candidate)| distance * 3 <= name.len().max(candidate.len()))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Optimal string alignment distance.
fn distance(one: &[u8], other: &[u8]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    let at = |row: &[usize], index: usize| row.get(index).copied().unwrap_or(usize::MAX / 2);
    for (row, byte) in one.iter().enumerate() {
        let mut next = vec![row + 1];
        for (column, candidate) in other.iter().enumerate() {
            let replaced = at(&last, column) + usize::from(byte != candidate);
            let mut least = replaced
                .min(at(&last, column + 1) + 1)
                .min(at(&next, column) + 1);
            let swapped = column > 0
                && row > 0
                && other.get(column - 1) == Some(byte)
                && one.get(row - 1) == Some(candidate);
            if swapped {
                least = least.min(at(&before, column - 1) + 1);
            }
            next.push(least);
        }
        before = std::mem::replace(&mut last, next);
    }
    at(&last, other.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_name_is_within_one_edit_for_three_letters() {
        let names = ["headers", "get_header", "users"];
        let near = |name| nearest(name, names.into_iter());
        assert_eq!(near("headrs"), Some("headers"));
        assert_eq!(near("haeders"), Some("headers"));
        assert_eq!(near("get_hedaer"), Some("get_header"));
        assert_eq!(near("orders"), None);
        assert_eq!(near(""), None);
        assert_eq!(distance(b"kitten", b"sitting"), 3);
        assert_eq!(distance(b"ab", b"ba"), 1);
    }
}
