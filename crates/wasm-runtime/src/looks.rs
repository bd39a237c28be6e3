//! Looks at the time, put into a module before it is compiled, so that no call of a guest is endless.
//!
//! A look is an `if` on one byte of a memory that is not the guest's, which is set when time has passed
//! ([`crate::time`]); what it calls then ends the call, or lets it go on. Wasmtime has such looks of its own
//! (epochs), at the beginning of each function and of each loop; they are a fourth of what a small guest does
//! for a request. Most are in vain: a function without loops that calls a few others comes to its end by itself.
//! So looks are put only where something can come round, or where much comes together ([`graph`]):
//!
//! - at the beginning of each `loop`, as WebAssembly goes back in no other way;
//! - before each call through a table, or by reference, so that nobody has to know who may be called;
//! - at the beginning of functions that can come to call themselves by direct calls;
//! - at the beginning of functions that are, with all that they call, more than [`graph::MOST`] instructions.
//!
//! Whatever has a number keeps it: what is added (a type, a function, a table, a memory, and exports) comes after
//! what is there. Only places in the code move. Information for debuggers would be wrong then, and is left out;
//! [`crate::lines`] finds lines in the file as it was, by [`Places`].
//!
//! A start section becomes a function that is called first: the looks work once the instance is there.

mod graph;

use std::collections::BTreeMap;
use std::ops::Range;

use wasm_encoder::{
    BranchHint, BranchHints, CustomSection, Encode, ExportKind, Function, RawSection, RefType,
    SectionId, TableType,
};
use wasmparser::{BinaryReaderError, FunctionBody, Operator, Parser, Payload, TypeRef};

use graph::Node;

/// The number of what is done here, of which compiled code depends: another one when that changes.
pub(crate) const VERSION: u32 = 1;

/// The exports that are added. The memory whose first byte is looked at:
pub(crate) const TIME: &str = "outrider:time";
/// The table whose only place has the function that is called then:
pub(crate) const LOOK: &str = "outrider:look";
/// What was the start section, if there was one:
pub(crate) const START: &str = "outrider:start";
/// The memory again, where the file as it was has lines:
pub(crate) const LINES: &str = "outrider:lines";

/// A valid module with looks in it.
///
/// # Errors
/// It cannot be read.
pub(crate) fn put_into(module: &[u8]) -> Result<Vec<u8>, BinaryReaderError> {
    Ok(Read::new(module)?.write().0)
}

/// Where instructions were before looks were put between them.
pub(crate) struct Places<'a> {
    read: Read<'a>,
    /// Where the code section begins now.
    code: usize,
}

impl<'a> Places<'a> {
    /// Those of a module as it was.
    pub(crate) fn of(module: &'a [u8]) -> Option<Self> {
        let read = Read::new(module).ok()?;
        let (_, code) = read.write();
        Some(Self { read, code })
    }

    /// Where an instruction was that is at `place` now; for one that was put there, the one that follows it. `place`
    /// is in bytes from the file's beginning, the answer from the code section's, as debuggers count.
    pub(crate) fn origin(&self, place: usize) -> Option<usize> {
        let Read { bodies, code, .. } = &self.read;
        let size = self.read.look().bytes.len();
        let mut begin = self.code + encoded(bodies.len() + 1).len();
        for body in bodies {
            let length = body.range.len() + body.looks.len() * size;
            begin += encoded(length).len();
            if place < begin + length {
                let now = body.range.start + place.checked_sub(begin)?;
                let before = body.looks.iter().enumerate();
                let mut before = before.map_while(|(index, look)| {
                    Some((index, *look, now.checked_sub(look + index * size)?))
                });
                let was = match before.by_ref().last() {
                    None => now,
                    // Within the look, or behind it.
                    Some((_, look, past)) if past < size => look,
                    Some((index, ..)) => now - (index + 1) * size,
                };
                return was.checked_sub(code.start);
            }
            begin += length;
        }
        None
    }
}

/// A number in LEB128.
fn encoded(number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    number.encode(&mut bytes);
    bytes
}

/// A module as it is read.
struct Read<'a> {
    bytes: &'a [u8],
    /// What is in each section, by its number; custom sections are elsewhere.
    sections: BTreeMap<u8, Range<usize>>,
    custom: Vec<Custom<'a>>,
    counts: Counts,
    start: Option<u32>,
    /// The code section's place.
    code: Range<usize>,
    bodies: Vec<Body>,
    has_lines: bool,
}

/// A custom section that stays.
struct Custom<'a> {
    name: &'a str,
    data: &'a [u8],
}

/// How many there are of what is added to.
#[derive(Default)]
struct Counts {
    types: u32,
    imported_functions: u32,
    tables: u32,
    memories: u32,
}

/// A function: where its locals and instructions are, and before which of them looks come.
struct Body {
    range: Range<usize>,
    looks: Vec<usize>,
}

/// The order of sections in a module, by their numbers.
const ORDER: [SectionId; 13] = [
    SectionId::Type,
    SectionId::Import,
    SectionId::Function,
    SectionId::Table,
    SectionId::Memory,
    SectionId::Tag,
    SectionId::Global,
    SectionId::Export,
    SectionId::Start,
    SectionId::Element,
    SectionId::DataCount,
    SectionId::Code,
    SectionId::Data,
];

impl<'a> Read<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, BinaryReaderError> {
        let mut read = Self {
            bytes,
            sections: BTreeMap::new(),
            custom: Vec::new(),
            counts: Counts::default(),
            start: None,
            code: 0..0,
            bodies: Vec::new(),
            has_lines: false,
        };
        let mut nodes = Vec::new();
        for payload in Parser::new(0).parse_all(bytes) {
            let payload = payload?;
            if let Some((id, range)) = payload.as_section()
                && id != u8::from(SectionId::Custom)
            {
                read.sections.insert(id, range);
            }
            match payload {
                Payload::TypeSection(types) => {
                    for group in types {
                        read.counts.types += group?.types().len() as u32;
                    }
                }
                Payload::ImportSection(imports) => {
                    for import in imports.into_imports() {
                        match import?.ty {
                            TypeRef::Func(_) | TypeRef::FuncExact(_) => {
                                read.counts.imported_functions += 1;
                            }
                            TypeRef::Table(_) => read.counts.tables += 1,
                            TypeRef::Memory(_) => read.counts.memories += 1,
                            TypeRef::Global(_) | TypeRef::Tag(_) => {}
                        }
                    }
                }
                Payload::TableSection(tables) => read.counts.tables += tables.count(),
                Payload::MemorySection(memories) => read.counts.memories += memories.count(),
                Payload::StartSection { func, .. } => read.start = Some(func),
                Payload::CodeSectionStart { range, .. } => read.code = range,
                Payload::CodeSectionEntry(body) => {
                    let (body, node) = read_body(&body, read.counts.imported_functions)?;
                    read.bodies.push(body);
                    nodes.push(node);
                }
                Payload::CustomSection(section) => {
                    let name = section.name();
                    if name.starts_with(".debug_") {
                        read.has_lines |= name == ".debug_line";
                    } else if !name.starts_with("metadata.code.") {
                        read.custom.push(Custom {
                            name,
                            data: section.data(),
                        });
                    }
                }
                _ => {}
            }
        }
        let begins = graph::begin_with_look(&nodes);
        for ((body, node), begins) in read.bodies.iter_mut().zip(&nodes).zip(begins) {
            if begins && body.looks.first() != Some(&node.start) {
                body.looks.insert(0, node.start);
            }
        }
        Ok(read)
    }

    fn section(&self, id: SectionId) -> Option<&'a [u8]> {
        self.bytes.get(self.sections.get(&u8::from(id))?.clone())
    }

    /// The look, as it is put everywhere.
    fn look(&self) -> Look {
        let function = self.counts.imported_functions + self.bodies.len() as u32;
        Look::new(self.counts.memories, function)
    }

    /// With looks; second: where its code section begins.
    fn write(&self) -> (Vec<u8>, usize) {
        let mut module = wasm_encoder::Module::new();
        let mut code = 0;
        for id in ORDER {
            let section = self.section(id);
            let section = match id {
                SectionId::Type => Some(more(section, 1, &function_type())),
                SectionId::Function => Some(more(section, 1, &self.counts.types)),
                SectionId::Table => Some(more(section, 1, &table())),
                SectionId::Memory => Some(more(section, 1, &memory())),
                SectionId::Export => Some(self.exports(section)),
                SectionId::Start => None,
                SectionId::Code => {
                    let (bodies, hints) = self.bodies();
                    module.section(&hints);
                    // Behind the section's number and length.
                    code = module.len() + 1 + encoded(bodies.len()).len();
                    Some(bodies)
                }
                _ => section.map(<[u8]>::to_vec),
            };
            if let Some(data) = section {
                module.section(&RawSection {
                    id: id.into(),
                    data: &data,
                });
            }
        }
        for Custom { name, data } in &self.custom {
            module.section(&CustomSection {
                name: (*name).into(),
                data: (*data).into(),
            });
        }
        (module.finish(), code)
    }

    fn exports(&self, section: Option<&[u8]>) -> Vec<u8> {
        let mut count = 0;
        let mut added = Vec::new();
        let mut add = |name: &str, kind: ExportKind, index: u32| {
            name.encode(&mut added);
            kind.encode(&mut added);
            index.encode(&mut added);
            count += 1;
        };
        add(TIME, ExportKind::Memory, self.counts.memories);
        add(LOOK, ExportKind::Table, self.counts.tables);
        if let Some(start) = self.start {
            add(START, ExportKind::Func, start);
        }
        if self.has_lines {
            add(LINES, ExportKind::Memory, self.counts.memories);
        }
        more(section, count, &Bytes(&added))
    }

    /// What is in the code section, with hints that looks mostly see nothing.
    fn bodies(&self) -> (Vec<u8>, BranchHints) {
        let look = self.look();
        let mut hints = BranchHints::new();
        let mut section = encoded(self.bodies.len() + 1);
        for (index, body) in (self.counts.imported_functions..).zip(&self.bodies) {
            let length = body.range.len() + body.looks.len() * look.bytes.len();
            length.encode(&mut section);
            let begin = section.len();
            let mut from = body.range.start;
            let mut places = Vec::new();
            for place in body.looks.iter().copied() {
                section.extend_from_slice(self.bytes.get(from..place).unwrap_or_default());
                places.push(BranchHint {
                    branch_func_offset: (section.len() - begin + look.condition) as u32,
                    branch_hint_value: 0,
                });
                section.extend_from_slice(&look.bytes);
                from = place;
            }
            section.extend_from_slice(self.bytes.get(from..body.range.end).unwrap_or_default());
            if !places.is_empty() {
                hints.function_hints(index, places);
            }
        }
        let mut called = Function::new([]);
        let mut code = called.instructions();
        code.i32_const(0);
        code.call_indirect(self.counts.tables, self.counts.types)
            .end();
        called.encode(&mut section);
        (section, hints)
    }
}

/// What a look is.
struct Look {
    bytes: Vec<u8>,
    /// Where in it the condition is that a hint can be about.
    condition: usize,
}

impl Look {
    /// On a memory; it calls a function.
    fn new(memory: u32, function: u32) -> Self {
        let byte = wasm_encoder::MemArg {
            offset: 0,
            align: 0,
            memory_index: memory,
        };
        let mut bytes = Vec::new();
        let mut code = wasm_encoder::InstructionSink::new(&mut bytes);
        code.i32_const(0).i32_load8_u(byte);
        let condition = bytes.len();
        let mut code = wasm_encoder::InstructionSink::new(&mut bytes);
        code.if_(wasm_encoder::BlockType::Empty)
            .call(function)
            .end();
        Self { bytes, condition }
    }
}

/// The function whose code this is: its looks but for one at its beginning, and what it may call.
fn read_body(body: &FunctionBody<'_>, imported: u32) -> Result<(Body, Node), BinaryReaderError> {
    let mut reader = body.get_operators_reader()?;
    let mut node = Node::new(reader.original_position());
    let mut looks = Vec::new();
    while !reader.eof() {
        let (operator, place) = reader.read_with_offset()?;
        match operator {
            Operator::Loop { .. } => looks.push(reader.original_position()),
            Operator::CallIndirect { .. }
            | Operator::ReturnCallIndirect { .. }
            | Operator::CallRef { .. }
            | Operator::ReturnCallRef { .. }
                if looks.last() != Some(&place) =>
            {
                looks.push(place);
            }
            _ => {}
        }
        node.read(&operator, imported);
    }
    let range = body.range();
    Ok((Body { range, looks }, node))
}

/// The type of functions that take nothing and answer nothing.
fn function_type() -> Bytes<'static> {
    Bytes(&[0x60, 0, 0])
}

/// A table for one function.
fn table() -> TableType {
    TableType {
        element_type: RefType::FUNCREF,
        table64: false,
        minimum: 1,
        maximum: Some(1),
        shared: false,
    }
}

/// A memory of one page.
fn memory() -> wasm_encoder::MemoryType {
    wasm_encoder::MemoryType {
        minimum: 1,
        maximum: Some(1),
        memory64: false,
        shared: false,
        page_size_log2: None,
    }
}

/// What is encoded already.
struct Bytes<'a>(&'a [u8]);

impl Encode for Bytes<'_> {
    fn encode(&self, sink: &mut Vec<u8>) {
        sink.extend_from_slice(self.0);
    }
}

/// A section that is a number of entries and the entries, with `count` more of them.
fn more(section: Option<&[u8]>, count: u32, entries: &impl Encode) -> Vec<u8> {
    let mut reader = wasmparser::BinaryReader::new(section.unwrap_or(&[0]), 0);
    // It was read before.
    let before = reader.read_var_u32().unwrap_or_default();
    let rest = reader
        .read_bytes(reader.bytes_remaining())
        .unwrap_or_default();
    let mut bytes = encoded((before + count) as usize);
    bytes.extend_from_slice(rest);
    entries.encode(&mut bytes);
    bytes
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test, its helpers included, fails by panicking"
)]
mod tests;
