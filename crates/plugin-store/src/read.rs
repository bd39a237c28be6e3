//! Reading one file, which may be anything and may be growing.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use outrider_plugin_formats::Problem;

use crate::problems::{at, of_whole};

/// `O_NONBLOCK` of Linux.
const NONBLOCK: i32 = 0o4000;

/// The largest text file that is read.
const LARGEST_TEXT: u64 = 1024 * 1024;

/// The largest file that a gateway's file includes or names.
pub const LARGEST_INCLUDE: u64 = 4 * 1024 * 1024;

/// Reads a text file of a user's that may be anything: a regular file of at most 4 MiB.
///
/// # Errors
/// One sentence without a full stop.
pub fn read_text(path: &Path) -> Result<String, String> {
    let unreadable = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => "there is no such file".to_owned(),
        ErrorKind::PermissionDenied => "this user may not read it".to_owned(),
        _ => error.to_string(),
    };
    let metadata = fs::metadata(path).map_err(unreadable)?;
    if metadata.is_dir() {
        return Err("it is a folder".to_owned());
    }
    let bytes = bytes(path, LARGEST_INCLUDE).map_err(|why| match why {
        Unreadable::TooLarge => format!("it is larger than {} MiB", LARGEST_INCLUDE >> 20),
        Unreadable::Irregular => "it is not a regular file".to_owned(),
        Unreadable::Failed(error) => unreadable(error),
    })?;
    String::from_utf8(bytes).map_err(|_invalid| "it is not UTF-8 text".to_owned())
}

/// Why a file was not read.
pub(crate) enum Unreadable {
    /// There is more of it than was asked for.
    TooLarge,
    /// It is a named pipe, a device, a socket or a folder.
    Irregular,
    /// The system refuses.
    Failed(std::io::Error),
}

impl Unreadable {
    /// The problem of a file that is not too large.
    pub(crate) fn problem(self, path: &Path, too_large: (&str, &str)) -> Problem {
        match self {
            Self::TooLarge => of_whole(path, too_large.0, Some(too_large.1)),
            Self::Irregular => of_whole(path, "this is not a regular file", None),
            Self::Failed(error) => of_whole(path, format!("cannot be read: {error}"), None),
        }
    }
}

/// The content of a regular file of at most `largest` bytes.
pub(crate) fn bytes(path: &Path, largest: u64) -> Result<Vec<u8>, Unreadable> {
    // Opening a named pipe would wait for ever, and opening a device may do things.
    if !fs::metadata(path).map_err(Unreadable::Failed)?.is_file() {
        return Err(Unreadable::Irregular);
    }
    let mut file = File::options()
        .read(true)
        // It may have become a named pipe since.
        .custom_flags(NONBLOCK)
        .open(path)
        .map_err(Unreadable::Failed)?;
    if !file.metadata().map_err(Unreadable::Failed)?.is_file() {
        return Err(Unreadable::Irregular);
    }
    let mut bytes = Vec::new();
    // The file may grow meanwhile, so the limit is on reading.
    file.by_ref()
        .take(largest + 1)
        .read_to_end(&mut bytes)
        .map_err(Unreadable::Failed)?;
    if bytes.len() as u64 > largest {
        return Err(Unreadable::TooLarge);
    }
    Ok(bytes)
}

/// The text of a file.
pub(crate) fn text(path: &Path) -> Result<String, Problem> {
    let bytes = bytes(path, LARGEST_TEXT)
        .map_err(|why| why.problem(path, ("this file is larger than 1 MiB", "split it")))?;
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
