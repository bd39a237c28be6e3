//! The folder that one running gateway keeps its files in.
//!
//! `.outrider/<name>-<hash>/` beside the user's file, readable by its owner only (plugin configuration
//! may hold secrets): `bootstrap.json`, `lds.json`, `cds.json`, `rds-*.json` and `ecds.json` as Envoy
//! reads them, `admin-address.txt`, a link to the module, and `lock`, which one command holds.

use std::fmt::Write as _;
use std::fs::{self, File, TryLockError};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use sha2::{Digest as _, Sha256};

use crate::up::module;

/// A state folder, held by this process.
#[derive(Debug)]
pub(crate) struct State {
    folder: PathBuf,
    _lock: File,
}

impl State {
    /// Makes the folder if need be, and takes it.
    pub(crate) fn take(gateway: &Path, named: Option<&Path>) -> anyhow::Result<Self> {
        let folder = match named {
            Some(folder) => std::path::absolute(folder)?,
            None => usual(gateway)?,
        };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .with_context(|| {
                format!(
                    "the state folder {} cannot be made (--state names another)",
                    folder.display()
                )
            })?;
        check_private(&folder)?;
        let path = folder.join("lock");
        let lock = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .with_context(|| format!("the file {} cannot be written", path.display()))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self {
                folder,
                _lock: lock,
            }),
            Err(TryLockError::WouldBlock) => bail!(
                "another `outrider up` uses the state folder {}; stop it, or name another folder with --state",
                folder.display()
            ),
            Err(TryLockError::Error(error)) => {
                Err(error).context(format!("the file {} cannot be locked", path.display()))
            }
        }
    }

    /// The folder, absolute.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// A file in it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Makes the module findable under the name that Envoy looks for, and returns the folder.
    pub(crate) fn link_module(&self, module: &Path) -> anyhow::Result<&Path> {
        let link = self.file(module::FILE);
        let new = self.file(".module");
        // Left by a command that was killed.
        let _ = fs::remove_file(&new);
        symlink(module, &new)
            .and_then(|()| fs::rename(&new, &link))
            .with_context(|| format!("the link {} cannot be made", link.display()))?;
        Ok(&self.folder)
    }
}

/// Refuses a state folder that another user can enter or has made: its files hold the configuration of plugins, and
/// Envoy runs by them.
fn check_private(folder: &Path) -> anyhow::Result<()> {
    let metadata = fs::symlink_metadata(folder)
        .with_context(|| format!("the state folder {} cannot be read", folder.display()))?;
    if !metadata.is_dir() {
        bail!(
            "the state folder {} is a link or a file, not a folder; name the folder itself with --state",
            folder.display()
        );
    }
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user {
        bail!(
            "the state folder {} belongs to another user ({}); name another one with --state",
            folder.display(),
            metadata.uid()
        );
    }
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        bail!(
            "other users may enter the state folder {} (its mode is {mode:o}), and its files hold secrets; run \
             `chmod 700 {}`, or name another one with --state",
            folder.display(),
            folder.display()
        );
    }
    Ok(())
}

fn usual(gateway: &Path) -> anyhow::Result<PathBuf> {
    let gateway = fs::canonicalize(gateway)
        .with_context(|| format!("{} cannot be read", gateway.display()))?;
    let name = gateway
        .file_stem()
        .map_or_else(|| "gateway".into(), |stem| stem.to_string_lossy());
    // Two files of one folder may differ in their extension only.
    let mut hash = String::new();
    for byte in Sha256::digest(gateway.as_os_str().as_encoded_bytes())
        .iter()
        .take(4)
    {
        // Writing to a string cannot fail.
        let _ = write!(hash, "{byte:02x}");
    }
    let beside = gateway.parent().unwrap_or(Path::new("/"));
    Ok(beside.join(".outrider").join(format!("{name}-{hash}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn state_folder_that_others_can_enter_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let gateway = folder.path().join("shop.yaml");
        fs::write(&gateway, "").unwrap();
        let state = folder.path().join("state");
        let refusal = |named: &Path| State::take(&gateway, Some(named)).unwrap_err().to_string();
        for mode in [0o755, 0o750, 0o701, 0o777, 0o704] {
            fs::create_dir(&state).unwrap();
            fs::set_permissions(&state, fs::Permissions::from_mode(mode)).unwrap();
            let error = refusal(&state);
            assert!(error.contains("chmod 700"), "{error}");
            assert_eq!(fs::read_dir(&state).unwrap().count(), 0);
            fs::remove_dir(&state).unwrap();
        }
        drop(State::take(&gateway, Some(&state)).unwrap());
        let lock = fs::metadata(state.join("lock")).unwrap();
        assert_eq!(lock.mode() & 0o777, 0o600);
        let link = folder.path().join("link");
        symlink(&state, &link).unwrap();
        let error = refusal(&link);
        assert!(error.contains("is a link"), "{error}");
    }

    #[test]
    fn one_command_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let gateway = folder.path().join("shop.yaml");
        fs::write(&gateway, "").unwrap();
        let state = State::take(&gateway, None).unwrap();
        let error = State::take(&gateway, None).unwrap_err().to_string();
        assert!(
            error.starts_with("another `outrider up` uses the state folder "),
            "{error}"
        );
        drop(state);
        let state = State::take(&gateway, None).unwrap();
        let name = state.folder().file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("shop-"), "{name}");
        let module = folder.path().join("module.so");
        state.link_module(&module).unwrap();
        state.link_module(&module).unwrap();
        assert_eq!(fs::read_link(state.file(module::FILE)).unwrap(), module);
    }
}
