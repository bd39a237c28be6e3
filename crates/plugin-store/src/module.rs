//! WebAssembly modules as files: read whole, and looked at as far as telling what else a file may be, or
//! that its end is missing. Whether the module is valid is the runtime's to say.

use std::path::Path;

use outrider_plugin_formats::{Problem, WasmModule};

use crate::problems::of_whole;
use crate::read;

/// The largest file that is read.
const LARGEST: u64 = 256 * 1024 * 1024;
/// The first bytes of every binary of WebAssembly, of modules and of components.
const MAGIC: &[u8] = b"\0asm";
/// The version that follows in a module.
const MODULE: [u8; 4] = [1, 0, 0, 0];
/// What stands in the upper half of that version in a component.
const COMPONENT_LAYER: [u8; 2] = [1, 0];

/// Reads the module in `file`.
pub(crate) fn read(file: &Path) -> Result<WasmModule, Problem> {
    let bytes = read::bytes(file, LARGEST).map_err(|why| {
        let too_large = (
            "this module is larger than 256 MiB",
            "build it with optimisation, and without debug information",
        );
        why.problem(file, too_large)
    })?;
    look(&bytes).map_err(|(message, mend)| of_whole(file, message, Some(mend)))?;
    Ok(WasmModule {
        file: file.display().to_string(),
        bytes: bytes.into(),
    })
}

/// What is wrong with a module, and how to mend it.
pub(crate) fn look(bytes: &[u8]) -> Result<(), (&'static str, &'static str)> {
    const BUILD: &str = "build it again";
    if bytes.is_empty() {
        return Err(("this file is empty", BUILD));
    }
    let Some(rest) = bytes.strip_prefix(MAGIC) else {
        return Err(if MAGIC.starts_with(bytes) {
            ("this WebAssembly module is cut off at its beginning", BUILD)
        } else if is_text_form(bytes) {
            (
                "this is WebAssembly's text form, which nothing runs",
                "translate it first: `wat2wasm`, or `wasm-tools parse`",
            )
        } else if bytes.starts_with(&[0x1f, 0x8b]) {
            (
                "this is not a WebAssembly module, but compressed by gzip",
                "unpack it first",
            )
        } else {
            (
                "this is not a WebAssembly module",
                "name the file that your compiler made for a WebAssembly target",
            )
        });
    };
    let Some((version, sections)) = rest.split_first_chunk::<4>() else {
        return Err(("this WebAssembly module is cut off at its beginning", BUILD));
    };
    if version.ends_with(&COMPONENT_LAYER) {
        return Err((
            "this is a WebAssembly component, and Proxy-Wasm plugins are modules",
            "build a module: for a target such as wasm32-wasip1, not wasm32-wasip2",
        ));
    }
    if *version != MODULE {
        return Err((
            "this WebAssembly module is of a version other than 1",
            "build it with a current compiler",
        ));
    }
    if is_whole(sections) {
        Ok(())
    } else {
        Err(("this WebAssembly module is cut off", BUILD))
    }
}

fn is_text_form(bytes: &[u8]) -> bool {
    let text = bytes.trim_ascii_start();
    text.starts_with(b"(module") || text.starts_with(b";;") || text.starts_with(b"(;")
}

/// Whether sections follow each other up to the last byte. Each is a number, its size as LEB128, and so
/// many bytes.
fn is_whole(mut sections: &[u8]) -> bool {
    while let Some((_, rest)) = sections.split_first() {
        let Some((size, rest)) = leb128(rest) else {
            return false;
        };
        let Some(rest) = usize::try_from(size).ok().and_then(|size| rest.get(size..)) else {
            return false;
        };
        sections = rest;
    }
    true
}

/// An unsigned LEB128 number of 32 bits, and what follows it.
fn leb128(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let mut number = 0_u64;
    for (index, byte) in bytes.iter().take(5).enumerate() {
        number |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((u32::try_from(number).ok()?, bytes.get(index + 1..)?));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &[u8] = b"\0asm\x01\0\0\0";

    #[test]
    fn sections_have_to_end_with_the_file() {
        assert_eq!(look(EMPTY), Ok(()));
        let module = [EMPTY, &[0, 2, 1, b'a', 0, 0x83, 0, 1, b'b', 9]].concat();
        assert_eq!(look(&module), Ok(()));
        for length in 1..module.len() {
            // Only between two sections can a cut not be seen.
            let seen = look(&module[..length]).is_err();
            assert_eq!(seen, ![8, 12].contains(&length), "{length}");
        }
        let endless = [EMPTY, &[0, 0x80, 0x80, 0x80, 0x80, 0x80, 0]].concat();
        assert!(look(&endless).is_err());
        let huge = [EMPTY, &[0, 0xff, 0xff, 0xff, 0xff, 0x0f]].concat();
        assert!(look(&huge).is_err());
    }
}
