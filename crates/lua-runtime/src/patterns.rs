//! Regular expressions whose search takes time in proportion to the text: one VM's, compiled once and
//! kept, up to [`KEPT`] of them; the one that was not used for longest makes room.
//!
//! They work on bytes: `.` and classes mean single bytes and ASCII, and `(?u)` changes that.
//!
//! To compile one takes about a millisecond at most: its length, its size and its classes of characters are bounded
//! ([`pattern_cost`]).
//!
//! The trap: a search runs in the host, where no hook of the time budget reaches, and those of the `regex` crate
//! cannot be stopped. So they are used where the length of the text times the size of the pattern is small
//! ([`UNCHECKED_STEPS`]); larger searches check the time ([`BoundedRegex`]), and so does a replacement between two
//! searches.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use regex::bytes::{CaptureLocations, Regex, RegexBuilder};
use regex_automata::nfa::thompson::{self, NFA};
use regex_automata::util::{interpolate, syntax};

use crate::bounded_regex::{BoundedRegex, OverTime};
use crate::pattern_cost;

/// How many are kept.
const KEPT: usize = 32;
/// The longest pattern, in bytes.
const LONGEST: usize = 4096;
/// How large a compiled pattern, and what its searches remember, may be, in bytes.
const LARGEST: usize = 128 * 1024;
/// Steps of a search that does not check the time: about a millisecond at worst, and most patterns take a thousandth
/// of that.
const UNCHECKED_STEPS: usize = 1 << 17;
/// States of a pattern times the ends of its groups, which is what a search remembers at worst.
const MOST_SLOTS: usize = 1 << 16;
/// The longest replacement, in bytes.
const LONGEST_REPLACEMENT: usize = 64 * 1024;

/// Why there is no answer, as text for the plugin's author.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PatternError {
    /// The plugin is told so.
    Refused(String),
    /// The call's time budget is used up.
    Time,
}

impl From<OverTime> for PatternError {
    fn from(_: OverTime) -> Self {
        Self::Time
    }
}

/// One VM's patterns.
#[derive(Debug, Default)]
pub(crate) struct Patterns {
    kept: BTreeMap<Box<[u8]>, Pattern>,
    /// Counts uses.
    uses: u64,
}

/// A compiled pattern.
#[derive(Debug)]
pub(crate) struct Pattern {
    regex: Regex,
    locations: CaptureLocations,
    nfa: NFA,
    /// Compiled when a text is long.
    bounded: Option<Box<BoundedRegex>>,
    /// Whether `bounded` has the groups of the match that was captured last.
    is_bounded: bool,
    used: u64,
}

/// A group of a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Group<'a> {
    pub(crate) name: Option<&'a str>,
    /// Where it matched, if it took part.
    pub(crate) place: Option<(usize, usize)>,
}

impl Patterns {
    /// The pattern, compiled now if it is not kept.
    pub(crate) fn get(&mut self, source: &[u8]) -> Result<&mut Pattern, PatternError> {
        self.uses += 1;
        if !self.kept.contains_key(source) {
            let pattern = Pattern::new(source)?;
            if self.kept.len() >= KEPT {
                let oldest = self.kept.iter().min_by_key(|(_, pattern)| pattern.used);
                if let Some(source) = oldest.map(|(source, _)| source.clone()) {
                    self.kept.remove(&source);
                }
            }
            self.kept.insert(source.into(), pattern);
        }
        match self.kept.get_mut(source) {
            Some(pattern) => {
                pattern.used = self.uses;
                Ok(pattern)
            }
            None => Err(PatternError::Refused("the pattern was not kept".to_owned())),
        }
    }
}

impl Pattern {
    fn new(source: &[u8]) -> Result<Self, PatternError> {
        let refused = |message: String| PatternError::Refused(message);
        if source.len() > LONGEST {
            return Err(refused(format!(
                "the pattern has {} bytes; {LONGEST} are allowed",
                source.len()
            )));
        }
        let source = std::str::from_utf8(source)
            .map_err(|_| refused("the pattern is not UTF-8; write bytes as \\xFF".to_owned()))?;
        if let Err(problem) = pattern_cost::check(source, false) {
            return Err(refused(format!("the pattern {source} {problem}")));
        }
        let regex = RegexBuilder::new(source)
            .unicode(false)
            .size_limit(LARGEST)
            .dfa_size_limit(LARGEST)
            .build()
            .map_err(|error| refused(explain(source, &error)))?;
        let nfa = NFA::compiler()
            .syntax(syntax::Config::new().unicode(false).utf8(false))
            .configure(
                thompson::Config::new()
                    .utf8(false)
                    .nfa_size_limit(Some(2 * LARGEST)),
            )
            .build(source)
            .map_err(|_| {
                refused(format!(
                    "the pattern {source} is too large; use smaller counts"
                ))
            })?;
        let slots = nfa.group_info().slot_len();
        if nfa.states().len().saturating_mul(slots) > MOST_SLOTS {
            return Err(refused(format!(
                "the pattern has {} groups and {} states; fewer groups are allowed",
                slots / 2,
                nfa.states().len()
            )));
        }
        Ok(Self {
            locations: regex.capture_locations(),
            regex,
            nfa,
            bounded: None,
            is_bounded: false,
            used: 0,
        })
    }

    /// Returns the search that checks the time, or `None` if this text takes so little time that none is needed.
    /// `slots` are the ends of groups that each step copies.
    fn bounded(&mut self, subject: &[u8], slots: usize) -> Option<&mut BoundedRegex> {
        let states = self.nfa.states().len();
        let steps = subject.len().saturating_mul(states).saturating_mul(slots);
        if steps <= UNCHECKED_STEPS {
            return None;
        }
        Some(self.bounded.get_or_insert_with(|| {
            let nfa = self.nfa.clone();
            Box::new(BoundedRegex::new(self.regex.as_str(), nfa, LARGEST))
        }))
    }

    /// Where the pattern first matches at `from` or after it.
    pub(crate) fn find(
        &mut self,
        subject: &[u8],
        from: usize,
        is_over_time: &dyn Fn() -> bool,
    ) -> Result<Option<(usize, usize)>, PatternError> {
        if from > subject.len() {
            return Ok(None);
        }
        if let Some(bounded) = self.bounded(subject, 1) {
            return Ok(bounded.find(subject, from, is_over_time)?);
        }
        let found = self.regex.find_at(subject, from);
        Ok(found.map(|found| (found.start(), found.end())))
    }

    /// Whether there is a match at `from` or after it; its groups are then [`Pattern::groups`].
    pub(crate) fn capture(
        &mut self,
        subject: &[u8],
        from: usize,
        is_over_time: &dyn Fn() -> bool,
    ) -> Result<bool, PatternError> {
        if from > subject.len() {
            return Ok(false);
        }
        let slots = self.nfa.group_info().slot_len();
        if let Some(bounded) = self.bounded(subject, slots) {
            let is_found = bounded.capture(subject, from, is_over_time)?;
            self.is_bounded = true;
            return Ok(is_found);
        }
        self.is_bounded = false;
        let found = self
            .regex
            .captures_read_at(&mut self.locations, subject, from);
        Ok(found.is_some())
    }

    /// Returns where a group of the match that was captured last is, or `None` if it took no part.
    fn group(&self, number: usize) -> Option<(usize, usize)> {
        match &self.bounded {
            Some(bounded) if self.is_bounded => bounded.group(number),
            _ => self.locations.get(number),
        }
    }

    /// The groups of the match that was captured last; the first is the whole match.
    pub(crate) fn groups(&self) -> impl Iterator<Item = Group<'_>> {
        let names = self.regex.capture_names().enumerate();
        names.map(|(number, name)| Group {
            name,
            place: self.group(number),
        })
    }

    /// Appends `subject` to `out`, with up to `limit` matches replaced, and answers how many there
    /// were. `$1`, `${name}` in `replacement` mean groups, and `$$` means `$`. `out` grows to
    /// `largest` bytes at most.
    pub(crate) fn replace(
        &mut self,
        subject: &[u8],
        replacement: &[u8],
        limit: usize,
        largest: usize,
        is_over_time: &dyn Fn() -> bool,
        out: &mut Vec<u8>,
    ) -> Result<usize, PatternError> {
        if replacement.len() > LONGEST_REPLACEMENT {
            return Err(PatternError::Refused(format!(
                "the replacement has {} bytes; {LONGEST_REPLACEMENT} are allowed",
                replacement.len()
            )));
        }
        let (mut from, mut copied, mut count) = (0, 0, 0);
        // After an empty match, the next one begins a byte further on; and none is right behind a
        // match that was not empty.
        let mut last_end = None;
        let part = |start, end| subject.get(start..end).unwrap_or_default();
        while count < limit && from <= subject.len() {
            if is_over_time() {
                return Err(PatternError::Time);
            }
            if !self.capture(subject, from, is_over_time)? {
                break;
            }
            let Some((start, end)) = self.group(0) else {
                break;
            };
            if start == end && last_end == Some(end) {
                from = end + 1;
                continue;
            }
            out.extend_from_slice(part(copied, start));
            interpolate::bytes(
                replacement,
                |group, out| {
                    // One replacement may name a large group many times.
                    if out.len() <= largest
                        && let Some((start, end)) = self.group(group)
                    {
                        out.extend_from_slice(part(start, end));
                    }
                },
                |name| {
                    self.regex
                        .capture_names()
                        .position(|known| known == Some(name))
                },
                out,
            );
            if out.len() > largest {
                return Err(PatternError::Refused(format!(
                    "the result is larger than the memory budget of {largest} bytes"
                )));
            }
            count += 1;
            copied = end;
            from = if start == end { end + 1 } else { end };
            last_end = Some(end);
        }
        out.extend_from_slice(part(copied, subject.len()));
        Ok(count)
    }
}

/// The library's error in one line: it draws the pattern with a mark below.
fn explain(source: &str, error: &regex::Error) -> String {
    if let regex::Error::CompiledTooBig(_) = error {
        return format!(
            "the pattern {source} is too large when it is compiled; use smaller counts"
        );
    }
    let whole = error.to_string();
    let reason = whole.lines().last().unwrap_or_default();
    let reason = reason.strip_prefix("error: ").unwrap_or(reason);
    let mut message = format!("the pattern {source} is none: {reason}");
    let marks = whole
        .lines()
        .find(|line| line.trim_start().starts_with('^'));
    if let Some(column) = marks.and_then(|line| line.find('^'))
        && column >= 4
        && !source.contains('\n')
    {
        let _ = write!(message, " (at character {})", column - 3);
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replaced(subject: &str, pattern: &str, replacement: &str, limit: usize) -> (String, usize) {
        let mut patterns = Patterns::default();
        let mut out = Vec::new();
        let pattern = patterns.get(pattern.as_bytes()).unwrap();
        let count = pattern
            .replace(
                subject.as_bytes(),
                replacement.as_bytes(),
                limit,
                1 << 20,
                &|| false,
                &mut out,
            )
            .unwrap();
        (String::from_utf8(out).unwrap(), count)
    }

    #[test]
    fn replacing_is_what_the_library_does() {
        for (subject, pattern, replacement) in [
            ("a-b-c", "-", "+"),
            ("abc", "", "."),
            ("aab", "a*", "<$0>"),
            ("baac", "a*", "_"),
            ("k=v; l=w", r"(?<key>\w)=(\w)", "$2=${key}$$"),
            ("", "x*", "y"),
            ("nothing", "z", "y"),
            ("x", "(x)|(y)", "[$2$1]"),
        ] {
            let expected = Regex::new(pattern)
                .unwrap()
                .replace_all(subject.as_bytes(), replacement.as_bytes())
                .into_owned();
            assert_eq!(
                replaced(subject, pattern, replacement, usize::MAX).0,
                String::from_utf8(expected).unwrap(),
                "{subject} {pattern}"
            );
        }
        assert_eq!(replaced("a-b-c", "-", "+", 1), ("a+b-c".to_owned(), 1));
        assert_eq!(replaced("a-b-c", "-", "+", 0), ("a-b-c".to_owned(), 0));
    }

    #[test]
    fn patterns_are_kept_and_the_oldest_makes_room() {
        let mut patterns = Patterns::default();
        for i in 0..200 {
            patterns.get(b"stays").unwrap();
            patterns.get(format!("x{i}").as_bytes()).unwrap();
            assert!(patterns.kept.len() <= KEPT);
        }
        assert!(patterns.kept.contains_key(&b"stays"[..]));
        assert!(patterns.kept.contains_key(&b"x199"[..]));
        assert!(!patterns.kept.contains_key(&b"x100"[..]));
    }

    fn refusal(source: &str) -> String {
        match Patterns::default().get(source.as_bytes()) {
            Err(PatternError::Refused(message)) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_no_pattern_says_why() {
        assert_eq!(
            refusal("a(b"),
            "the pattern a(b is none: unclosed group (at character 2)"
        );
        assert_eq!(
            refusal(r"(a)\1"),
            r"the pattern (a)\1 is none: backreferences are not supported (at character 4)"
        );
        assert_eq!(
            refusal("a{1000}{1000}"),
            "the pattern a{1000}{1000} is too large when it is compiled; use smaller counts"
        );
        assert_eq!(
            refusal(&"a".repeat(5000)),
            "the pattern has 5000 bytes; 4096 are allowed"
        );
    }

    /// How often a search checks the time until it has its result.
    fn checks(pattern: &str, subject: &[u8], limit: usize) -> (usize, Result<bool, PatternError>) {
        let mut patterns = Patterns::default();
        let pattern = patterns.get(pattern.as_bytes()).unwrap();
        let count = std::cell::Cell::new(0);
        let is_over = || {
            count.set(count.get() + 1);
            count.get() >= limit
        };
        let found = pattern.capture(subject, 0, &is_over);
        (count.get(), found)
    }

    #[test]
    fn long_searches_check_the_time_and_end_when_it_is_over() {
        for pattern in [
            "(x+x+)+y{500}",
            "(?:x|xx|xxx){1,300}(z)",
            r"(?u)\b(x)+\b",
            "[^z]*z",
            "(x)(x)(x)(x)(x)(x)(y)",
        ] {
            let long = vec![b'x'; 300_000];
            let (count, _) = checks(pattern, &long, 100);
            assert!(count > 10, "{pattern}: {count}");
            let over = checks(pattern, &long, 2);
            assert_eq!(over, (2, Err(PatternError::Time)), "{pattern}");
        }
    }

    #[test]
    fn bounded_searches_find_the_matches_of_the_library() {
        let mut state = 7_u32;
        let mut random = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % below
        };
        for pattern in [
            "a",
            "",
            "a*",
            "(a|ab)(c|bcd)(d*)",
            "(a*)(b|ab)",
            "^(a)|(b)$",
            "(?m)^(a+)$",
            r"\b(\w+)\b",
            r"(?u)\b(\w+)\b",
            r"(?u)(ä|a)+?(b*)",
            "((a)|(b)|(c))*",
            "(a+?)(a*)",
            "a.*b\\z|a",
            "(?s).*(c)",
            "(a??)(b??)c",
            "[^a]{2,3}",
            "(?i)AB(C)?",
            r"\Aab|\n(b)?",
        ] {
            let regex = RegexBuilder::new(pattern).unicode(false).build().unwrap();
            let mut kept = Patterns::default();
            let nfa = kept.get(pattern.as_bytes()).unwrap().nfa.clone();
            let mut bounded = BoundedRegex::new(pattern, nfa, LARGEST);
            for _ in 0..300 {
                let letters = ["a", "b", "c", "d", "\n", " ", "ä", "B"];
                let length = random(14);
                let text: String = (0..length).map(|_| letters[random(8) as usize]).collect();
                let from = random(u32::try_from(text.len()).unwrap() + 1) as usize;
                let expected = regex.find_at(text.as_bytes(), from);
                let expected = expected.map(|found| (found.start(), found.end()));
                let found = bounded.find(text.as_bytes(), from, &|| false);
                assert_eq!(found, Ok(expected), "{pattern} {text:?} {from}");
                let mut locations = regex.capture_locations();
                let is_found = regex.captures_read_at(&mut locations, text.as_bytes(), from);
                let found = bounded.capture(text.as_bytes(), from, &|| false);
                assert_eq!(found, Ok(is_found.is_some()), "{pattern} {text:?} {from}");
                if is_found.is_some() {
                    for group in 0..regex.captures_len() {
                        let found = bounded.group(group);
                        assert_eq!(
                            found,
                            locations.get(group),
                            "{pattern} {text:?} {from} {group}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn long_texts_are_replaced_as_the_library_replaces_them() {
        let text = "key=value; other=thing\n".repeat(2000);
        for (pattern, replacement) in [
            (r"(\w+)=(?<v>\w+)", "${v}=$1"),
            ("x*", "-"),
            ("(?m)^k", "K"),
        ] {
            let expected = RegexBuilder::new(pattern).unicode(false).build().unwrap();
            let expected = expected.replace_all(text.as_bytes(), replacement.as_bytes());
            let found = replaced(&text, pattern, replacement, usize::MAX).0;
            assert!(found.as_bytes() == &*expected, "{pattern}");
        }
    }

    #[test]
    fn pattern_of_too_many_groups_is_refused() {
        assert!(refusal(&"(a)".repeat(1000)).starts_with("the pattern has 1001 groups"));
        assert!(Patterns::default().get("(a)".repeat(30).as_bytes()).is_ok());
    }

    #[test]
    fn replacement_is_bounded_in_time_and_size() {
        let mut patterns = Patterns::default();
        let mut out = Vec::new();
        let plain = patterns.get(b"x").unwrap();
        let over = plain.replace(b"xx", b"y", 9, 99, &|| true, &mut out);
        assert_eq!(over, Err(PatternError::Time));
        let over = plain.replace(b"xx", &[b'y'; 60], 9, 99, &|| false, &mut out);
        assert!(matches!(over, Err(PatternError::Refused(_))));
        let whole = patterns.get(b"x+").unwrap();
        let mut out = Vec::new();
        let (text, many) = (vec![b'x'; 1 << 20], b"$0".repeat(30_000));
        let over = whole.replace(&text, &many, 9, 1 << 22, &|| false, &mut out);
        assert!(matches!(over, Err(PatternError::Refused(_))));
        assert!(out.len() <= 6 << 20, "{}", out.len());
        let over = whole.replace(b"x", &vec![b'y'; 70_000], 9, 1 << 22, &|| false, &mut out);
        assert!(matches!(over, Err(PatternError::Refused(_))));
    }
}
