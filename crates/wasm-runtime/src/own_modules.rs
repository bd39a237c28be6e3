//! Modules of ours that run beside guests: how they are made, and told from guests in backtraces.

use wasm_encoder::NameSection;
use wasmtime::Module;

use crate::engine::engine;

/// The name that each of them has.
const NAME: &str = "outrider's own";

/// Names and compiles a module of ours; none: this machine cannot.
pub(crate) fn compile(mut module: wasm_encoder::Module) -> Option<Module> {
    let mut names = NameSection::new();
    names.module(NAME);
    module.section(&names);
    Module::new(engine().ok()?, module.finish()).ok()
}

/// Whether a module is one of ours.
pub(crate) fn is_own(module: &Module) -> bool {
    module.name() == Some(NAME)
}
