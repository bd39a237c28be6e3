//! Callbacks that follow each other at once, called as one: to enter a guest costs more than most of its
//! callbacks do.
//!
//! A stream that begins with its request's headers begins with two callbacks, and each ends with three. A module
//! of ours, instantiated beside the guest, imports these callbacks and exports a function for each of the two
//! sequences. Its global says how far a sequence is. What changes for the guest from one callback to the next is
//! done by the first host function that it calls after that ([`follow`]); mostly it calls none.

use std::sync::LazyLock;

use outrider_plugin_api::HeaderMap;
use wasm_encoder::{
    CodeSection, ConstExpr, EntityType, ExportKind, ExportSection, Function, FunctionSection,
    GlobalSection, GlobalType, ImportSection, InstructionSink, TypeSection, ValType,
};
use wasmtime::{AsContextMut, Extern, Global, Instance, Module, Store, TypedFunc};

use crate::exports::{Exports, OnHeaders};
use crate::guest_memory::Guest;
use crate::own_modules;
use crate::state::{Gate, Moment, State};
use crate::trouble::Trouble;

/// How far a sequence is: the callback that runs, or ran last.
type Stage = i32;

const BEGIN: [&str; 2] = ["proxy_on_context_create", "proxy_on_request_headers"];
const END: [&str; 3] = ["proxy_on_log", "proxy_on_done", "proxy_on_delete"];
const HEADERS: Stage = 1;
const DONE: Stage = 1;
const DELETE: Stage = 2;

/// The sequences of one guest.
pub(crate) struct Sequences {
    begin: TypedFunc<(i32, i32, i32, i32), i32>,
    end: TypedFunc<i32, ()>,
    stage: Global,
}

impl Sequences {
    /// Those of a guest that has all the callbacks; others are called one by one.
    pub(crate) fn of(exports: &Exports, store: &mut Store<State>) -> Option<Self> {
        let OnHeaders::CountedAndEnd(headers) = &exports.on_request_headers else {
            return None;
        };
        let callbacks: [Extern; 5] = [
            (*exports.on_context_create.as_ref()?.func()).into(),
            (*headers.func()).into(),
            (*exports.on_log.as_ref()?.func()).into(),
            (*exports.on_done.as_ref()?.func()).into(),
            (*exports.on_delete.as_ref()?.func()).into(),
        ];
        let module = COMPILED.as_ref()?;
        let own = Instance::new(&mut *store, module, &callbacks).ok()?;
        let stage = own.get_global(&mut *store, "stage")?;
        store.data_mut().stage = Some(stage);
        Some(Self {
            begin: own.get_typed_func(&mut *store, "begin").ok()?,
            end: own.get_typed_func(&mut *store, "end").ok()?,
            stage,
        })
    }

    /// `proxy_on_context_create` and `proxy_on_request_headers`, for the context that the guest acts for: its
    /// number, its root's, how many headers there are, and whether nothing follows them. Answers what the
    /// second one answered.
    #[inline]
    pub(crate) fn begin(
        &self,
        store: &mut Store<State>,
        arguments: (i32, i32, i32, i32),
    ) -> Result<i32, Trouble> {
        store.data_mut().gate.set(Gate::BEGINNING);
        match self.begin.call(&mut *store, arguments) {
            Ok(answer) => {
                let state = store.data_mut();
                if state.gate.has(Gate::BEGINNING) {
                    reach(state, HEADERS);
                }
                Ok(answer)
            }
            Err(error) => Err(self.failed(store, &BEGIN, error)),
        }
    }

    /// `proxy_on_log`, `proxy_on_done` and `proxy_on_delete`.
    #[inline]
    pub(crate) fn end(&self, store: &mut Store<State>, context: i32) -> Result<(), Trouble> {
        store.data_mut().gate.set(Gate::ENDING);
        match self.end.call(&mut *store, context) {
            Ok(()) => {
                store.data_mut().gate.unset(Gate::ENDING);
                Ok(())
            }
            Err(error) => Err(self.failed(store, &END, error)),
        }
    }

    #[cold]
    fn failed(
        &self,
        store: &mut Store<State>,
        names: &[&'static str],
        error: wasmtime::Error,
    ) -> Trouble {
        let stage = stage_of(self.stage, &mut *store);
        let name = usize::try_from(stage).ok().and_then(|at| names.get(at));
        let lacked_memory = store.data().limits.refused;
        Trouble::new(
            name.copied().unwrap_or("a sequence of callbacks"),
            error,
            lacked_memory,
        )
    }
}

fn stage_of(global: Global, store: impl AsContextMut) -> Stage {
    global.get(store).i32().unwrap_or_default()
}

/// A host function is called within a sequence: for the guest it is as far as its callback is.
#[cold]
pub(crate) fn follow(guest: &mut Guest<'_>) {
    if let Some(global) = guest.data().stage {
        let stage = stage_of(global, &mut *guest);
        reach(guest.data_mut(), stage);
    }
}

/// Makes the changes between callbacks, up to a stage.
fn reach(state: &mut State, stage: Stage) {
    if state.gate.has(Gate::BEGINNING) && stage >= HEADERS {
        state.gate.unset(Gate::BEGINNING);
        state.map_comes(HeaderMap::RequestHeaders);
    }
    if state.gate.has(Gate::ENDING) {
        if stage >= DONE && state.moment == Moment::Log {
            state.done_comes();
        }
        if stage >= DELETE {
            state.gate.unset(Gate::ENDING);
            state.effective = state.own_id;
        }
    }
}

/// The same for all guests.
static COMPILED: LazyLock<Option<Module>> = LazyLock::new(compiled);

/// The module: five callbacks that it imports, a global, and two functions.
fn compiled() -> Option<Module> {
    const I32: ValType = ValType::I32;
    let mut types = TypeSection::new();
    let mut number = 0;
    let mut typed = |parameters: usize, results: usize| {
        types
            .ty()
            .function(vec![I32; parameters], vec![I32; results]);
        number += 1;
        number - 1
    };
    let callbacks = [
        typed(2, 0),
        typed(3, 1),
        typed(1, 0),
        typed(1, 1),
        typed(1, 0),
    ];
    let own = [typed(4, 1), typed(1, 0)];

    let mut imports = ImportSection::new();
    for (name, kind) in BEGIN.iter().chain(&END).zip(callbacks) {
        imports.import("guest", name, EntityType::Function(kind));
    }
    let mut functions = FunctionSection::new();
    for kind in own {
        functions.function(kind);
    }
    let mut globals = GlobalSection::new();
    let kind = GlobalType {
        val_type: I32,
        mutable: true,
        shared: false,
    };
    globals.global(kind, &ConstExpr::i32_const(0));
    let mut exports = ExportSection::new();
    exports
        .export("begin", ExportKind::Func, 5)
        .export("end", ExportKind::Func, 6)
        .export("stage", ExportKind::Global, 0);

    let stage = |code: &mut InstructionSink<'_>, stage: Stage| {
        code.i32_const(stage).global_set(0);
    };
    let mut begin = Function::new([]);
    let mut code = begin.instructions();
    stage(&mut code, 0);
    code.local_get(0).local_get(1).call(0);
    stage(&mut code, HEADERS);
    code.local_get(0).local_get(2).local_get(3).call(1).end();
    let mut end = Function::new([]);
    let mut code = end.instructions();
    stage(&mut code, 0);
    code.local_get(0).call(2);
    stage(&mut code, DONE);
    // As in Envoy, a stream is over whatever it answers.
    code.local_get(0).call(3).drop();
    stage(&mut code, DELETE);
    code.local_get(0).call(4).end();
    let mut bodies = CodeSection::new();
    bodies.function(&begin).function(&end);

    let mut module = wasm_encoder::Module::new();
    module
        .section(&types)
        .section(&imports)
        .section(&functions)
        .section(&globals)
        .section(&exports)
        .section(&bodies);
    own_modules::compile(module)
}
