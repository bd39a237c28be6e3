//! Reads a plugin's files.

use std::collections::BTreeMap;
use std::fs::{self, DirEntry, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use outrider_plugin_formats::{PluginPackage, Problem};
use outrider_yaml::suggest;
use serde_json::Value;

use crate::digest::digest;
use crate::manifest;
use crate::problems::{at, of_whole};

/// The file in a plugin's folder that says what it is.
pub const MANIFEST: &str = "plugin.yaml";
/// The file in a plugin's folder that its configurations have to satisfy.
pub const SCHEMA: &str = "config.schema.json";

const DEFAULT_ENTRY: &str = "main.lua";
const LARGEST_FILE: u64 = 1024 * 1024;
const DEEPEST: usize = 16;

pub(crate) fn open(folder: &Path) -> Result<PluginPackage, Vec<Problem>> {
    let manifest_file = folder.join(MANIFEST);
    // Without a manifest this is not a plugin's folder, and may be anything: read no further.
    if !manifest_file.exists() {
        return Err(vec![of_whole(
            folder,
            format!("there is no {MANIFEST} in the folder {}", folder.display()),
            Some("a plugin is a folder with a plugin.yaml in it, or a file that ends in .lua"),
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
    reader.code(folder, "", 0);

    if let Some(located) = &located {
        let entry = located.manifest.entry.as_deref().unwrap_or(DEFAULT_ENTRY);
        if reader.files.is_empty() && reader.problems.is_empty() {
            reader.problems.push(of_whole(
                folder,
                "there is no Lua file in this folder",
                Some("put the plugin's code into main.lua"),
            ));
        } else if !reader.files.contains_key(entry) && reader.problems.is_empty() {
            let mend = suggest(entry, reader.files.keys().map(String::as_str))
                .or_else(|| reader.files.keys().next().map(String::as_str))
                .map(|near| format!("set `entry: {near}`, or name the file {entry}"));
            reader.problems.push(located.problem(
                &["entry"],
                format!("the plugin's first file, {entry}, is not in its folder"),
                mend,
            ));
        }
    }
    match located {
        Some(located) if reader.problems.is_empty() => {
            let mut manifest = located.manifest;
            manifest
                .entry
                .get_or_insert_with(|| DEFAULT_ENTRY.to_owned());
            Ok(PluginPackage {
                manifest,
                digest: digest(&reader.files),
                files: reader.files,
                schema,
                folder: folder.display().to_string(),
            })
        }
        _ => Err(reader.problems),
    }
}

pub(crate) fn open_single(file: &Path) -> Result<PluginPackage, Vec<Problem>> {
    let name = file.file_name().and_then(|name| name.to_str());
    let stem = name.and_then(|name| name.strip_suffix(".lua"));
    let (Some(name), Some(stem)) = (name, stem) else {
        return Err(vec![of_whole(
            file,
            format!("the file {} is not a plugin", file.display()),
            Some("a plugin is a folder with a plugin.yaml in it, or a file that ends in .lua"),
        )]);
    };
    let folder = file.parent().unwrap_or(Path::new(""));
    // The user named this file, so a link may lead anywhere.
    let text = read_text(file).map_err(|problem| vec![problem])?;
    let files = BTreeMap::from([(name.to_owned(), text)]);
    Ok(PluginPackage {
        manifest: manifest::implied(manifest::name_from(stem), name.to_owned()),
        digest: digest(&files),
        files,
        schema: None,
        folder: folder.display().to_string(),
    })
}

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
                // serde_json ends its message with the place, which the problem has by itself.
                let message = error.to_string();
                let message = message
                    .split_once(" at line ")
                    .map_or(message.as_str(), |(message, _)| message);
                self.problems.push(at(
                    &file,
                    error.line(),
                    error.column(),
                    format!("this is not JSON: {message}"),
                    None,
                ));
                None
            }
        }
    }

    /// The text of a file that is, links followed, inside the folder.
    fn text(&mut self, file: &Path) -> Option<String> {
        match fs::canonicalize(file) {
            Ok(real) if real.starts_with(&self.inside) => {}
            Ok(real) => {
                self.tell(
                    file,
                    format!(
                        "this symbolic link leaves the plugin's folder: {}",
                        real.display()
                    ),
                    "put the file itself into the folder",
                );
                return None;
            }
            Err(error) => {
                self.problems
                    .push(of_whole(file, format!("cannot be read: {error}"), None));
                return None;
            }
        }
        read_text(file)
            .map_err(|problem| self.problems.push(problem))
            .ok()
    }

    fn tell(&mut self, file: &Path, message: impl Into<String>, mend: &str) {
        self.problems.push(of_whole(file, message, Some(mend)));
    }
}

fn read_text(path: &Path) -> Result<String, Problem> {
    let unreadable =
        |error: std::io::Error| of_whole(path, format!("cannot be read: {error}"), None);
    let metadata = fs::metadata(path).map_err(unreadable)?;
    if !metadata.is_file() {
        // Opening a named pipe would wait for ever.
        return Err(of_whole(path, "this is not a regular file", None));
    }
    let mut bytes = Vec::new();
    // The file may grow between the two calls, so the limit is on reading.
    File::open(path)
        .and_then(|file| file.take(LARGEST_FILE + 1).read_to_end(&mut bytes))
        .map_err(unreadable)?;
    if bytes.len() as u64 > LARGEST_FILE {
        return Err(of_whole(
            path,
            "this file is larger than 1 MiB",
            Some("split it"),
        ));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let before = error.as_bytes().get(..valid).unwrap_or_default();
        let line = before.split(|byte| *byte == b'\n').count();
        at(
            path,
            line,
            0,
            "this line is not UTF-8",
            Some("save the file as UTF-8"),
        )
    })
}
