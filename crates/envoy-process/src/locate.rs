//! Where an Envoy is: what the user named, the project's own folder, `PATH`, in that order.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::install::any_installed;
use crate::version::Version;

/// Where to look.
#[derive(Debug, Clone)]
pub struct Search {
    /// The file that the user named; nothing else is looked at when there is one.
    pub explicit: Option<PathBuf>,
    /// Folders that [`crate::install`] installs into.
    pub homes: Vec<PathBuf>,
    /// As the environment's `PATH`.
    pub path: Option<OsString>,
}

/// Which place an Envoy was found at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The user named it.
    Named,
    /// Installed by [`crate::install`].
    Installed,
    /// On `PATH`.
    Path,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Named => "named",
            Self::Installed => "installed",
            Self::Path => "PATH",
        })
    }
}

/// An Envoy that the module can live in.
#[derive(Debug, Clone)]
pub struct Found {
    /// The file, absolute.
    pub binary: PathBuf,
    /// Where it was found.
    pub origin: Origin,
    /// What it says of itself.
    pub version: Version,
    /// What a user should know of this version.
    pub warning: Option<String>,
}

/// The folder that Envoys are installed into: `$OUTRIDER_HOME`, else `.envoy` in the current folder.
pub fn home() -> PathBuf {
    env::var_os("OUTRIDER_HOME").map_or_else(|| PathBuf::from(".envoy"), PathBuf::from)
}

impl Search {
    /// The usual places: `explicit`, else `$OUTRIDER_ENVOY`; [`home`]; the `.envoy` folder of the
    /// checkout that this executable was built in (`<checkout>/target/<profile>/<executable>`, and
    /// `.../deps/<executable>` for tests); `PATH`.
    pub fn from_environment(explicit: Option<PathBuf>) -> Self {
        let mut homes = vec![home()];
        if let Ok(executable) = env::current_exe() {
            homes.extend(
                executable
                    .ancestors()
                    .skip(1)
                    .take(4)
                    .filter(|folder| folder.file_name().is_some_and(|name| name == "target"))
                    .filter_map(Path::parent)
                    .map(|checkout| checkout.join(".envoy")),
            );
        }
        Self {
            explicit: explicit.or_else(|| env::var_os("OUTRIDER_ENVOY").map(PathBuf::from)),
            homes,
            path: env::var_os("PATH"),
        }
    }

    /// The first Envoy found, its version asked and judged.
    ///
    /// # Errors
    /// None is found, or the one found is not an Envoy or too old. An old one on `PATH` is not
    /// passed over in silence.
    pub fn find(&self) -> Result<Found, Error> {
        let (binary, origin) = self.locate()?;
        let binary = std::path::absolute(&binary).unwrap_or(binary);
        let version = Version::of(&binary)?;
        let warning = version.check(&binary)?;
        Ok(Found {
            binary,
            origin,
            version,
            warning,
        })
    }

    fn locate(&self) -> Result<(PathBuf, Origin), Error> {
        if let Some(path) = &self.explicit {
            return if path.is_file() {
                Ok((path.clone(), Origin::Named))
            } else {
                Err(Error::NoSuchFile { path: path.clone() })
            };
        }
        if let Some(binary) = self.homes.iter().find_map(|home| any_installed(home)) {
            return Ok((binary, Origin::Installed));
        }
        let on_path = self.path.iter().flat_map(env::split_paths);
        if let Some(binary) = on_path
            .map(|folder| folder.join("envoy"))
            .find(|file| file.is_file())
        {
            return Ok((binary, Origin::Path));
        }
        let mut looked: Vec<String> = self
            .homes
            .iter()
            .map(|home| home.display().to_string())
            .collect();
        looked.push("PATH".to_owned());
        Err(Error::NotFound { looked })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn fake_envoy(path: &Path, version: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(
            path,
            format!("#!/bin/sh\necho 'envoy  version: 0/{version}/Clean/RELEASE/BoringSSL'\n"),
        )
        .unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn looks_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let named = folder.path().join("mine/envoy");
        let home = folder.path().join("home");
        let bin = folder.path().join("bin");
        let mut search = Search {
            explicit: None,
            homes: vec![home.clone()],
            path: Some(bin.clone().into_os_string()),
        };
        let message = search.find().unwrap_err().to_string();
        assert_eq!(
            message.replace(&home.display().to_string(), "HOME"),
            "no Envoy found (looked at HOME, PATH); `outrider envoy install` installs 1.40.0, or name one with --envoy"
        );

        fake_envoy(&bin.join("envoy"), "1.40.1");
        assert_eq!(search.find().unwrap().origin, Origin::Path);

        fake_envoy(
            &home.join("1.40.0/lib/python3.9/site-packages/envoy/_bin/envoy"),
            "1.40.0",
        );
        let found = search.find().unwrap();
        assert_eq!(found.origin, Origin::Installed);
        assert_eq!(found.version, crate::SUPPORTED);

        search.explicit = Some(named.clone());
        assert!(
            search
                .find()
                .unwrap_err()
                .to_string()
                .starts_with("there is no Envoy at")
        );
        fake_envoy(&named, "1.38.0");
        assert!(matches!(search.find(), Err(Error::TooOld { .. })));
    }
}
