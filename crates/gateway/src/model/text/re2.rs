//! What the `regex` crate takes and RE2, which Envoy uses, does not: Envoy would refuse all routes
//! because of one.

use std::convert::Infallible;

use regex_syntax::ast::{
    self, AssertionKind, Ast, ClassSetBinaryOp, ClassSetItem, ClassUnicodeKind, Flag, Flags,
    FlagsItemKind, HexLiteralKind, LiteralKind, RepetitionKind, RepetitionRange,
};

/// RE2's limit of counted repetitions.
const MOST_REPETITIONS: u32 = 1000;

/// Why RE2 would not take `pattern`, or would read it differently; with how to mend it.
pub(super) fn refusal(pattern: &str) -> Option<&'static str> {
    let ast = ast::parse::Parser::new().parse(pattern).ok()?;
    match ast::visit(
        &ast,
        Search {
            found: None,
            counts: Vec::new(),
        },
    ) {
        Ok(found) => found,
        Err(never) => match never {},
    }
}

struct Search {
    found: Option<&'static str>,
    /// Counts of the repetitions around the part that is visited: RE2 limits their product.
    counts: Vec<u32>,
}

impl Search {
    fn found(&mut self, why: &'static str) {
        self.found.get_or_insert(why);
    }

    fn flags(&mut self, flags: &Flags) {
        for item in &flags.items {
            if let FlagsItemKind::Flag(Flag::CRLF | Flag::IgnoreWhitespace | Flag::Unicode) =
                item.kind
            {
                self.found("it knows the flags i, m, s and U; remove the others");
            }
        }
    }

    fn literal(&mut self, literal: &ast::Literal) {
        if let LiteralKind::HexFixed(kind) | LiteralKind::HexBrace(kind) = &literal.kind
            && *kind != HexLiteralKind::X
        {
            self.found("it knows no `\\u`; write `\\x{...}`");
        }
    }

    fn unicode(&mut self, kind: &ClassUnicodeKind) {
        if matches!(kind, ClassUnicodeKind::NamedValue { .. }) {
            self.found("it knows classes by one name; write one like `\\p{Greek}`");
        }
    }
}

impl ast::Visitor for Search {
    type Output = Option<&'static str>;
    type Err = Infallible;

    fn finish(self) -> Result<Self::Output, Infallible> {
        Ok(self.found)
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), Infallible> {
        match ast {
            Ast::Flags(set) => self.flags(&set.flags),
            Ast::Group(group) => {
                if let Some(flags) = group.flags() {
                    self.flags(flags);
                }
            }
            Ast::Literal(literal) => self.literal(literal),
            Ast::ClassUnicode(class) => self.unicode(&class.kind),
            Ast::Assertion(assertion) => {
                if !matches!(
                    assertion.kind,
                    AssertionKind::StartLine
                        | AssertionKind::EndLine
                        | AssertionKind::StartText
                        | AssertionKind::EndText
                        | AssertionKind::WordBoundary
                        | AssertionKind::NotWordBoundary
                ) {
                    self.found("it knows `\\b` and `\\B` alone; write one of them");
                }
            }
            Ast::Repetition(repetition) => {
                let count = match &repetition.op.kind {
                    RepetitionKind::Range(
                        RepetitionRange::Exactly(count)
                        | RepetitionRange::AtLeast(count)
                        | RepetitionRange::Bounded(_, count),
                    ) => (*count).max(1),
                    _ => 1,
                };
                self.counts.push(count);
                let product = self
                    .counts
                    .iter()
                    .fold(1u32, |product, count| product.saturating_mul(*count));
                if product > MOST_REPETITIONS {
                    self.found("it repeats at most 1000 times, repetitions within repetitions multiplied; write smaller numbers");
                }
            }
            Ast::Empty(_)
            | Ast::Dot(_)
            | Ast::ClassPerl(_)
            | Ast::ClassBracketed(_)
            | Ast::Alternation(_)
            | Ast::Concat(_) => {}
        }
        Ok(())
    }

    fn visit_post(&mut self, ast: &Ast) -> Result<(), Infallible> {
        if let Ast::Repetition(_) = ast {
            self.counts.pop();
        }
        Ok(())
    }

    fn visit_class_set_item_pre(&mut self, item: &ClassSetItem) -> Result<(), Infallible> {
        match item {
            ClassSetItem::Bracketed(_) => {
                self.found("it knows no class within a class; escape the `[`");
            }
            ClassSetItem::Literal(literal) => self.literal(literal),
            ClassSetItem::Range(range) => {
                self.literal(&range.start);
                self.literal(&range.end);
            }
            ClassSetItem::Unicode(class) => self.unicode(&class.kind),
            ClassSetItem::Empty(_)
            | ClassSetItem::Ascii(_)
            | ClassSetItem::Perl(_)
            | ClassSetItem::Union(_) => {}
        }
        Ok(())
    }

    fn visit_class_set_binary_op_pre(&mut self, _: &ClassSetBinaryOp) -> Result<(), Infallible> {
        self.found("it knows no `&&`, `--` and `~~` in classes; write the characters themselves");
        Ok(())
    }
}
