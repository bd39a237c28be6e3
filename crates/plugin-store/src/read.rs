//! Reading one file, which may be anything and may be growing.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use outrider_plugin_formats::Problem;

use crate::problems::{at, of_whole};

/// The largest text file that is read.
const LARGEST_TEXT: u64 = 1024 * 1024;

/// Why a file was not read.
pub(crate) enum Unreadable {
    /// There is more of it than was asked for.
    TooLarge,
    /// Anything else.
    Other(Problem),
}

/// The content of a regular file of at most `largest` bytes.
pub(crate) fn bytes(path: &Path, largest: u64) -> Result<Vec<u8>, Unreadable> {
    let unreadable = |error: std::io::Error| {
        Unreadable::Other(of_whole(path, format!("cannot be read: {error}"), None))
    };
    let metadata = fs::metadata(path).map_err(unreadable)?;
    if !metadata.is_file() {
        // Opening a named pipe would wait for ever.
        return Err(Unreadable::Other(of_whole(
            path,
            "this is not a regular file",
            None,
        )));
    }
    let mut bytes = Vec::new();
    // The file may grow between the two calls, so the limit is on reading.
    File::open(path)
        .and_then(|file| file.take(largest + 1).read_to_end(&mut bytes))
        .map_err(unreadable)?;
    if bytes.len() as u64 > largest {
        return Err(Unreadable::TooLarge);
    }
    Ok(bytes)
}

/// The text of a file.
pub(crate) fn text(path: &Path) -> Result<String, Problem> {
    let bytes = bytes(path, LARGEST_TEXT).map_err(|why| match why {
        Unreadable::TooLarge => of_whole(path, "this file is larger than 1 MiB", Some("split it")),
        Unreadable::Other(problem) => problem,
    })?;
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
