//! How this crate words problems.

use std::path::Path;

use outrider_plugin_formats::Problem;

/// A problem of a file as a whole.
pub(crate) fn of_whole(file: &Path, message: impl Into<String>, mend: Option<&str>) -> Problem {
    at(file, 0, 0, message, mend)
}

/// A problem at a place.
pub(crate) fn at(
    file: &Path,
    line: usize,
    column: usize,
    message: impl Into<String>,
    mend: Option<&str>,
) -> Problem {
    Problem {
        file: file.display().to_string(),
        line,
        column,
        message: message.into(),
        mend: mend.map(str::to_owned),
    }
}
