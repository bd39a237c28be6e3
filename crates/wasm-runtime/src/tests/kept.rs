//! Compiled code that is kept on disk, and shared within the process.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tempfile::TempDir;

use super::fake::{FakeMetrics, Probe, guest, load, source};
use crate::WasmModule;
use crate::source::WasmSource;

/// A guest that no other test has: what is loaded is shared by all of them. It says its text.
fn telling(text: &str) -> Vec<u8> {
    guest(&format!(
        "(data (i32.const 256) \"{text}\")
         (func (export \"proxy_on_request_headers\") (param i32 i32 i32) (result i32)
           (call $say (i32.const 256) (i32.const {})) (i32.const 0))",
        text.len()
    ))
}

struct World {
    folder: TempDir,
}

impl World {
    fn new() -> Self {
        Self {
            folder: TempDir::new().unwrap(),
        }
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("compiled")
    }

    fn source(&self, module: WasmModule) -> WasmSource {
        WasmSource {
            module,
            compiled_folder: Some(self.cache()),
            ..source(b"")
        }
    }

    fn load(&self, module: &[u8]) -> Probe {
        load(self.source(module_of(module)), "{}").unwrap()
    }

    fn entries(&self) -> Vec<(PathBuf, SystemTime, u64)> {
        let mut entries: Vec<_> = fs::read_dir(self.cache())
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let metadata = entry.metadata().unwrap();
                (entry.path(), metadata.modified().unwrap(), metadata.len())
            })
            .collect();
        entries.sort();
        entries
    }
}

fn module_of(bytes: &[u8]) -> WasmModule {
    WasmModule::from(std::sync::Arc::<[u8]>::from(bytes))
}

fn warnings(probe: &Probe) -> String {
    probe.metrics.logs.join("\n")
}

#[test]
fn what_was_compiled_is_not_compiled_again_and_does_the_same() {
    let world = World::new();
    let module = telling("kept");
    let first = world.load(&module);
    assert_eq!(first.said(), ["kept"]);
    let entries = world.entries();
    assert_eq!(entries.len(), 1, "{entries:?}");
    assert_eq!(warnings(&first), "");
    drop(first);
    let second = world.load(&module);
    assert_eq!(second.said(), ["kept"]);
    assert_eq!(world.entries(), entries);
    assert_eq!(warnings(&second), "");
    world.load(&telling("other"));
    assert_eq!(world.entries().len(), 2);
}

#[test]
fn what_is_damaged_is_compiled_again_with_a_warning() {
    let world = World::new();
    let module = telling("damaged");
    drop(world.load(&module));
    let (file, _, length) = world.entries().remove(0);
    let whole = fs::read(&file).unwrap();
    let mut flipped = whole.clone();
    flipped[200] ^= 0x10;
    for bytes in [&flipped, &whole[..whole.len() - 1], &[][..]] {
        fs::write(&file, bytes).unwrap();
        let probe = world.load(&module);
        let told = warnings(&probe);
        assert!(told.contains("is damaged"), "{told}");
        assert!(told.contains("compiled again"), "{told}");
        assert!(told.contains(&file.display().to_string()), "{told}");
        assert_eq!(probe.said(), ["damaged"]);
        assert_eq!(fs::metadata(&file).unwrap().len(), length);
    }
    assert_eq!(warnings(&world.load(&module)), "");
}

/// What the cache takes for its own, but Wasmtime does not for its.
#[test]
fn code_of_another_engine_is_compiled_again() {
    let world = World::new();
    let module = telling("foreign");
    let digest = module_of(&module).digest();
    let engine = crate::engine::engine().unwrap();
    let key = crate::compiled::key(engine, (digest, true));
    let cache = crate::cache::Cache::open(&world.cache()).unwrap();
    let mut other = wasmtime::Config::new();
    other.epoch_interruption(false);
    let other = wasmtime::Engine::new(&other).unwrap();
    for code in [other.precompile_module(&module).unwrap(), b"text".to_vec()] {
        cache.put(&key, &code).unwrap();
        let probe = world.load(&module);
        let told = warnings(&probe);
        assert!(told.contains("compiled again"), "{told}");
        assert_eq!(probe.said(), ["foreign"]);
        drop(probe);
        assert_eq!(warnings(&world.load(&module)), "");
    }
}

#[test]
fn a_folder_that_cannot_be_used_costs_time_only() {
    let world = World::new();
    fs::write(world.cache(), "a file").unwrap();
    let probe = world.load(&telling("no folder"));
    assert_eq!(probe.said(), ["no folder"]);
    let told = warnings(&probe);
    assert!(told.contains("at each start"), "{told}");
}

#[test]
fn a_module_in_a_file_is_read_only_where_it_has_to_be() {
    let world = World::new();
    let module = telling("in a file");
    let file = world.folder.path().join("plugin.wasm");
    let digest = module_of(&module).digest();
    let in_file = |file: &Path| world.source(WasmModule::in_file(file.to_owned(), digest));
    let refused = |file: &Path| load(in_file(file), "{}").unwrap_err().to_string();
    assert!(refused(&file).contains("cannot be read"));
    fs::write(&file, telling("another")).unwrap();
    let message = refused(&file);
    assert!(message.contains("has the digest sha256:"), "{message}");
    fs::write(&file, &module).unwrap();
    let probe = load(in_file(&file), "{}").unwrap();
    assert_eq!(probe.said(), ["in a file"]);
    // An update goes back to a version whose file is another by now.
    fs::write(&file, telling("another")).unwrap();
    let shared = load(in_file(&file), "{}").unwrap();
    assert_eq!(shared.said(), ["in a file"]);
    drop((probe, shared));
    let kept = load(in_file(&file), "{}").unwrap();
    assert_eq!(kept.said(), ["in a file"]);
}

#[test]
fn plugins_of_the_same_file_share_what_is_compiled() {
    let module = telling("shared");
    let mut metrics = FakeMetrics::default();
    let mut load = |name: &str| {
        let source = WasmSource {
            name: name.to_owned(),
            ..source(&module)
        };
        crate::code::Code::load(&source, &mut metrics).unwrap()
    };
    let (one, two) = (load("one"), load("two"));
    assert!(one.shares_with(&two));
}
