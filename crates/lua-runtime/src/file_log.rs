//! A plugin's own log file, written off the worker: lines go through an unbounded lock-free queue to
//! one thread for the process, which runs at the lowest priority there is and appends them to
//! `<dir>/<plugin>.log`.
//!
//! What waits in the queue is bounded: beyond [`LIMIT`] bytes lines are dropped, and the next line
//! that is written is preceded by one that says how many.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock};

use crate::ffi::lower_thread_priority;

/// How many bytes of all plugins may wait.
const LIMIT: usize = 8 * 1024 * 1024;

/// Where one plugin's lines go.
#[derive(Debug, Clone)]
pub(crate) struct FileLog {
    path: Arc<Path>,
    dropped: Arc<AtomicU64>,
}

enum Message {
    Line {
        path: Arc<Path>,
        text: Vec<u8>,
        dropped: Arc<AtomicU64>,
    },
    #[cfg(test)]
    Flush(Sender<()>),
}

struct Writer {
    queue: Sender<Message>,
    waiting: Arc<AtomicUsize>,
}

static WRITER: LazyLock<Option<Writer>> = LazyLock::new(|| {
    let (queue, lines) = channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    let thread_waiting = Arc::clone(&waiting);
    std::thread::Builder::new()
        .name("outrider-log".to_owned())
        .spawn(move || run(&lines, &thread_waiting))
        .ok()?;
    Some(Writer { queue, waiting })
});

impl FileLog {
    /// The log of `plugin` in `folder`. The writing thread is started here, not on a worker.
    pub(crate) fn new(folder: &Path, plugin: &str) -> Self {
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
            path: Arc::from(folder.join(format!("{name}.log"))),
            dropped: Arc::default(),
        }
    }

    /// Queues one line.
    pub(crate) fn write(&self, line: &[u8]) {
        let Some(writer) = &*WRITER else { return };
        let size = line.len() + 1;
        if writer.waiting.fetch_add(size, Ordering::Relaxed) + size > LIMIT {
            writer.waiting.fetch_sub(size, Ordering::Relaxed);
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut text = Vec::with_capacity(size);
        text.extend_from_slice(line);
        text.push(b'\n');
        // The writing thread lives as long as the process.
        let _ = writer.queue.send(Message::Line {
            path: Arc::clone(&self.path),
            text,
            dropped: Arc::clone(&self.dropped),
        });
    }
}

fn run(lines: &Receiver<Message>, waiting: &AtomicUsize) {
    lower_thread_priority();
    let mut files: BTreeMap<PathBuf, Option<File>> = BTreeMap::new();
    while let Ok(message) = lines.recv() {
        match message {
            Message::Line {
                path,
                text,
                dropped,
            } => {
                let dropped = dropped.swap(0, Ordering::Relaxed);
                waiting.fetch_sub(text.len(), Ordering::Relaxed);
                append(&mut files, &path, &text, dropped);
            }
            #[cfg(test)]
            Message::Flush(done) => {
                let _ = done.send(());
            }
        }
    }
}

/// Lines that cannot be written are lost: there is nobody to tell but the log itself.
fn append(files: &mut BTreeMap<PathBuf, Option<File>>, path: &Path, text: &[u8], dropped: u64) {
    let file = files.entry(path.to_owned()).or_default();
    // A file that was moved away (by log rotation) is begun anew.
    if file.is_none() || !path.exists() {
        if let Some(folder) = path.parent() {
            let _ = std::fs::create_dir_all(folder);
        }
        *file = OpenOptions::new().append(true).create(true).open(path).ok();
    }
    let Some(open) = file else { return };
    let mut whole = Vec::new();
    if dropped > 0 {
        whole.extend_from_slice(format!("({dropped} lines were dropped)\n").as_bytes());
    }
    whole.extend_from_slice(text);
    if open.write_all(&whole).is_err() {
        *file = None;
    }
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
