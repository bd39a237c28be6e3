//! What the system knows of processes: which of them is Envoy, and how much memory it has.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;

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
        let is_child = field(&status, "PPid:").and_then(|id| id.parse().ok()) == Some(parent);
        let runs = fs::read_link(entry.path().join("exe")).unwrap_or_default();
        if is_child && runs.file_name().is_some_and(|file| file == name) {
            return Ok(id);
        }
    }
    anyhow::bail!("process {parent} has no child {name}")
}

/// Sends a signal to a process: `KILL`.
///
/// # Errors
/// There is no such process.
pub fn signal(process: u32, name: &str) -> anyhow::Result<()> {
    let sent = Command::new("kill")
        .args([&format!("-{name}"), &process.to_string()])
        .status()?;
    anyhow::ensure!(sent.success(), "no process {process} gets {name}");
    Ok(())
}

/// Memory of a process that is in RAM, in bytes.
///
/// # Errors
/// There is no such process.
pub fn resident_memory(process: u32) -> anyhow::Result<u64> {
    let path = Path::new("/proc").join(process.to_string()).join("status");
    let status = fs::read_to_string(path)?;
    let kilobytes: u64 = field(&status, "VmRSS:")
        .context("no VmRSS in /proc")?
        .parse()?;
    Ok(kilobytes * 1024)
}

fn field<'s>(status: &'s str, name: &str) -> Option<&'s str> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()
}
