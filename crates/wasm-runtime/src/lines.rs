//! In which function and line of its source an instruction of a guest is, where its file says so (DWARF).
//!
//! Read when something has gone wrong, and only then: large files have much of it.

use std::sync::OnceLock;

use addr2line::Context;
use addr2line::gimli::{Dwarf, EndianSlice, Error, LittleEndian, SectionId};
use wasmparser::{Parser, Payload};

use crate::looks::Places;
use crate::source::WasmModule;

/// Those of a plugin's file.
#[derive(Debug)]
pub(crate) struct Lines {
    file: WasmModule,
    /// Its bytes, once they were needed; none: they cannot be had any more.
    bytes: OnceLock<Option<std::sync::Arc<[u8]>>>,
}

/// Where an instruction comes from.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The function's name, as its compiler wrote it; of functions within each other the innermost.
    pub(crate) function: Option<String>,
    /// File and line.
    pub(crate) line: Option<(String, u32)>,
}

impl Lines {
    pub(crate) fn new(file: WasmModule) -> Self {
        Self {
            file,
            bytes: OnceLock::new(),
        }
    }

    /// Where instructions come from, by their places in what is compiled, in bytes. None for all: the file says
    /// nothing, or cannot be had any more.
    pub(crate) fn origins(&self, places: &[Option<usize>]) -> Vec<Option<Origin>> {
        let bytes = self.bytes.get_or_init(|| self.file.bytes().ok());
        let read = bytes.as_deref().and_then(|bytes| origins(bytes, places));
        read.unwrap_or_else(|| places.iter().map(|_| None).collect())
    }
}

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

fn origins(file: &[u8], places: &[Option<usize>]) -> Option<Vec<Option<Origin>>> {
    let was = Places::of(file)?;
    let sections: Vec<(&str, &[u8])> = Parser::new(0)
        .parse_all(file)
        .filter_map(|payload| match payload {
            Ok(Payload::CustomSection(section)) => Some((section.name(), section.data())),
            _ => None,
        })
        .collect();
    let load = |id: SectionId| -> Result<Bytes<'_>, Error> {
        let found = sections.iter().find(|(name, _)| *name == id.name());
        let data = found.map_or(&[][..], |(_, data)| data);
        Ok(EndianSlice::new(data, LittleEndian))
    };
    let context = Context::from_dwarf(Dwarf::load(load).ok()?).ok()?;
    let find = |place: &Option<usize>| find(&context, was.origin((*place)?)?);
    Some(places.iter().map(find).collect())
}

fn find(context: &Context<Bytes<'_>>, address: usize) -> Option<Origin> {
    let frames = context.find_frames(address as u64);
    let frame = frames.skip_all_loads().ok()?.next().ok()??;
    let name = frame.function.as_ref();
    let place = frame.location.as_ref();
    Some(Origin {
        function: name
            .and_then(|name| name.raw_name().ok())
            .map(std::borrow::Cow::into_owned),
        line: place.and_then(|place| Some((place.file?.to_owned(), place.line?))),
    })
}
