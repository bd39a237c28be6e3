//! Compiled code of modules, kept on disk from one start to the next and shared by the Envoys of one
//! machine. Whose code it is and how it is loaded is not known here: an entry is bytes under a [`Key`].
//!
//! To load compiled code is to run it, with all the rights of this process, so what is taken from here is
//! guarded against three things:
//!
//! - **other users**: the folder is this user's and nobody else may enter it (0700), each file is this
//!   user's, nobody else may read or write it (0600), and it is a regular file, not a link. Whoever *is*
//!   this user, or root, needs no file to run code as this user; against them nothing here helps.
//! - **accidents**: a file appears by renaming, whole; its length and a CRC-32 of its content are compared
//!   when it is read, so that what a full disk, a crash or a failing disk left of it is not run. A
//!   cryptographic digest would protect against nobody who can write here, and takes longer over a hundred
//!   megabytes than everything else that a start does.
//! - **other versions**: the key holds a digest of the module and a hash of everything in engine, settings
//!   and CPU that code depends on; both are in the file, too. Wasmtime compares once more what it wrote
//!   into the code itself.
//!
//! Whatever does not fit is not loaded; the caller says so and compiles again, which replaces it.
//!
//! The trap: files are mapped into memory, not read. One may be replaced or unlinked at any time, but never
//! be written to in place.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::memory;

/// The end of every entry: see [`Trailer`].
const MAGIC: [u8; 8] = *b"ORcwasm\x01";
/// Bytes of a trailer.
const TRAILER: usize = 8 + 32 + 8 + 8 + 4 + 4;
const ENTRY: &str = "cwasm";
const UNFINISHED: &str = "tmp";

/// How long an entry that nobody loads is kept.
const OLDEST: Duration = Duration::from_hours(30 * 24);
/// How much all entries together may take, in bytes. Beyond it, those go that were not loaded for longest.
const LARGEST: u64 = 2 * 1024 * 1024 * 1024;
/// A file that was begun and is older than this belongs to a process that is gone.
const LONGEST_WRITE: Duration = Duration::from_hours(1);
/// How exact the time of an entry's last use is.
const USE: Duration = Duration::from_hours(1);
const CHUNK: usize = 256 * 1024;

/// What compiled code depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    module: [u8; 32],
    compatibility: u64,
}

impl Key {
    /// The key of the code that an engine compiles from a module. `module` is the SHA-256 of the module's
    /// file, `compatibility` what the engine says of its version, settings and CPU
    /// (`Engine::precompile_compatibility_hash`), and what was done to the module before.
    pub(crate) fn new(module: [u8; 32], compatibility: &impl Hash) -> Self {
        // Its algorithm may be another in another version of the compiler: then everything is compiled
        // once more.
        let mut hasher = DefaultHasher::new();
        compatibility.hash(&mut hasher);
        Self {
            module,
            compatibility: hasher.finish(),
        }
    }

    fn file_name(&self) -> String {
        let mut name = String::with_capacity(64 + 1 + 16 + 1 + ENTRY.len());
        for byte in self.module {
            for digit in [byte >> 4, byte & 0xf] {
                name.extend(char::from_digit(digit.into(), 16));
            }
        }
        format!("{name}-{:016x}.{ENTRY}", self.compatibility)
    }
}

/// Why the cache, or an entry of it, is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    /// The folder cannot be made.
    #[error("the folder of compiled code, {folder}, cannot be made: {error}")]
    Make {
        /// Its path.
        folder: String,
        /// What the system says.
        error: io::Error,
    },
    /// The folder is not this user's alone.
    #[error(
        "the folder of compiled code, {folder}, is not used: {why}; whoever can write there runs code as \
         this user, so it has to be a folder of this user with mode 0700"
    )]
    Folder {
        /// Its path.
        folder: String,
        /// What is wrong with it.
        why: String,
    },
    /// An entry is not what was written.
    #[error("the compiled code in {file} is not used: {why}")]
    Entry {
        /// Its path.
        file: String,
        /// What is wrong with it.
        why: String,
    },
    /// An entry cannot be written.
    #[error("compiled code cannot be kept in {folder}: {error}")]
    Write {
        /// The cache's folder.
        folder: String,
        /// What the system says.
        error: io::Error,
    },
}

/// A folder of compiled code.
#[derive(Debug)]
pub(crate) struct Cache {
    folder: PathBuf,
    owner: u32,
}

/// Tells this process's unfinished files from each other.
static SERIAL: AtomicU64 = AtomicU64::new(0);

impl Cache {
    /// The cache in a folder, which is made if need be.
    pub(crate) fn open(folder: &Path) -> Result<Self, Trouble> {
        Self::open_as(folder, memory::own_user())
    }

    fn open_as(folder: &Path, owner: u32) -> Result<Self, Trouble> {
        let named = || folder.display().to_string();
        let make = |error| Trouble::Make {
            folder: named(),
            error,
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(make)?;
        let metadata = fs::symlink_metadata(folder).map_err(make)?;
        if !metadata.is_dir() {
            return Err(Trouble::Folder {
                folder: named(),
                why: "it is a symbolic link".to_owned(),
            });
        }
        private(&metadata, owner).map_err(|why| Trouble::Folder {
            folder: named(),
            why,
        })?;
        Ok(Self {
            folder: folder.to_owned(),
            owner,
        })
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.folder.join(key.file_name())
    }

    /// The file with the code of a key, checked, its position at the beginning; none: there is none. The
    /// code is followed by a trailer of this cache.
    pub(crate) fn get(&self, key: &Key) -> Result<Option<File>, Trouble> {
        let path = self.path(key);
        let why = |why: String| Trouble::Entry {
            file: path.display().to_string(),
            why,
        };
        let opened = OpenOptions::new()
            .read(true)
            // A link is not followed, and a pipe not waited for.
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&path);
        let mut file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(why(format!("it cannot be opened: {error}"))),
        };
        let metadata = file
            .metadata()
            .map_err(|error| why(format!("it cannot be looked at: {error}")))?;
        if !metadata.is_file() {
            return Err(why("it is not a regular file".to_owned()));
        }
        private(&metadata, self.owner).map_err(&why)?;
        let trailer = Trailer::read(&mut file, metadata.len())
            .map_err(|error| why(format!("it cannot be read: {error}")))?
            .ok_or_else(|| why("it is damaged: its end is not one".to_owned()))?;
        if trailer.key != *key {
            return Err(why("it is of another module or engine".to_owned()));
        }
        if trailer.length.checked_add(TRAILER as u64) != Some(metadata.len()) {
            return Err(why("it is damaged: its length is not as written".to_owned()));
        }
        let checksum = checksum(&mut file, trailer.length)
            .map_err(|error| why(format!("it cannot be read: {error}")))?;
        if checksum != trailer.checksum {
            return Err(why(
                "it is damaged: its content is not as written".to_owned()
            ));
        }
        file.seek(SeekFrom::Start(0))
            .map_err(|error| why(format!("it cannot be read: {error}")))?;
        note_use(&file, &metadata);
        Ok(Some(file))
    }

    /// The trouble with an entry that is as it was written, and cannot be used all the same.
    pub(crate) fn unfit(&self, key: &Key, why: String) -> Trouble {
        Trouble::Entry {
            file: self.path(key).display().to_string(),
            why,
        }
    }

    /// Keeps the code of a key, in the place of what is there, and makes room.
    pub(crate) fn put(&self, key: &Key, code: &[u8]) -> Result<(), Trouble> {
        let unfinished = self.folder.join(format!(
            ".{}-{}.{UNFINISHED}",
            std::process::id(),
            SERIAL.fetch_add(1, Ordering::Relaxed)
        ));
        let written = self.write(&unfinished, key, code);
        if let Err(error) = written {
            // Best effort: what is left is removed when it is old.
            let _ = fs::remove_file(&unfinished);
            return Err(Trouble::Write {
                folder: self.folder.display().to_string(),
                error,
            });
        }
        self.prune(SystemTime::now(), LARGEST, &self.path(key));
        Ok(())
    }

    fn write(&self, unfinished: &Path, key: &Key, code: &[u8]) -> io::Result<()> {
        let trailer = Trailer {
            key: *key,
            length: code.len() as u64,
            checksum: crc32fast::hash(code),
        };
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(unfinished)?;
        file.write_all(code)?;
        file.write_all(&trailer.bytes())?;
        // Not synchronised: what a crash of the machine loses shows when it is read.
        fs::rename(unfinished, self.path(key))
    }

    /// Removes what nobody needs any more; `keep` stays. Failing to is no fault: the next one tries again.
    fn prune(&self, now: SystemTime, largest: u64, keep: &Path) {
        let Ok(entries) = fs::read_dir(&self.folder) else {
            return;
        };
        let mut kept: Vec<(Duration, u64, PathBuf)> = Vec::new();
        for entry in entries.filter_map(Result::ok) {
            let path = entry.path();
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            let unused = metadata
                .modified()
                .ok()
                .and_then(|used| now.duration_since(used).ok())
                .unwrap_or_default();
            let limit = match path.extension().and_then(|extension| extension.to_str()) {
                Some(ENTRY) => OLDEST,
                Some(UNFINISHED) => LONGEST_WRITE,
                // Not ours.
                _ => continue,
            };
            if unused > limit && path != keep {
                let _ = fs::remove_file(&path);
            } else if limit == OLDEST {
                kept.push((unused, metadata.len(), path));
            }
        }
        kept.sort();
        let mut size = 0_u64;
        for (_, length, path) in kept {
            size = size.saturating_add(length);
            if size > largest && path != keep {
                let _ = fs::remove_file(&path);
            }
        }
    }
}

/// Whether a file or folder is its owner's alone; if not, why.
fn private(metadata: &Metadata, owner: u32) -> Result<(), String> {
    if metadata.uid() != owner {
        return Err(format!(
            "it belongs to the user {}, and this process runs as {owner}",
            metadata.uid()
        ));
    }
    let mode = metadata.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(format!("its mode is {mode:04o}, which lets others in"));
    }
    Ok(())
}

/// Puts the time of a file forward, by which unused ones are found.
fn note_use(file: &File, metadata: &Metadata) {
    let now = SystemTime::now();
    let is_recent = metadata
        .modified()
        .is_ok_and(|used| now.duration_since(used).is_ok_and(|unused| unused < USE));
    if !is_recent {
        // Where it cannot be set, the entry is removed too early and made again.
        let _ = file.set_modified(now);
    }
}

fn checksum(file: &mut File, length: u64) -> io::Result<u32> {
    file.seek(SeekFrom::Start(0))?;
    let mut hasher = crc32fast::Hasher::new();
    let mut chunk = vec![0; CHUNK];
    let mut rest = file.take(length);
    loop {
        match rest.read(&mut chunk) {
            Ok(0) => return Ok(hasher.finalize()),
            Ok(count) => hasher.update(chunk.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// What follows the code in an entry, all numbers little-endian: [`MAGIC`], the module's digest, the
/// engine's hash, the code's length in bytes, the code's CRC-32, the CRC-32 of the trailer up to here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Trailer {
    key: Key,
    length: u64,
    checksum: u32,
}

impl Trailer {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(TRAILER);
        bytes.extend(MAGIC);
        bytes.extend(self.key.module);
        bytes.extend(self.key.compatibility.to_le_bytes());
        bytes.extend(self.length.to_le_bytes());
        bytes.extend(self.checksum.to_le_bytes());
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        bytes
    }

    /// The trailer of a file of this length; none: there is no whole one.
    fn read(file: &mut File, length: u64) -> io::Result<Option<Self>> {
        let Some(start) = length.checked_sub(TRAILER as u64) else {
            return Ok(None);
        };
        let mut bytes = [0; TRAILER];
        file.seek(SeekFrom::Start(start))?;
        match file.read_exact(&mut bytes) {
            Ok(()) => Ok(Self::parse(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (content, own) = bytes.split_last_chunk::<4>()?;
        if crc32fast::hash(content) != u32::from_le_bytes(*own) {
            return None;
        }
        let rest = content.strip_prefix(&MAGIC)?;
        let (module, rest) = rest.split_first_chunk::<32>()?;
        let (compatibility, rest) = rest.split_first_chunk::<8>()?;
        let (length, rest) = rest.split_first_chunk::<8>()?;
        let (checksum, rest) = rest.split_first_chunk::<4>()?;
        rest.is_empty().then(|| Self {
            key: Key {
                module: *module,
                compatibility: u64::from_le_bytes(*compatibility),
            },
            length: u64::from_le_bytes(*length),
            checksum: u32::from_le_bytes(*checksum),
        })
    }
}

#[cfg(test)]
mod tests;
