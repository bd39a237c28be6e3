//! Where `liboutrider.so` is.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::bail;

/// The name that Envoy looks for.
pub(crate) const FILE: &str = "liboutrider.so";

/// Returns the module: what the user named, else beside this command, else in `../lib` of it.
pub fn find(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(path) = named {
        if path.is_file() {
            return Ok(std::path::absolute(path)?);
        }
        bail!("there is no module at {}", path.display());
    }
    let executable = env::current_exe()?;
    let folder = executable.parent().unwrap_or(Path::new("."));
    let places = [
        folder.join(FILE),
        folder.join("../lib").join(FILE),
        folder.join("../lib/outrider").join(FILE),
    ];
    if let Some(path) = places.iter().find(|path| path.is_file()) {
        return Ok(path.clone());
    }
    bail!(
        "Outrider's module for Envoy, {FILE}, is not beside this command ({}); build it with `cargo build -p outrider-envoy-module`, or name it with --module",
        folder.display()
    )
}
