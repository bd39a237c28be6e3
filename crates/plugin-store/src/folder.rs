//! Reads a plugin's files.

use std::collections::BTreeMap;
use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};

use outrider_plugin_formats::{Places, PluginCode, PluginPackage, Problem, Runtime};
use outrider_yaml::suggest;
use serde_json::Value;

use crate::digest::{digest, module_digest};
use crate::manifest::{self, Located};
use crate::problems::of_whole;
use crate::unpacked::not_json;
use crate::{module, read};

/// The file in a plugin's folder that says what it is.
pub const MANIFEST: &str = "plugin.yaml";
/// The file in a plugin's folder that its configurations have to satisfy.
pub const SCHEMA: &str = "config.schema.json";

/// What a plugin is, for those who name something else.
pub(crate) const WHAT_A_PLUGIN_IS: &str =
    "a plugin is a folder with a plugin.yaml in it, or a file that ends in .lua or .wasm";

const DEFAULT_ENTRY: &str = "main.lua";
const DEFAULT_MODULE: &str = "plugin.wasm";
const DEEPEST: usize = 16;

pub(crate) fn open(folder: &Path) -> Result<PluginPackage, Vec<Problem>> {
    let manifest_file = folder.join(MANIFEST);
    // Without a manifest this is not a plugin's folder, and may be anything: read no further.
    if !manifest_file.exists() {
        return Err(vec![of_whole(
            folder,
            format!("there is no {MANIFEST} in the folder {}", folder.display()),
            Some(WHAT_A_PLUGIN_IS),
        )]);
    }
    let mut reader = Reader::new(folder)?;
    let located =
        reader
            .text(&manifest_file)
            .and_then(|text| match manifest::read(&manifest_file, &text) {
                Ok(located) => Some(located),
                Err(problems) => {
                    reader.problems.extend(problems);
                    None
                }
            });
    let schema = reader.schema();
    let code = match located.as_ref().map(|located| located.manifest.runtime) {
        Some(Runtime::Wasm) => reader.module(located.as_ref()),
        // Without a manifest it may be either; Lua's files show more of what is wrong.
        Some(Runtime::Lua) | None => reader.files(located.as_ref()),
    };
    match (located, code) {
        (Some(located), Some((entry, digest, code))) if reader.problems.is_empty() => {
            let places = located.places();
            let mut manifest = located.manifest;
            manifest.entry = Some(entry);
            Ok(PluginPackage {
                manifest,
                places,
                digest,
                code,
                schema,
                folder: folder.display().to_string(),
            })
        }
        _ => Err(reader.problems),
    }
}

pub(crate) fn open_single(file: &Path) -> Result<PluginPackage, Vec<Problem>> {
    let name = file.file_name().and_then(|name| name.to_str());
    let split = name.and_then(|name| Path::new(name).extension()?.to_str());
    let stem = file.file_stem().and_then(|stem| stem.to_str());
    let (Some(name), Some(extension @ ("lua" | "wasm")), Some(stem)) = (name, split, stem) else {
        return Err(vec![of_whole(
            file,
            format!("the file {} is not a plugin", file.display()),
            Some(WHAT_A_PLUGIN_IS),
        )]);
    };
    let folder = file.parent().unwrap_or(Path::new(""));
    // The user named this file, so a link may lead anywhere.
    let (runtime, digest, code) = if extension == "wasm" {
        let module = module::read(file).map_err(|problem| vec![problem])?;
        let digest = module_digest(&module.bytes);
        (Runtime::Wasm, digest, PluginCode::Module(module))
    } else {
        let text = read::text(file).map_err(|problem| vec![problem])?;
        let files = BTreeMap::from([(name.to_owned(), text)]);
        (Runtime::Lua, digest(&files), PluginCode::Files(files))
    };
    Ok(PluginPackage {
        manifest: manifest::implied(manifest::name_from(stem), runtime, name.to_owned()),
        places: Places::default(),
        digest,
        code,
        schema: None,
        folder: folder.display().to_string(),
    })
}

/// What a plugin is made of: its entry, its digest, its code.
type Parts = (String, String, PluginCode);

/// Collects files and problems.
struct Reader<'a> {
    folder: &'a Path,
    /// The folder without links: what a link in it may lead to.
    inside: PathBuf,
    files: BTreeMap<String, String>,
    problems: Vec<Problem>,
}

impl<'a> Reader<'a> {
    fn new(folder: &'a Path) -> Result<Self, Vec<Problem>> {
        let inside = fs::canonicalize(folder)
            .map_err(|error| vec![of_whole(folder, format!("cannot be read: {error}"), None)])?;
        Ok(Self {
            folder,
            inside,
            files: BTreeMap::new(),
            problems: Vec::new(),
        })
    }

    /// The plugin's Lua files, with the entry among them.
    fn files(&mut self, located: Option<&Located>) -> Option<Parts> {
        self.code(self.folder, "", 0);
        let located = located?;
        let entry = located.manifest.entry.as_deref().unwrap_or(DEFAULT_ENTRY);
        if self.files.is_empty() && self.problems.is_empty() {
            self.problems.push(of_whole(
                self.folder,
                "there is no Lua file in this folder",
                Some("put the plugin's code into main.lua"),
            ));
        } else if !self.files.contains_key(entry) && self.problems.is_empty() {
            let mend = suggest(entry, self.files.keys().map(String::as_str))
                .or_else(|| self.files.keys().next().map(String::as_str))
                .map(|near| format!("set `entry: {near}`, or name the file {entry}"));
            self.problems.push(located.problem(
                &["entry"],
                format!("the plugin's first file, {entry}, is not in its folder"),
                mend,
            ));
        }
        let files = std::mem::take(&mut self.files);
        Some((entry.to_owned(), digest(&files), PluginCode::Files(files)))
    }

    /// The plugin's module, which is built and may not have been.
    fn module(&mut self, located: Option<&Located>) -> Option<Parts> {
        let located = located?;
        let manifest = &located.manifest;
        let entry = manifest.entry.as_deref().unwrap_or(DEFAULT_MODULE);
        let file = self.folder.join(entry);
        // `exists` follows links, and a link to nowhere is what a build leaves that was cleaned up.
        if !file.exists() {
            let mend = match &manifest.build {
                Some(build) => format!("build it: {build}"),
                None => {
                    "build it, as the plugin's README says; `entry:` names another file".to_owned()
                }
            };
            self.problems.push(located.problem(
                &["entry"],
                format!("the plugin's module, {entry}, is not in its folder"),
                mend,
            ));
            return None;
        }
        if !self.is_inside(&file) {
            return None;
        }
        match module::read(&file) {
            Ok(module) => Some((
                entry.to_owned(),
                module_digest(&module.bytes),
                PluginCode::Module(module),
            )),
            Err(problem) => {
                self.problems.push(problem);
                None
            }
        }
    }

    /// Reads every `*.lua` below `folder`, whose own path in the plugin is `prefix`.
    fn code(&mut self, folder: &Path, prefix: &str, depth: usize) {
        if depth > DEEPEST {
            self.tell(
                folder,
                format!("folders are nested more than {DEEPEST} deep"),
                "move the code up",
            );
            return;
        }
        let entries = fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let mut entries: Vec<DirEntry> = match entries {
            Ok(entries) => entries,
            Err(error) => {
                self.problems
                    .push(of_whole(folder, format!("cannot be read: {error}"), None));
                return;
            }
        };
        entries.sort_by_key(DirEntry::file_name);
        for entry in entries {
            self.entry(&entry, prefix, depth);
        }
    }

    fn entry(&mut self, entry: &DirEntry, prefix: &str, depth: usize) {
        let path = entry.path();
        let name = entry.file_name();
        let is_lua = path.extension().is_some_and(|extension| extension == "lua");
        let Some(name) = name.to_str() else {
            if is_lua {
                self.tell(&path, "the file's name is not UTF-8", "rename it");
            }
            return;
        };
        if name.starts_with('.') {
            return;
        }
        let Ok(kind) = entry.file_type() else {
            return;
        };
        let relative = format!("{prefix}{name}");
        if kind.is_dir() {
            self.code(&path, &format!("{relative}/"), depth + 1);
        } else if kind.is_symlink() && path.is_dir() {
            // Links may form rings, so folders are entered by their own path only.
            self.tell(
                &path,
                "a symbolic link to a folder is not followed",
                "put the folder here, or link each file",
            );
        } else if is_lua && let Some(text) = self.text(&path) {
            self.files.insert(relative, text);
        }
    }

    fn schema(&mut self) -> Option<Value> {
        let file = self.folder.join(SCHEMA);
        // `exists` follows links; a link to nowhere has to be told, not passed over.
        if !file.exists() && !file.is_symlink() {
            return None;
        }
        let text = self.text(&file)?;
        match serde_json::from_str(&text) {
            Ok(schema) => Some(schema),
            Err(error) => {
                self.problems.push(not_json(&file, &error));
                None
            }
        }
    }

    /// The text of a file that is, links followed, inside the folder.
    fn text(&mut self, file: &Path) -> Option<String> {
        if !self.is_inside(file) {
            return None;
        }
        read::text(file)
            .map_err(|problem| self.problems.push(problem))
            .ok()
    }

    /// Whether a file is, links followed, inside the folder; tells when it is not.
    fn is_inside(&mut self, file: &Path) -> bool {
        match fs::canonicalize(file) {
            Ok(real) if real.starts_with(&self.inside) => true,
            Ok(real) => {
                self.tell(
                    file,
                    format!(
                        "this symbolic link leaves the plugin's folder: {}",
                        real.display()
                    ),
                    "put the file itself into the folder",
                );
                false
            }
            Err(error) => {
                self.problems
                    .push(of_whole(file, format!("cannot be read: {error}"), None));
                false
            }
        }
    }

    fn tell(&mut self, file: &Path, message: impl Into<String>, mend: &str) {
        self.problems.push(of_whole(file, message, Some(mend)));
    }
}
