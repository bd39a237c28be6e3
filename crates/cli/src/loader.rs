//! How the compiler reaches the disk. Paths stay as the user wrote them; relative ones are relative to
//! the current folder.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use glob::MatchOptions;
use outrider_gateway::{Compiled, Loader, compile};
use outrider_plugin_formats::{PluginCode, PluginEntry, PluginPackage, Problem, WasmModule};
use serde_json::Value;

use crate::trial::{LoadLine, Place, Trials};

/// The disk, for one compilation.
#[derive(Debug, Default)]
struct Disk {
    /// Folders of the plugins that were opened, by digest: messages name files by them.
    folders: RefCell<BTreeMap<String, String>>,
    /// Modules that were read, by digest.
    modules: RefCell<BTreeMap<String, WasmModule>>,
    trials: RefCell<Trials>,
}

/// Compiles a gateway's file from the disk, and tries each plugin with each of its configurations.
pub(crate) fn compile_file(file: &Path) -> Compiled {
    compile_and_listen(file).0
}

/// As [`compile_file`]; answers what the plugins logged meanwhile, too.
pub(crate) fn compile_and_listen(file: &Path) -> (Compiled, Vec<LoadLine>) {
    let disk = Disk::default();
    let compiled = compile(&file.to_string_lossy(), &disk);
    (compiled, disk.trials.into_inner().into_lines())
}

impl Loader for Disk {
    fn read(&self, path: &str) -> Result<String, String> {
        fs::read_to_string(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => "there is no such file".to_owned(),
            ErrorKind::PermissionDenied => "this user may not read it".to_owned(),
            ErrorKind::IsADirectory => "it is a folder".to_owned(),
            ErrorKind::InvalidData => "it is not UTF-8 text".to_owned(),
            _ => error.to_string(),
        })
    }

    fn matching(&self, pattern: &str) -> Result<Vec<String>, String> {
        let options = MatchOptions {
            case_sensitive: true,
            require_literal_separator: true,
            // Editors keep half-written copies under such names.
            require_literal_leading_dot: true,
        };
        let paths = glob::glob_with(pattern, options).map_err(|error| error.msg.to_owned())?;
        paths
            .map(|path| {
                path.map(|path| path.to_string_lossy().into_owned())
                    .map_err(|error| error.to_string())
            })
            .collect()
    }

    fn plugin(&self, source: &str) -> Result<PluginPackage, Vec<Problem>> {
        let package = outrider_plugin_store::open(Path::new(source))?;
        self.folders
            .borrow_mut()
            .insert(package.digest.clone(), package.folder.clone());
        if let PluginCode::Module(module) = &package.code {
            self.modules
                .borrow_mut()
                .insert(package.digest.clone(), module.clone());
        }
        Ok(package)
    }

    fn absolute(&self, path: &str) -> String {
        std::path::absolute(path).map_or_else(
            |_| path.to_owned(),
            |path| path.to_string_lossy().into_owned(),
        )
    }

    fn try_plugin(&self, entry: &PluginEntry, config: &Value) -> Result<(), Vec<Problem>> {
        let folders = self.folders.borrow();
        let place = Place {
            folder: folders.get(&entry.digest).unwrap_or(&entry.name),
            module: self.modules.borrow().get(&entry.digest).cloned(),
        };
        self.trials
            .borrow_mut()
            .run(entry, &place, config)
            .map_err(|problem| vec![problem])
    }
}
