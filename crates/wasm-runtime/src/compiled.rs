//! Compiled modules: shared by all plugins of this process that are the same file, kept on disk, or compiled
//! now. All of it on the thread that loads a plugin, never on a worker.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use outrider_plugin_api::{LogLevel, Metrics};
use wasmtime::{Engine, Module};

use crate::cache::{Cache, Key, Trouble};
use crate::jumps;
use crate::limits;
use crate::memory;
use crate::source::{Digest, WasmSource};

/// Loaded modules, by the file's digest and whether its jumps were made direct. There is one engine in a process.
static LOADED: Mutex<BTreeMap<Form, Weak<Module>>> = Mutex::new(BTreeMap::new());

/// A file, and the form in which it is compiled.
type Form = (Digest, bool);

/// The compiled module of a plugin.
///
/// # Errors
/// Its file cannot be had, or is no module; the text goes on after the file's name.
pub(crate) fn module(
    engine: &Engine,
    source: &WasmSource,
    metrics: &mut dyn Metrics,
) -> Result<Arc<Module>, String> {
    let form = (source.module.digest(), source.options.jump_threading);
    if let Some(module) = loaded(&form) {
        return Ok(module);
    }
    let mut warn = |trouble: &str| {
        metrics.log(LogLevel::Warn, &source.name, trouble);
    };
    let cache = source
        .compiled_folder
        .as_deref()
        .and_then(|folder| open(folder, &mut warn));
    let key = key(engine, form);
    if let Some(cache) = &cache {
        match kept(engine, cache, &key) {
            Ok(Some(module)) => return Ok(share(form, module)),
            Ok(None) => {}
            Err(trouble) => warn(&format!("{trouble}; the module is compiled again")),
        }
    }
    let module = compile(engine, source)?;
    if let Some(cache) = &cache {
        let code = module.serialize().map_err(|error| format!("{error:#}"));
        let put = code.and_then(|code| {
            let put = cache.put(&key, &code);
            put.map_err(|trouble| trouble.to_string())
        });
        if let Err(trouble) = put {
            warn(&format!("{trouble}; the next start compiles it again"));
        }
    }
    Ok(share(form, module))
}

/// Returns the key of a module's compiled code: the digest of its file, and all that the code depends on.
pub(crate) fn key(engine: &Engine, (module, jump_threading): Form) -> Key {
    let jumps = jump_threading.then_some(jumps::VERSION);
    Key::new(module, &(jumps, engine.precompile_compatibility_hash()))
}

fn open(folder: &Path, warn: &mut dyn FnMut(&str)) -> Option<Cache> {
    Cache::open(folder)
        .map_err(|trouble| warn(&format!("{trouble}; the module is compiled at each start")))
        .ok()
}

fn kept(engine: &Engine, cache: &Cache, key: &Key) -> Result<Option<Module>, Trouble> {
    let Some(file) = cache.get(key)? else {
        return Ok(None);
    };
    memory::deserialize(engine, file)
        .map(Some)
        .map_err(|why| cache.unfit(key, why))
}

fn compile(engine: &Engine, source: &WasmSource) -> Result<Module, String> {
    let bytes = source.module.bytes()?;
    is_module(&bytes)?;
    limits::check(&bytes)?;
    // Before anything else reads it: an invalid module is refused as it is in the file.
    Module::validate(engine, &bytes).map_err(|error| {
        format!("cannot be compiled, as it is no valid WebAssembly module: {error:#}")
    })?;
    let prepared = if source.options.jump_threading {
        jumps::direct(&bytes)
    } else {
        Cow::Borrowed(&*bytes)
    };
    Module::from_binary(engine, &prepared).map_err(|error| format!("cannot be compiled: {error:#}"))
}

fn is_module(bytes: &[u8]) -> Result<(), String> {
    match bytes {
        [0, b'a', b's', b'm', 1, 0, 0, 0, ..] => Ok(()),
        [0, b'a', b's', b'm', 0x0d, 0, 1, 0, ..] => Err(
            "is a WebAssembly component; a Proxy-Wasm plugin is a core module, such as the target \
             wasm32-wasip1 makes"
                .to_owned(),
        ),
        [0, b'a', b's', b'm', ..] => Err("is of an unknown version of WebAssembly".to_owned()),
        [] => Err("is empty".to_owned()),
        _ => Err("is no WebAssembly module: it does not begin with `\\0asm`".to_owned()),
    }
}

fn loaded(form: &Form) -> Option<Arc<Module>> {
    let loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    loaded.get(form)?.upgrade()
}

fn share(form: Form, module: Module) -> Arc<Module> {
    let module = Arc::new(module);
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    loaded.retain(|_, module| module.strong_count() > 0);
    loaded.insert(form, Arc::downgrade(&module));
    module
}
