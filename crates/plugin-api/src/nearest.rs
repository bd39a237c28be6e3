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
        .map(|candidate| (strsim::osa_distance(name, candidate), candidate))
        .filter(|(distance, candidate)| distance * 3 <= name.len().max(candidate.len()))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
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
        assert_eq!(strsim::osa_distance("kitten", "sitting"), 3);
        assert_eq!(strsim::osa_distance("ab", "ba"), 1);
    }
}
