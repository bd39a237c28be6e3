//! Regular expressions whose search takes time in proportion to the text: one VM's, compiled once and
//! kept, up to [`KEPT`] of them; the one that was not used for longest makes room.
//!
//! They work on bytes: `.` and classes mean single bytes and ASCII, and `(?u)` changes that.
//!
//! The trap: a search runs in the host, where no hook of the time budget reaches. So what it may cost
//! at worst, the length of the text times the size of the pattern, is bounded ([`MOST_STEPS`]), and
//! what searches again and again asks between two searches whether time is over.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use regex::bytes::{CaptureLocations, Regex, RegexBuilder};
use regex_automata::nfa::thompson::{self, NFA};
use regex_automata::util::{interpolate, syntax};

/// How many are kept.
const KEPT: usize = 32;
/// The longest pattern, in bytes.
const LONGEST: usize = 4096;
/// How large a compiled pattern, and what its searches remember, may be, in bytes.
const LARGEST: usize = 128 * 1024;
/// A search may take about so many steps, which is a few tenths of a second at the very worst; patterns
/// that are not made for it take a thousandth of that.
const MOST_STEPS: usize = 1 << 25;
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
    /// Number of states, which is what a search may at worst go through for each byte.
    states: usize,
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
        let regex = RegexBuilder::new(source)
            .unicode(false)
            .size_limit(LARGEST)
            .dfa_size_limit(LARGEST)
            .build()
            .map_err(|error| refused(explain(source, &error)))?;
        let states = NFA::compiler()
            .syntax(syntax::Config::new().unicode(false).utf8(false))
            .configure(thompson::Config::new().utf8(false))
            .build(source)
            .map_or(usize::MAX, |nfa| nfa.states().len());
        Ok(Self {
            locations: regex.capture_locations(),
            regex,
            states,
            used: 0,
        })
    }

    fn bounded(&self, subject: &[u8]) -> Result<(), PatternError> {
        if subject.len().saturating_mul(self.states) > MOST_STEPS {
            return Err(PatternError::Refused(format!(
                "the text has {} bytes; with this pattern, of {} states, {} are allowed",
                subject.len(),
                self.states,
                MOST_STEPS / self.states.max(1)
            )));
        }
        Ok(())
    }

    /// Where the pattern first matches at `from` or after it.
    pub(crate) fn find(
        &self,
        subject: &[u8],
        from: usize,
    ) -> Result<Option<(usize, usize)>, PatternError> {
        self.bounded(subject)?;
        if from > subject.len() {
            return Ok(None);
        }
        let found = self.regex.find_at(subject, from);
        Ok(found.map(|found| (found.start(), found.end())))
    }

    /// Whether there is a match at `from` or after it; its groups are then [`Pattern::groups`].
    pub(crate) fn capture(&mut self, subject: &[u8], from: usize) -> Result<bool, PatternError> {
        self.bounded(subject)?;
        let Self {
            regex, locations, ..
        } = self;
        Ok(from <= subject.len() && regex.captures_read_at(locations, subject, from).is_some())
    }

    /// The groups of the match that was captured last; the first is the whole match.
    pub(crate) fn groups(&self) -> impl Iterator<Item = Group<'_>> {
        let names = self.regex.capture_names().enumerate();
        names.map(|(number, name)| Group {
            name,
            place: self.locations.get(number),
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
        is_over_time: impl Fn() -> bool,
        out: &mut Vec<u8>,
    ) -> Result<usize, PatternError> {
        self.bounded(subject)?;
        if replacement.len() > LONGEST_REPLACEMENT {
            return Err(PatternError::Refused(format!(
                "the replacement has {} bytes; {LONGEST_REPLACEMENT} are allowed",
                replacement.len()
            )));
        }
        let Self {
            regex, locations, ..
        } = self;
        let (mut from, mut copied, mut count) = (0, 0, 0);
        // After an empty match, the next one begins a byte further on; and none is right behind a
        // match that was not empty.
        let mut last_end = None;
        let part = |start, end| subject.get(start..end).unwrap_or_default();
        while count < limit && from <= subject.len() {
            if is_over_time() {
                return Err(PatternError::Time);
            }
            let Some(found) = regex.captures_read_at(locations, subject, from) else {
                break;
            };
            let (start, end) = (found.start(), found.end());
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
                        && let Some((start, end)) = locations.get(group)
                    {
                        out.extend_from_slice(part(start, end));
                    }
                },
                |name| regex.capture_names().position(|known| known == Some(name)),
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
                || false,
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

    #[test]
    fn a_search_that_could_take_long_is_refused_and_others_end_in_time() {
        let mut patterns = Patterns::default();
        let large = patterns.get(b"(x+x+)+y{500}").unwrap();
        let began = std::time::Instant::now();
        assert_eq!(large.find(&vec![b'x'; 50_000], 0), Ok(None));
        assert!(began.elapsed() < std::time::Duration::from_secs(2));
        let refused = large.find(&vec![b'x'; 10_000_000], 0);
        let Err(PatternError::Refused(message)) = refused else {
            panic!("{refused:?}")
        };
        assert!(
            message.starts_with("the text has 10000000 bytes"),
            "{message}"
        );
        let mut out = Vec::new();
        let plain = patterns.get(b"x").unwrap();
        let over = plain.replace(b"xx", b"y", 9, 99, || true, &mut out);
        assert_eq!(over, Err(PatternError::Time));
        let over = plain.replace(b"xx", &[b'y'; 60], 9, 99, || false, &mut out);
        assert!(matches!(over, Err(PatternError::Refused(_))));
        let whole = patterns.get(b"x+").unwrap();
        let mut out = Vec::new();
        let (text, many) = (vec![b'x'; 1 << 20], b"$0".repeat(30_000));
        let over = whole.replace(&text, &many, 9, 1 << 22, || false, &mut out);
        assert!(matches!(over, Err(PatternError::Refused(_))));
        assert!(out.len() <= 6 << 20, "{}", out.len());
        let over = whole.replace(b"x", &vec![b'y'; 70_000], 9, 1 << 22, || false, &mut out);
        assert!(matches!(over, Err(PatternError::Refused(_))));
    }
}
