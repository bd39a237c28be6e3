//! Finds cases on disk.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use outrider_plugin_formats::Problem;

use crate::case::{Case, read_cases};

/// Reads every `*.yaml` in `folder`, in the order of their names, or says all that is wrong. A folder
/// without cases is wrong, too.
pub fn load_cases(folder: &Path) -> Result<Vec<Case>, Vec<Problem>> {
    let unreadable = |path: &Path, error: &dyn std::fmt::Display| Problem {
        file: path.display().to_string(),
        line: 0,
        column: 0,
        message: format!("cannot be read: {error}"),
        mend: None,
    };
    let empty = |message: &str| Problem {
        file: folder.display().to_string(),
        line: 0,
        column: 0,
        message: message.to_owned(),
        mend: Some(
            "write what the plugin has to do into a file in it that ends in .yaml".to_owned(),
        ),
    };
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    if let Err(error) = &entries
        && error.kind() == ErrorKind::NotFound
    {
        return Err(vec![empty("there are no cases: this folder is not there")]);
    }
    let mut files: Vec<_> = entries
        .map_err(|error| vec![unreadable(folder, &error)])?
        .into_iter()
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "yaml")
        })
        .collect();
    files.sort();
    let mut cases = Vec::new();
    let mut problems = Vec::new();
    for file in files {
        match fs::read_to_string(&file) {
            Ok(text) => match read_cases(&file.display().to_string(), &text) {
                Ok(more) => cases.extend(more),
                Err(more) => problems.extend(more),
            },
            Err(error) => problems.push(unreadable(&file, &error)),
        }
    }
    if cases.is_empty() && problems.is_empty() {
        problems.push(empty("there are no cases in this folder"));
    }
    if problems.is_empty() {
        Ok(cases)
    } else {
        Err(problems)
    }
}
