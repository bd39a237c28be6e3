//! One file.

use outrider_plugin_formats::{Places, Problem};
use serde::de::DeserializeOwned;

use crate::build::{self, Fault};
use crate::deserialize::{Reader, Told};
use crate::failure::Failure;
use crate::node::{Location, Mapping, Node, PathSegment};

/// One YAML file, read.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// Its name, as problems say it.
    pub file: String,
    /// Its tree; an empty file is a null.
    pub root: Node,
}

impl Document {
    /// Reads the text of `file`. The error holds every duplicate key and other fault up to the first
    /// place where the text is no YAML any more.
    pub fn parse(file: &str, text: &str) -> Result<Self, Vec<Problem>> {
        // Editors on Windows put one in front.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        match build::build(text) {
            Ok(root) => Ok(Self {
                file: file.to_owned(),
                root,
            }),
            Err(faults) => Err(faults
                .into_iter()
                .map(
                    |Fault {
                         location,
                         message,
                         mend,
                     }| problem(file, location, message, mend),
                )
                .collect()),
        }
    }

    /// Reads a text with several documents, each after a line that begins with `---` (YAML 1.2, section 9.1.2). Those with
    /// nothing in them but comments are left out. Lines are counted over the whole text.
    ///
    /// # Errors
    /// What is no YAML, of all documents.
    pub fn parse_all(file: &str, text: &str) -> Result<Vec<Self>, Vec<Problem>> {
        let mut documents = Vec::new();
        let mut problems = Vec::new();
        let mut end = |part: &str| {
            let is_content = |line: &str| !line.trim().is_empty() && !line.trim().starts_with('#');
            if part.lines().any(is_content) {
                match Self::parse(file, part) {
                    Ok(document) => documents.push(document),
                    Err(more) => problems.extend(more),
                }
            }
        };
        let mut part = String::new();
        for (number, line) in text.lines().enumerate() {
            let rest = line.strip_prefix("---");
            if rest.is_some() {
                end(&part);
                // The lines before it count.
                part = "\n".repeat(number);
            }
            part.push_str(rest.unwrap_or(line));
            part.push('\n');
        }
        end(&part);
        if problems.is_empty() {
            Ok(documents)
        } else {
            Err(problems)
        }
    }

    /// The file as a `T`, or everything that is wrong with it.
    ///
    /// Told are all unknown keys, every fault below a [`crate::Field`], and the first of all others.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Vec<Problem>> {
        match self.read_what_can_be() {
            (Some(value), problems) if problems.is_empty() => Ok(value),
            (_, problems) => Err(problems),
        }
    }

    /// What of the file can be read as a `T`, and everything that is wrong with it: for validation
    /// that wants to find its own problems too. Without a `T` there is at least one problem.
    pub fn read_what_can_be<T: DeserializeOwned>(&self) -> (Option<T>, Vec<Problem>) {
        let told = Told::default();
        let value = T::deserialize(Reader {
            node: &self.root,
            told: &told,
        });
        let mut failures = told.into_failures();
        let value = match value {
            Ok(value) => Some(value),
            Err(failure) => {
                failures.push(failure);
                None
            }
        };
        let mut problems: Vec<Problem> = failures
            .into_iter()
            .map(
                |Failure {
                     location,
                     message,
                     mend,
                 }| {
                    let location = location.unwrap_or(self.root.location);
                    problem(&self.file, location, message, mend)
                },
            )
            .collect();
        problems.sort();
        (value, problems)
    }

    /// A problem of this file at `location`.
    pub fn problem(
        &self,
        location: Location,
        message: impl Into<String>,
        mend: impl Into<Option<String>>,
    ) -> Problem {
        problem(&self.file, location, message.into(), mend.into())
    }

    /// Places of all values below keys. Items of lists have none of their own.
    pub fn places(&self) -> Places {
        let mut places = Places {
            file: self.file.clone(),
            ..Places::default()
        };
        collect(&self.root, "", &mut places);
        places
    }

    /// See [`Node::locate`].
    pub fn locate(&self, path: &[PathSegment]) -> Location {
        self.root.locate(path)
    }
}

fn collect(node: &Node, prefix: &str, places: &mut Places) {
    for entry in node.as_mapping().into_iter().flat_map(Mapping::entries) {
        let key = format!("{prefix}{}", entry.key);
        collect(&entry.value, &format!("{key}."), places);
        let Location { line, column } = entry.value.location;
        places.by_key.insert(key, (line, column));
    }
}

fn problem(file: &str, location: Location, message: String, mend: Option<String>) -> Problem {
    Problem {
        file: file.to_owned(),
        line: location.line,
        column: location.column,
        message,
        mend,
    }
}

#[cfg(test)]
mod tests;
