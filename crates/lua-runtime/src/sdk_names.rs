//! Did-you-mean for functions of the SDK that a plugin misspells. Lua reads a missing field as nil, and scripts rely on
//! that, so only the error of its use can tell.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use outrider_plugin_api::nearest;

/// Annotations of the SDK: every function has a line there.
const ANNOTATIONS: &str = include_str!("../types/outrider.lua");

/// Names by the table that has them: `envoy.req` has `get_header`.
static MEMBERS: LazyLock<BTreeMap<String, BTreeSet<&'static str>>> = LazyLock::new(|| {
    let mut members: BTreeMap<String, BTreeSet<&'static str>> = BTreeMap::new();
    for line in ANNOTATIONS.lines() {
        let line = line.strip_prefix("function ").unwrap_or(line);
        let path = line.split(['(', ' ']).next().unwrap_or_default();
        if let Some(path) = path.strip_prefix("envoy.") {
            let mut table = "envoy".to_owned();
            for name in path.split('.') {
                members.entry(table.clone()).or_default().insert(name);
                table = format!("{table}.{name}");
            }
        } else if let Some(name) = path.strip_prefix("message.") {
            // Requests and responses have the same.
            for table in ["envoy.req", "envoy.resp"] {
                members.entry(table.to_owned()).or_default().insert(name);
            }
        }
    }
    members
});

/// Returns an error's message with the member of the SDK that was likely meant, where the line of the error names one that
/// does not exist.
pub(crate) fn with_nearest(
    message: String,
    folder: &str,
    files: &BTreeMap<String, String>,
) -> String {
    match suggestion(&message, folder, files) {
        Some(name) => format!("{message}; did you mean `{name}`?"),
        None => message,
    }
}

fn suggestion(message: &str, folder: &str, files: &BTreeMap<String, String>) -> Option<String> {
    let (_, missing) = message.split_once("field '")?;
    let (missing, _) = missing.split_once("' (a nil value)")?;
    let place = message.strip_prefix(folder)?.strip_prefix('/')?;
    let mut place = place.splitn(3, ':');
    let (file, line) = (place.next()?, place.next()?.parse::<usize>().ok()?);
    let line = files.get(file)?.lines().nth(line.checked_sub(1)?)?;
    line.match_indices("envoy.").find_map(|(begin, _)| {
        let path = line.get(begin..)?;
        let end =
            path.find(|letter: char| !letter.is_ascii_alphanumeric() && !"._".contains(letter));
        let path = path.get(..end.unwrap_or(path.len()))?;
        let mut table = "envoy".to_owned();
        for name in path.split('.').skip(1) {
            let members = MEMBERS.get(&table)?;
            if name == missing && !members.contains(name) {
                let near = nearest(name, members.iter().copied())?;
                return Some(format!("{table}.{near}"));
            }
            table = format!("{table}.{name}");
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_members_of_the_sdk_are_suggested_and_others_are_not() {
        let files = [(
            "main.lua".to_owned(),
            "envoy.req.get_headr('a')\nenvoy.heders.x()\nmine.headrs()\n".to_owned(),
        )]
        .into();
        let told = |message: &str| with_nearest(message.to_owned(), "probe", &files);
        let call = "probe/main.lua:1: attempt to call field 'get_headr' (a nil value)";
        assert_eq!(
            told(call),
            format!("{call}; did you mean `envoy.req.get_header`?")
        );
        for other in [
            "probe/main.lua:3: attempt to call field 'headrs' (a nil value)",
            "probe/main.lua:9: attempt to call field 'get_headr' (a nil value)",
            "probe/none.lua:1: attempt to call field 'get_headr' (a nil value)",
            "attempt to call field 'get_headr' (a nil value)",
            "oh",
        ] {
            assert_eq!(told(other), other);
        }
    }
}
