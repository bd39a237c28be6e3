//! The private store: what was fetched, by digest, shared by all processes of a user.
//!
//! A file appears under its name only when it is whole (written elsewhere, then renamed), and is compared with its digest
//! each time that it is read: a process that is killed leaves only files that nothing reads, and damage is found and
//! removed. The directory holds nothing that cannot be fetched again; to delete it is safe at any time.

use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::error::FetchError;
use crate::{digest_of, hex_of};

/// Bytes that the store holds after pruning.
pub const DEFAULT_LIMIT: u64 = 2 * 1024 * 1024 * 1024;
/// A temporary file of this age belongs to no process that still runs.
const ABANDONED: Duration = Duration::from_hours(24);
/// Files that were used in this time are never pruned: another process may be about to read them.
const IN_USE: Duration = Duration::from_mins(10);
/// How long another process is waited for.
const LONGEST_WAIT: Duration = Duration::from_mins(10);
/// Bytes of a record.
const LARGEST_RECORD: u64 = 1024 * 1024;

/// The store.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
    limit: u64,
}

/// What a source led to when it was fetched last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The source, as it was written.
    pub(crate) source: String,
    /// Digest of the manifest, or of the file as it was served.
    pub(crate) digest: String,
    /// Seconds since 1970.
    pub(crate) fetched: u64,
}

/// A file that is being written.
pub(crate) struct Writer {
    file: File,
    path: PathBuf,
    hasher: Sha256,
    length: u64,
    is_kept: bool,
}

/// A lock between processes; dropped, it is free.
pub(crate) struct Lock(#[expect(dead_code, reason = "the lock ends with the file")] Option<File>);

impl Store {
    /// The store in a directory, which is made when something is written.
    pub fn new(root: PathBuf) -> Self {
        Self {
            root,
            limit: DEFAULT_LIMIT,
        }
    }

    /// Sets how many bytes pruning leaves.
    pub fn with_limit(mut self, limit: u64) -> Self {
        self.limit = limit;
        self
    }

    /// `outrider/plugins` in `$XDG_CACHE_HOME` or `~/.cache`; `None` if neither is known.
    pub fn default_root() -> Option<PathBuf> {
        // The XDG Base Directory Specification: a path that is not absolute counts as not set.
        let named = |variable: &str| {
            let path = std::env::var_os(variable).map(PathBuf::from);
            path.filter(|path| path.is_absolute())
        };
        let caches = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")))?;
        Some(caches.join("outrider").join("plugins"))
    }

    /// Its directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn blob(&self, digest: &str) -> PathBuf {
        self.root.join("blobs").join(hex_of(digest))
    }

    fn folder(&self, name: &str) -> Result<PathBuf, FetchError> {
        let folder = self.root.join(name);
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder);
        made.map_err(|error| FetchError::file(&folder, "made", &error))?;
        Ok(folder)
    }

    /// Reads a blob; `None` if it is not there, or was damaged and is removed.
    pub(crate) fn read(&self, digest: &str) -> Option<Vec<u8>> {
        let path = self.blob(digest);
        let bytes = fs::read(&path).ok()?;
        if digest_of(&bytes) != digest {
            let _ = fs::remove_file(&path);
            return None;
        }
        touch(&path);
        Some(bytes)
    }

    /// Whether a blob is there, whole or not.
    #[cfg(test)]
    fn has(&self, digest: &str) -> bool {
        self.blob(digest).is_file()
    }

    /// Stores bytes under their digest.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<String, FetchError> {
        let digest = digest_of(bytes);
        if self.read(&digest).is_none() {
            let mut writer = self.writer()?;
            writer.write(bytes)?;
            self.keep(writer, &digest)?;
        }
        Ok(digest)
    }

    /// Begins a file.
    pub(crate) fn writer(&self) -> Result<Writer, FetchError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let nanos = now.map_or(0, |now| now.subsec_nanos());
        let name = format!("{}-{number}-{nanos}", std::process::id());
        let path = self.folder("tmp")?.join(name);
        let file = File::options().write(true).create_new(true).open(&path);
        let file = file.map_err(|error| FetchError::file(&path, "made", &error))?;
        Ok(Writer {
            file,
            path,
            hasher: Sha256::new(),
            length: 0,
            is_kept: false,
        })
    }

    /// Gives a written file its name, if its digest is the expected one.
    pub(crate) fn keep(&self, writer: Writer, expected: &str) -> Result<(), FetchError> {
        let found = writer.digest();
        if found != expected {
            return Err(FetchError::new(format!(
                "it has another digest: expected {expected}, found {found}"
            )));
        }
        self.folder("blobs")?;
        writer.rename(&self.blob(expected))
    }

    /// The file of a module, for Envoy; it is written if need be.
    pub(crate) fn module_file(&self, module: &[u8]) -> Result<PathBuf, FetchError> {
        let digest = digest_of(module);
        let path = self
            .folder("modules")?
            .join(format!("{}.wasm", hex_of(&digest)));
        if fs::read(&path).is_ok_and(|bytes| bytes == module) {
            touch(&path);
            return Ok(path);
        }
        let mut writer = self.writer()?;
        writer.write(module)?;
        writer.rename(&path)?;
        Ok(path)
    }

    /// What a source led to; `None` if it was never fetched, or the record is damaged.
    pub(crate) fn record(&self, source: &str) -> Option<Record> {
        let record: Record = self.document("names", source)?;
        (record.source == source && outrider_plugin_formats::is_digest(&record.digest))
            .then_some(record)
    }

    /// Remembers what a source leads to.
    pub(crate) fn set_record(&self, source: &str, digest: &str) -> Result<(), FetchError> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let record = Record {
            source: source.to_owned(),
            digest: digest.to_owned(),
            fetched: now.map_or(0, |now| now.as_secs()),
        };
        self.set_document("names", source, &record)
    }

    /// A small document by its key.
    pub(crate) fn document<T: for<'de> Deserialize<'de>>(
        &self,
        kind: &str,
        key: &str,
    ) -> Option<T> {
        let path = self
            .root
            .join(kind)
            .join(hex_of(&digest_of(key.as_bytes())));
        let mut bytes = Vec::new();
        let file = File::open(&path).ok()?;
        file.take(LARGEST_RECORD).read_to_end(&mut bytes).ok()?;
        touch(&path);
        serde_json::from_slice(&bytes).ok()
    }

    /// Stores a small document.
    pub(crate) fn set_document(
        &self,
        kind: &str,
        key: &str,
        value: &impl Serialize,
    ) -> Result<(), FetchError> {
        let text = serde_json::to_vec(value).map_err(|error| FetchError::new(error.to_string()))?;
        let path = self.folder(kind)?.join(hex_of(&digest_of(key.as_bytes())));
        let mut writer = self.writer()?;
        writer.write(&text)?;
        writer.rename(&path)
    }

    /// Waits for other processes that fetch the same source, at most ten minutes, and keeps them waiting until the lock is
    /// dropped. `waiting` is called before a wait.
    pub(crate) fn lock(&self, source: &str, waiting: impl FnOnce()) -> Result<Lock, FetchError> {
        let path = self
            .folder("locks")?
            .join(hex_of(&digest_of(source.as_bytes())));
        let failed = |error: std::io::Error| FetchError::file(&path, "locked", &error);
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                waiting();
                return Ok(Lock(wait(file).map_err(failed)?));
            }
            // Some network file systems have no locks. Two downloads at once do no harm.
            Err(fs::TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {
                return Ok(Lock(None));
            }
            Err(fs::TryLockError::Error(error)) => return Err(failed(error)),
        }
        Ok(Lock(Some(file)))
    }

    /// Removes abandoned temporary files, and the blobs and modules that were used longest ago until the limit is kept.
    pub(crate) fn prune(&self) {
        let now = SystemTime::now();
        let age = |time: SystemTime| now.duration_since(time).unwrap_or_default();
        for (path, time, _) in files(&self.root.join("tmp")) {
            if age(time) > ABANDONED {
                let _ = fs::remove_file(path);
            }
        }
        let mut all = files(&self.root.join("blobs"));
        all.extend(files(&self.root.join("modules")));
        let mut total: u64 = all.iter().map(|(_, _, size)| size).sum();
        all.sort_by_key(|(_, time, _)| *time);
        for (path, time, size) in all {
            if total <= self.limit || age(time) < IN_USE {
                break;
            }
            if fs::remove_file(path).is_ok() {
                total -= size;
            }
        }
    }
}

/// Waits for a lock; `None` if its owner stands still. Two downloads at once do no harm.
fn wait(file: File) -> std::io::Result<Option<File>> {
    let began = Instant::now();
    while began.elapsed() < LONGEST_WAIT {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(fs::TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(50)),
            Err(fs::TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(None)
}

/// Files of a folder with the time of their last use and their size.
fn files(folder: &Path) -> Vec<(PathBuf, SystemTime, u64)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let metadata = entry.metadata().ok()?;
            let is_file = metadata.is_file();
            is_file.then_some((entry.path(), metadata.modified().ok()?, metadata.len()))
        })
        .collect()
}

/// Marks a file as used now. A store that cannot be written to is read all the same.
fn touch(path: &Path) {
    if let Ok(file) = File::options().append(true).open(path) {
        let _ = file.set_modified(SystemTime::now());
    }
}

impl Writer {
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), FetchError> {
        self.hasher.update(bytes);
        self.length += bytes.len() as u64;
        let written = self.file.write_all(bytes);
        written.map_err(|error| FetchError::file(&self.path, "written", &error))
    }

    /// Digest of what was written.
    pub(crate) fn digest(&self) -> String {
        crate::written(&self.hasher.clone().finalize())
    }

    /// Bytes that were written.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    fn rename(mut self, to: &Path) -> Result<(), FetchError> {
        let synced = self.file.sync_all();
        synced.map_err(|error| FetchError::file(&self.path, "written", &error))?;
        fs::rename(&self.path, to).map_err(|error| FetchError::file(to, "made", &error))?;
        self.is_kept = true;
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().join("store"));
        (folder, store)
    }

    #[test]
    fn damaged_blob_is_removed_and_not_read() {
        let (_folder, store) = store();
        let digest = store.write(b"hello").unwrap();
        assert_eq!(store.read(&digest).unwrap(), b"hello");
        fs::write(store.blob(&digest), b"hellO").unwrap();
        assert_eq!(store.read(&digest), None);
        assert!(!store.has(&digest));
        store.write(b"hello").unwrap();
        assert_eq!(store.read(&digest).unwrap(), b"hello");
        // A file that was cut off by a crash of the machine.
        fs::write(store.blob(&digest), b"hel").unwrap();
        assert_eq!(store.read(&digest), None);
    }

    #[test]
    fn half_written_file_is_never_read() {
        let (_folder, store) = store();
        let mut writer = store.writer().unwrap();
        writer.write(b"hel").unwrap();
        let digest = digest_of(b"hello");
        assert_eq!(store.read(&digest), None);
        let error = store.keep(writer, &digest).unwrap_err();
        assert!(
            error
                .message
                .contains(&format!("expected {digest}, found {}", digest_of(b"hel")))
        );
        assert!(files(&store.root.join("tmp")).is_empty());
    }

    #[test]
    fn damaged_module_file_is_written_again() {
        let (_folder, store) = store();
        let path = store.module_file(b"\0asm").unwrap();
        fs::write(&path, b"\0as").unwrap();
        assert_eq!(store.module_file(b"\0asm").unwrap(), path);
        assert_eq!(fs::read(&path).unwrap(), b"\0asm");
    }

    #[test]
    fn damaged_record_counts_as_missing() {
        let (_folder, store) = store();
        let digest = digest_of(b"x");
        store.set_record("oci://a/b", &digest).unwrap();
        assert_eq!(store.record("oci://a/b").unwrap().digest, digest);
        assert_eq!(store.record("oci://a/c"), None);
        for file in files(&store.root.join("names")) {
            fs::write(file.0, b"{").unwrap();
        }
        assert_eq!(store.record("oci://a/b"), None);
    }

    #[test]
    fn prune_removes_the_oldest_and_abandoned_files() {
        let (_folder, store) = store();
        let store = store.with_limit(10);
        let old = store.write(b"old content").unwrap();
        let new = store.write(b"new").unwrap();
        let long_ago = SystemTime::now() - Duration::from_hours(48);
        let age = |path: &Path| {
            File::options()
                .append(true)
                .open(path)
                .unwrap()
                .set_modified(long_ago)
                .unwrap();
        };
        age(&store.blob(&old));
        let abandoned = store.root.join("tmp/1-2-3");
        fs::write(&abandoned, b"x").unwrap();
        age(&abandoned);
        store.prune();
        assert!(!store.has(&old) && store.has(&new) && !abandoned.exists());
        // What was used just now stays, whatever the limit.
        store.clone().with_limit(0).prune();
        assert!(store.has(&new));
    }

    #[test]
    fn lock_keeps_a_second_one_waiting() {
        let (_folder, store) = store();
        let lock = store
            .lock("a", || unreachable!("nothing holds it"))
            .unwrap();
        let other = store.clone();
        let (sender, waits) = std::sync::mpsc::channel();
        let thread =
            std::thread::spawn(move || other.lock("a", || sender.send(()).unwrap()).map(|_| ()));
        waits.recv_timeout(Duration::from_secs(10)).unwrap();
        store.lock("b", || unreachable!("another source")).unwrap();
        drop(lock);
        thread.join().unwrap().unwrap();
    }

    #[test]
    fn directory_that_cannot_be_made_is_named() {
        let (folder, _) = store();
        fs::write(folder.path().join("file"), b"").unwrap();
        let store = Store::new(folder.path().join("file"));
        let error = store.write(b"x").unwrap_err();
        assert!(error.message.contains("file/tmp cannot be made"), "{error}");
    }
}
