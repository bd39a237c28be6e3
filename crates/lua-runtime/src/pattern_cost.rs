//! Bound of the time that a regular expression takes to compile.
//!
//! The size of a compiled pattern is limited by the `regex` crate, but classes of Unicode are built before that limit
//! is checked: each takes some microseconds, and one whose letters' cases are folded a millisecond. So they are
//! counted in the pattern's syntax tree, which is made in proportion to its length.

use std::convert::Infallible;

use regex_syntax::ast::parse::Parser;
use regex_syntax::ast::{self, Ast, ClassSetItem, Flag, Visitor};

/// Most classes of Unicode characters in one pattern.
const MOST_CLASSES: usize = 100;
/// Most characters in classes whose cases are folded, in one pattern.
const MOST_FOLDED: usize = 600_000;
/// Characters of a class with a name such as `\w`, at most as many as there are letters.
const NAMED_CLASS: usize = 150_000;
/// All characters.
const ALL: usize = 0x11_0000;

/// Checks the classes of a pattern. Patterns without Unicode, and those that are not valid, pass.
///
/// # Errors
/// The pattern has more of them than may be compiled; the text says so to the plugin's author.
pub(crate) fn check(pattern: &str, is_unicode: bool) -> Result<(), &'static str> {
    let Ok(tree) = Parser::new().parse(pattern) else {
        // The error is the compiler's to report.
        return Ok(());
    };
    let counted = Classes {
        is_unicode,
        ..Classes::default()
    };
    let Ok(classes) = ast::visit(&tree, counted);
    if !classes.is_unicode {
        Ok(())
    } else if classes.count > MOST_CLASSES {
        Err(
            "has more than 100 classes of Unicode characters; leave out the flag `u`, or use fewer classes",
        )
    } else if classes.folds_case && classes.folded > MOST_FOLDED {
        Err(
            "has too large classes for the flags `i` and `u` together; leave out one of the flags, or use fewer \
             and smaller classes",
        )
    } else {
        Ok(())
    }
}

/// Counts of classes. Flags count for the whole pattern, wherever they stand.
#[derive(Debug, Default)]
struct Classes {
    is_unicode: bool,
    folds_case: bool,
    count: usize,
    /// Characters in all classes.
    folded: usize,
}

impl Classes {
    fn add(&mut self, characters: usize) {
        self.count += 1;
        self.folded = self.folded.saturating_add(characters);
    }

    fn add_flags(&mut self, flags: &ast::Flags) {
        self.is_unicode |= flags.flag_state(Flag::Unicode) == Some(true);
        self.folds_case |= flags.flag_state(Flag::CaseInsensitive) == Some(true);
    }
}

impl Visitor for Classes {
    type Output = Self;
    type Err = Infallible;

    fn finish(self) -> Result<Self, Infallible> {
        Ok(self)
    }

    fn visit_pre(&mut self, tree: &Ast) -> Result<(), Infallible> {
        match tree {
            Ast::Flags(set) => self.add_flags(&set.flags),
            Ast::Group(group) => {
                if let Some(flags) = group.flags() {
                    self.add_flags(flags);
                }
            }
            Ast::ClassPerl(_) | Ast::ClassUnicode(_) => self.add(NAMED_CLASS),
            Ast::ClassBracketed(_) | Ast::Dot(_) => self.add(1),
            _ => {}
        }
        Ok(())
    }

    fn visit_class_set_item_pre(&mut self, item: &ClassSetItem) -> Result<(), Infallible> {
        match item {
            ClassSetItem::Perl(class) if class.negated => self.add(ALL),
            ClassSetItem::Unicode(class) if class.is_negated() => self.add(ALL),
            ClassSetItem::Perl(_) | ClassSetItem::Unicode(_) => self.add(NAMED_CLASS),
            ClassSetItem::Range(range) => {
                let (first, last) = (u32::from(range.start.c), u32::from(range.end.c));
                self.folded = self
                    .folded
                    .saturating_add(last.saturating_sub(first) as usize);
            }
            ClassSetItem::Bracketed(class) => self.add(if class.negated { ALL } else { 1 }),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_that_take_long_to_build_are_refused() {
        for pattern in [
            r"(?u)\w".to_owned() + &r"\w".repeat(2000),
            r"(?u:\pL)".repeat(400),
            "(?iu)".to_owned() + &r"\pL".repeat(1300),
            "(?iu)[\u{1}-\u{10ffff}]".to_owned(),
            "(?i)(?:(?u:[\u{1}-\u{fffff}]))".to_owned(),
            "(?iu)[[^a]]".to_owned(),
            r"(?iu)[\W]".to_owned(),
            "(?iu)".to_owned() + &"[\u{100}-\u{2ff}]".repeat(1400),
        ] {
            assert!(check(&pattern, false).is_err(), "{pattern}");
        }
        assert!(check(&r"\w".repeat(101), true).is_err());
    }

    #[test]
    fn usual_patterns_pass() {
        for pattern in [
            r"^\w+@\w+\.\w+$",
            r"(?u)^[\p{L}\d_-]{1,64}$",
            r"(?iu)^(grüße|[äöü]+)\s*$",
            "(?i)[^a-z]",
            "(",
        ] {
            assert_eq!(check(pattern, false), Ok(()), "{pattern}");
            assert_eq!(check(pattern, true), Ok(()), "{pattern}");
        }
        assert_eq!(check(&r"\w".repeat(1000), false), Ok(()));
    }
}
