//! Lists the files of `plugins/lua` as Rust source, so that the binary holds them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The folder of test cases, which the binary does not need.
const CASES: &str = "cases";

fn main() -> io::Result<()> {
    let manifest = env::var_os("CARGO_MANIFEST_DIR").ok_or(io::ErrorKind::NotFound)?;
    let output = env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?;
    let plugins = Path::new(&manifest)
        .join("../../plugins/lua")
        .canonicalize()?;
    rerun_on(&plugins);
    let mut source = "&[\n".to_owned();
    for folder in sorted(&plugins)? {
        if !folder.join("plugin.yaml").is_file() {
            continue;
        }
        rerun_on(&folder);
        let mut files = Vec::new();
        collect(&folder, &mut files)?;
        let _ = writeln!(source, "    ({:?}, &[", name(&folder));
        for file in files {
            rerun_on(&file);
            let inside = file.strip_prefix(&folder).map_err(io::Error::other)?;
            let inside = inside.to_str().ok_or(io::ErrorKind::InvalidData)?;
            let path = file.to_str().ok_or(io::ErrorKind::InvalidData)?;
            let _ = writeln!(source, "        ({inside:?}, include_str!({path:?})),");
        }
        source.push_str("    ]),\n");
    }
    source.push_str("]\n");
    fs::write(Path::new(&output).join("catalog.rs"), source)
}

/// Has Cargo run this program again when a file or folder changes.
fn rerun_on(path: &Path) {
    println!("cargo::rerun-if-changed={}", path.display());
}

fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn sorted(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path()));
    let mut entries = entries.collect::<io::Result<Vec<_>>>()?;
    entries.sort();
    Ok(entries)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for path in sorted(folder)? {
        let name = name(&path);
        if name.starts_with('.') || name == CASES {
            continue;
        }
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
