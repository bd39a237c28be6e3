//! How the compiler reaches the disk. Paths stay as the user wrote them; relative ones are relative to
//! the current folder.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::net::ToSocketAddrs as _;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use glob::MatchOptions;
use outrider_gateway::{Compiled, CompiledMesh, Loader, compile, compile_mesh, searched_folder};
use outrider_plugin_formats::{
    Distribution, PluginCode, PluginEntry, PluginLocation, PluginPackage, PluginRequest, Problem,
    WasmModule,
};
use outrider_plugin_registry::{Fetcher, LockFile};
use outrider_supervisor::Seen;
use outrider_yaml::Document;
use serde_json::Value;

use crate::fetching;
#[cfg(not(test))]
use crate::trial::TrialProcess as Trials;
// The executable of tests is another than the command.
#[cfg(test)]
use crate::trial::Trials;
use crate::trial::{LoadLine, Place};

/// Most files that one `include` pattern may match.
const MOST_FILES: usize = 10_000;

/// The disk, for one compilation.
#[derive(Debug, Default)]
struct Disk {
    /// Folders of the plugins that were opened, by digest: messages name files by them.
    folders: RefCell<BTreeMap<String, String>>,
    /// Modules that were read, by digest.
    modules: RefCell<BTreeMap<String, WasmModule>>,
    trials: RefCell<Trials>,
    fetcher: OnceCell<Fetcher<'static>>,
    seen: RefCell<Seen>,
    /// What is read in the place of the file [`STDIN`].
    input: Option<String>,
    /// Time that names of hosts may still take to be resolved; zero: they are not.
    resolving: Cell<Duration>,
}

/// Time for the names of one file, and for one of them.
const RESOLVE_ALL: Duration = Duration::from_secs(20);
const RESOLVE_ONE: Duration = Duration::from_secs(3);

/// What messages call the standard input.
pub(crate) const STDIN: &str = "<stdin>";

/// Compiles a gateway's file from the disk, and tries each plugin with each of its configurations.
pub(crate) fn compile_file(file: &Path) -> Compiled {
    compile_watched(file).0
}

/// Compiles the mesh of a file from the disk, and tries each plugin with each of its configurations.
pub(crate) fn compile_mesh_file(file: &Path) -> CompiledMesh {
    compile_mesh(&file.to_string_lossy(), &Disk::default())
}

/// As [`compile_file`]; answers what the plugins logged meanwhile, too, and what the files were before they were read.
pub(crate) fn compile_watched(file: &Path) -> (Compiled, Vec<LoadLine>, Seen) {
    let disk = Disk::default();
    let compiled = compile(&file.to_string_lossy(), &disk);
    (
        compiled,
        disk.trials.into_inner().into_lines(),
        disk.seen.into_inner(),
    )
}

/// What is wrong with a file.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    pub(crate) problems: Vec<Problem>,
    pub(crate) warnings: Vec<Problem>,
}

/// Checks a file, or `input` in the place of [`STDIN`], whose paths are relative to the current folder: its gateway, and its
/// mesh; `resolve`: names of hosts are resolved.
pub(crate) fn check_file(
    file: &Path,
    input: Option<&str>,
    resolve: bool,
) -> (Checked, Vec<LoadLine>) {
    let disk = Disk {
        input: input.map(str::to_owned),
        resolving: Cell::new(if resolve { RESOLVE_ALL } else { Duration::ZERO }),
        ..Disk::default()
    };
    let path = file.to_string_lossy();
    let has_mesh = disk.has(&path, "mesh");
    let mut checked = Checked::default();
    // A file with neither is told so as a gateway's.
    if !has_mesh || disk.has(&path, "gateway") {
        let compiled = compile(&path, &disk);
        checked.problems = compiled.problems;
        checked.warnings = compiled.warnings;
    }
    if has_mesh {
        let compiled = compile_mesh(&path, &disk);
        checked.problems.extend(compiled.problems);
        checked.warnings.extend(compiled.warnings);
    }
    for list in [&mut checked.problems, &mut checked.warnings] {
        list.sort();
        list.dedup();
    }
    (checked, disk.trials.into_inner().into_lines())
}

impl Disk {
    /// Keeps of a plugin what [`Loader::try_plugin`] needs later.
    fn note_opened(&self, package: &PluginPackage) {
        self.folders
            .borrow_mut()
            .insert(package.digest.clone(), package.folder.clone());
        if let PluginCode::Module(module) = &package.code {
            self.modules
                .borrow_mut()
                .insert(package.digest.clone(), module.clone());
        }
    }

    /// Whether a file has a key at its top.
    fn has(&self, path: &str, key: &str) -> bool {
        let Ok(text) = self.read(path) else {
            return false;
        };
        let document = Document::parse(path, &text).ok();
        document
            .as_ref()
            .and_then(|document| document.root.as_mapping()?.entry(key))
            .is_some()
    }
}

/// Paths that match an `include` pattern, sorted; the error is one sentence.
pub(crate) fn matching_files(pattern: &str) -> Result<Vec<String>, String> {
    let options = MatchOptions {
        case_sensitive: true,
        require_literal_separator: true,
        // Editors keep half-written copies under such names.
        require_literal_leading_dot: true,
    };
    let paths = glob::glob_with(pattern, options).map_err(|error| error.msg.to_owned())?;
    let mut matching = Vec::new();
    for path in paths {
        if matching.len() == MOST_FILES {
            return Err(format!("more than {MOST_FILES} files match"));
        }
        let path = path.map_err(|error| error.to_string())?;
        matching.push(path.to_string_lossy().into_owned());
    }
    Ok(matching)
}

impl Loader for Disk {
    fn read(&self, path: &str) -> Result<String, String> {
        if path == STDIN
            && let Some(text) = &self.input
        {
            return Ok(text.clone());
        }
        self.seen.borrow_mut().note(Path::new(path));
        outrider_plugin_store::read_text(Path::new(path))
    }

    fn matching(&self, pattern: &str) -> Result<Vec<String>, String> {
        if let Some(folder) = searched_folder(pattern) {
            self.seen.borrow_mut().note(Path::new(folder));
        }
        matching_files(pattern)
    }

    fn plugin(&self, source: &str) -> Result<PluginPackage, Vec<Problem>> {
        self.seen.borrow_mut().note(Path::new(source));
        let package = outrider_plugin_store::open(Path::new(source))?;
        self.note_opened(&package);
        Ok(package)
    }

    fn fetch(
        &self,
        request: &PluginRequest,
        distribution: &Distribution,
    ) -> Result<(PluginPackage, Vec<String>), Vec<Problem>> {
        let (package, warnings) = match &request.location {
            PluginLocation::Builtin(name) => (outrider_plugin_catalog::open(name)?, Vec::new()),
            location => {
                {
                    let mut seen = self.seen.borrow_mut();
                    if let PluginLocation::Archive(path) = location {
                        seen.note(Path::new(path));
                    }
                    seen.note(&LockFile::path_of(&distribution.file));
                    let rules = distribution.policy.iter().flatten();
                    for key in rules.flat_map(|rule| &rule.keys) {
                        seen.note(Path::new(key));
                    }
                }
                if self.fetcher.get().is_none() {
                    let fetcher = fetching::fetcher().map_err(|error| {
                        vec![Problem {
                            file: String::new(),
                            line: 0,
                            column: 0,
                            message: error.message,
                            mend: error.mend,
                        }]
                    })?;
                    let _ = self.fetcher.set(fetcher);
                }
                match self.fetcher.get() {
                    Some(fetcher) => fetcher.fetch(request, distribution)?,
                    None => return Err(Vec::new()),
                }
            }
        };
        self.note_opened(&package);
        Ok((package, warnings))
    }

    fn is_folder(&self, path: &str) -> bool {
        Path::new(path).is_dir()
    }

    fn absolute(&self, path: &str) -> String {
        std::path::absolute(path).map_or_else(
            |_| path.to_owned(),
            |path| path.to_string_lossy().into_owned(),
        )
    }

    fn resolves(&self, host: &str) -> Result<(), String> {
        let left = self.resolving.get();
        if left.is_zero() {
            return Ok(());
        }
        // The system's resolver cannot be stopped: a thread that it holds ends with this process.
        let (sender, answer) = mpsc::channel();
        let name = host.to_owned();
        let began = Instant::now();
        thread::Builder::new()
            .name("resolve".to_owned())
            .spawn(move || {
                let found = (name.as_str(), 0).to_socket_addrs();
                let _ = sender.send(found.map(|_| ()).map_err(|error| error.to_string()));
            })
            .map_err(|error| error.to_string())?;
        let wait = RESOLVE_ONE.min(left);
        let found = answer.recv_timeout(wait);
        self.resolving.set(left.saturating_sub(began.elapsed()));
        found.unwrap_or_else(|_| Err(format!("no answer within {} s", wait.as_secs())))
    }

    fn try_plugin(&self, entry: &PluginEntry, config: &Value) -> Result<(), Vec<Problem>> {
        let folders = self.folders.borrow();
        let place = Place {
            folder: folders.get(&entry.digest).unwrap_or(&entry.name),
            module: self.modules.borrow().get(&entry.digest).cloned(),
        };
        #[cfg(test)]
        let config = Some(config);
        self.trials
            .borrow_mut()
            .run(entry, &place, config)
            .map_err(|problem| vec![problem])
    }
}
