//! Notices changes of files: the kernel tells of events in their folders, and stamps (inode, size, times) tell whether a
//! change matters.
//!
//! The trap: events alone are not enough. A network file system tells nothing of what other machines do, a folder may be
//! replaced through a link further up, and the kernel limits how many folders a user may watch. So all stamps are compared
//! now and then, too: seldom where events are expected, often where they are not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use outrider_plugin_store::MANIFEST;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

/// How long files have to stay the same before a change counts as finished.
const SETTLED: Duration = Duration::from_millis(50);
/// How long that is waited for: a file that never rests must not stop the rest.
const PATIENCE: Duration = Duration::from_millis(300);
const STEP: Duration = Duration::from_millis(10);
/// Time between two looks at all stamps where the kernel tells of changes, and where it does not.
const SELDOM: Duration = Duration::from_secs(10);
const OFTEN: Duration = Duration::from_millis(500);

/// Marks a folder as a cache, as the Cache Directory Tagging Specification says.
const CACHE: &str = "CACHEDIR.TAG";

/// Below this depth a plugin's folder is refused anyway.
const DEEPEST: usize = 16;

/// Network file systems and those of user space, by the magic numbers of statfs(2): their changes may cause no events.
const WITHOUT_EVENTS: [i64; 8] = [
    0x6969,      // NFS
    0xff53_4d42, // CIFS
    0xfe53_4d42, // SMB2
    0x517b,      // SMB
    0x6573_5546, // FUSE
    0x0102_1997, // 9P
    0x00c3_6400, // Ceph
    0x5346_414f, // AFS
];

/// What tells one version of a file, or of a folder's content, from the next; `None` where there is nothing. The time of
/// the last change of the inode is one that no program sets: a file that is moved into place is seen by it.
type Stamp = Option<(u64, u64, u64, (i64, i64), (i64, i64))>;

/// What files were before they were read. Whoever reads them notes each before.
#[derive(Debug, Clone, Default)]
pub struct Seen(BTreeMap<PathBuf, Stamp>);

impl Seen {
    /// Notes a file or folder that is about to be read; of a plugin's folder, all in it. Only the first note of a path
    /// counts.
    pub fn note(&mut self, path: &Path) {
        if !self.0.contains_key(path) {
            add_stamps(path, &mut self.0);
        }
    }
}

/// Files and folders under watch. Of a folder it is the list of its entries; of a plugin's folder,
/// everything in it.
#[derive(Debug)]
pub(crate) struct Watch {
    watched: BTreeSet<PathBuf>,
    seen: BTreeMap<PathBuf, Stamp>,
    events: Option<Events>,
    /// When all stamps were compared last; `None`: they have to be.
    looked: Option<Instant>,
}

impl Watch {
    pub(crate) fn new() -> Self {
        Self {
            watched: BTreeSet::new(),
            seen: BTreeMap::new(),
            events: None,
            looked: None,
        }
    }

    /// From now on watches exactly `paths`. A path that `seen` does not hold counts as read now.
    pub(crate) fn set(&mut self, paths: BTreeSet<PathBuf>, seen: &Seen) {
        self.watched = paths;
        self.events = Events::of(&self.watched);
        let now = self.stamps();
        let is_under = |path: &Path, is: &dyn Fn(&Path) -> bool| path.ancestors().any(is);
        // A plugin's folder was noted with all that is in it.
        let is_noted = |above: &Path| self.watched.contains(above) && seen.0.contains_key(above);
        let mut was: BTreeMap<PathBuf, Stamp> = now
            .into_iter()
            .filter(|(path, _)| !is_under(path, &is_noted))
            .collect();
        for (path, stamp) in &seen.0 {
            if is_under(path, &|above| self.watched.contains(above)) {
                was.insert(path.clone(), *stamp);
            }
        }
        self.seen = was;
        // What changed after it was noted has caused no event.
        self.looked = None;
    }

    /// Whether something changed since the last call; waits until it rests.
    pub(crate) fn changed(&mut self) -> bool {
        let interval = match &self.events {
            Some(events) if !events.come() => SELDOM,
            Some(_) => Duration::ZERO,
            None => OFTEN,
        };
        if self
            .looked
            .is_some_and(|looked| looked.elapsed() < interval)
            || !self.look()
        {
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
        // A folder may be another one now.
        self.events = Events::of(&self.watched);
        true
    }

    fn look(&mut self) -> bool {
        self.looked = Some(Instant::now());
        let now = self.stamps();
        let changed = now != self.seen;
        self.seen = now;
        changed
    }

    fn stamps(&self) -> BTreeMap<PathBuf, Stamp> {
        let mut stamps = BTreeMap::new();
        for path in &self.watched {
            add_stamps(path, &mut stamps);
        }
        stamps
    }
}

/// Events in the folders of some paths.
#[derive(Debug)]
struct Events(OwnedFd);

impl Events {
    /// `None`: the kernel does not tell of all changes there.
    fn of(paths: &BTreeSet<PathBuf>) -> Option<Self> {
        let events = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok()?;
        let flags = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::MODIFY
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ATTRIB;
        for folder in folders(paths) {
            let tells =
                rustix::fs::statfs(&folder).is_ok_and(|of| !WITHOUT_EVENTS.contains(&of.f_type));
            if !tells || inotify::add_watch(&events, &folder, flags).is_err() {
                return None;
            }
        }
        Some(Self(events))
    }

    /// Whether any have come since the last call.
    fn come(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.0, &mut buffer);
        let mut come = false;
        while events.next().is_ok() {
            come = true;
        }
        come
    }
}

/// The folders in which something changes when one of these paths does: those that hold each part of the path that is a
/// link, those of the file itself, and all of a plugin's.
fn folders(paths: &BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
    let mut folders = BTreeSet::new();
    for path in paths {
        let Ok(path) = std::path::absolute(path) else {
            continue;
        };
        let mut stamps = BTreeMap::new();
        add_stamps(&path, &mut stamps);
        folders.extend(stamps.into_keys().filter(|path| path.is_dir()));
        // A link may lead to a link.
        let mut leads_to = vec![path];
        let mut depth = 0;
        while let Some(path) = leads_to.pop() {
            depth += 1;
            for part in path.ancestors() {
                let folder = part.parent().filter(|folder| folder.is_dir());
                let Some(folder) = folder else {
                    continue;
                };
                if let Ok(target) = fs::read_link(part) {
                    folders.insert(folder.to_path_buf());
                    if depth < DEEPEST {
                        leads_to.push(folder.join(target));
                    }
                }
            }
            // The file's own folder, or of what is not there, the nearest that is.
            let nearest = path.ancestors().skip(1).find(|above| above.is_dir());
            folders.extend(nearest.map(Path::to_path_buf));
        }
    }
    folders
}

fn add_stamps(path: &Path, stamps: &mut BTreeMap<PathBuf, Stamp>) {
    stamps.insert(path.to_path_buf(), stamp(path));
    if path.join(MANIFEST).is_file() {
        add_folder(path, DEEPEST, stamps);
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
            metadata.dev(),
            metadata.ino(),
            metadata.len(),
            (metadata.mtime(), metadata.mtime_nsec()),
            (metadata.ctime(), metadata.ctime_nsec()),
        )
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn watch(path: &Path) -> Watch {
        let mut watch = Watch::new();
        watch.set(BTreeSet::from([path.to_path_buf()]), &Seen::default());
        assert!(!watch.changed());
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

    /// A file may be moved into place between its first reading and the watch, with the time of an older one.
    #[test]
    fn what_changed_after_it_was_read_is_not_missed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.yaml");
        let staged = folder.path().join("staged");
        fs::write(&staged, "two").unwrap();
        fs::write(&file, "one").unwrap();
        let mut seen = Seen::default();
        seen.note(&file);
        fs::rename(&staged, &file).unwrap();
        seen.note(&file);
        let mut watch = Watch::new();
        watch.set(BTreeSet::from([file]), &seen);
        assert!(watch.changed());
        assert!(!watch.changed());
    }

    #[test]
    fn file_that_a_plugin_got_after_it_was_read_is_not_missed() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(MANIFEST), "").unwrap();
        let mut seen = Seen::default();
        seen.note(folder.path());
        fs::create_dir(folder.path().join("lib")).unwrap();
        fs::write(folder.path().join("lib/a.lua"), "").unwrap();
        let mut watch = Watch::new();
        watch.set(BTreeSet::from([folder.path().to_path_buf()]), &seen);
        assert!(watch.changed());
        assert!(!watch.changed());
    }

    /// As Kubernetes replaces a ConfigMap: the file is a link through a folder that is itself a link.
    #[test]
    fn link_further_up_that_leads_elsewhere_is_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("..data");
        for version in ["..v1", "..v2"] {
            fs::create_dir(folder.path().join(version)).unwrap();
            fs::write(folder.path().join(version).join("g.yaml"), version).unwrap();
        }
        symlink("..v1", &data).unwrap();
        let file = folder.path().join("g.yaml");
        symlink("..data/g.yaml", &file).unwrap();
        let mut watch = watch(&file);
        symlink("..v2", folder.path().join("..tmp")).unwrap();
        fs::rename(folder.path().join("..tmp"), &data).unwrap();
        fs::remove_dir_all(folder.path().join("..v1")).unwrap();
        assert!(watch.changed());
        assert!(!watch.changed());
        fs::write(folder.path().join("..v2/g.yaml"), "written in place").unwrap();
        assert!(watch.changed());
    }
}
