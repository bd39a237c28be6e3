use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::Command;
use std::thread;

use tempfile::TempDir;

use super::*;

const CODE: &[u8] = b"\x7fELF and what else compiled code may hold";

fn key(module: u8, engine: u32) -> Key {
    Key::new([module; 32], &engine)
}

/// A cache with one entry.
struct Kept {
    _parent: TempDir,
    cache: Cache,
    key: Key,
    file: PathBuf,
}

fn kept() -> Kept {
    let parent = TempDir::new().unwrap();
    let cache = Cache::open(&parent.path().join("outrider/compiled")).unwrap();
    let key = key(1, 1);
    cache.put(&key, CODE).unwrap();
    let file = cache.path(&key);
    Kept {
        _parent: parent,
        cache,
        key,
        file,
    }
}

fn read(cache: &Cache, key: &Key) -> Option<Vec<u8>> {
    let mut code = Vec::new();
    cache.get(key).unwrap()?.read_to_end(&mut code).unwrap();
    assert_eq!(
        Trailer::parse(&code[code.len() - TRAILER..]).unwrap().key,
        *key
    );
    code.truncate(code.len() - TRAILER);
    Some(code)
}

/// Why an entry is not loaded. It is written again afterwards, and then it is.
fn refused(kept: &Kept) -> String {
    let message = kept.cache.get(&kept.key).unwrap_err().to_string();
    let shown = kept.file.display().to_string();
    assert!(message.contains(&shown), "{message}");
    let _ = fs::remove_dir(&kept.file);
    kept.cache.put(&kept.key, CODE).unwrap();
    assert_eq!(read(&kept.cache, &kept.key).unwrap(), CODE);
    message.replace(&shown, "FILE")
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn what_is_kept_is_found_by_its_key_alone() {
    let kept = kept();
    assert_eq!(read(&kept.cache, &kept.key).unwrap(), CODE);
    assert_eq!(read(&kept.cache, &key(2, 1)), None);
    assert_eq!(read(&kept.cache, &key(1, 2)), None);
    assert_eq!(mode(&kept.cache.folder), 0o700);
    assert_eq!(mode(kept.cache.folder.parent().unwrap()), 0o700);
    assert_eq!(mode(&kept.file), 0o600);
    // Another process on the same folder.
    let other = Cache::open(&kept.cache.folder).unwrap();
    assert_eq!(read(&other, &kept.key).unwrap(), CODE);
    other.put(&kept.key, b"newer").unwrap();
    assert_eq!(read(&kept.cache, &kept.key).unwrap(), b"newer");
    kept.cache.put(&kept.key, b"").unwrap();
    assert_eq!(read(&kept.cache, &kept.key).unwrap(), b"");
    assert_eq!(fs::read_dir(&kept.cache.folder).unwrap().count(), 1);
}

#[test]
fn a_damaged_entry_is_not_loaded() {
    let kept = kept();
    let whole = fs::read(&kept.file).unwrap();
    assert_eq!(whole.len(), CODE.len() + TRAILER);
    for place in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[place] ^= 1;
        fs::write(&kept.file, damaged).unwrap();
        assert!(kept.cache.get(&kept.key).is_err(), "byte {place}");
    }
    for length in 0..whole.len() {
        fs::write(&kept.file, &whole[..length]).unwrap();
        assert!(kept.cache.get(&kept.key).is_err(), "length {length}");
    }
    fs::write(&kept.file, [&whole[..], b"x"].concat()).unwrap();
    assert!(refused(&kept).contains("its end is not one"));
    // The right end behind too much.
    fs::write(&kept.file, [b"x", &whole[..]].concat()).unwrap();
    assert!(refused(&kept).contains("its length is not as written"));
    let mut damaged = whole;
    damaged[3] = b'-';
    fs::write(&kept.file, damaged).unwrap();
    assert!(refused(&kept).contains("its content is not as written"));
}

#[test]
fn an_entry_under_the_name_of_another_is_not_loaded() {
    let kept = kept();
    for other in [key(2, 1), key(1, 2)] {
        kept.cache.put(&other, CODE).unwrap();
        fs::rename(kept.cache.path(&other), &kept.file).unwrap();
        assert!(refused(&kept).contains("another module or engine"));
    }
    // A version of this cache that is not this one's.
    let mut bytes = fs::read(&kept.file).unwrap();
    let magic = CODE.len() + MAGIC.len() - 1;
    bytes[magic] += 1;
    let end = bytes.len() - 4;
    let own = crc32fast::hash(&bytes[CODE.len()..end]);
    bytes[end..].copy_from_slice(&own.to_le_bytes());
    fs::write(&kept.file, bytes).unwrap();
    assert!(refused(&kept).contains("its end is not one"));
}

#[test]
fn an_entry_that_others_may_have_planted_is_not_loaded() {
    let kept = kept();
    for planted in [0o620, 0o602, 0o666, 0o640] {
        set_mode(&kept.file, planted);
        let message = refused(&kept);
        assert!(message.contains("lets others in"), "{message}");
        assert_eq!(mode(&kept.file), 0o600, "written again");
    }
    let elsewhere = kept.cache.folder.join("elsewhere");
    fs::rename(&kept.file, &elsewhere).unwrap();
    symlink(&elsewhere, &kept.file).unwrap();
    assert!(refused(&kept).contains("cannot be opened"));
    assert!(elsewhere.exists() && !kept.file.is_symlink());

    fs::remove_file(&kept.file).unwrap();
    DirBuilder::new().mode(0o700).create(&kept.file).unwrap();
    assert!(refused(&kept).contains("not a regular file"));
    fs::remove_file(&kept.file).unwrap();
    let made = Command::new("mkfifo")
        .args(["-m", "600"])
        .arg(&kept.file)
        .status();
    assert!(made.unwrap().success());
    assert!(refused(&kept).contains("not a regular file"));

    // What another user owns: seen from the other user's side, this is it.
    let other = Cache {
        folder: kept.cache.folder.clone(),
        owner: kept.cache.owner + 1,
    };
    let message = other.get(&kept.key).unwrap_err().to_string();
    assert!(message.contains("belongs to the user"), "{message}");
}

#[test]
fn a_folder_that_others_may_enter_is_not_used() {
    let kept = kept();
    let folder = &kept.cache.folder;
    let message = |opened: Result<Cache, Trouble>| opened.unwrap_err().to_string();
    for open in [0o770, 0o707, 0o755, 0o1777] {
        set_mode(folder, open);
        assert!(
            message(Cache::open(folder)).contains("lets others in"),
            "{open:o}"
        );
    }
    set_mode(folder, 0o700);
    let other = Cache::open_as(folder, kept.cache.owner + 1);
    assert!(message(other).contains("belongs to the user"));
    let link = folder.with_file_name("link");
    symlink(folder, &link).unwrap();
    assert!(message(Cache::open(&link)).contains("symbolic link"));
    assert!(message(Cache::open(&kept.file)).contains("cannot be made"));
    assert!(message(Cache::open(&kept.file.join("below"))).contains("cannot be made"));
}

#[test]
fn a_full_disk_leaves_what_was_there() {
    let kept = kept();
    // The name of the unfinished file is taken: as near to a fault of writing as a test comes.
    let unfinished = kept.cache.folder.join(".0-0.tmp");
    DirBuilder::new().create(&unfinished).unwrap();
    assert!(kept.cache.write(&unfinished, &kept.key, b"newer").is_err());
    assert_eq!(read(&kept.cache, &kept.key).unwrap(), CODE);
}

#[test]
fn old_entries_go_and_so_do_the_least_used_ones_of_too_many() {
    let kept = kept();
    let now = SystemTime::now();
    let set = |path: &Path, age: Duration| {
        File::options()
            .write(true)
            .open(path)
            .unwrap()
            .set_modified(now - age)
            .unwrap();
    };
    let hour = Duration::from_hours(1);
    let keys: Vec<Key> = (2..6).map(|module| key(module, 1)).collect();
    for (number, key) in (1_u32..).zip(&keys) {
        kept.cache.put(key, CODE).unwrap();
        set(&kept.cache.path(key), hour * number);
    }
    let foreign = kept.cache.folder.join("notes.txt");
    fs::write(&foreign, "").unwrap();
    set(&foreign, OLDEST * 2);
    let [begun, left] = ["begun.tmp", "left.tmp"].map(|name| kept.cache.folder.join(name));
    for (file, age) in [(&begun, hour / 2), (&left, hour * 2)] {
        fs::write(file, "").unwrap();
        set(file, age);
    }
    set(&kept.file, OLDEST + hour);
    let there = || -> Vec<bool> {
        let entries = keys.iter().map(|key| kept.cache.path(key));
        entries
            .chain([
                kept.file.clone(),
                foreign.clone(),
                begun.clone(),
                left.clone(),
            ])
            .map(|file| file.exists())
            .collect()
    };
    // The new one stays, however old the clock says it is.
    kept.cache.prune(now, LARGEST, &kept.file);
    assert_eq!(there(), [true, true, true, true, true, true, true, false]);
    kept.cache.prune(now, LARGEST, &kept.cache.path(&keys[3]));
    assert_eq!(there(), [true, true, true, true, false, true, true, false]);
    let three = 3 * (CODE.len() + TRAILER) as u64;
    kept.cache.prune(now, three, &kept.cache.path(&keys[3]));
    assert_eq!(
        there(),
        [true, true, true, true, false, true, true, false],
        "the one to keep is over the mark"
    );
    kept.cache.prune(now, three, &kept.cache.path(&keys[0]));
    assert_eq!(there(), [true, true, true, false, false, true, true, false]);
    // To be loaded is to be used.
    read(&kept.cache, &keys[2]).unwrap();
    kept.cache
        .prune(SystemTime::now(), three - 1, &kept.cache.path(&keys[0]));
    assert_eq!(
        there(),
        [true, false, true, false, false, true, true, false]
    );
}

#[test]
fn many_write_and_read_the_same_entry_at_once() {
    let kept = kept();
    let codes = [vec![1; CHUNK + 1], vec![2; 3 * CHUNK], vec![3; 10]];
    thread::scope(|scope| {
        for code in &codes {
            scope.spawn(|| {
                for _ in 0..20 {
                    kept.cache.put(&kept.key, code).unwrap();
                    let read = read(&kept.cache, &kept.key).unwrap();
                    assert!(codes.contains(&read), "{} bytes", read.len());
                }
            });
        }
    });
    assert_eq!(fs::read_dir(&kept.cache.folder).unwrap().count(), 1);
}
