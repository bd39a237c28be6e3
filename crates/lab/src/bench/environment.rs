//! Where and with what a benchmark was run. No path of the machine is among it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use sha2::{Digest as _, Sha256};

use super::callgrind::Callgrind;
use super::report::Environment;
use crate::echo::hexadecimal;

/// Asks the machine and the files.
pub(crate) fn environment(envoy: &Path, modules: &Path) -> anyhow::Result<Environment> {
    // First of all: what is missing most likely.
    let valgrind = Callgrind::version()?;
    let digest = |name: &str| -> anyhow::Result<String> {
        let path = modules.join(name);
        let bytes = fs::read(&path)
            .with_context(|| format!("cannot read {}; `make bench` builds it", path.display()))?;
        Ok(hexadecimal(Sha256::new_with_prefix(bytes)))
    };
    let said = first_line(Command::new(envoy).arg("--version"))?;
    let envoy = match said.split_once("version: ") {
        Some((_, version)) => version.to_owned(),
        None => said,
    };
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    Ok(Environment {
        date: first_line(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]))?,
        envoy,
        commit: commit(),
        module: digest("liboutrider.so")?,
        native_module: digest("liboutrider_bench_native.so")?,
        processor: cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
            .map_or_else(|| "unknown".to_owned(), |(_, name)| name.to_owned()),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        kernel: first_line(Command::new("uname").arg("-sr"))?,
        valgrind,
    })
}

/// The commit, when there is a checkout around.
fn commit() -> String {
    let Ok(commit) = first_line(Command::new("git").args(["rev-parse", "--short=12", "HEAD"]))
    else {
        return "unknown".to_owned();
    };
    // The documents that a run writes do not make it another program.
    let changed = first_line(Command::new("git").args([
        "status",
        "--porcelain",
        "--untracked-files=no",
        "--",
        "crates",
        "Cargo.lock",
        "Cargo.toml",
    ]));
    match changed.as_deref() {
        Ok("") => commit,
        _ => format!("{commit}, with changes"),
    }
}

/// The first line that a command prints, without the space around it.
fn first_line(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("cannot run {name}"))?;
    anyhow::ensure!(
        output.status.success(),
        "{name}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().map(str::trim).find(|line| !line.is_empty());
    Ok(line.unwrap_or_default().to_owned())
}
