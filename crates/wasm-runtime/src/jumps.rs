//! Direct jumps in the place of those through a table, before a module is compiled.
//!
//! The compiler of Go makes each function one loop around a jump table, so that it can be entered again at any
//! part of it. A jump from part to part is an iteration:
//!
//! ```text
//! loop $again
//!   block $c block $b block $a
//!     local.get $part
//!     br_table $a $b $c
//!   end                                          ;; part 0
//!     i32.const 2  local.set $part  br $again    ;; becomes: br $c
//!   end                                          ;; part 1
//!   …
//! ```
//!
//! So all the function's values meet at one place, where a compiler has to have each of them somewhere, and each
//! jump checks the epoch, and reads the table. A jump forward to a part that is known needs none of
//! it: the block that the table would leave is around the jump, too, and to leave it is the same. That is done
//! here. Cranelift does not do it; it takes a fourth off what Coraza's own code takes.
//!
//! A jump back stays an iteration, so each cycle keeps Wasmtime's epoch check: in WebAssembly only a `loop` goes
//! back, and this pass never writes one. Where no jump back is left, the loop becomes a block without a check.
//!
//! Only operands of `br` are changed, in their place and at their length, and `loop` to `block`. So whatever
//! offsets, names and lines belong to stays where it is, and the result is valid exactly if the module is: the
//! labels take no values. What cannot be read is left as it is, for the compiler to say so.

use std::borrow::Cow;
use std::mem;
use std::ops::Range;

use wasmparser::{BlockType, BrTable, FunctionBody, Operator, Parser, Payload};

/// The number of what is done here, of which compiled code depends: another one when that changes.
pub(crate) const VERSION: u32 = 2;

/// The operator that begins a block.
const BLOCK: usize = 0x02;

/// A module with its jumps made direct, which does what it did; the module itself where there is nothing to do.
pub(crate) fn direct(module: &[u8]) -> Cow<'_, [u8]> {
    let mut changes = Vec::new();
    for payload in Parser::new(0).parse_all(module) {
        match payload {
            Ok(Payload::CodeSectionEntry(body)) => {
                if let Some(found) = Function::default().changes(&body) {
                    changes.extend(found);
                }
            }
            Ok(_) => {}
            Err(_) => return Cow::Borrowed(module),
        }
    }
    if changes.is_empty() {
        return Cow::Borrowed(module);
    }
    let mut changed = module.to_vec();
    for change in changes {
        change.write(&mut changed);
    }
    Cow::Owned(changed)
}

/// A smaller number in the place of one in LEB128: a depth, or an operator.
struct Change {
    place: Range<usize>,
    number: usize,
}

impl Change {
    /// Writes the number as long as the one that was there.
    fn write(&self, module: &mut [u8]) {
        let Some((last, others)) = module
            .get_mut(self.place.clone())
            .and_then(<[u8]>::split_last_mut)
        else {
            return;
        };
        let mut rest = self.number;
        let mut next = || {
            let bits = (rest & 0x7f) as u8;
            rest >>= 7;
            bits
        };
        for byte in others {
            *byte = next() | 0x80;
        }
        *last = next();
    }
}

/// A function as it is read: what is open, and what the last operators were.
#[derive(Default)]
struct Function {
    open: Vec<Block>,
    seen: Seen,
    changes: Vec<Change>,
}

/// An open block. Only those that take and give no values are of interest.
struct Block {
    /// Where it begins in the file: no other does there.
    start: usize,
    kind: Kind,
}

enum Kind {
    /// A label at its end.
    Block,
    /// A label at its beginning.
    Loop {
        /// What it begins with, if it does.
        table: Option<Table>,
        /// Something jumps there.
        is_used: bool,
    },
    Other,
}

/// Where a loop goes on, by a local.
struct Table {
    local: u32,
    targets: Vec<Target>,
    default: Target,
}

/// A block of those that are open at the table.
#[derive(Clone, Copy)]
struct Target {
    index: usize,
    start: usize,
}

/// What the operators right before were.
#[derive(Default)]
enum Seen {
    #[default]
    Nothing,
    /// The beginning of the loop with this index, and nothing but blocks since.
    Beginning(usize),
    /// That, and then this local.
    Local(usize, u32),
    /// A number.
    Number(u32),
    /// A number, and then it was put into this local.
    Set(u32, u32),
}

impl Function {
    /// What to change; none: the function cannot be read.
    fn changes(mut self, body: &FunctionBody<'_>) -> Option<Vec<Change>> {
        let mut reader = body.get_operators_reader().ok()?;
        // No operator begins at zero.
        self.open(0, Kind::Other);
        while !reader.eof() {
            let (operator, start) = reader.read_with_offset().ok()?;
            // Behind the operator's byte.
            let operand = start + 1..reader.original_position();
            self.read(&operator, start, operand)?;
        }
        // Blocks of a kind that is not known here would be left over, or missing.
        self.open.is_empty().then_some(self.changes)
    }

    fn read(&mut self, operator: &Operator<'_>, start: usize, operand: Range<usize>) -> Option<()> {
        let before = mem::take(&mut self.seen);
        match *operator {
            Operator::Loop {
                blockty: BlockType::Empty,
            } => {
                self.seen = Seen::Beginning(self.open.len());
                let (table, is_used) = (None, false);
                self.open(start, Kind::Loop { table, is_used });
            }
            Operator::Block {
                blockty: BlockType::Empty,
            } => {
                if let Seen::Beginning(_) = before {
                    self.seen = before;
                }
                self.open(start, Kind::Block);
            }
            Operator::Loop { .. } | Operator::Block { .. } | Operator::If { .. } => {
                self.open(start, Kind::Other);
            }
            Operator::End => {
                let ended = self.open.pop()?;
                if let Kind::Loop { is_used: false, .. } = ended.kind {
                    self.changes.push(Change {
                        place: ended.start..ended.start + 1,
                        number: BLOCK,
                    });
                }
            }
            // Blocks and jumps of proposals that no guest is compiled with.
            Operator::Try { .. }
            | Operator::Catch { .. }
            | Operator::CatchAll
            | Operator::Rethrow { .. }
            | Operator::Delegate { .. }
            | Operator::TryTable { .. }
            | Operator::BrOnNull { .. }
            | Operator::BrOnNonNull { .. }
            | Operator::BrOnCast { .. }
            | Operator::BrOnCastFail { .. }
            | Operator::BrOnCastDescEq { .. }
            | Operator::BrOnCastDescEqFail { .. }
            | Operator::Resume { .. }
            | Operator::ResumeThrow { .. }
            | Operator::ResumeThrowRef { .. }
            | Operator::Switch { .. } => return None,
            Operator::LocalGet { local_index } => {
                if let Seen::Beginning(begun) = before {
                    self.seen = Seen::Local(begun, local_index);
                }
            }
            Operator::BrTable { ref targets } => {
                let depths = targets.targets().chain([Ok(targets.default())]);
                for depth in depths {
                    self.use_label(depth.ok()?)?;
                }
                if let Seen::Local(begun, local) = before {
                    let read = self.table(local, targets)?;
                    if let Kind::Loop { table, .. } = &mut self.open.get_mut(begun)?.kind {
                        *table = Some(read);
                    }
                }
            }
            Operator::BrIf { relative_depth } => self.use_label(relative_depth)?,
            Operator::I32Const { value } => self.seen = Seen::Number(value.cast_unsigned()),
            Operator::LocalSet { local_index } => {
                if let Seen::Number(number) = before {
                    self.seen = Seen::Set(number, local_index);
                }
            }
            Operator::Br { relative_depth } => {
                let ahead = match before {
                    Seen::Set(number, local) => {
                        self.forward(self.index(relative_depth)?, number, local)
                    }
                    _ => None,
                };
                match ahead {
                    Some(number) => self.changes.push(Change {
                        place: operand,
                        number,
                    }),
                    None => self.use_label(relative_depth)?,
                }
            }
            _ => {}
        }
        Some(())
    }

    fn open(&mut self, start: usize, kind: Kind) {
        self.open.push(Block { start, kind });
    }

    /// The index of an open block by its depth.
    fn index(&self, depth: u32) -> Option<usize> {
        self.open
            .len()
            .checked_sub(1)?
            .checked_sub(usize::try_from(depth).ok()?)
    }

    /// Something jumps to an open block.
    fn use_label(&mut self, depth: u32) -> Option<()> {
        let index = self.index(depth)?;
        if let Kind::Loop { is_used, .. } = &mut self.open.get_mut(index)?.kind {
            *is_used = true;
        }
        Some(())
    }

    fn table(&self, local: u32, table: &BrTable<'_>) -> Option<Table> {
        let target = |depth| {
            let index = self.index(depth)?;
            let start = self.open.get(index)?.start;
            Some(Target { index, start })
        };
        let targets = table.targets().map(|depth| target(depth.ok()?));
        Some(Table {
            local,
            targets: targets.collect::<Option<_>>()?,
            default: target(table.default())?,
        })
    }

    /// The depth of the block inside a loop that the loop's table would leave for this number in this local,
    /// if it is around this place, too.
    fn forward(&self, begun: usize, number: u32, local: u32) -> Option<usize> {
        let Kind::Loop {
            table: Some(table), ..
        } = &self.open.get(begun)?.kind
        else {
            return None;
        };
        let number = usize::try_from(number).ok()?;
        let target = table.targets.get(number).unwrap_or(&table.default);
        let block = self.open.get(target.index)?;
        let is_inside = target.index > begun && matches!(block.kind, Kind::Block);
        (table.local == local && is_inside && block.start == target.start)
            .then(|| self.open.len() - 1 - target.index)
    }
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::format_push_string,
    reason = "a test, its helpers included, fails by panicking"
)]
mod tests;
