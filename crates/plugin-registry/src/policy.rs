//! `plugin_policy`: which rule judges a source.

use outrider_plugin_formats::PolicyRule;

use crate::error::FetchError;

/// Returns the rule for a source.
///
/// # Errors
/// No rule matches.
pub(crate) fn rule_for<'r>(
    rules: &'r [PolicyRule],
    source: &str,
) -> Result<&'r PolicyRule, FetchError> {
    let matches = |rule: &&PolicyRule| rule.sources.iter().any(|pattern| glob(pattern, source));
    rules.iter().find(matches).ok_or_else(|| {
        FetchError::new(format!("`plugin_policy` has no rule for {source}, so it is refused")).mend(
            "add a rule whose `sources` match it, with the `keys` that may sign it, or `unsigned: true`",
        )
    })
}

/// Whether a pattern matches a text; `*` matches any characters, and everything else itself.
fn glob(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in middle {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_matches_any_characters() {
        for (pattern, text, expected) in [
            ("*", "oci://r/x:1", true),
            ("oci://r/team/*", "oci://r/team/a/b:1", true),
            ("oci://r/team/*", "oci://r/teams/a", false),
            ("oci://r/*/waf:1.*", "oci://r/a/b/waf:1.2", true),
            ("oci://r/x", "oci://r/x", true),
            ("oci://r/x", "oci://r/x:1", false),
            ("*a*b*", "xaxbx", true),
            ("*ab", "ab", true),
            ("ab*ab", "ab", false),
        ] {
            assert_eq!(glob(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn first_rule_that_matches_judges() {
        let rule = |pattern: &str, key: &str| PolicyRule {
            sources: vec![pattern.to_owned()],
            keys: vec![key.to_owned()],
            place: String::new(),
        };
        let rules = [rule("oci://a/*", "a"), rule("oci://*", "b")];
        assert_eq!(rule_for(&rules, "oci://a/x").unwrap().keys, ["a"]);
        assert_eq!(rule_for(&rules, "oci://b/x").unwrap().keys, ["b"]);
        assert!(rule_for(&rules, "https://b/x").is_err());
        assert!(rule_for(&[], "oci://a/x").is_err());
    }
}
