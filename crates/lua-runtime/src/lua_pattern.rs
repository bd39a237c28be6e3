//! Lua's own patterns (`string.find`, `match`, `gmatch`, `gsub`), as LuaJIT has them, in a form that ends
//! when the call's time is over: a pattern may need time that grows with a high power of the subject's
//! length, and LuaJIT's own functions run in C, where no hook ends them.
//!
//! Not here: arguments and replacements by functions and tables, which are Lua's matter
//! (`sdk/strings.lua`).
//!
//! The trap is being like LuaJIT in what nobody documents: a NUL ends a pattern, the byte behind the
//! subject is a NUL, a pattern may nest 200 deep, errors come up only where the matching gets to them.
//! `tests/patterns.rs` compares both on many patterns.

use memchr::memmem;

/// How many captures a pattern may have.
const MOST_CAPTURES: usize = 32;
/// How deep matching may nest.
const DEEPEST: u32 = 200;
/// After so many steps the clock is asked.
const STEPS: u32 = 2048;
/// The length of a capture that is a position.
pub(crate) const POSITION: isize = -2;
/// The length of a capture that has no end yet.
const UNFINISHED: isize = -1;

/// Why matching ended without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The pattern is wrong; in LuaJIT's words.
    Wrong(&'static str),
    /// The call's time is over.
    Time,
    /// The result is larger than the memory budget.
    Memory,
}

/// A capture: where it begins, and its length, or [`POSITION`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Capture {
    pub(crate) start: usize,
    pub(crate) length: isize,
}

/// What a search looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Anchor {
    /// `^` at the beginning of the pattern holds the match to where the search begins.
    Minded,
    /// `^` is a character like others, as `gmatch` has it.
    Ignored,
}

/// A pattern on a subject.
pub(crate) struct Matcher<'a, F> {
    subject: &'a [u8],
    pattern: &'a [u8],
    is_over_time: F,
    steps: u32,
    depth: u32,
    level: usize,
    captures: [Capture; MOST_CAPTURES],
}

type Place = Result<Option<usize>, Stop>;

impl<'a, F: Fn() -> bool> Matcher<'a, F> {
    pub(crate) fn new(subject: &'a [u8], pattern: &'a [u8], is_over_time: F) -> Self {
        Self {
            subject,
            pattern,
            is_over_time,
            steps: 0,
            depth: 0,
            level: 0,
            captures: [Capture::default(); MOST_CAPTURES],
        }
    }

    /// The first match at `from` or after it: where it begins and ends.
    pub(crate) fn search(
        &mut self,
        from: usize,
        anchor: Anchor,
    ) -> Result<Option<(usize, usize)>, Stop> {
        let anchored = anchor == Anchor::Minded && self.pattern.first() == Some(&b'^');
        let last = if anchored { from } else { self.subject.len() };
        for start in from..=last {
            self.level = 0;
            self.depth = 0;
            if let Some(end) = self.run(start, usize::from(anchored))? {
                return Ok(Some((start, end)));
            }
        }
        Ok(None)
    }

    /// The captures of the last match; the whole match, if there are none and `whole` says where it is.
    pub(crate) fn captures(
        &self,
        whole: Option<(usize, usize)>,
    ) -> Result<impl Iterator<Item = Capture> + '_, Stop> {
        let captures = self.captures.get(..self.level).unwrap_or_default();
        if captures.iter().any(|capture| capture.length == UNFINISHED) {
            return Err(Stop::Wrong("unfinished capture"));
        }
        let whole = whole
            .filter(|_| captures.is_empty())
            .map(|(start, end)| Capture {
                start,
                length: length(start, end),
            });
        Ok(captures.iter().copied().chain(whole))
    }

    /// The capture of this number, from 0; the whole match is the first one where there is none.
    pub(crate) fn capture(
        &self,
        number: usize,
        (start, end): (usize, usize),
    ) -> Result<Capture, Stop> {
        let captures = self.captures.get(..self.level).unwrap_or_default();
        match captures.get(number) {
            Some(capture) if capture.length == UNFINISHED => Err(Stop::Wrong("unfinished capture")),
            Some(capture) => Ok(*capture),
            None if number == 0 => Ok(Capture {
                start,
                length: length(start, end),
            }),
            None => Err(Stop::Wrong("invalid capture index")),
        }
    }

    /// Appends the subject to `out`, with up to `most` matches replaced by `replacement`, in which `%0`
    /// to `%9` stand for captures; answers how many. `out` grows to `largest` bytes at most.
    pub(crate) fn replace(
        &mut self,
        replacement: &[u8],
        most: usize,
        largest: usize,
        out: &mut Vec<u8>,
    ) -> Result<usize, Stop> {
        let anchored = self.pattern.first() == Some(&b'^');
        let (mut count, mut from, mut copied) = (0, 0, 0);
        while count < most {
            let Some((start, end)) = self.search(from, Anchor::Minded)? else {
                break;
            };
            count += 1;
            out.extend_from_slice(self.part(copied, start));
            self.interpolate(replacement, (start, end), largest, out)?;
            self.work(replacement.len() / 8 + 1)?;
            copied = end;
            from = if end > start { end } else { start + 1 };
            if anchored || from > self.subject.len() {
                break;
            }
        }
        out.extend_from_slice(self.part(copied, self.subject.len()));
        Ok(count)
    }

    fn interpolate(
        &self,
        replacement: &[u8],
        whole: (usize, usize),
        largest: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Stop> {
        let mut bytes = replacement.iter().copied();
        while let Some(byte) = bytes.next() {
            if byte != b'%' {
                out.push(byte);
                continue;
            }
            // The byte behind the text is a NUL.
            match bytes.next().unwrap_or(0) {
                b'0' => out.extend_from_slice(self.part(whole.0, whole.1)),
                digit @ b'1'..=b'9' => {
                    let capture = self.capture(usize::from(digit - b'1'), whole)?;
                    match usize::try_from(capture.length) {
                        Ok(length) => {
                            out.extend_from_slice(self.part(capture.start, capture.start + length));
                        }
                        Err(_) => out.extend_from_slice((capture.start + 1).to_string().as_bytes()),
                    }
                }
                other => out.push(other),
            }
            // One replacement may name a large capture many times.
            if out.len() > largest {
                return Err(Stop::Memory);
            }
        }
        Ok(())
    }

    fn part(&self, start: usize, end: usize) -> &'a [u8] {
        self.subject.get(start..end).unwrap_or_default()
    }

    fn work(&mut self, steps: usize) -> Result<(), Stop> {
        self.steps = self
            .steps
            .saturating_add(u32::try_from(steps).unwrap_or(u32::MAX));
        if self.steps >= STEPS {
            self.steps = 0;
            if (self.is_over_time)() {
                return Err(Stop::Time);
            }
        }
        Ok(())
    }

    /// A byte of the pattern; a NUL behind its end.
    fn at(&self, place: usize) -> u8 {
        self.pattern.get(place).copied().unwrap_or(0)
    }

    /// A byte of the subject; a NUL behind its end.
    fn byte(&self, place: usize) -> u8 {
        self.subject.get(place).copied().unwrap_or(0)
    }

    /// Where the item that begins at `item` ends.
    fn item_end(&self, item: usize) -> Result<usize, Stop> {
        match self.at(item) {
            b'%' if self.at(item + 1) == 0 => Err(Stop::Wrong("malformed pattern (ends with '%')")),
            b'%' => Ok(item + 2),
            b'[' => {
                let mut place = item + 1;
                if self.at(place) == b'^' {
                    place += 1;
                }
                loop {
                    let byte = self.at(place);
                    if byte == 0 {
                        return Err(Stop::Wrong("malformed pattern (missing ']')"));
                    }
                    place += 1;
                    if byte == b'%' && self.at(place) != 0 {
                        place += 1;
                    }
                    if self.at(place) == b']' {
                        return Ok(place + 1);
                    }
                }
            }
            _ => Ok(item + 1),
        }
    }

    /// Whether the set from `open`, its bracket, to `close` holds a byte.
    fn set_holds(&self, byte: u8, open: usize, close: usize) -> bool {
        let negated = self.at(open + 1) == b'^';
        let mut place = open + 1 + usize::from(negated);
        while place < close {
            let member = self.at(place);
            if member == b'%' {
                place += 1;
                if class_holds(byte, self.at(place)) {
                    return !negated;
                }
            } else if self.at(place + 1) == b'-' && place + 2 < close {
                place += 2;
                if (member..=self.at(place)).contains(&byte) {
                    return !negated;
                }
            } else if member == byte {
                return !negated;
            }
            place += 1;
        }
        negated
    }

    /// Whether the item from `item` to `end` matches the byte at `place`.
    fn fits(&self, place: usize, item: usize, end: usize) -> bool {
        let Some(&byte) = self.subject.get(place) else {
            return false;
        };
        match self.at(item) {
            b'.' => true,
            b'%' => class_holds(byte, self.at(item + 1)),
            b'[' => self.set_holds(byte, item, end - 1),
            own => own == byte,
        }
    }

    /// Matches the pattern from `item` on at `place`; answers where the match ends.
    fn run(&mut self, place: usize, item: usize) -> Place {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(Stop::Wrong("pattern too complex"));
        }
        let end = self.run_items(place, item)?;
        self.depth -= 1;
        Ok(end)
    }

    fn run_items(&mut self, mut place: usize, mut item: usize) -> Place {
        loop {
            self.work(1)?;
            match (self.at(item), self.at(item + 1)) {
                (0, _) => return Ok(Some(place)),
                (b'(', b')') => return self.open(place, item + 2, POSITION),
                (b'(', _) => return self.open(place, item + 1, UNFINISHED),
                (b')', _) => return self.close(place, item + 1),
                (b'$', 0) => return Ok((place == self.subject.len()).then_some(place)),
                (b'%', b'b') => {
                    let Some(end) = self.balanced(place, item + 2)? else {
                        return Ok(None);
                    };
                    (place, item) = (end, item + 4);
                }
                (b'%', b'f') => {
                    let open = item + 2;
                    if self.at(open) != b'[' {
                        return Err(Stop::Wrong("missing '[' after '%f' in pattern"));
                    }
                    let end = self.item_end(open)?;
                    let before = place.checked_sub(1).map_or(0, |before| self.byte(before));
                    if self.set_holds(before, open, end - 1)
                        || !self.set_holds(self.byte(place), open, end - 1)
                    {
                        return Ok(None);
                    }
                    item = end;
                }
                (b'%', digit @ b'0'..=b'9') => {
                    let Some(end) = self.again(place, digit)? else {
                        return Ok(None);
                    };
                    (place, item) = (end, item + 2);
                }
                _ => {
                    let end = self.item_end(item)?;
                    // A set is looked through member by member.
                    self.work((end - item) / 8)?;
                    let fits = self.fits(place, item, end);
                    match self.at(end) {
                        b'?' => {
                            if fits && let Some(found) = self.run(place + 1, end + 1)? {
                                return Ok(Some(found));
                            }
                            item = end + 1;
                        }
                        b'*' => return self.most(place, item, end),
                        b'+' if fits => return self.most(place + 1, item, end),
                        b'-' => return self.fewest(place, item, end),
                        _ if fits && self.at(end) != b'+' => (place, item) = (place + 1, end),
                        _ => return Ok(None),
                    }
                }
            }
        }
    }

    /// As many repetitions as there are, then fewer and fewer.
    fn most(&mut self, place: usize, item: usize, end: usize) -> Place {
        let mut count = 0;
        while self.fits(place + count, item, end) {
            count += 1;
            self.work(1 + (end - item) / 8)?;
        }
        loop {
            if let Some(found) = self.run(place + count, end + 1)? {
                return Ok(Some(found));
            }
            if count == 0 {
                return Ok(None);
            }
            count -= 1;
        }
    }

    /// No repetition, then more and more.
    fn fewest(&mut self, mut place: usize, item: usize, end: usize) -> Place {
        loop {
            if let Some(found) = self.run(place, end + 1)? {
                return Ok(Some(found));
            }
            if !self.fits(place, item, end) {
                return Ok(None);
            }
            self.work((end - item) / 8)?;
            place += 1;
        }
    }

    fn open(&mut self, place: usize, item: usize, length: isize) -> Place {
        let Some(capture) = self.captures.get_mut(self.level) else {
            return Err(Stop::Wrong("too many captures"));
        };
        *capture = Capture {
            start: place,
            length,
        };
        self.level += 1;
        let found = self.run(place, item)?;
        if found.is_none() {
            self.level -= 1;
        }
        Ok(found)
    }

    fn close(&mut self, place: usize, item: usize) -> Place {
        let opened = self.captures.get_mut(..self.level).unwrap_or_default();
        let Some(number) = opened
            .iter()
            .rposition(|capture| capture.length == UNFINISHED)
        else {
            return Err(Stop::Wrong("invalid pattern capture"));
        };
        if let Some(capture) = opened.get_mut(number) {
            capture.length = length(capture.start, place);
        }
        let found = self.run(place, item)?;
        if found.is_none()
            && let Some(capture) = self.captures.get_mut(number)
        {
            capture.length = UNFINISHED;
        }
        Ok(found)
    }

    /// `%1`: what a capture matched, again.
    fn again(&mut self, place: usize, digit: u8) -> Place {
        let number = usize::from(digit).checked_sub(usize::from(b'1'));
        let capture = number
            .filter(|number| *number < self.level)
            .and_then(|number| self.captures.get(number))
            .filter(|capture| capture.length != UNFINISHED);
        let Some(capture) = capture else {
            return Err(Stop::Wrong("invalid capture index"));
        };
        // As in C, where the length of a position is a number larger than any subject.
        let Ok(length) = usize::try_from(capture.length) else {
            return Ok(None);
        };
        let own = self.part(capture.start, capture.start + length);
        let fits = self.subject.get(place..place + length) == Some(own);
        self.work(length / 16)?;
        Ok(fits.then_some(place + length))
    }

    /// `%bxy`: from `x` to the `y` that balances it.
    fn balanced(&mut self, place: usize, pair: usize) -> Place {
        let (open, close) = (self.at(pair), self.at(pair + 1));
        if open == 0 || close == 0 {
            return Err(Stop::Wrong("unbalanced pattern"));
        }
        if self.byte(place) != open {
            return Ok(None);
        }
        let mut depth = 1_usize;
        for next in place + 1..self.subject.len() {
            self.work(1)?;
            let byte = self.byte(next);
            if byte == close {
                depth -= 1;
                if depth == 0 {
                    return Ok(Some(next + 1));
                }
            } else if byte == open {
                depth += 1;
            }
        }
        Ok(None)
    }
}

/// Where `text` first stands in the subject at `from` or after it.
pub(crate) fn find_text(subject: &[u8], text: &[u8], from: usize) -> Option<(usize, usize)> {
    let start = from + memmem::find(subject.get(from..)?, text)?;
    Some((start, start + text.len()))
}

/// Whether a pattern says more than its bytes.
pub(crate) fn is_pattern(pattern: &[u8]) -> bool {
    pattern.iter().any(|byte| b"^$*+?.([%-".contains(byte))
}

fn length(start: usize, end: usize) -> isize {
    isize::try_from(end.saturating_sub(start)).unwrap_or(isize::MAX)
}

/// Whether the class that a letter names holds a byte; what is no class is the byte itself.
fn class_holds(byte: u8, class: u8) -> bool {
    let holds = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'g' => byte.is_ascii_graphic(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => byte == b' ' || (9..=13).contains(&byte),
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return class == byte,
    };
    holds != class.is_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn found(subject: &str, pattern: &str) -> Result<Option<(usize, usize)>, Stop> {
        let never = || false;
        Matcher::new(subject.as_bytes(), pattern.as_bytes(), never).search(0, Anchor::Minded)
    }

    #[test]
    fn patterns_mean_what_the_manual_says() {
        for (subject, pattern, place) in [
            ("hello world", "o w", Some((4, 7))),
            ("hello", "^l", None),
            ("key = value", "(%w+)%s*=%s*(%w+)", Some((0, 11))),
            ("f(a(b)c)d", "%b()", Some((1, 8))),
            ("THE (quick) fox", "%f[%a]%a+%f[%A]", Some((0, 3))),
            ("aaa", "a-b", None),
            ("xyzxyz", "(xyz)%1$", Some((0, 6))),
            ("a]b", "[]]", Some((1, 2))),
            ("a-b", "[a%-]+", Some((0, 2))),
            ("", "$", Some((0, 0))),
        ] {
            assert_eq!(found(subject, pattern), Ok(place), "{subject} {pattern}");
        }
    }

    #[test]
    fn wrong_patterns_say_what_is_wrong_with_them() {
        for (pattern, message) in [
            ("%", "malformed pattern (ends with '%')"),
            ("[a", "malformed pattern (missing ']')"),
            ("%f", "missing '[' after '%f' in pattern"),
            ("%b", "unbalanced pattern"),
            (")", "invalid pattern capture"),
            ("%1", "invalid capture index"),
            (&"(a?)".repeat(33), "too many captures"),
            (&"a?".repeat(300), "pattern too complex"),
        ] {
            assert_eq!(found(&"a".repeat(300), pattern), Err(Stop::Wrong(message)));
        }
    }

    #[test]
    fn every_kind_of_long_work_asks_the_clock() {
        let many = "a".repeat(3000);
        let nested = "(".repeat(1_000_000);
        let wide_set = format!("[{}]*b", "x-y".repeat(20_000));
        for (subject, pattern) in [
            (&*many, ".-.-.-.-b"),
            (&many, "a*a*a*b"),
            (&many, "(.-)%1%1b"),
            (&many, "a?a?a?a?a?a?a?a?b"),
            (&nested, "%b()"),
            (&many, &wide_set),
            (&many, "[^b]*[^b]*b"),
        ] {
            let asked = Cell::new(0);
            let is_over = || {
                asked.set(asked.get() + 1);
                asked.get() == 100
            };
            let mut matcher = Matcher::new(subject.as_bytes(), pattern.as_bytes(), is_over);
            let stopped = matcher.search(0, Anchor::Minded);
            let pattern = pattern.get(..20).unwrap_or(pattern);
            assert_eq!(stopped, Err(Stop::Time), "{pattern}");
        }
    }

    #[test]
    fn a_replacement_stays_within_bounds() {
        let subject = vec![b'a'; 10_000];
        let mut out = Vec::new();
        let mut matcher = Matcher::new(&subject, b".*", || false);
        let replaced = matcher.replace(&b"%0".repeat(100), usize::MAX, 200_000, &mut out);
        assert_eq!(replaced, Err(Stop::Memory));
        assert!(out.len() <= 210_000, "{}", out.len());
    }
}
