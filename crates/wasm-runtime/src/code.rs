//! A plugin's module: checked against what the host provides, compiled, and ready to be instantiated on any
//! worker.

use std::sync::Arc;

use outrider_plugin_api::{Interest, Metrics};
use wasmtime::{ExternType, Instance, InstancePre, Module, Store};

use crate::abi::Version;
use crate::compiled;
use crate::engine::engine;
use crate::exports;
use crate::host;
use crate::room::Room;
use crate::source::WasmSource;
use crate::state::{Gate, State};

/// See the module.
pub(crate) struct Code {
    pub(crate) instances: InstancePre<State>,
    room: Option<Room>,
    /// As long as it lives, other plugins of the same file share it.
    module: Arc<Module>,
    pub(crate) interest: Interest,
    pub(crate) version: Version,
}

impl std::fmt::Debug for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Code")
            .field("interest", &self.interest)
            .field("version", &self.version)
            .field("module", &self.module.name())
            .finish_non_exhaustive()
    }
}

impl Code {
    /// Instantiates the guest. Second: what makes room in its memory, if that is not done by host functions.
    ///
    /// # Errors
    /// Its memory is refused, or its start section fails.
    pub(crate) fn instantiate(
        &self,
        store: &mut Store<State>,
    ) -> wasmtime::Result<(Instance, Option<Instance>)> {
        // Where each call is traced it is told of where it is made.
        let room = self.room.as_ref();
        let behind = room
            .filter(|_| !store.data().gate.has(Gate::TRACE))
            .and_then(|room| room.instantiate(store, &self.module));
        match behind {
            Some((guest, room)) => Ok((guest?, Some(room))),
            None => Ok((self.instances.instantiate(store)?, None)),
        }
    }

    /// Whether another plugin's code is this one.
    #[cfg(test)]
    pub(crate) fn shares_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.module, &other.module)
    }

    /// Compiles a module, or finds it compiled.
    ///
    /// # Errors
    /// It is none, or not one of Proxy-Wasm, or it imports what nobody provides.
    pub(crate) fn load(source: &WasmSource, metrics: &mut dyn Metrics) -> Result<Self, String> {
        let engine = engine()?;
        let module = compiled::module(engine, source, metrics)?;
        let Some(version) = exports::version(&module) else {
            return Err(no_version(&module));
        };
        if !matches!(module.get_export("memory"), Some(ExternType::Memory(_))) {
            return Err("exports no `memory`".to_owned());
        }
        let linker = host::linker(engine).map_err(|error| format!("{error:#}"))?;
        let instances = linker.instantiate_pre(&module).map_err(|error| {
            let missing = missing(&module);
            if missing.is_empty() {
                format!("imports a function with another type than the host's: {error:#}")
            } else {
                format!(
                    "imports what no host provides here: {}. Plugins for other proxies, or for a newer \
                     interface, cannot be loaded",
                    missing.join(", ")
                )
            }
        })?;
        Ok(Self {
            room: Room::of(&module, &linker),
            instances,
            interest: exports::interest(&module),
            version,
            module,
        })
    }
}

fn no_version(module: &Module) -> String {
    let other = module
        .exports()
        .find(|export| export.name().starts_with("proxy_abi_version"));
    let known: Vec<&str> = Version::ALL.into_iter().map(Version::marker).collect();
    match other {
        Some(export) => format!(
            "is made for a version of Proxy-Wasm that is not known here: it exports {}. Known are {}",
            export.name(),
            known.join(", ")
        ),
        None => format!(
            "is no Proxy-Wasm plugin: it exports none of {}. An SDK does so; for Rust the crate's type has to \
             be `cdylib`",
            known.join(", ")
        ),
    }
}

/// The imports that nobody provides.
fn missing(module: &Module) -> Vec<String> {
    let provided: Vec<host::HostFunction> = host::all().collect();
    module
        .imports()
        .filter(|import| {
            !provided
                .iter()
                .any(|one| one.module == import.module() && one.name == import.name())
        })
        .map(|import| format!("{}.{}", import.module(), import.name()))
        .collect()
}
