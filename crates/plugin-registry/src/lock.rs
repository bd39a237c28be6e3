//! `outrider.lock`, beside the gateway's file: the digest that each tag had when `outrider plugin update` ran.
//!
//! It is JSON with sorted keys, one plugin on a line, made to be committed and reviewed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use outrider_plugin_formats::is_digest;
use serde::{Deserialize, Serialize};

use crate::error::FetchError;

/// Name of the file.
pub const LOCK: &str = "outrider.lock";
const VERSION: u32 = 1;

/// Pinned digests by the normalised name of the image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockFile {
    version: u32,
    /// Digest by source.
    pub plugins: BTreeMap<String, String>,
}

impl Default for LockFile {
    fn default() -> Self {
        Self {
            version: VERSION,
            plugins: BTreeMap::new(),
        }
    }
}

impl LockFile {
    /// The lock file of a gateway's file.
    pub fn path_of(gateway: &str) -> PathBuf {
        Path::new(gateway).with_file_name(LOCK)
    }

    /// Reads a lock file; `None` if there is none.
    ///
    /// # Errors
    /// It is there and cannot be used.
    pub fn read(path: &Path) -> Result<Option<Self>, FetchError> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(FetchError::file(path, "read", &error)),
        };
        let wrong = |why: String| {
            FetchError::new(format!("{} is malformed: {why}", path.display())).mend(
                "restore it from version control, or write it anew with `outrider plugin update`",
            )
        };
        let lock: Self = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        if lock.version != VERSION {
            return Err(wrong(format!(
                "its version is {}, not {VERSION}",
                lock.version
            )));
        }
        if let Some((source, digest)) = lock.plugins.iter().find(|(_, digest)| !is_digest(digest)) {
            return Err(wrong(format!("the digest of {source} is `{digest}`")));
        }
        Ok(Some(lock))
    }

    /// Writes a lock file, whole or not at all.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn write(&self, path: &Path) -> Result<(), FetchError> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|error| FetchError::new(error.to_string()))?;
        let beside = path.with_extension(format!("lock.{}", std::process::id()));
        let written =
            fs::write(&beside, format!("{text}\n")).and_then(|()| fs::rename(&beside, path));
        written.map_err(|error| {
            let _ = fs::remove_file(&beside);
            FetchError::file(path, "written", &error)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_file_is_written_and_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = LockFile::path_of(&folder.path().join("outrider.yaml").display().to_string());
        assert_eq!(path, folder.path().join("outrider.lock"));
        assert_eq!(LockFile::read(&path).unwrap(), None);
        let mut lock = LockFile::default();
        lock.plugins.insert(
            "oci://r.example/a:1".to_owned(),
            format!("sha256:{:064}", 1),
        );
        lock.write(&path).unwrap();
        assert_eq!(LockFile::read(&path).unwrap(), Some(lock));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn malformed_lock_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(LOCK);
        for (text, what) in [
            ("{", "malformed"),
            (r#"{"version": 2, "plugins": {}}"#, "its version is 2"),
            (
                r#"{"version": 1, "plugins": {"a": "latest"}}"#,
                "the digest of a is `latest`",
            ),
            (
                r#"{"version": 1, "plugins": {}, "more": 1}"#,
                "unknown field",
            ),
        ] {
            fs::write(&path, text).unwrap();
            let error = LockFile::read(&path).unwrap_err();
            assert!(error.message.contains(what), "{error}");
        }
    }
}
