//! What the system knows of Envoy's process: which it is, and how much memory it has.

use std::fs;
use std::path::Path;

use anyhow::Context as _;

/// A process's memory, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    /// What is in RAM.
    pub(crate) resident: u64,
    /// The same with what several processes share counted in parts; none where the system does not
    /// tell.
    pub(crate) shared_out: Option<u64>,
}

/// The child of `parent` whose executable is called `name`.
pub(crate) fn child(parent: u32, name: &str) -> anyhow::Result<u32> {
    for entry in fs::read_dir("/proc")?.filter_map(Result::ok) {
        let Some(id) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        // A process that ends meanwhile is not the one.
        let Ok(status) = fs::read_to_string(entry.path().join("status")) else {
            continue;
        };
        let is_child = field(&status, "PPid:") == Some(u64::from(parent));
        let runs = fs::read_link(entry.path().join("exe")).unwrap_or_default();
        if is_child && runs.file_name().is_some_and(|file| file == name) {
            return Ok(id);
        }
    }
    anyhow::bail!("process {parent} has no child {name}")
}

/// A process's memory now.
pub(crate) fn of(process: u32) -> anyhow::Result<Memory> {
    let folder = Path::new("/proc").join(process.to_string());
    let status = fs::read_to_string(folder.join("status"))?;
    let resident = field(&status, "VmRSS:").context("no VmRSS in /proc")? * 1024;
    let shared_out = fs::read_to_string(folder.join("smaps_rollup"))
        .ok()
        .and_then(|rollup| field(&rollup, "Pss:"))
        .map(|kilobytes| kilobytes * 1024);
    Ok(Memory {
        resident,
        shared_out,
    })
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_no_child_of_that_name() {
        let own = of(std::process::id()).unwrap();
        assert!(own.resident > 100_000, "{own:?}");
        let error = child(std::process::id(), "nobody").unwrap_err();
        assert!(error.to_string().contains("no child nobody"), "{error}");
    }
}
