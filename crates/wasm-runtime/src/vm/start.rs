//! A guest's beginning, and its configurations.

use wasmtime::{Instance, Store};

use super::{Refusal, enter, small};
use crate::code::Code;
use crate::exports::Exports;
use crate::room::Room;
use crate::sequences::Sequences;
use crate::state::{Gate, Moment, State};
use crate::trouble::Trouble;

/// Instantiates the guest and runs what it starts with.
pub(super) fn start(code: &Code, store: &mut Store<State>) -> Result<Exports, Refusal> {
    let (instance, room) = code.instantiate(store).map_err(|error| {
        let lacked_memory = store.data().limits.refused;
        if lacked_memory && !error.is::<wasmtime::Trap>() {
            return Refusal::Refused(format!(
                "its memory budget of {} MiB does not hold the memory that it begins with",
                store.data().shared.memory_budget / (1024 * 1024)
            ));
        }
        Refusal::Failed(Trouble::new("its start section", error, lacked_memory))
    })?;
    let memory = instance.get_memory(&mut *store, "memory");
    let state = store.data_mut();
    state.memory = memory;
    state.gate.unset(Gate::INSTANTIATING);
    let mut exports = Exports::find(&instance, store).map_err(Refusal::Refused)?;
    exports.sequences = Sequences::of(&exports, store);
    let allocate = ["malloc", "proxy_on_memory_allocate"]
        .into_iter()
        .find_map(|name| instance.get_typed_func::<i32, i32>(&mut *store, name).ok());
    if let (Some(room), Some(allocate)) = (room, &allocate) {
        Room::open(room, store, *allocate.func());
    }
    let state = store.data_mut();
    state.allocate = allocate;
    state.gate.set(Gate::STARTING);
    let started = run_start(&instance, store);
    store.data_mut().gate.unset(Gate::STARTING);
    started?;
    Ok(exports)
}

fn run_start(instance: &Instance, store: &mut Store<State>) -> Result<(), Refusal> {
    let mut call = |name: &'static str| -> Result<bool, Refusal> {
        let Some(function) = instance.get_func(&mut *store, name) else {
            return Ok(false);
        };
        let result = if let Ok(function) = function.typed::<(), ()>(&*store) {
            enter(store, name, &function, ())
        } else if let Ok(function) = function.typed::<(), i32>(&*store) {
            enter(store, name, &function, ()).map(|_status| ())
        } else if let Ok(function) = function.typed::<(i32, i32), i32>(&*store) {
            enter(store, name, &function, (0, 0)).map(|_status| ())
        } else {
            return Err(Refusal::Refused(format!(
                "its export {name} has not the type of the interface"
            )));
        };
        match result {
            Ok(()) => Ok(true),
            // Commands, such as Go's, end so when they are done.
            Err(trouble) if trouble.exit_code() == Some(0) => Ok(true),
            Err(trouble) => Err(trouble.into()),
        }
    };
    if call("_initialize")? {
        if !call("main")? {
            call("__main_void")?;
        }
    } else {
        call("_start")?;
    }
    Ok(())
}

pub(super) fn configure_root(
    store: &mut Store<State>,
    exports: &Exports,
    root: u32,
    length: usize,
) -> Result<(), Refusal> {
    let state = store.data_mut();
    state.effective = root;
    state.root = root;
    state.moment = Moment::Other;
    state.complaints.clear();
    if let Some(on_context_create) = &exports.on_context_create {
        enter(
            store,
            "proxy_on_context_create",
            on_context_create,
            (root.cast_signed(), 0),
        )?;
    }
    if let Some(on_vm_start) = &exports.on_vm_start {
        let state = store.data_mut();
        state.moment = Moment::VmStart;
        state.effective = root;
        let length = small(state.shared.options.vm_configuration.len());
        let started = enter(
            store,
            "proxy_on_vm_start",
            on_vm_start,
            (root.cast_signed(), length),
        )?;
        if started == 0 {
            return Err(refused(store, "its proxy_on_vm_start answered false"));
        }
    }
    if let Some(on_configure) = &exports.on_configure {
        let state = store.data_mut();
        state.moment = Moment::Configure;
        state.effective = root;
        let configured = enter(
            store,
            "proxy_on_configure",
            on_configure,
            (root.cast_signed(), small(length)),
        )?;
        if configured == 0 {
            return Err(refused(
                store,
                "it refuses the configuration (proxy_on_configure answered false)",
            ));
        }
    }
    Ok(())
}

/// Why the guest refuses, as far as it says.
fn refused(store: &mut Store<State>, what: &str) -> Refusal {
    let complaints = std::mem::take(&mut store.data_mut().complaints);
    if complaints.is_empty() {
        return Refusal::Refused(what.to_owned());
    }
    Refusal::Refused(format!("{}: {what}", complaints.join("; ")))
}
