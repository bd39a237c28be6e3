//! What went wrong in a guest, in words: which of its functions, called for what, and where in it.

use outrider_plugin_api::Cause;
use wasmtime::{FrameInfo, Trap, WasmBacktrace};

use crate::host::wasi::Exit;
use crate::lines::{Lines, Origin};
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

    /// What happened, and in which of the guest's functions; `budget` is what a call may take. `lines`: where there
    /// may be some.
    pub(crate) fn message(
        &self,
        file: &str,
        budget: std::time::Duration,
        lines: Option<&Lines>,
    ) -> String {
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
        let place = self.place(lines);
        format!("{file}: {}: {what}{memory}{place}", self.0.function)
    }

    fn place(&self, lines: Option<&Lines>) -> String {
        let Some(backtrace) = self.0.error.downcast_ref::<WasmBacktrace>() else {
            return String::new();
        };
        // A call whose time is over was in the function of a look, which is not the guest's.
        let looks = usize::from(self.trap() == Some(Trap::Interrupt));
        let frames: Vec<&FrameInfo> = backtrace
            .frames()
            .iter()
            .filter(|frame| !own_modules::is_own(frame.module()))
            .skip(looks)
            .take(FRAMES)
            .collect();
        let places: Vec<_> = frames.iter().map(|frame| frame.module_offset()).collect();
        let origins = lines
            .map(|lines| lines.origins(&places))
            .unwrap_or_default();
        let mut origins = origins.into_iter();
        let names: Vec<String> = frames
            .iter()
            .map(|frame| written(frame, origins.next().flatten().unwrap_or_default()))
            .collect();
        if names.is_empty() {
            String::new()
        } else {
            format!("; in {}", names.join(", called by "))
        }
    }
}

/// One of the guest's functions, and where in it.
fn written(frame: &FrameInfo, origin: Origin) -> String {
    let name = match origin.function.as_deref().or(frame.func_name()) {
        Some(name) => format!("{:#}", rustc_demangle::demangle(name)),
        None => format!("function {}", frame.func_index()),
    };
    match origin.line {
        Some((file, line)) => format!("{name} ({file}:{line})"),
        None => name,
    }
}
