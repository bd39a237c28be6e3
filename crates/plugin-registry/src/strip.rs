//! Removes from a WebAssembly module what only people and debuggers read.

use wasm_encoder::{Module, RawSection};
use wasmparser::{Parser, Payload};

use crate::error::FetchError;

/// A module without its names and debug information.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stripped {
    /// The module.
    pub module: Vec<u8>,
    /// Names of the custom sections that were removed, with their bytes.
    pub removed: Vec<(String, usize)>,
}

/// Whether a custom section says nothing to a host of plugins.
fn is_for_people(name: &str) -> bool {
    name == "name"
        || name == "producers"
        || name == "sourceMappingURL"
        || name == "external_debug_info"
        || name == "linking"
        || name.starts_with(".debug_")
        || name.starts_with("reloc.")
}

/// Removes the custom sections with names, debug information and relocations. Everything else stays, to the byte.
///
/// # Errors
/// The bytes are no module.
pub fn strip(module: &[u8]) -> Result<Stripped, FetchError> {
    let malformed = |error: wasmparser::BinaryReaderError| {
        FetchError::new(format!("this is not a WebAssembly module: {error}"))
    };
    if let Err((message, mend)) = outrider_plugin_store::check_module(module) {
        return Err(FetchError::new(message).mend(mend));
    }
    let mut stripped = Module::new();
    let mut removed = Vec::new();
    for payload in Parser::new(0).parse_all(module) {
        let payload = payload.map_err(malformed)?;
        if let Payload::CustomSection(section) = &payload
            && is_for_people(section.name())
        {
            removed.push((section.name().to_owned(), section.range().len()));
            continue;
        }
        if let Some((id, range)) = payload.as_section() {
            let data = module.get(range).unwrap_or_default();
            stripped.section(&RawSection { id, data });
        }
    }
    Ok(Stripped {
        module: stripped.finish(),
        removed,
    })
}

#[cfg(test)]
mod tests {
    use wasm_encoder::{CustomSection, TypeSection};

    use super::*;

    #[test]
    fn names_and_debug_sections_are_removed_and_the_rest_stays() {
        let mut types = TypeSection::new();
        types.ty().function([], []);
        let custom = |name: &'static str| CustomSection {
            name: name.into(),
            data: b"some bytes".into(),
        };
        let mut whole = Module::new();
        whole
            .section(&types)
            .section(&custom("name"))
            .section(&custom(".debug_info"));
        whole
            .section(&custom("my-contract"))
            .section(&custom("producers"));
        let mut expected = Module::new();
        expected.section(&types).section(&custom("my-contract"));
        let stripped = strip(&whole.finish()).unwrap();
        assert_eq!(stripped.module, expected.finish());
        let names: Vec<&str> = stripped
            .removed
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(names, ["name", ".debug_info", "producers"]);
        // Once more changes nothing.
        let again = strip(&stripped.module).unwrap();
        assert_eq!((again.module, again.removed.len()), (stripped.module, 0));
    }

    #[test]
    fn text_and_truncated_modules_are_refused() {
        assert!(strip(b"(module)").is_err());
        assert!(strip(b"\0asm\x01\0\0\0\x01\x05\x60").is_err());
    }
}
