//! Machine and versions of a run. No path and no name of the machine is among them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use outrider_lab_report::Environment;
use sha2::{Digest as _, Sha256};

use crate::echo::hexadecimal;

/// Asks the machine, Envoy and the module.
///
/// # Errors
///
/// Envoy cannot be run, or the module cannot be read.
pub(crate) fn environment(
    envoy: &Path,
    modules: &Path,
    is_pinned: bool,
) -> anyhow::Result<Environment> {
    let output = Command::new(envoy)
        .arg("--version")
        .output()
        .with_context(|| format!("cannot run {}", envoy.display()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let version = said
        .lines()
        .find_map(|line| Some(line.split_once("version: ")?.1.trim().to_owned()));
    let module = modules.join("liboutrider.so");
    let bytes = fs::read(&module).with_context(|| format!("cannot read {}", module.display()))?;
    let digest = hexadecimal(Sha256::new_with_prefix(bytes));
    let digest = digest.get(..16).unwrap_or_default();
    let line = |file: &str, key: &str| field(&fs::read_to_string(file).unwrap_or_default(), key);
    let memory = line("/proc/meminfo", "MemTotal:");
    let kibibytes: u64 = memory
        .split_whitespace()
        .next()
        .and_then(|text| text.parse().ok())
        .unwrap_or_default();
    let mut facts = BTreeMap::new();
    let flags = line("/proc/cpuinfo", "flags");
    let is_virtual = flags.split_whitespace().any(|flag| flag == "hypervisor");
    facts.insert(
        "virtual machine".to_owned(),
        if is_virtual { "yes" } else { "no" }.to_owned(),
    );
    let has_pressure = Path::new("/proc/pressure/cpu").exists();
    facts.insert(
        "pressure (PSI)".to_owned(),
        if has_pressure { "counted" } else { "not there" }.to_owned(),
    );
    Ok(Environment {
        processor: line("/proc/cpuinfo", "model name"),
        cores: std::thread::available_parallelism()
            .map_or(1, usize::from)
            .max(allowed()),
        memory_mib: kibibytes / 1024,
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
            .unwrap_or_default()
            .trim()
            .to_owned(),
        system: line("/etc/os-release", "PRETTY_NAME")
            .trim_matches('"')
            .to_owned(),
        envoy: version.unwrap_or_else(|| "unknown".to_owned()),
        outrider: format!("{}, module {digest}…", env!("CARGO_PKG_VERSION")),
        is_pinned,
        facts,
    })
}

/// Processors of the machine: this thread may be on one of them only by now.
fn allowed() -> usize {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines()
        .filter(|line| line.starts_with("processor"))
        .count()
}

/// The value of the first line `KEY : VALUE` or `KEY=VALUE`.
fn field(text: &str, key: &str) -> String {
    text.lines()
        .find_map(|line| {
            let rest = line.strip_prefix(key)?.trim_start();
            Some(rest.trim_start_matches([':', '=']).trim().to_owned())
        })
        .unwrap_or_default()
}

/// Now, RFC 3339 in UTC.
pub(crate) fn now() -> String {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let now = i64::try_from(seconds)
        .ok()
        .and_then(|seconds| time::OffsetDateTime::from_unix_timestamp(seconds).ok());
    let format = time::format_description::well_known::Rfc3339;
    now.and_then(|now| now.format(&format).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_kernels_files_are_found() {
        assert_eq!(field("a: 1\nmodel name\t: CPU 3\n", "model name"), "CPU 3");
        assert_eq!(
            field("PRETTY_NAME=\"Debian\"\n", "PRETTY_NAME"),
            "\"Debian\""
        );
        assert_eq!(field("", "x"), "");
        assert_eq!(now().len(), "2026-11-24T12:00:00Z".len());
    }
}
