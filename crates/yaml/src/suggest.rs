//! Did-you-mean.

/// The candidate that `word` most likely meant, or none when none is near.
///
/// Near is at most one edit for every three letters of the longer word, a swap of neighbours counting
/// as one; letter case, and `-` for `_`, count as nothing. A word that begins another is near too. Of
/// equally near candidates the first wins.
pub fn suggest<'a, I>(word: &str, candidates: I) -> Option<&'a str>
where
    I: IntoIterator<Item = &'a str>,
{
    let folded = fold(word);
    let letters = folded.chars().count();
    candidates
        .into_iter()
        .filter_map(|candidate| {
            let other = fold(candidate);
            let longest = letters.max(other.chars().count());
            let distance = strsim::osa_distance(&folded, &other);
            let begins = letters >= 3 && (other.starts_with(&folded) || folded.starts_with(&other));
            (distance * 3 <= longest || begins).then_some((distance, candidate))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

fn fold(word: &str) -> String {
    word.chars()
        .flat_map(char::to_lowercase)
        .map(|letter| if letter == '-' { '_' } else { letter })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::suggest;

    #[test]
    fn a_near_word_is_suggested() {
        assert_eq!(suggest("upsteam", ["upstream", "use"]), Some("upstream"));
        assert_eq!(suggest("hsots", ["hosts", "routes"]), Some("hosts"));
        assert_eq!(
            suggest("FailurePolicy", ["failure_policy"]),
            Some("failure_policy")
        );
        assert_eq!(suggest("basic_auth", ["basic-auth"]), Some("basic-auth"));
        assert_eq!(suggest("time", ["memory_mib", "time_ms"]), Some("time_ms"));
    }

    #[test]
    fn a_far_word_is_not() {
        assert_eq!(suggest("colour", ["path", "prefix"]), None);
        assert_eq!(suggest("to", ["up"]), None);
        assert_eq!(suggest("", ["use"]), None);
    }
}
