//! Limits of a module, checked before it is compiled: they bound the memory and the time of the compilation, which are
//! Envoy's where the cache does not have the code.
//!
//! Cranelift keeps some 5 KB for each function however short, some 200 bytes for each byte of a function while it compiles it,
//! and takes more than linear time for long functions. The limits are well above what compilers make of
//! plugins.

use wasmparser::{Parser, Payload};

/// Bytes of one function.
const FUNCTION: usize = 1024 * 1024;
/// Functions of a module.
const FUNCTIONS: u32 = 65_536;
/// Bytes of all functions.
const CODE: usize = 64 * 1024 * 1024;
/// Local variables of one function.
const LOCALS: u32 = 20_000;
/// Local variables of all functions.
const ALL_LOCALS: u64 = 8_000_000;
/// Blocks, loops and branches of one function.
const BRANCHES: usize = 100_000;
/// Types, imports, exports, globals, and segments of elements and data; of each.
const ENTRIES: u32 = 100_000;

/// Refuses a module that would take too much memory or time to compile. What cannot be read is left to the compiler's
/// validation.
///
/// # Errors
/// The limit that the module exceeds; the text goes on after the file's name.
pub(crate) fn check(module: &[u8]) -> Result<(), String> {
    let mut code = 0;
    let mut locals = 0;
    let mut index = 0_u32;
    for payload in Parser::new(0).parse_all(module) {
        match payload {
            Ok(Payload::TypeSection(section)) => at_most("types", section.count(), ENTRIES)?,
            Ok(Payload::ImportSection(section)) => at_most("imports", section.count(), ENTRIES)?,
            Ok(Payload::GlobalSection(section)) => at_most("globals", section.count(), ENTRIES)?,
            Ok(Payload::ExportSection(section)) => at_most("exports", section.count(), ENTRIES)?,
            Ok(Payload::ElementSection(section)) => {
                at_most("element segments", section.count(), ENTRIES)?;
            }
            Ok(Payload::DataSection(section)) => {
                at_most("data segments", section.count(), ENTRIES)?;
            }
            Ok(Payload::FunctionSection(section)) => {
                at_most("functions", section.count(), FUNCTIONS)?;
            }
            Ok(Payload::CodeSectionEntry(body)) => {
                let size = body.range().len();
                code += size;
                if size > FUNCTION {
                    return Err(refusal(&format!(
                        "its function {index} (of those with code) has {size} bytes, and the limit is {FUNCTION}"
                    )));
                }
                if code > CODE {
                    return Err(refusal(&format!(
                        "its functions have more than {CODE} bytes together"
                    )));
                }
                let own = own_locals(&body);
                locals += u64::from(own);
                if own > LOCALS || locals > ALL_LOCALS {
                    return Err(refusal(&format!(
                        "its function {index} (of those with code) has {own} local variables, and the limit is \
                         {LOCALS}, and {ALL_LOCALS} for all functions"
                    )));
                }
                if size > BRANCHES && branches(&body) > BRANCHES {
                    return Err(refusal(&format!(
                        "its function {index} (of those with code) has more than {BRANCHES} branches"
                    )));
                }
                index += 1;
            }
            Ok(_) => {}
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}

fn at_most(what: &str, count: u32, most: u32) -> Result<(), String> {
    if count <= most {
        return Ok(());
    }
    Err(refusal(&format!(
        "it has {count} {what}, and the limit is {most}"
    )))
}

fn refusal(problem: &str) -> String {
    format!(
        "is not compiled, because it would take too much memory and time: {problem}; split the function, or leave out \
         code that the plugin does not need"
    )
}

fn own_locals(body: &wasmparser::FunctionBody<'_>) -> u32 {
    let groups = body.get_locals_reader().into_iter().flatten();
    groups
        .filter_map(Result::ok)
        .fold(0, |sum: u32, (count, _)| sum.saturating_add(count))
}

/// Returns the number of a function's blocks and branches, with each target of a table.
fn branches(body: &wasmparser::FunctionBody<'_>) -> usize {
    use wasmparser::Operator as Op;
    let operators = body.get_operators_reader().into_iter().flatten();
    operators
        .filter_map(Result::ok)
        .map(|operator| match operator {
            Op::Block { .. }
            | Op::Loop { .. }
            | Op::If { .. }
            | Op::Else
            | Op::Br { .. }
            | Op::BrIf { .. }
            | Op::Call { .. }
            | Op::CallIndirect { .. } => 1,
            Op::BrTable { targets } => 1 + targets.len() as usize,
            _ => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        check(&wat::parse_str(format!("(module {text})")).unwrap()).unwrap_err()
    }

    #[test]
    fn modules_over_a_limit_are_refused_with_the_limit() {
        let nops = |count: usize| "nop ".repeat(count);
        for (text, words) in [
            (
                format!("(func) (func {})", nops(FUNCTION)),
                "function 1 (of those with code) has",
            ),
            ("(func)".repeat(FUNCTIONS as usize + 1), "65537 functions"),
            (
                format!("(func (local {}))", "i32 ".repeat(LOCALS as usize + 1)),
                "20001 local variables",
            ),
            (
                format!("(func {})", "(block)".repeat(BRANCHES + 1)),
                "more than 100000 branches",
            ),
            (
                format!(
                    "(func (br_table {} (i32.const 0)))",
                    "0 ".repeat(BRANCHES + 1)
                ),
                "more than 100000 branches",
            ),
            (
                "(global i32 (i32.const 0))".repeat(ENTRIES as usize + 1),
                "100001 globals",
            ),
        ] {
            let refusal = refused(&text);
            assert!(refusal.contains(words), "{words}: {refusal}");
        }
    }

    #[test]
    fn modules_within_the_limits_and_unreadable_ones_are_left_to_the_compiler() {
        let text = format!("(module (func {}))", "nop ".repeat(FUNCTION - 8));
        assert_eq!(check(&wat::parse_str(text).unwrap()), Ok(()));
        assert_eq!(check(b"\0asm\x01\0\0\0\x0a\xff\xff"), Ok(()));
    }
}
