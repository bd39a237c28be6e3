//! Room in the guest's memory for what host functions hand over, made without entering the guest anew.
//!
//! A host function that hands bytes over needs the guest's allocator. To call it from there costs several times
//! what the allocator does. So a module of ours stands between the guest and those host functions that hand over
//! most often: its functions call ours, which answers with a status, or with how many bytes it has for the guest
//! ([`Asking`]); then they call the guest's allocator, as one guest's function calls another, and last a host
//! function that puts the bytes there.
//!
//! Where calls are traced, and for guests without an allocator, host functions are called without it, and call the
//! allocator themselves.

use std::sync::LazyLock;

use wasm_encoder::{
    BlockType, CodeSection, EntityType, ExportKind, ExportSection, Function, FunctionSection,
    ImportSection, RefType, TableSection, TableType, TypeSection, ValType,
};
use wasmtime::{Caller, Instance, Linker, Module, Ref, Store};

use crate::guest_memory::{Guest, put};
use crate::host::{buffers, guarded, headers, properties};
use crate::own_modules;
use crate::state::{Gate, State};

/// Where its imports are found. Guests cannot import from there.
const HOST: &str = "outrider";
const HAND_OVER: &str = "hand_over";
/// The table that the guest's allocator is put into.
const ALLOCATOR: &str = "allocator";

/// Whether the host function that runs lets the bytes that it hands over be fetched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Asking {
    /// No: it calls the allocator.
    #[default]
    No,
    /// Yes.
    Yes,
    /// Yes, and there are some, to be told of at two places of the guest's memory: where they are, and how many.
    Has(i32, i32),
}

macro_rules! functions {
    ($($name:ident($($argument:ident),*) = $function:path;)*) => {
        /// The host functions that it stands before, with how many parameters each has.
        const FUNCTIONS: &[(&str, usize)] = &[
            $((stringify!($name), [$(stringify!($argument)),*].len()),)*
        ];

        fn define(linker: &mut Linker<State>) -> wasmtime::Result<()> {
            $(
                linker.func_wrap(
                    HOST,
                    stringify!($name),
                    |mut caller: Caller<'_, State>, $($argument: i32),*| -> wasmtime::Result<i32> {
                        let state = caller.data_mut();
                        state.asking = Asking::Yes;
                        let status = if state.gate.is_open() {
                            $function(&mut caller, $($argument),*)? as i32
                        } else {
                            guarded("env", stringify!($name), &mut caller, &[], |caller| {
                                Ok($function(caller, $($argument),*)? as i32)
                            })?
                        };
                        Ok(asked(caller.data_mut(), status))
                    },
                )?;
            )*
            linker.func_wrap(HOST, HAND_OVER, hand_over)?;
            Ok(())
        }
    };
}

functions! {
    proxy_get_header_map_value(map, key, key_length, value, length) = headers::get;
    proxy_get_header_map_pairs(map, pairs, length) = headers::get_pairs;
    proxy_get_buffer_bytes(buffer, start, most, value, length) = buffers::get;
    proxy_get_property(path, path_length, value, length) = properties::get;
}

/// What the host function answers: its status, or below 0 how many bytes it has.
#[inline]
fn asked(state: &mut State, status: i32) -> i32 {
    let Asking::Has(pointer_place, length_place) = std::mem::take(&mut state.asking) else {
        return status;
    };
    state.places = (pointer_place, length_place);
    // Nothing that is allowed meanwhile may touch them.
    std::mem::swap(&mut state.scratch, &mut state.handed);
    state.gate.set(Gate::ALLOCATING);
    // It was seen that the length is one of 31 bits.
    -(state.handed.len() as u32).cast_signed()
}

/// The guest's allocator has made room.
fn hand_over(mut guest: Guest<'_>, pointer: i32) -> wasmtime::Result<i32> {
    let state = guest.data_mut();
    state.gate.unset(Gate::ALLOCATING);
    let (pointer_place, length_place) = state.places;
    std::mem::swap(&mut state.scratch, &mut state.handed);
    Ok(put(&mut guest, pointer, pointer_place, length_place)? as i32)
}

/// The module between guests and host functions.
pub(crate) struct Room(Linker<State>);

impl Room {
    /// For the guests of a module; `linker` has what it may import. None: there is no need for it, or no way.
    pub(crate) fn of(module: &Module, linker: &Linker<State>) -> Option<Self> {
        let stands_before = |name: &str| FUNCTIONS.iter().any(|(known, _)| *known == name);
        let mut imports = module.imports();
        if !imports.any(|import| import.module() == "env" && stands_before(import.name())) {
            return None;
        }
        COMPILED.as_ref()?;
        let mut linker = linker.clone();
        define(&mut linker).ok()?;
        linker.allow_shadowing(true);
        Some(Self(linker))
    }

    /// Instantiates the guest behind it. The inner error is the guest's own.
    pub(crate) fn instantiate(
        &self,
        store: &mut Store<State>,
        guest: &Module,
    ) -> Option<(wasmtime::Result<Instance>, Instance)> {
        let own = self.0.instantiate(&mut *store, COMPILED.as_ref()?).ok()?;
        let mut linker = self.0.clone();
        for (name, _) in FUNCTIONS {
            let function = own.get_func(&mut *store, name)?;
            linker.define(&mut *store, "env", name, function).ok()?;
        }
        Some((linker.instantiate(&mut *store, guest), own))
    }

    /// From now on `own` makes room with the allocator.
    pub(crate) fn open(own: Instance, store: &mut Store<State>, allocator: wasmtime::Func) {
        if let Some(table) = own.get_table(&mut *store, ALLOCATOR) {
            let set = table.set(&mut *store, 0, Ref::Func(Some(allocator)));
            debug_assert!(set.is_ok(), "the table has one place, for functions");
        }
    }
}

/// The same for all guests.
static COMPILED: LazyLock<Option<Module>> = LazyLock::new(compiled);

fn compiled() -> Option<Module> {
    const I32: ValType = ValType::I32;
    let mut types = TypeSection::new();
    // The allocator's, and that of `hand_over`.
    types.ty().function([I32], [I32]);
    let mut imports = ImportSection::new();
    imports.import(HOST, HAND_OVER, EntityType::Function(0));
    let mut functions = FunctionSection::new();
    let mut exports = ExportSection::new();
    let mut bodies = CodeSection::new();
    let first = FUNCTIONS.len() as u32 + 1;
    for (index, (name, parameters)) in (0_u32..).zip(FUNCTIONS) {
        types.ty().function(vec![I32; *parameters], [I32]);
        imports.import(HOST, name, EntityType::Function(index + 1));
        functions.function(index + 1);
        exports.export(name, ExportKind::Func, first + index);
        let answer = *parameters as u32;
        let mut body = Function::new([(1, I32)]);
        let mut code = body.instructions();
        for parameter in 0..answer {
            code.local_get(parameter);
        }
        code.call(index + 1).local_tee(answer);
        code.i32_const(0).i32_lt_s().if_(BlockType::Result(I32));
        code.i32_const(0).local_get(answer).i32_sub();
        code.i32_const(0).call_indirect(0, 0).call(0);
        code.else_().local_get(answer).end().end();
        bodies.function(&body);
    }
    exports.export(ALLOCATOR, ExportKind::Table, 0);
    let mut tables = TableSection::new();
    tables.table(TableType {
        element_type: RefType::FUNCREF,
        table64: false,
        minimum: 1,
        maximum: Some(1),
        shared: false,
    });
    let mut module = wasm_encoder::Module::new();
    module
        .section(&types)
        .section(&imports)
        .section(&functions)
        .section(&tables)
        .section(&exports)
        .section(&bodies);
    own_modules::compile(module)
}
