//! A lane as a member of the header `baggage`.
//!
//! Source of the format: [W3C Baggage](https://www.w3.org/TR/baggage/), a list of `key=value` with properties behind a
//! semicolon. Names of lanes need no percent-encoding.

/// Longest header that a proxy has to pass on, in bytes (section 3.3.2 of the source).
const LONGEST: usize = 8192;

/// Returns the value of the first member with a key, without its properties.
pub(crate) fn value<'a>(line: &'a [u8], key: &str) -> Option<&'a [u8]> {
    members(line).find_map(|member| has_key(member, key))
}

/// The lines as one without the members of a key, and with that of a lane if there is one. `None`: there is nothing to change.
pub(crate) fn with(lines: &[&[u8]], key: &str, lane: Option<&str>) -> Option<Vec<u8>> {
    let mut present = lines.iter().flat_map(|line| members(line));
    let is_so = match (present.find_map(|member| has_key(member, key)), lane) {
        (None, None) => true,
        // A second one would be another service's to choose from.
        (Some(value), Some(lane)) => {
            value == lane.as_bytes() && !present.any(|member| has_key(member, key).is_some())
        }
        _ => false,
    };
    if is_so {
        return None;
    }
    let own = lane.map(|lane| format!("{key}={lane}").into_bytes());
    let mut line = own.unwrap_or_default();
    let others = lines.iter().flat_map(|line| members(line));
    for member in others.filter(|member| has_key(member, key).is_none()) {
        if line.len() + 1 + member.len() > LONGEST {
            break;
        }
        if !line.is_empty() {
            line.push(b',');
        }
        line.extend_from_slice(member);
    }
    Some(line)
}

fn members(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let members = line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    members.filter(|member| !member.is_empty())
}

/// The member's value, if the key is its own.
fn has_key<'a>(member: &'a [u8], key: &str) -> Option<&'a [u8]> {
    let pair = member.split(|byte| *byte == b';').next()?;
    let equals = pair.iter().position(|byte| *byte == b'=')?;
    let (name, value) = pair.split_at_checked(equals)?;
    (name.trim_ascii() == key.as_bytes()).then(|| value.get(1..).unwrap_or_default().trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_is_found_with_spaces_and_properties() {
        for line in [
            "lane=fr",
            "a=1,lane=fr;p=1;q",
            " a = 1 , lane = fr ; p",
            "lane=fr,lane=it",
        ] {
            assert_eq!(value(line.as_bytes(), "lane"), Some(&b"fr"[..]), "{line}");
        }
        for line in [
            "",
            ",,",
            "lane",
            "Lane=fr",
            "xlane=fr",
            "a=lane=fr",
            "a;lane=fr",
        ] {
            assert_eq!(value(line.as_bytes(), "lane"), None, "{line}");
        }
    }

    #[test]
    fn own_member_is_the_only_one_and_others_stay() {
        for (lines, lane, expected) in [
            (&[][..], None, None),
            (&[], Some("fr"), Some("lane=fr")),
            (&["a=1"], None, None),
            (
                &["a=1;p=2, b=3", "c=4"],
                Some("fr"),
                Some("lane=fr,a=1;p=2,b=3,c=4"),
            ),
            (&["a=1,lane=it"], Some("fr"), Some("lane=fr,a=1")),
            (&["a=1,lane=fr"], Some("fr"), None),
            (&["lane=fr", "lane=it"], Some("fr"), Some("lane=fr")),
            (&["lane=fr,a=1"], None, Some("a=1")),
            (&["lane=fr"], None, Some("")),
        ] {
            let lines: Vec<&[u8]> = lines.iter().map(|line: &&str| line.as_bytes()).collect();
            let expected = expected.map(|line: &str| line.as_bytes().to_vec());
            assert_eq!(with(&lines, "lane", lane), expected, "{lines:?}");
        }
    }

    #[test]
    fn long_baggage_loses_its_end_and_not_the_lane() {
        let members: Vec<String> = (0..2000)
            .map(|number| format!("key{number}={number}"))
            .collect();
        let line = with(&[members.join(",").as_bytes()], "lane", Some("fr")).unwrap();
        assert!(line.len() <= LONGEST && line.starts_with(b"lane=fr,key0=0,"));
        assert!(!line.ends_with(b","));
    }
}
