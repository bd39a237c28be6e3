//! Files of a plugin out of bytes that somebody else packed: a raw module, gzip, tar, or both.
//!
//! Everything is bounded before it is read: gzip by what comes out, tar by entries, paths, kinds and sizes. Sizes in headers
//! reserve nothing. Links, devices and paths that leave the archive are refused, not skipped: an archive that has them was
//! not made for this.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;

use flate2::read::MultiGzDecoder;
use outrider_plugin_store::{MANIFEST, SCHEMA};
use tar::EntryType;

use crate::error::FetchError;
use crate::http::size;

/// Bytes of a packed file.
pub(crate) const LARGEST_PACKED: u64 = 256 * 1024 * 1024;
/// Bytes that unpacking may make.
const LARGEST_UNPACKED: u64 = 256 * 1024 * 1024;
/// Entries of an archive.
const MOST_ENTRIES: usize = 4096;
/// Bytes of a path in an archive.
const LONGEST_PATH: usize = 1024;
/// Folders within folders.
const DEEPEST: usize = 16;
/// Bytes of one text file of a plugin.
const LARGEST_TEXT: u64 = 1024 * 1024;
/// Bytes of all Lua files of a plugin.
const LARGEST_TEXTS: usize = 16 * 1024 * 1024;
/// Bytes of a header that holds a long name.
const LONGEST_EXTENSION: u64 = 64 * 1024;

const GZIP: [u8; 2] = [0x1f, 0x8b];
const WASM: &[u8] = b"\0asm";
/// Name of the module in images.
pub(crate) const MODULE: &str = "plugin.wasm";

/// Files of one plugin.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Files {
    pub(crate) manifest: Option<String>,
    pub(crate) schema: Option<String>,
    /// By path relative to the plugin's folder.
    pub(crate) lua: BTreeMap<String, String>,
    pub(crate) module: Option<Arc<[u8]>>,
}

impl Files {
    /// Whether these are a module and nothing that says more of it.
    pub(crate) fn is_bare_module(&self) -> bool {
        self.module.is_some() && self.manifest.is_none() && self.schema.is_none()
    }
}

/// Limits of unpacking; tests use lower ones.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) unpacked: u64,
    pub(crate) entries: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            unpacked: LARGEST_UNPACKED,
            entries: MOST_ENTRIES,
        }
    }
}

/// Unpacks anything that a plugin comes in. `lua_name` is the file's name if it is Lua source.
pub(crate) fn anything(
    packed: &[u8],
    lua_name: Option<&str>,
    limits: Limits,
) -> Result<Files, FetchError> {
    if packed.starts_with(&GZIP) {
        let mut reader = Bounded::new(MultiGzDecoder::new(packed), limits.unpacked);
        let mut begin = [0; 512];
        let count = fill(&mut reader, &mut begin).map_err(|error| reader.failure(&error))?;
        let begin = begin.get(..count).unwrap_or_default();
        if is_tar(begin) {
            return tar(begin.chain(reader), limits);
        }
        let mut bytes = begin.to_vec();
        let read = reader.read_to_end(&mut bytes);
        read.map_err(|error| reader.failure(&error))?;
        return single(bytes, lua_name);
    }
    if is_tar(packed) {
        return tar(packed, limits);
    }
    single(packed.to_vec(), lua_name)
}

/// Unpacks a layer: tar, with gzip or without.
pub(crate) fn layer(packed: &[u8], limits: Limits) -> Result<Files, FetchError> {
    if packed.starts_with(&GZIP) {
        let reader = Bounded::new(MultiGzDecoder::new(packed), limits.unpacked);
        return tar(reader, limits);
    }
    if !packed.is_empty() && !is_tar(packed) {
        return Err(FetchError::new(
            "it is neither gzip nor tar, whatever its type says",
        ));
    }
    tar(packed, limits)
}

fn single(bytes: Vec<u8>, lua_name: Option<&str>) -> Result<Files, FetchError> {
    if bytes.starts_with(WASM) {
        return Ok(Files {
            module: Some(bytes.into()),
            ..Files::default()
        });
    }
    let Some(name) = lua_name else {
        let begin: Vec<String> = bytes
            .iter()
            .take(4)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let begin = begin.join(" ");
        return Err(FetchError::new(format!(
            "this is neither a WebAssembly module nor gzip nor tar: it begins with {begin}"
        )));
    };
    if bytes.len() as u64 > LARGEST_TEXT {
        return Err(FetchError::new(format!(
            "{name} is larger than {}",
            size(LARGEST_TEXT)
        )));
    }
    let text = text(name, bytes)?;
    Ok(Files {
        lua: BTreeMap::from([(name.to_owned(), text)]),
        ..Files::default()
    })
}

fn text(path: &str, bytes: Vec<u8>) -> Result<String, FetchError> {
    String::from_utf8(bytes).map_err(|_| FetchError::new(format!("{path} is not text in UTF-8")))
}

/// Whether a block is the header of a tar entry.
fn is_tar(begin: &[u8]) -> bool {
    begin.get(257..262) == Some(b"ustar")
}

fn is_lua(path: &str) -> bool {
    Path::new(path)
        .extension()
        .is_some_and(|extension| extension == "lua")
}

fn fill(reader: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match reader.read(rest) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// A reader that fails, instead of ending, where more than a limit comes out of it.
struct Bounded<R> {
    inner: R,
    left: u64,
    limit: u64,
}

impl<R: Read> Bounded<R> {
    fn new(inner: R, limit: u64) -> Self {
        Self {
            inner,
            left: limit,
            limit,
        }
    }

    fn failure(&self, error: &std::io::Error) -> FetchError {
        broken(error, self.limit)
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(buffer)?;
        match self.left.checked_sub(count as u64) {
            Some(left) => {
                self.left = left;
                Ok(count)
            }
            None => Err(std::io::Error::new(ErrorKind::FileTooLarge, "too large")),
        }
    }
}

fn broken(error: &std::io::Error, limit: u64) -> FetchError {
    match error.kind() {
        ErrorKind::FileTooLarge => FetchError::new(format!(
            "unpacked it is larger than {}, the limit",
            size(limit)
        )),
        ErrorKind::UnexpectedEof => FetchError::new("it is cut off"),
        _ => FetchError::new(format!("it cannot be unpacked: {error}")),
    }
}

/// What of an archive may be a plugin's.
#[derive(Default)]
struct Collected {
    /// Text files by path.
    texts: BTreeMap<String, String>,
    text_bytes: usize,
    /// The only module so far, by path.
    module: Option<(String, Arc<[u8]>)>,
    paths: std::collections::BTreeSet<String>,
}

fn tar(reader: impl Read, limits: Limits) -> Result<Files, FetchError> {
    // Also for tar without gzip: nothing reads on behind the limit.
    let bounded = Bounded::new(reader, limits.unpacked);
    let mut archive = tar::Archive::new(bounded);
    let entries = archive
        .entries()
        .map_err(|error| broken(&error, limits.unpacked))?;
    let mut collected = Collected::default();
    let mut long_name: Option<String> = None;
    // Raw: headers of long names come as entries, and are read within limits here.
    for (number, entry) in entries.raw(true).enumerate() {
        if number == limits.entries {
            return Err(FetchError::new(format!(
                "it has more than {} entries",
                limits.entries
            )));
        }
        let mut entry = entry.map_err(|error| broken(&error, limits.unpacked))?;
        let kind = entry.header().entry_type();
        let length = entry.header().entry_size();
        let length = length.map_err(|_| FetchError::new("a size in it is malformed"))?;
        if length > limits.unpacked {
            return Err(FetchError::new(format!(
                "an entry claims {}, more than the limit of {}",
                size(length),
                size(limits.unpacked)
            )));
        }
        if matches!(kind, EntryType::GNULongName | EntryType::XHeader) {
            if length > LONGEST_EXTENSION {
                return Err(FetchError::new("the name of an entry is too long"));
            }
            let bytes = read_entry(&mut entry, LONGEST_EXTENSION, limits)?;
            long_name = match kind {
                EntryType::XHeader => pax_path(&bytes, long_name)?,
                _ => Some(text("a name", bytes)?.trim_end_matches('\0').to_owned()),
            };
            continue;
        }
        if kind == EntryType::XGlobalHeader {
            continue;
        }
        let path = if let Some(path) = long_name.take() {
            path
        } else {
            let bytes = entry.header().path_bytes().into_owned();
            text("the name of an entry", bytes)?
        };
        let path = checked_path(&path)?;
        match kind {
            EntryType::Directory => continue,
            EntryType::Regular | EntryType::Continuous => {}
            EntryType::Symlink | EntryType::Link => {
                return Err(FetchError::new(format!(
                    "`{path}` is a link, which is refused"
                )));
            }
            _ => {
                return Err(FetchError::new(format!(
                    "`{path}` is neither a file nor a folder, which is refused"
                )));
            }
        }
        if !collected.paths.insert(path.clone()) {
            return Err(FetchError::new(format!("`{path}` is in it twice")));
        }
        collected.add(path, &mut entry, length, limits)?;
    }
    collected.into_files()
}

fn read_entry(
    entry: &mut tar::Entry<'_, impl Read>,
    limit: u64,
    limits: Limits,
) -> Result<Vec<u8>, FetchError> {
    let length = entry.size();
    let mut bytes = Vec::new();
    let read = entry.take(limit + 1).read_to_end(&mut bytes);
    read.map_err(|error| broken(&error, limits.unpacked))?;
    if (bytes.len() as u64) < length.min(limit) {
        return Err(FetchError::new("it is cut off"));
    }
    Ok(bytes)
}

/// The path in an extended header. Its sizes are not believed: an entry whose size is there is refused.
fn pax_path(mut bytes: &[u8], mut path: Option<String>) -> Result<Option<String>, FetchError> {
    let wrong = || FetchError::new("an extended header in it is malformed");
    while !bytes.is_empty() {
        let space = bytes
            .iter()
            .position(|byte| *byte == b' ')
            .ok_or_else(wrong)?;
        let digits = bytes
            .get(..space)
            .and_then(|digits| str::from_utf8(digits).ok());
        let length: usize = digits
            .and_then(|digits| digits.parse().ok())
            .ok_or_else(wrong)?;
        let record = bytes.get(space + 1..length).ok_or_else(wrong)?;
        let record = str::from_utf8(record).map_err(|_| wrong())?;
        let (key, value) = record
            .strip_suffix('\n')
            .and_then(|record| record.split_once('='))
            .ok_or_else(wrong)?;
        match key {
            "path" => path = Some(value.to_owned()),
            "size" | "linkpath" => {
                return Err(FetchError::new(format!(
                    "an entry has the extended header `{key}`, which is refused"
                )));
            }
            key if key.starts_with("GNU.sparse") => {
                return Err(FetchError::new("it has a sparse file, which is refused"));
            }
            _ => {}
        }
        bytes = bytes.get(length..).ok_or_else(wrong)?;
    }
    Ok(path)
}

/// The path of an entry, without `./`.
fn checked_path(path: &str) -> Result<String, FetchError> {
    let shown: String = path.chars().take(80).collect();
    if path.len() > LONGEST_PATH {
        return Err(FetchError::new(format!("the path `{shown}…` is too long")));
    }
    if path.starts_with('/') || path.contains(['\\', '\0']) {
        return Err(FetchError::new(format!(
            "the path `{shown}` leaves the archive"
        )));
    }
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                return Err(FetchError::new(format!(
                    "the path `{shown}` leaves the archive"
                )));
            }
            part => parts.push(part),
        }
    }
    if parts.len() > DEEPEST {
        return Err(FetchError::new(format!("the path `{shown}` is too deep")));
    }
    Ok(parts.join("/"))
}

impl Collected {
    fn add(
        &mut self,
        path: String,
        entry: &mut tar::Entry<'_, impl Read>,
        length: u64,
        limits: Limits,
    ) -> Result<(), FetchError> {
        let name = path.rsplit('/').next().unwrap_or(&path);
        // Editors and file synchronisers keep half-written copies under such names.
        if path.split('/').any(|part| part.starts_with('.')) {
            return Ok(());
        }
        let extension = name.rsplit_once('.').map(|(_, extension)| extension);
        if extension == Some("wasm") {
            if let Some((first, _)) = &self.module {
                return Err(
                    FetchError::new(format!("it has two modules, `{first}` and `{path}`"))
                        .mend("pack one, as plugin.wasm"),
                );
            }
            let bytes = read_entry(entry, limits.unpacked, limits)?;
            self.module = Some((path, bytes.into()));
            return Ok(());
        }
        if extension != Some("lua") && name != MANIFEST && name != SCHEMA {
            return Ok(());
        }
        if length > LARGEST_TEXT {
            return Err(FetchError::new(format!(
                "`{path}` is larger than {}",
                size(LARGEST_TEXT)
            )));
        }
        let bytes = read_entry(entry, LARGEST_TEXT, limits)?;
        self.text_bytes += bytes.len();
        if self.text_bytes > LARGEST_TEXTS {
            return Err(FetchError::new(format!(
                "its text files are larger than {}",
                size(LARGEST_TEXTS as u64)
            )));
        }
        let text = text(&path, bytes)?;
        self.texts.insert(path, text);
        Ok(())
    }

    /// Finds the plugin's folder: that of the only `plugin.yaml`, else the archive itself.
    fn into_files(mut self) -> Result<Files, FetchError> {
        let name_of = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
        let manifests: Vec<&String> = self
            .texts
            .keys()
            .filter(|path| name_of(path) == MANIFEST)
            .collect();
        if let [first, second, ..] = manifests.as_slice() {
            return Err(
                FetchError::new(format!("it has two plugins, `{first}` and `{second}`"))
                    .mend("pack one plugin's folder"),
            );
        }
        let root = manifests.first().map_or(String::new(), |path| {
            path.strip_suffix(MANIFEST).unwrap_or_default().to_owned()
        });
        let manifest = self.texts.remove(&format!("{root}{MANIFEST}"));
        let schema = self.texts.remove(&format!("{root}{SCHEMA}"));
        let lua = self.texts.into_iter().filter_map(|(path, text)| {
            let inside = path.strip_prefix(&root)?;
            is_lua(inside).then(|| (inside.to_owned(), text))
        });
        let files = Files {
            manifest,
            schema,
            lua: lua.collect(),
            module: self.module.map(|(_, bytes)| bytes),
        };
        if files.manifest.is_none() && files.module.is_none() && files.lua.is_empty() {
            return Err(FetchError::new(format!(
                "there is neither a {MODULE} nor a {MANIFEST} nor Lua in it"
            )));
        }
        Ok(files)
    }
}

#[cfg(test)]
mod tests;
