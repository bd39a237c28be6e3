//! A plugin's own log file, written off the worker: lines go through an unbounded lock-free queue to
//! one thread for the process, which runs at the lowest priority there is and appends them to
//! `<dir>/<plugin>.log`.
//!
//! What waits in the queue is bounded: beyond [`LIMIT`] bytes lines are dropped, and in their place
//! is a line that says how many. So are lines that could not be written, as on a full disk, or where a
//! pipe is full. What was lost is also counted for the plugin's statistics ([`FileLog::untold`]).
//!
//! Lines are charged to the plugin's [`LogBudget`], as those to the proxy's log are; what is more is dropped and counted
//! likewise. A line has [`LINE_LIMIT`] bytes at most, and control characters in it are escaped, so that no line looks
//! like two.
//!
//! Only regular files are written, and a link is never followed: a link in the folder must not lead lines into
//! another file, nor a pipe keep the lines of other plugins waiting. A file is no larger than [`LARGEST_FILE`].
//!
//! The trap is log rotation: the file of that name may be another one than the file that is open.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use outrider_plugin_api::{LINE_LIMIT, LineInterval, LogBudget};

use crate::ffi::lower_thread_priority;
use crate::source::LogFolder;

/// How many bytes of all plugins may wait.
const LIMIT: usize = 8 * 1024 * 1024;

/// Largest log file, in bytes. Beyond it lines are dropped until the file is rotated.
const LARGEST_FILE: u64 = 256 * 1024 * 1024;

/// Returns a line as it is written: cut, and with control characters escaped but for tabs.
fn shown(line: &[u8]) -> Cow<'_, [u8]> {
    let is_escaped = |byte: &u8| byte.is_ascii_control() && *byte != b'\t';
    if line.len() <= LINE_LIMIT && !line.iter().any(is_escaped) {
        return Cow::Borrowed(line);
    }
    let mut text = Vec::with_capacity(line.len().min(LINE_LIMIT) + 64);
    for (at, byte) in line.iter().enumerate() {
        let length = text.len();
        match byte {
            b'\n' => text.extend_from_slice(b"\\n"),
            b'\r' => text.extend_from_slice(b"\\r"),
            byte if is_escaped(byte) => {
                text.extend_from_slice(format!("\\x{byte:02x}").as_bytes());
            }
            byte => text.push(*byte),
        }
        if text.len() > LINE_LIMIT {
            text.truncate(length);
            let rest = line.len() - at;
            text.extend_from_slice(format!(" ... ({rest} bytes more)").as_bytes());
            break;
        }
    }
    Cow::Owned(text)
}

/// Where one plugin's lines go.
#[derive(Debug, Clone)]
pub(crate) struct FileLog {
    path: Arc<Path>,
    dropped: Arc<AtomicU64>,
    /// Lines that were lost since the plugin was loaded.
    lost: Arc<AtomicU64>,
    /// So many of them are in the statistics.
    told: Arc<AtomicU64>,
    /// Which losses the proxy's log hears of.
    losses: Arc<Mutex<LineInterval>>,
    budget: Arc<LogBudget>,
}

enum Message {
    Line {
        path: Arc<Path>,
        text: Vec<u8>,
        /// How many lines are missing before this one.
        missing: u64,
        dropped: Arc<AtomicU64>,
        lost: Arc<AtomicU64>,
    },
    #[cfg(test)]
    Flush(Sender<()>),
}

/// The queue's end at which workers are.
struct Writer {
    queue: Sender<Message>,
    waiting: Arc<AtomicUsize>,
    limit: usize,
}

static WRITER: LazyLock<Option<Writer>> = LazyLock::new(|| {
    let (writer, lines) = Writer::new(LIMIT);
    let waiting = Arc::clone(&writer.waiting);
    std::thread::Builder::new()
        .name("outrider-log".to_owned())
        .spawn(move || {
            lower_thread_priority();
            run(&lines, &waiting);
        })
        .ok()?;
    Some(writer)
});

impl Writer {
    fn new(limit: usize) -> (Self, Receiver<Message>) {
        let (queue, lines) = channel();
        let writer = Self {
            queue,
            waiting: Arc::default(),
            limit,
        };
        (writer, lines)
    }

    fn write(&self, log: &FileLog, line: &[u8]) {
        let size = line.len() + 1;
        if self.waiting.fetch_add(size, Ordering::Relaxed) + size > self.limit {
            self.waiting.fetch_sub(size, Ordering::Relaxed);
            log.dropped.fetch_add(1, Ordering::Relaxed);
            log.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut text = Vec::with_capacity(size);
        text.extend_from_slice(line);
        text.push(b'\n');
        // The writing thread lives as long as the process.
        let _ = self.queue.send(Message::Line {
            path: Arc::clone(&log.path),
            text,
            missing: log.dropped.swap(0, Ordering::Relaxed),
            dropped: Arc::clone(&log.dropped),
            lost: Arc::clone(&log.lost),
        });
    }
}

impl FileLog {
    /// The log of `plugin` in a folder. The writing thread is started here, not on a worker.
    pub(crate) fn new(place: &LogFolder, plugin: &str) -> Self {
        LazyLock::force(&WRITER);
        // A plugin's name is a word by its manifest; what is not part of one cannot leave the folder.
        let name: String = plugin
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() || "-_.".contains(c) {
                    c
                } else {
                    '_'
                }
            })
            .collect();
        Self {
            path: Arc::from(place.folder.join(format!("{name}.log"))),
            dropped: Arc::default(),
            lost: Arc::default(),
            told: Arc::default(),
            losses: Arc::default(),
            budget: Arc::clone(&place.budget),
        }
    }

    /// How many lines were lost since the plugin was loaded.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// How many lines were lost of which the statistics do not know yet; they are taken to know now.
    pub(crate) fn untold(&self) -> u64 {
        let lost = self.lost();
        if lost == self.told.load(Ordering::Relaxed) {
            return 0;
        }
        lost.saturating_sub(self.told.swap(lost, Ordering::Relaxed))
    }

    /// What the proxy's log is told of lost lines, now and then.
    pub(crate) fn complaint(&self, now_ms: u64) -> Option<String> {
        self.losses
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .admit(now_ms)?;
        Some(format!(
            "its log file {} loses lines ({} since the plugin was loaded): it cannot be written, or not as fast \
             as they come",
            self.path.display(),
            self.lost()
        ))
    }

    /// Queues one line, or drops it when too much waits already, or the plugin writes too much.
    pub(crate) fn write(&self, line: &[u8]) {
        let line = shown(line);
        if !self.budget.charge(line.len()) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            self.lost.fetch_add(1, Ordering::Relaxed);
        } else if let Some(writer) = &*WRITER {
            writer.write(self, &line);
        }
    }
}

/// Writes lines until nobody can queue one any more.
fn run(lines: &Receiver<Message>, waiting: &AtomicUsize) {
    let mut files: BTreeMap<PathBuf, Option<File>> = BTreeMap::new();
    while let Ok(message) = lines.recv() {
        match message {
            Message::Line {
                path,
                text,
                missing,
                dropped,
                lost,
            } => {
                waiting.fetch_sub(text.len(), Ordering::Relaxed);
                if append(&mut files, &path, &text, missing).is_err() {
                    // Told before the next line that can be written.
                    dropped.fetch_add(missing + 1, Ordering::Relaxed);
                    lost.fetch_add(1, Ordering::Relaxed);
                }
            }
            #[cfg(test)]
            Message::Flush(done) => {
                let _ = done.send(());
            }
        }
    }
}

/// Whether the file that is open is the one at `path`.
fn is_at(open: &File, path: &Path) -> bool {
    let (Ok(open), Ok(there)) = (open.metadata(), std::fs::symlink_metadata(path)) else {
        return false;
    };
    (open.dev(), open.ino()) == (there.dev(), there.ino())
}

/// Opens a log file. One that is no regular file is refused.
fn open_file(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    // To open a pipe without a reader would wait for one.
    options
        .append(true)
        .create(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_CLOEXEC);
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::from(std::io::ErrorKind::InvalidInput));
    }
    Ok(file)
}

fn append(
    files: &mut BTreeMap<PathBuf, Option<File>>,
    path: &Path,
    text: &[u8],
    missing: u64,
) -> std::io::Result<()> {
    let file = files.entry(path.to_owned()).or_default();
    // A file that was moved away or removed (by log rotation) is begun anew, and one that was put in its
    // place is gone on with.
    if file.as_ref().is_some_and(|open| !is_at(open, path)) {
        *file = None;
    }
    let open = if let Some(open) = file {
        open
    } else {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        file.insert(open_file(path)?)
    };
    let note = match missing {
        0 => String::new(),
        1 => "(1 line was dropped)\n".to_owned(),
        _ => format!("({missing} lines were dropped)\n"),
    };
    let mut whole = note.into_bytes();
    whole.extend_from_slice(text);
    let size = open.metadata()?.len();
    if size.saturating_add(whole.len() as u64) > LARGEST_FILE {
        return Err(std::io::Error::from(std::io::ErrorKind::FileTooLarge));
    }
    let written = open.write_all(&whole);
    if written.is_err() {
        *file = None;
    }
    written
}

/// Waits until all lines that were queued before are written.
#[cfg(test)]
pub(crate) fn flush() {
    let (done, wait) = channel();
    if let Some(writer) = &*WRITER {
        writer.queue.send(Message::Flush(done)).unwrap();
        wait.recv().unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_in(folder: &Path) -> FileLog {
        log_of(folder, "probe")
    }

    fn log_of(folder: &Path, plugin: &str) -> FileLog {
        let place = LogFolder {
            folder: folder.to_owned(),
            budget: Arc::default(),
        };
        FileLog::new(&place, plugin)
    }

    /// Writes all that waits.
    fn drain(lines: &Receiver<Message>, writer: Writer) {
        let waiting = Arc::clone(&writer.waiting);
        drop(writer);
        run(lines, &waiting);
        assert_eq!(waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn lines_beyond_the_limit_are_dropped_and_counted() {
        let folder = tempfile::tempdir().unwrap();
        let log = log_in(folder.path());
        let (writer, lines) = Writer::new(8);
        for line in [&b"one"[..], b"two", b"lost", b"lost too"] {
            writer.write(&log, line);
        }
        assert_eq!(writer.waiting.load(Ordering::Relaxed), 8);
        drain(&lines, writer);
        let (writer, lines) = Writer::new(8);
        writer.write(&log, b"next");
        writer.write(&log, b"x");
        drain(&lines, writer);
        let path = folder.path().join("probe.log");
        assert_eq!(
            std::fs::read_to_string(path).unwrap(),
            "one\ntwo\n(2 lines were dropped)\nnext\nx\n"
        );
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_a_moved_file_is_begun_anew() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("logs");
        std::fs::write(&folder, "in the way").unwrap();
        let log = log_in(&folder);
        let (writer, lines) = Writer::new(LIMIT);
        writer.write(&log, b"lost");
        drain(&lines, writer);
        std::fs::remove_file(&folder).unwrap();
        let (writer, lines) = Writer::new(LIMIT);
        writer.write(&log, b"kept");
        drain(&lines, writer);
        let path = folder.join("probe.log");
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "(1 line was dropped)\nkept\n"
        );

        let mut files = BTreeMap::new();
        append(&mut files, &path, b"more\n", 0).unwrap();
        std::fs::rename(&path, folder.join("probe.log.1")).unwrap();
        append(&mut files, &path, b"anew\n", 0).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "anew\n");
        std::fs::remove_file(&path).unwrap();
        append(&mut files, &path, b"again\n", 0).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "again\n");
        // As rotation does that makes the new file itself.
        std::fs::rename(&path, folder.join("probe.log.2")).unwrap();
        std::fs::write(&path, "begun by another\n").unwrap();
        append(&mut files, &path, b"gone on\n", 0).unwrap();
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "begun by another\ngone on\n"
        );
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("probe.log");
        std::fs::create_dir(&path).unwrap();
        let log = log_in(folder.path());
        let (writer, lines) = Writer::new(LIMIT);
        for _ in 0..5 {
            writer.write(&log, b"lost");
        }
        drain(&lines, writer);
        assert_eq!(log.lost(), 5);
        assert_eq!((log.untold(), log.untold()), (5, 0));
        let complaint = log.complaint(1_000).unwrap();
        assert!(
            complaint.contains("probe.log loses lines (5 since"),
            "{complaint}"
        );
        assert_eq!(log.complaint(2_000), None);
        std::fs::remove_dir(&path).unwrap();
        let (writer, lines) = Writer::new(LIMIT);
        writer.write(&log, b"kept");
        drain(&lines, writer);
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "(5 lines were dropped)\nkept\n"
        );
        assert_eq!(log.untold(), 0);
    }

    #[test]
    fn links_and_pipes_are_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("probe.log");
        let other_file = folder.path().join("victim");
        std::fs::write(&other_file, "mine\n").unwrap();
        std::os::unix::fs::symlink(&other_file, &path).unwrap();
        let (log, other) = (log_in(folder.path()), log_of(folder.path(), "other"));
        let (writer, lines) = Writer::new(LIMIT);
        writer.write(&log, b"lost");
        drain(&lines, writer);
        assert_eq!(log.lost(), 1);
        assert_eq!(std::fs::read_to_string(&other_file).unwrap(), "mine\n");
        // A link that takes the place of a file that is open.
        std::fs::remove_file(&path).unwrap();
        let mut files = BTreeMap::new();
        append(&mut files, &path, b"mine\n", 0).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&other_file, &path).unwrap();
        append(&mut files, &path, b"lost\n", 0).unwrap_err();
        assert_eq!(std::fs::read_to_string(&other_file).unwrap(), "mine\n");
        std::fs::remove_file(&path).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        // With a reader, the pipe can be opened.
        let reader = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&path)
            .unwrap();
        let (writer, lines) = Writer::new(LIMIT);
        for _ in 0..1000 {
            writer.write(&log, b"lost");
            writer.write(&other, b"here");
        }
        drain(&lines, writer);
        assert_eq!(log.lost(), 1001);
        let text = std::fs::read_to_string(folder.path().join("other.log")).unwrap();
        assert_eq!(text.lines().count(), 1000);
        assert_eq!(other.lost(), 0);
        drop(reader);
    }

    #[test]
    fn lines_over_the_plugins_log_rate_are_dropped_and_counted() {
        let folder = tempfile::tempdir().unwrap();
        let budget = Arc::new(LogBudget::new(10_000));
        let place = LogFolder {
            folder: folder.path().to_owned(),
            budget: Arc::clone(&budget),
        };
        let log = FileLog::new(&place, "probe");
        // The proxy's log takes its part of the same rate.
        assert!(budget.charge(5000));
        for _ in 0..1000 {
            log.write(&[b'x'; 872]);
        }
        flush();
        let text = std::fs::read_to_string(folder.path().join("probe.log")).unwrap();
        let written = text.lines().count();
        assert!((5..=7).contains(&written), "{written}");
        assert_eq!(log.lost(), 1000 - written as u64);
        assert_eq!(budget.take_dropped(), log.lost());
    }

    #[test]
    fn line_is_cut_and_holds_no_control_character() {
        assert_eq!(&*shown(b"plain \t text"), b"plain \t text");
        assert_eq!(
            &*shown(b"x\nerror: forged\r\x1b[31m\0"),
            b"x\\nerror: forged\\r\\x1b[31m\\x00"
        );
        let long = shown(&[b'x'; LINE_LIMIT + 10]).into_owned();
        assert!(long.starts_with(&[b'x'; LINE_LIMIT]));
        assert!(long.ends_with(b" ... (10 bytes more)"));
        assert!(long.len() < LINE_LIMIT + 64);
    }

    #[test]
    fn file_does_not_grow_beyond_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("probe.log");
        let file = File::create(&path).unwrap();
        file.set_len(LARGEST_FILE - 10).unwrap();
        let mut files = BTreeMap::new();
        append(&mut files, &path, b"123456789\n", 0).unwrap();
        append(&mut files, &path, b"1\n", 0).unwrap_err();
        assert_eq!(file.metadata().unwrap().len(), LARGEST_FILE);
        std::fs::rename(&path, folder.path().join("probe.log.1")).unwrap();
        append(&mut files, &path, b"anew\n", 0).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "anew\n");
    }
}
