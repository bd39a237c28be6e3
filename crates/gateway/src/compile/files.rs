//! The files: the one that the user names, and what it includes.

use outrider_plugin_formats::Problem;
use outrider_yaml::{Document, Field, Location, Value};

use super::{Context, Origin};
use crate::model::File;

/// A file as far as it could be read.
pub(super) struct Source {
    pub(super) origin: Origin,
    pub(super) file: File,
    pub(super) place: Place,
}

/// What is compiled, which the first file has to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// `gateway`.
    Gateway,
    /// `mesh`.
    Mesh,
}

/// Where a file stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The file that the user named.
    First(Purpose),
    /// Included by it.
    Included,
}

/// Reads the file that the user names, which has to hold `purpose`, and what it includes.
pub(super) fn read_all(context: &mut Context<'_>, path: &str, purpose: Purpose) -> Vec<Source> {
    let mut sources = Vec::new();
    let Some(first) = read(context, path, Place::First(purpose), None) else {
        return sources;
    };
    let origin = first.origin.clone();
    let includes = include_paths(context, &first);
    sources.push(first);
    let mut seen = vec![context.loader.absolute(path)];
    for (location, path) in includes {
        let absolute = context.loader.absolute(&path);
        if seen.contains(&absolute) {
            context.problem(
                &origin,
                location,
                format!("`{path}` is included twice, or includes itself"),
                "name each file once",
            );
            continue;
        }
        seen.push(absolute);
        let include = Some((&origin, location));
        sources.extend(read(context, &path, Place::Included, include));
    }
    sources
}

fn include_paths(context: &mut Context<'_>, first: &Source) -> Vec<(Location, String)> {
    let mut paths = Vec::new();
    let includes = first.file.include.value().into_iter().flatten();
    for include in includes.filter_map(Field::get) {
        let pattern = first.origin.join(&include.value.0);
        let Some(folder) = searched_folder(&pattern) else {
            paths.push((include.location, pattern));
            continue;
        };
        // A new file in that folder changes the outcome.
        context.files.push(folder.to_owned());
        match context.loader.matching(&pattern) {
            // A folder that is gone is being replaced, or its name is wrong. What it held is not to vanish meanwhile.
            Ok(matching) if matching.is_empty() && !context.loader.is_folder(folder) => context
                .problem(
                    &first.origin,
                    include.location,
                    format!("there is no folder `{folder}` to include from"),
                    "paths are relative to the file that names them",
                ),
            Ok(matching) if matching.is_empty() => {
                let message = format!("no file matches `{pattern}`");
                let mend = "put a file there, or remove the pattern";
                context.warn(&first.origin, include.location, message, mend);
            }
            Ok(matching) => paths.extend(matching.into_iter().map(|path| (include.location, path))),
            Err(why) => context.problem(
                &first.origin,
                include.location,
                format!("`{pattern}` cannot be searched: {why}"),
                "use `*` for any name within one folder",
            ),
        }
    }
    paths
}

/// Returns the folder in which the search for a pattern begins; `None` if it is a path without wildcards.
pub fn searched_folder(pattern: &str) -> Option<&str> {
    let (before, _) = pattern.split_at(pattern.find(['*', '?', '['])?);
    Some(match before.rsplit_once('/') {
        Some(("", _)) => "/",
        Some((folder, _)) => folder,
        None => ".",
    })
}

/// Reads one file; `include` is what names it.
fn read(
    context: &mut Context<'_>,
    path: &str,
    place: Place,
    include: Option<(&Origin, Location)>,
) -> Option<Source> {
    context.files.push(path.to_owned());
    let text = match context.loader.read(path) {
        Ok(text) => text,
        Err(why) => {
            match include {
                Some((origin, location)) => context.problem(
                    origin,
                    location,
                    format!("`{path}` cannot be read: {why}"),
                    "paths are relative to the file that names them",
                ),
                None => context.problems.push(Problem {
                    file: path.to_owned(),
                    line: 0,
                    column: 0,
                    message: format!("the file cannot be read: {why}"),
                    mend: None,
                }),
            }
            return None;
        }
    };
    let document = match Document::parse(path, &text) {
        Ok(document) => document,
        Err(problems) => {
            context.problems.extend(problems);
            return None;
        }
    };
    if document.root.value == Value::Null {
        let message = "the file is empty";
        let mend = match place {
            Place::First(Purpose::Gateway) => "begin with `gateway:`",
            Place::First(Purpose::Mesh) => "begin with `mesh:`",
            Place::Included => {
                "write `projects:`, `plugins:` or `upstreams:`, or do not include it"
            }
        };
        let origin = Origin::new(path);
        context.problem(&origin, document.root.location, message, mend);
        return None;
    }
    let (file, problems) = document.read_what_can_be::<File>();
    context.problems.extend(problems);
    let source = Source {
        origin: Origin::new(path),
        file: file?,
        place,
    };
    match place {
        Place::First(Purpose::Gateway) => {
            let field = &source.file.gateway;
            let location = document.root.location;
            context.required(&source.origin, location, "the file", "gateway", field);
        }
        Place::First(Purpose::Mesh) => {
            let field = &source.file.mesh;
            let location = document.root.location;
            context.required(&source.origin, location, "the file", "mesh", field);
        }
        Place::Included => {
            for (key, location) in [
                ("gateway", source.file.gateway.location()),
                ("mesh", source.file.mesh.location()),
                ("include", source.file.include.location()),
                ("registries", source.file.registries.location()),
                ("plugin_policy", source.file.plugin_policy.location()),
            ] {
                if let Some(location) = location {
                    context.problem(
                        &source.origin,
                        location,
                        format!("only the first file may have `{key}`"),
                        format!("move `{key}` to the first file"),
                    );
                }
            }
        }
    }
    Some(source)
}
