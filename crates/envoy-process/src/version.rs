//! Which Envoy a binary is, and whether the module can live in it.
//!
//! A module built for one minor of Envoy is promised to load on the next minor only, so older is
//! refused and much newer is warned of.

use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::Error;

/// The Envoy that Outrider is built for and installs.
pub const SUPPORTED: Version = Version {
    major: 1,
    minor: 40,
    patch: 0,
};

/// An Envoy's version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// 1 since 2016.
    pub major: u32,
    /// One each quarter.
    pub minor: u32,
    /// Fixes.
    pub patch: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl Version {
    /// Parses `1.40.0`, also with a suffix: `1.41.0-dev`.
    pub fn parse(text: &str) -> Option<Self> {
        let plain = text.split('-').next()?;
        let mut numbers = plain.split('.').map(str::parse);
        let (Some(Ok(major)), Some(Ok(minor)), Some(Ok(patch)), None) = (
            numbers.next(),
            numbers.next(),
            numbers.next(),
            numbers.next(),
        ) else {
            return None;
        };
        Some(Self {
            major,
            minor,
            patch,
        })
    }

    /// Asks a binary with `--version`.
    ///
    /// # Errors
    /// It cannot be run, or what it says is not what an Envoy says.
    pub fn of(binary: &Path) -> Result<Self, Error> {
        let output = Command::new(binary)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .map_err(|why| Error::CannotRun {
                path: binary.to_path_buf(),
                why,
            })?;
        let said = String::from_utf8_lossy(&output.stdout);
        parse_said(&said).ok_or_else(|| Error::NotEnvoy {
            path: binary.to_path_buf(),
            said: said
                .lines()
                .find(|line| !line.trim().is_empty())
                .unwrap_or_default()
                .chars()
                .take(120)
                .collect(),
        })
    }

    /// Refuses what the module cannot live in, and returns a warning about what it was not promised
    /// to live in.
    pub(crate) fn check(self, binary: &Path) -> Result<Option<String>, Error> {
        if (self.major, self.minor) < (SUPPORTED.major, SUPPORTED.minor) {
            return Err(Error::TooOld {
                path: binary.to_path_buf(),
                version: self,
            });
        }
        let promised = (SUPPORTED.major, SUPPORTED.minor + 1);
        Ok(((self.major, self.minor) > promised).then(|| {
            format!(
                "{} is Envoy {self}; Outrider is built for {}.{} and promised to load in {}.{} only",
                binary.display(),
                SUPPORTED.major,
                SUPPORTED.minor,
                promised.0,
                promised.1,
            )
        }))
    }
}

/// `envoy  version: <commit>/1.40.0/Clean/RELEASE/BoringSSL`, somewhere in the text.
fn parse_said(said: &str) -> Option<Version> {
    let line = said.lines().find(|line| line.contains("version:"))?;
    let (_, build) = line.split_once("version:")?;
    Version::parse(build.trim().split('/').nth(1)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_envoy_says() {
        let said = "\n/x/envoy  version: 9e5580933739775e8bce696a57a2e1bc99368f23/1.40.0/Clean/RELEASE/BoringSSL\n\n";
        assert_eq!(parse_said(said), Some(SUPPORTED));
        let dev = "envoy version: abc/1.42.0-dev/Modified/DEBUG/BoringSSL";
        assert_eq!(parse_said(dev).unwrap().minor, 42);
        assert_eq!(parse_said("nginx version: nginx/1.24"), None);
        assert_eq!(parse_said("hello"), None);
    }

    #[test]
    fn judges_minors() {
        let judge = |text: &str| {
            Version::parse(text)
                .unwrap()
                .check(Path::new("envoy"))
                .map_err(|error| error.to_string())
        };
        assert_eq!(
            judge("1.39.3").unwrap_err(),
            "envoy is Envoy 1.39.3; Outrider needs 1.40.0 or later; `outrider envoy install` installs 1.40.0"
        );
        assert_eq!(judge("1.40.7"), Ok(None));
        assert_eq!(judge("1.41.0"), Ok(None));
        assert_eq!(
            judge("1.42.0").unwrap().unwrap(),
            "envoy is Envoy 1.42.0; Outrider is built for 1.40 and promised to load in 1.41 only"
        );
    }

    #[test]
    fn tells_what_is_not_an_envoy() {
        let error = Version::of(Path::new("/bin/echo")).unwrap_err().to_string();
        assert!(error.starts_with("/bin/echo is not an Envoy"), "{error}");
        let error = Version::of(Path::new("/nowhere/envoy"))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("/nowhere/envoy cannot be run: No such file"),
            "{error}"
        );
    }
}
