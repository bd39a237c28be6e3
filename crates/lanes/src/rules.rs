//! Entry rules: which lane a request from outside gets.
//!
//! Each lane has a condition and a weight. The lanes are asked in the order of their priorities; those of one priority share
//! the requests that fulfil their conditions by their weights, and the remaining requests go on to the next priority, and at last to
//! the baseline.
//!
//! The share is sticky: it depends on a hash of the request's key (a header, a cookie, a query parameter), which is the same
//! in all gateways and after a restart. It is *weighted rendezvous hashing* (Schindelhauer and Schomaker, "Weighted
//! Distributed Hash Tables", SPAA 2005): each lane draws a score for the key, and the highest wins. A lane whose weight grows
//! takes keys from the others and gives none away, so a user who is in the lane stays there while it grows.

use std::borrow::Cow;

use percent_encoding::percent_decode;
use regex::bytes::Regex;

/// Weight of a lane that takes every request which fulfils its condition.
pub const WHOLE: u32 = 10_000;

/// Request as the rules see it.
pub trait Request {
    /// Calls `visit` with each value of a header, whose name is in lower case.
    fn visit_header(&self, name: &str, visit: &mut dyn FnMut(&[u8]));

    /// Path with its query.
    fn path(&self) -> &[u8];
}

/// Part of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Header of this name, in lower case. Several values count as one, joined by commas, as in Envoy's routes.
    Header(String),
    /// First query parameter of this name, decoded.
    Query(String),
    /// First cookie of this name.
    Cookie(String),
    /// Path without the query.
    Path,
}

/// Test of a part of the request.
#[derive(Debug, Clone)]
pub enum Test {
    /// The part is there.
    Present,
    /// The part is this.
    Exact(Vec<u8>),
    /// The part begins so.
    Prefix(Vec<u8>),
    /// The part ends so.
    Suffix(Vec<u8>),
    /// The part has this anywhere.
    Contains(Vec<u8>),
    /// The whole part matches the expression.
    Regex(Regex),
}

/// Condition of a lane.
#[derive(Debug, Clone)]
pub enum Condition {
    /// All of these; with none of them, every request.
    All(Vec<Condition>),
    /// At least one of these.
    Any(Vec<Condition>),
    /// Not this one.
    Not(Box<Condition>),
    /// The part passes the test; a part that is not there passes none.
    Part(Part, Test),
}

/// Entry rule of one lane.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Name of the lane.
    pub lane: String,
    /// Which requests it is for.
    pub condition: Condition,
    /// Lanes of a higher priority are asked first.
    pub priority: i32,
    /// Share of the requests that fulfil the condition, in hundredths of a per cent: at most [`WHOLE`]. A lane with
    /// [`WHOLE`] gets what lanes of its priority with less leave; of several such lanes the first counts.
    pub weight: u32,
}

/// Entry rules of a group of lanes.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    group: String,
    sticky: Vec<Part>,
    /// High first; rules of one priority in the order in which they were given.
    by_priority: Vec<Rule>,
}

impl Rules {
    /// Makes the rules of a group. The first part of `sticky` that a request has is its key for shares; requests without
    /// any are not for lanes with less than [`WHOLE`]. The group's name is hashed with the key: two groups share users out
    /// in two ways.
    pub fn new(group: &str, sticky: Vec<Part>, mut rules: Vec<Rule>) -> Self {
        rules.sort_by_key(|rule| std::cmp::Reverse(rule.priority));
        Self {
            group: group.to_owned(),
            sticky,
            by_priority: rules,
        }
    }

    /// Returns the rule whose lane a request gets, or `None` for the baseline.
    pub fn choose(&self, request: &dyn Request) -> Option<&Rule> {
        let same_priority = |one: &Rule, other: &Rule| one.priority == other.priority;
        let mut tiers = self.by_priority.chunk_by(same_priority);
        tiers.find_map(|rules| self.choose_among(rules, request))
    }

    fn choose_among<'r>(&self, rules: &'r [Rule], request: &dyn Request) -> Option<&'r Rule> {
        let matching = || {
            let rules = rules.iter().filter(|rule| rule.weight > 0);
            rules.filter(|rule| rule.condition.holds(request))
        };
        let rest = matching().find(|rule| rule.weight >= WHOLE);
        let mut shares = matching().filter(|rule| rule.weight < WHOLE).peekable();
        if shares.peek().is_none() {
            return rest;
        }
        let Some(key) = self.sticky.iter().find_map(|part| part.of(request)) else {
            return rest;
        };
        let mut left = WHOLE;
        let mut best: (f64, Option<&Rule>) = (f64::INFINITY, rest);
        for rule in shares {
            left = left.saturating_sub(rule.weight);
            let draw = self.draw(&rule.lane, &key, rule.weight);
            if draw < best.0 {
                best = (draw, Some(rule));
            }
        }
        if left > 0 && self.draw("", &key, left) < best.0 {
            return rest;
        }
        best.1
    }

    /// Number that a lane draws for a key; the lowest wins. It is distributed exponentially with the weight as its rate.
    #[expect(
        clippy::cast_precision_loss,
        reason = "the upper 53 bits of a hash are a number of their own"
    )]
    fn draw(&self, lane: &str, key: &[u8], weight: u32) -> f64 {
        let hash = hash(&[self.group.as_bytes(), lane.as_bytes(), key]);
        let uniform = ((hash >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        -uniform.ln() / f64::from(weight)
    }
}

/// FNV-1a of the parts with their lengths, and the finalizer of `SplitMix64`, as FNV's upper bits are poor for short texts.
/// The same in all versions: it decides which users a lane has.
fn hash(parts: &[&[u8]]) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut add = |byte: u8| {
        hash ^= u64::from(byte);
        hash = hash.wrapping_mul(0x0100_0000_01b3);
    };
    for part in parts {
        (part.len() as u64)
            .to_le_bytes()
            .into_iter()
            .for_each(&mut add);
        part.iter().copied().for_each(&mut add);
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

impl Condition {
    fn holds(&self, request: &dyn Request) -> bool {
        match self {
            Self::All(conditions) => conditions.iter().all(|one| one.holds(request)),
            Self::Any(conditions) => conditions.iter().any(|one| one.holds(request)),
            Self::Not(condition) => !condition.holds(request),
            Self::Part(part, test) => part.of(request).is_some_and(|value| test.passes(&value)),
        }
    }
}

impl Test {
    fn passes(&self, value: &[u8]) -> bool {
        match self {
            Self::Present => true,
            Self::Exact(expected) => value == expected,
            Self::Prefix(prefix) => value.starts_with(prefix),
            Self::Suffix(suffix) => value.ends_with(suffix),
            Self::Contains(part) => memchr::memmem::find(value, part).is_some(),
            Self::Regex(regex) => regex
                .find(value)
                .is_some_and(|found| found.len() == value.len()),
        }
    }
}

impl Part {
    /// Value of the part in a request, or `None` if the request does not have it.
    fn of(&self, request: &dyn Request) -> Option<Vec<u8>> {
        match self {
            Self::Header(name) => {
                let mut joined: Option<Vec<u8>> = None;
                request.visit_header(name, &mut |value| match &mut joined {
                    Some(joined) => {
                        joined.push(b',');
                        joined.extend_from_slice(value);
                    }
                    None => joined = Some(value.to_vec()),
                });
                joined
            }
            Self::Query(name) => query_parameter(request.path(), name.as_bytes()),
            Self::Cookie(name) => {
                let mut found = None;
                request.visit_header("cookie", &mut |value| {
                    found = found.take().or_else(|| cookie(value, name.as_bytes()));
                });
                found
            }
            Self::Path => Some(split_path(request.path()).0.to_vec()),
        }
    }
}

/// Path and query; the fragment belongs to neither.
fn split_path(path: &[u8]) -> (&[u8], &[u8]) {
    let path = path.split(|byte| *byte == b'#').next().unwrap_or_default();
    match path.iter().position(|byte| *byte == b'?') {
        Some(mark) => (
            path.get(..mark).unwrap_or_default(),
            path.get(mark + 1..).unwrap_or_default(),
        ),
        None => (path, &[]),
    }
}

/// First query parameter of a name, both decoded as `application/x-www-form-urlencoded`.
fn query_parameter(path: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    let mut pairs = split_path(path).1.split(|byte| *byte == b'&');
    pairs.find_map(|pair| {
        let mut halves = pair.splitn(2, |byte| *byte == b'=');
        let key = halves.next().unwrap_or_default();
        if *form_decoded(key) != *name {
            return None;
        }
        Some(form_decoded(halves.next().unwrap_or_default()).into_owned())
    })
}

fn form_decoded(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.iter().any(|byte| b"+%".contains(byte)) {
        return Cow::Borrowed(text);
    }
    let spaced = text
        .iter()
        .map(|byte| if *byte == b'+' { b' ' } else { *byte });
    let spaced: Vec<u8> = spaced.collect();
    Cow::Owned(percent_decode(&spaced).collect())
}

/// Value of a cookie in one header (RFC 6265, section 4.2.1), without quotes around it.
fn cookie(header: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    header.split(|byte| *byte == b';').find_map(|pair| {
        let mut halves = pair.trim_ascii().splitn(2, |byte| *byte == b'=');
        if halves.next()? != name {
            return None;
        }
        let value = halves.next()?;
        let quoted = value
            .strip_prefix(b"\"")
            .and_then(|value| value.strip_suffix(b"\""));
        Some(quoted.unwrap_or(value).to_vec())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sent {
        headers: Vec<(&'static str, String)>,
        path: String,
    }

    impl Request for Sent {
        fn visit_header(&self, name: &str, visit: &mut dyn FnMut(&[u8])) {
            for (_, value) in self.headers.iter().filter(|(header, _)| *header == name) {
                visit(value.as_bytes());
            }
        }

        fn path(&self) -> &[u8] {
            self.path.as_bytes()
        }
    }

    fn get(path: &str, headers: &[(&'static str, &str)]) -> Sent {
        Sent {
            headers: headers
                .iter()
                .map(|(name, value)| (*name, (*value).to_owned()))
                .collect(),
            path: path.to_owned(),
        }
    }

    fn header(name: &str, value: &str) -> Condition {
        Condition::Part(Part::Header(name.to_owned()), Test::Exact(value.into()))
    }

    fn rule(lane: &str, condition: Condition, priority: i32, weight: u32) -> Rule {
        Rule {
            lane: lane.to_owned(),
            condition,
            priority,
            weight,
        }
    }

    fn lane<'r>(rules: &'r Rules, request: &Sent) -> &'r str {
        rules.choose(request).map_or("baseline", |rule| &rule.lane)
    }

    #[test]
    fn each_part_of_a_request_can_be_tested() {
        let part = |part: Part, test: Test| {
            let rules = vec![rule("fr", Condition::Part(part, test), 0, WHOLE)];
            Rules::new("hello", Vec::new(), rules)
        };
        let exact = || Test::Exact(b"fr".to_vec());
        let regex = |text: &str| Test::Regex(Regex::new(text).unwrap());
        let name = || "user".to_owned();
        for (rules, path, headers, is_match) in [
            (
                part(Part::Header(name()), exact()),
                "/",
                vec![("user", "fr")],
                true,
            ),
            (
                part(Part::Header(name()), exact()),
                "/",
                vec![("user", "fr"), ("user", "en")],
                false,
            ),
            (part(Part::Header(name()), exact()), "/", vec![], false),
            (
                part(Part::Header(name()), Test::Present),
                "/",
                vec![("user", "")],
                true,
            ),
            (
                part(Part::Header(name()), Test::Prefix(b"f".into())),
                "/",
                vec![("user", "fr")],
                true,
            ),
            (
                part(Part::Header(name()), Test::Suffix(b"r".into())),
                "/",
                vec![("user", "fr")],
                true,
            ),
            (
                part(Part::Header(name()), Test::Contains(b"-f".into())),
                "/",
                vec![("user", "a-fr")],
                true,
            ),
            (
                part(Part::Header(name()), regex("f.")),
                "/",
                vec![("user", "fr")],
                true,
            ),
            (
                part(Part::Header(name()), regex("f.")),
                "/",
                vec![("user", "frr")],
                false,
            ),
            (
                part(Part::Query(name()), exact()),
                "/?a=1&user=fr#user=en",
                vec![],
                true,
            ),
            (
                part(Part::Query(name()), exact()),
                "/?us%65r=%66r&user=en",
                vec![],
                true,
            ),
            (
                part(Part::Query(name()), exact()),
                "/?user=en&user=fr",
                vec![],
                false,
            ),
            (
                part(Part::Query(name()), Test::Exact(b"f r+".into())),
                "/?user=f+r%2B",
                vec![],
                true,
            ),
            (
                part(Part::Query(name()), Test::Present),
                "/?user",
                vec![],
                true,
            ),
            (
                part(Part::Query(name()), Test::Present),
                "/user",
                vec![],
                false,
            ),
            (
                part(Part::Query(name()), exact()),
                "/#?user=fr",
                vec![],
                false,
            ),
            (
                part(Part::Cookie(name()), exact()),
                "/",
                vec![("cookie", "a=b; user=fr")],
                true,
            ),
            (
                part(Part::Cookie(name()), exact()),
                "/",
                vec![("cookie", "a=b"), ("cookie", "user=\"fr\"")],
                true,
            ),
            (
                part(Part::Cookie(name()), exact()),
                "/",
                vec![("cookie", "xuser=fr; user=en")],
                false,
            ),
            (
                part(Part::Path, Test::Prefix(b"/fr/".into())),
                "/fr/a?b",
                vec![],
                true,
            ),
            (
                part(Part::Path, Test::Contains(b"?".into())),
                "/fr/a?b",
                vec![],
                false,
            ),
        ] {
            let chosen = lane(&rules, &get(path, &headers));
            assert_eq!(chosen == "fr", is_match, "{rules:?} {path} {headers:?}");
        }
    }

    #[test]
    fn conditions_combine() {
        let all = Condition::All(vec![header("a", "1"), header("b", "2")]);
        let none = Condition::Not(Box::new(header("c", "3")));
        let condition = Condition::All(vec![Condition::Any(vec![all, header("d", "4")]), none]);
        let rules = Rules::new("hello", Vec::new(), vec![rule("fr", condition, 0, WHOLE)]);
        for (headers, is_match) in [
            (vec![("a", "1"), ("b", "2")], true),
            (vec![("a", "1")], false),
            (vec![("d", "4")], true),
            (vec![("d", "4"), ("c", "3")], false),
        ] {
            let chosen = lane(&rules, &get("/", &headers));
            assert_eq!(chosen == "fr", is_match, "{headers:?}");
        }
    }

    #[test]
    fn higher_priority_is_asked_first_and_then_the_order() {
        let all = || Condition::All(Vec::new());
        let rules = vec![
            rule("low", all(), -1, WHOLE),
            rule("first", header("a", "1"), 5, WHOLE),
            rule("second", header("a", "1"), 5, WHOLE),
            rule("off", all(), 9, 0),
        ];
        let rules = Rules::new("hello", Vec::new(), rules);
        assert_eq!(lane(&rules, &get("/", &[("a", "1")])), "first");
        assert_eq!(lane(&rules, &get("/", &[])), "low");
    }

    fn shares(rules: &Rules, count: u32) -> Vec<String> {
        let user = |number: u32| get("/", &[("user", &format!("u{number}"))]);
        (0..count)
            .map(|number| lane(rules, &user(number)).to_owned())
            .collect()
    }

    fn split(fr: u32, de: u32, rest: Option<&str>) -> Rules {
        let all = || Condition::All(Vec::new());
        let mut rules = vec![rule("fr", all(), 0, fr), rule("de", all(), 0, de)];
        rules.extend(rest.map(|lane| rule(lane, all(), 0, WHOLE)));
        Rules::new("hello", vec![Part::Header("user".to_owned())], rules)
    }

    #[test]
    fn weights_are_the_shares_and_users_keep_their_lane() {
        let count = 100_000;
        let before = shares(&split(1000, 2000, None), count);
        for (lane, expected) in [("fr", 0.1), ("de", 0.2), ("baseline", 0.7)] {
            let users = before.iter().filter(|chosen| *chosen == lane).count();
            let share = f64::from(u32::try_from(users).unwrap()) / f64::from(count);
            assert!((share - expected).abs() < 0.005, "{lane}: {share}");
        }
        assert_eq!(before, shares(&split(1000, 2000, None), count));
        // `fr` grows at the cost of the rest. No user leaves it, and `de` exchanges a few users with the others.
        let after = shares(&split(3000, 2000, None), count);
        for (from, to) in before.iter().zip(&after) {
            let is_expected = from == to || to == "fr" || (from == "baseline" && to == "de");
            assert!(is_expected, "from {from} to {to}");
        }
        let users = after.iter().filter(|chosen| *chosen == "fr").count();
        assert!((29_500..30_500).contains(&users), "{users}");
        // The rest may be a lane's.
        let rest = shares(&split(1000, 2000, Some("it")), count);
        for (one, other) in before.iter().zip(&rest) {
            assert_eq!(one == "baseline", other == "it");
        }
        // No share is left.
        assert!(
            shares(&split(5000, 5000, None), 1000)
                .iter()
                .all(|lane| lane != "baseline")
        );
    }

    #[test]
    fn request_without_a_key_is_not_for_a_share() {
        assert_eq!(lane(&split(9999, 0, None), &get("/", &[])), "baseline");
        assert_eq!(lane(&split(9999, 0, Some("it")), &get("/", &[])), "it");
    }

    /// All versions have to agree, as they decide for the same users.
    #[test]
    fn hash_never_changes() {
        assert_eq!(hash(&[b"hello", b"fr", b"u1"]), 12_296_434_540_166_338_396);
        assert_eq!(hash(&[]), 17_665_956_581_633_026_203);
        assert_ne!(hash(&[b"a", b"b"]), hash(&[b"ab", b""]));
    }
}
