//! Notices changes of files by asking again and again for their time, size and inode.
//!
//! Polling a dozen files costs nothing, and sees what event interfaces make hard: files replaced by
//! renaming, folders that come and go, network file systems.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use outrider_plugin_store::MANIFEST;

/// How long files have to stay the same before a change counts as finished.
const SETTLED: Duration = Duration::from_millis(50);
/// How long that is waited for: a file that never rests must not stop the rest.
const PATIENCE: Duration = Duration::from_millis(300);
const STEP: Duration = Duration::from_millis(10);

/// Marks a folder as a cache, as the Cache Directory Tagging Specification says.
const CACHE: &str = "CACHEDIR.TAG";

/// Below this depth a plugin's folder is refused anyway.
const DEEPEST: usize = 16;

/// What tells one version of a file, or of a folder's content, from the next; none where there is
/// nothing.
type Stamp = Option<(u64, u64, i64, i64)>;

/// Files and folders under watch. Of a folder it is the list of its entries; of a plugin's folder,
/// everything in it.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    watched: BTreeSet<PathBuf>,
    seen: BTreeMap<PathBuf, Stamp>,
}

impl Watch {
    /// From now on watches exactly `paths`. They were read after `since`; what changed later than that,
    /// and was not under watch, counts as changed.
    pub(crate) fn set(&mut self, paths: BTreeSet<PathBuf>, since: SystemTime) {
        self.watched = paths;
        let now = self.stamps();
        let before = std::mem::replace(&mut self.seen, now);
        for (path, stamp) in &mut self.seen {
            match before.get(path) {
                Some(known) => *stamp = *known,
                None if path.is_file() && changed_after(path, since) => *stamp = None,
                None => {}
            }
        }
    }

    /// Whether something changed since the last call; waits until it rests.
    pub(crate) fn changed(&mut self) -> bool {
        if !self.look() {
            return false;
        }
        let start = Instant::now();
        let mut rested = Instant::now();
        while rested.elapsed() < SETTLED && start.elapsed() < PATIENCE {
            thread::sleep(STEP);
            if self.look() {
                rested = Instant::now();
            }
        }
        true
    }

    fn look(&mut self) -> bool {
        let now = self.stamps();
        let changed = now != self.seen;
        self.seen = now;
        changed
    }

    fn stamps(&self) -> BTreeMap<PathBuf, Stamp> {
        let mut stamps = BTreeMap::new();
        for path in &self.watched {
            stamps.insert(path.clone(), stamp(path));
            if path.join(MANIFEST).is_file() {
                add_folder(path, DEEPEST, &mut stamps);
            }
        }
        stamps
    }
}

fn add_folder(folder: &Path, deeper: usize, stamps: &mut BTreeMap<PathBuf, Stamp>) {
    // A cache, such as cargo's folder of what it built, decides nothing and may hold thousands of files.
    if folder.join(CACHE).is_file() {
        return;
    }
    let entries = fs::read_dir(folder).into_iter().flatten();
    for entry in entries.filter_map(Result::ok) {
        // The plugin store passes over the same names.
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let path = entry.path();
        stamps.insert(path.clone(), stamp(&path));
        if deeper > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            add_folder(&path, deeper - 1, stamps);
        }
    }
}

fn stamp(path: &Path) -> Stamp {
    fs::metadata(path).ok().map(|metadata| {
        (
            metadata.ino(),
            metadata.len(),
            metadata.mtime(),
            metadata.mtime_nsec(),
        )
    })
}

fn changed_after(path: &Path, since: SystemTime) -> bool {
    fs::metadata(path)
        .and_then(|metadata| metadata.modified())
        .is_ok_and(|modified| modified >= since)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(path: &Path) -> Watch {
        let mut watch = Watch::default();
        let later = SystemTime::now() + Duration::from_mins(1);
        watch.set(BTreeSet::from([path.to_path_buf()]), later);
        watch
    }

    #[test]
    fn sees_writes_renames_removals_and_arrivals() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.yaml");
        fs::write(&file, "one").unwrap();
        let mut watch = watch(&file);
        assert!(!watch.changed());

        fs::write(&file, "three").unwrap();
        assert!(watch.changed());
        assert!(!watch.changed());

        fs::write(folder.path().join("new"), "seven").unwrap();
        fs::rename(folder.path().join("new"), &file).unwrap();
        assert!(watch.changed());

        fs::remove_file(&file).unwrap();
        assert!(watch.changed());
        assert!(!watch.changed());

        fs::write(&file, "").unwrap();
        assert!(watch.changed());
    }

    #[test]
    fn sees_into_the_folders_of_plugins_only() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("lib");
        fs::create_dir(&inner).unwrap();
        fs::write(inner.join("a.lua"), "one").unwrap();
        let mut watch = watch(folder.path());
        fs::write(inner.join("a.lua"), "three").unwrap();
        assert!(!watch.changed());

        fs::write(folder.path().join(MANIFEST), "").unwrap();
        assert!(watch.changed());
        fs::write(inner.join("a.lua"), "seven").unwrap();
        assert!(watch.changed());
        fs::write(inner.join(".b.lua.swp"), "").unwrap();
        // The folder's own time changed; a needless look is harmless.
        watch.changed();
        fs::write(inner.join(".b.lua.swp"), "more").unwrap();
        assert!(!watch.changed());

        fs::write(inner.join("CACHEDIR.TAG"), "").unwrap();
        watch.changed();
        fs::write(inner.join("a.lua"), "eleven").unwrap();
        assert!(!watch.changed());
    }

    #[test]
    fn what_changed_before_it_was_watched_is_not_missed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.yaml");
        fs::write(&file, "one").unwrap();
        let mut watch = Watch::default();
        let before = SystemTime::now() - Duration::from_mins(1);
        watch.set(BTreeSet::from([file]), before);
        assert!(watch.changed());
        assert!(!watch.changed());
    }
}
