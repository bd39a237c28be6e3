//! Places in the gateway's file, for faults that show only when Envoy runs. The plan itself carries
//! none, so the file is read again.

use std::fs;
use std::path::Path;

use outrider_gateway::plan::Plan;
use outrider_yaml::{Document, PathSegment};

/// The path to a key of a listener.
pub(crate) fn listener(index: usize, keys: &[&str]) -> Vec<PathSegment> {
    let mut path = vec!["gateway".into(), "listeners".into(), index.into()];
    path.extend(keys.iter().copied().map(PathSegment::from));
    path
}

/// `gateway.yaml:3:14`, the value that `path` leads to. The plan came from this file; if it is gone by
/// now, its name has to do.
pub(crate) fn place(file: &Path, path: &[PathSegment]) -> String {
    let name = file.display().to_string();
    let document = fs::read_to_string(file)
        .ok()
        .and_then(|text| Document::parse(&name, &text).ok());
    document.map_or_else(
        || name.clone(),
        |document| format!("{name}:{}", document.locate(path)),
    )
}

/// Where the file names what Envoy's reason is about: a listener's address.
pub(crate) fn of_reason(file: &Path, plan: &Plan, reason: &str) -> Option<String> {
    let names = |text: &str| {
        reason
            .split([' ', ','])
            .any(|word| word.trim_end_matches(':') == text)
    };
    plan.listeners
        .iter()
        .enumerate()
        .find(|(_, listen)| names(&listen.address.to_string()))
        .map(|(index, _)| place(file, &listener(index, &["address"])))
}
