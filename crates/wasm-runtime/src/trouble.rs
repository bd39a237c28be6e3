//! What went wrong in a guest, in words: which of its functions, called for what, and where in it.

use outrider_plugin_api::Cause;
use wasmtime::{FrameInfo, Trap, WasmBacktrace};

use crate::host::wasi::Exit;
use crate::own_modules;

/// A call of a guest that did not return. Small, as every call may answer it.
#[derive(Debug)]
pub(crate) struct Trouble(Box<What>);

#[derive(Debug)]
struct What {
    function: &'static str,
    error: wasmtime::Error,
    lacked_memory: bool,
}

/// How many of the guest's functions a message names.
const FRAMES: usize = 8;

impl Trouble {
    /// The callback `function` ended with an error. `lacked_memory`: the guest was refused memory during the call.
    #[cold]
    pub(crate) fn new(function: &'static str, error: wasmtime::Error, lacked_memory: bool) -> Self {
        Self(Box::new(What {
            function,
            error,
            lacked_memory,
        }))
    }

    /// A host function did not end within the time budget of its call.
    #[cold]
    pub(crate) fn late() -> Self {
        Self::new("a host function", Trap::Interrupt.into(), false)
    }

    fn trap(&self) -> Option<Trap> {
        self.0.error.downcast_ref::<Trap>().copied()
    }

    /// Why, as failure policies tell it.
    pub(crate) fn cause(&self) -> Cause {
        match self.trap() {
            Some(Trap::Interrupt) => Cause::Time,
            _ if self.0.lacked_memory => Cause::Memory,
            _ => Cause::Error,
        }
    }

    /// The code with which the guest ended itself, if it did.
    pub(crate) fn exit_code(&self) -> Option<i32> {
        self.0.error.downcast_ref::<Exit>().map(|exit| exit.0)
    }

    /// What happened, and in which of the guest's functions; `budget` is what a call may take.
    pub(crate) fn message(&self, file: &str, budget: std::time::Duration) -> String {
        let what = match self.trap() {
            Some(Trap::Interrupt) => {
                format!("it used up its time budget of {} ms", budget.as_millis())
            }
            Some(Trap::UnreachableCodeReached) => {
                "it ended itself (`unreachable`: a panic, an abort, or a failed assertion)"
                    .to_owned()
            }
            Some(trap) => trap.to_string(),
            None => self.0.error.root_cause().to_string(),
        };
        let memory = if self.0.lacked_memory {
            ", after it was refused memory beyond its budget"
        } else {
            ""
        };
        let place = self.place();
        format!("{file}: {}: {what}{memory}{place}", self.0.function)
    }

    fn place(&self) -> String {
        let Some(backtrace) = self.0.error.downcast_ref::<WasmBacktrace>() else {
            return String::new();
        };
        let names: Vec<String> = backtrace
            .frames()
            .iter()
            .filter(|frame| !own_modules::is_own(frame.module()))
            .take(FRAMES)
            .map(described)
            .collect();
        if names.is_empty() {
            String::new()
        } else {
            format!("; in {}", names.join(", called by "))
        }
    }
}

/// One of the guest's functions, with file and line where the module has DWARF.
fn described(frame: &FrameInfo) -> String {
    let symbol = frame.symbols().first();
    let name = symbol
        .and_then(|symbol| symbol.name())
        .or(frame.func_name());
    let name = match name {
        Some(name) => format!("{:#}", rustc_demangle::demangle(name)),
        None => format!("function {}", frame.func_index()),
    };
    match symbol.and_then(|symbol| Some((symbol.file()?, symbol.line()?))) {
        Some((file, line)) => format!("{name} ({file}:{line})"),
        None => name,
    }
}
