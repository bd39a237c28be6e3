//! Lines appended to a file or to standard output.
//!
//! The file is opened for appending, so that `copytruncate` of logrotate needs nothing; one that was moved or removed is
//! noticed by its inode and opened anew, parents included. A line is whole in one file: one that a full disk cut off goes on
//! where it was cut, or from its beginning if the file is another by then.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use outrider_plugin_formats as formats;

use crate::registry::Definition;
use crate::stats::{self, Counter, SinkStatus};

/// Bytes that may wait for the disk; lines beyond them are dropped.
const QUEUE: usize = 8 * 1024 * 1024;
/// Bytes that are formatted before they are written.
const CHUNK: usize = 64 * 1024;
/// After a failure, until the next attempt.
const RETRY: Duration = Duration::from_millis(500);
/// Between two looks at the file's name.
const LOOK: Duration = Duration::from_millis(250);
/// How long a sink that no access log has tries to write what it has.
const LAST: Duration = Duration::from_secs(10);
/// Renamed files that are kept, where the document does not say.
const KEEP: u32 = 5;

/// Lines that wait, whole.
#[derive(Debug, Default)]
struct Chunk {
    bytes: Vec<u8>,
    /// Lines, by their ends.
    ends: Vec<usize>,
}

#[derive(Debug)]
enum Target {
    Stdout,
    File {
        path: PathBuf,
        open: Option<Open>,
        rotate_at: u64,
        keep: u32,
        looked: Instant,
        /// Device and inode of the file that was opened last.
        last: Option<(u64, u64)>,
    },
}

#[derive(Debug)]
struct Open {
    file: File,
    device: u64,
    inode: u64,
    size: u64,
}

/// A file, or standard output.
#[derive(Debug)]
pub(crate) struct Lines {
    target: Target,
    /// Full ones first; the last one is being filled.
    chunks: VecDeque<Chunk>,
    waiting: usize,
    /// Bytes of the first chunk that were written.
    written: usize,
    failed: Option<(Instant, String)>,
    unused_since: Option<Instant>,
}

impl Lines {
    pub(crate) fn stdout() -> Self {
        Self::new(Target::Stdout)
    }

    pub(crate) fn file(file: &formats::FileSink) -> Self {
        Self::new(Target::File {
            path: PathBuf::from(&file.path),
            open: None,
            rotate_at: file.rotate_at.unwrap_or(u64::MAX),
            keep: file.keep.unwrap_or(KEEP),
            looked: Instant::now(),
            last: None,
        })
    }

    fn new(target: Target) -> Self {
        Self {
            target,
            chunks: VecDeque::new(),
            waiting: 0,
            written: 0,
            failed: None,
            unused_since: None,
        }
    }

    pub(crate) fn append(&mut self, definition: &Definition, fields: &[u8]) {
        self.unused_since = None;
        self.adopt(&definition.sink);
        if self.waiting >= QUEUE {
            return stats::add(Counter::QueueFull, 1);
        }
        if self
            .chunks
            .back()
            .is_none_or(|chunk| chunk.bytes.len() >= CHUNK)
        {
            self.flush();
            self.chunks.push_back(Chunk::default());
        }
        let Some(chunk) = self.chunks.back_mut() else {
            return;
        };
        let before = chunk.bytes.len();
        if !definition.log.write_line(&mut chunk.bytes, fields) {
            chunk.bytes.truncate(before);
            return stats::add(Counter::Unknown, 1);
        }
        chunk.ends.push(chunk.bytes.len());
        self.waiting += chunk.bytes.len() - before;
    }

    /// Takes the newest configuration's limits.
    fn adopt(&mut self, sink: &formats::Sink) {
        if let (
            Target::File {
                rotate_at, keep, ..
            },
            formats::Sink::File(file),
        ) = (&mut self.target, sink)
        {
            *rotate_at = file.rotate_at.unwrap_or(u64::MAX);
            *keep = file.keep.unwrap_or(KEEP);
        }
    }

    pub(crate) fn flush(&mut self) {
        if let Some((since, _)) = &self.failed
            && since.elapsed() < RETRY
        {
            return;
        }
        if let Err(error) = self.write() {
            stats::add(Counter::Retries, 1);
            if let Target::File { open, .. } = &mut self.target {
                *open = None;
            }
            self.failed = Some((Instant::now(), error.to_string()));
        } else {
            self.failed = None;
        }
    }

    fn write(&mut self) -> io::Result<()> {
        while let Some(chunk) = self.chunks.front() {
            if self.target.prepare()? {
                // Another file: the line that was under way begins there.
                let whole = chunk.ends.iter().rev().find(|end| **end <= self.written);
                let begin = whole.copied().unwrap_or(0);
                self.waiting += self.written - begin;
                self.written = begin;
            }
            let Some(rest) = chunk.bytes.get(self.written..) else {
                break;
            };
            if !rest.is_empty() {
                let count = self.target.write(rest)?;
                self.written += count;
                self.waiting -= count;
            }
            if self.written == chunk.bytes.len() {
                stats::add(Counter::Written, chunk.ends.len() as u64);
                self.chunks.pop_front();
                self.written = 0;
            }
        }
        Ok(())
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(crate) fn is_done(&mut self) -> bool {
        if self.waiting == 0 {
            return true;
        }
        let since = *self.unused_since.get_or_insert_with(Instant::now);
        if since.elapsed() < LAST {
            return false;
        }
        let lines: usize = self.chunks.iter().map(|chunk| chunk.ends.len()).sum();
        stats::add(Counter::Abandoned, lines as u64);
        true
    }

    pub(crate) fn status(&self) -> SinkStatus {
        SinkStatus {
            place: match &self.target {
                Target::Stdout => "stdout".to_owned(),
                Target::File { path, .. } => path.display().to_string(),
            },
            waiting: self.waiting,
            failure: self.failed.as_ref().map(|(_, error)| error.clone()),
        }
    }
}

impl Target {
    /// Opens the file, unless it is open, still has its name, and is small enough. Returns whether it is another file than
    /// before.
    fn prepare(&mut self) -> io::Result<bool> {
        let Self::File {
            path,
            open,
            rotate_at,
            keep,
            looked,
            last,
        } = self
        else {
            return Ok(false);
        };
        if let Some(file) = open {
            if file.size >= *rotate_at {
                rotate(path, *keep)?;
                *open = None;
            } else if looked.elapsed() >= LOOK {
                *looked = Instant::now();
                let named = std::fs::metadata(&*path).ok();
                match named {
                    Some(named) if (named.dev(), named.ino()) == (file.device, file.inode) => {
                        // Truncated from outside: it is as long as it is now.
                        file.size = named.len();
                    }
                    _ => *open = None,
                }
            }
        }
        if open.is_some() {
            return Ok(false);
        }
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let file = OpenOptions::new().append(true).create(true).open(&*path)?;
        let metadata = file.metadata()?;
        *open = Some(Open {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            file,
        });
        *looked = Instant::now();
        let identity = (metadata.dev(), metadata.ino());
        let before = last.replace(identity);
        let is_other = before.is_some_and(|before| before != identity);
        if is_other {
            stats::add(Counter::Reopened, 1);
        }
        Ok(is_other)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match self {
            Self::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(bytes)?;
                stdout.flush()?;
                bytes.len()
            }
            Self::File { open, .. } => {
                let Some(open) = open else {
                    return Err(io::ErrorKind::NotFound.into());
                };
                let written = loop {
                    match open.file.write(bytes) {
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        other => break other?,
                    }
                };
                open.size += written as u64;
                written
            }
        };
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(written)
    }
}

/// Renames `path` to `path.1`, that to `path.2`, and so on; the last one is removed.
fn rotate(path: &Path, keep: u32) -> io::Result<()> {
    let numbered = |number: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    if keep == 0 {
        return std::fs::remove_file(path);
    }
    for number in (1..keep).rev() {
        match std::fs::rename(numbered(number), numbered(number + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    std::fs::rename(path, numbered(1))
}
