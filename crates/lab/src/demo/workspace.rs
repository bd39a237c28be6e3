//! The demonstration's own copy of the example, in a temporary folder: its ports are free ones, its
//! plugin sources point back to the repository, and it can be edited without a trace.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tempfile::TempDir;

use crate::free_address;

/// Where the example listens, and where it expects its upstream.
const GATEWAY: &str = "127.0.0.1:10000";
const UPSTREAM: &str = "127.0.0.1:10080";

/// Where the example's plugins are, relative to it.
const PLUGINS: &str = "../../plugins/";

/// The copy. Dropping it removes the folder.
#[derive(Debug)]
pub(super) struct Workspace {
    folder: TempDir,
    gateway: SocketAddr,
}

impl Workspace {
    /// Copies `outrider.yaml` of the example.
    pub(super) fn copy(example: &Path, upstream: SocketAddr) -> anyhow::Result<Self> {
        let original = example.join("outrider.yaml");
        let text = fs::read_to_string(&original).with_context(|| {
            format!(
                "cannot read {} (run this from the repository's root, or say --example)",
                original.display()
            )
        })?;
        let plugins = example.join(PLUGINS);
        let plugins = plugins
            .canonicalize()
            .with_context(|| format!("cannot find the plugins, {}", plugins.display()))?;
        let plugins = plugins
            .to_str()
            .context("the path of the plugins is not UTF-8")?;
        let gateway = free_address()?;
        let text = replace(&text, GATEWAY, &gateway.to_string())?;
        let text = replace(&text, UPSTREAM, &upstream.to_string())?;
        let text = replace(&text, PLUGINS, &format!("{plugins}/"))?;
        let workspace = Self {
            folder: tempfile::Builder::new()
                .prefix("outrider-demo-")
                .tempdir()?,
            gateway,
        };
        workspace.save(&text)?;
        Ok(workspace)
    }

    /// The copied file.
    pub(super) fn file(&self) -> PathBuf {
        self.folder.path().join("outrider.yaml")
    }

    /// Where the gateway of the copy listens.
    pub(super) fn gateway(&self) -> SocketAddr {
        self.gateway
    }

    /// Replaces the one place where `from` stands and saves, as an editor does: a whole new file.
    pub(super) fn edit(&self, from: &str, to: &str) -> anyhow::Result<()> {
        let text = fs::read_to_string(self.file())?;
        let places = text.matches(from).count();
        anyhow::ensure!(
            places == 1,
            "the example has {from:?} in {places} places; the demonstration edits one"
        );
        self.save(&text.replace(from, to))
    }

    fn save(&self, text: &str) -> anyhow::Result<()> {
        let draft = self.folder.path().join(".outrider.yaml.draft");
        fs::write(&draft, text)?;
        fs::rename(&draft, self.file())?;
        Ok(())
    }
}

fn replace(text: &str, from: &str, to: &str) -> anyhow::Result<String> {
    anyhow::ensure!(text.contains(from), "the example does not say {from}");
    Ok(text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/quickstart")
    }

    #[test]
    fn the_copy_has_its_own_ports_and_finds_the_plugins() {
        let upstream = SocketAddr::from(([127, 0, 0, 1], 4));
        let workspace = Workspace::copy(&example(), upstream).unwrap();
        let text = fs::read_to_string(workspace.file()).unwrap();
        assert!(text.contains(&format!("address: {}", workspace.gateway())));
        assert!(text.contains("endpoints: [127.0.0.1:4]"));
        assert!(!text.contains(GATEWAY) && !text.contains(UPSTREAM) && !text.contains("../"));
        let sources: Vec<_> = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("source: "))
            .collect();
        assert!(!sources.is_empty());
        for source in sources {
            assert!(Path::new(source).is_absolute(), "{source}");
        }
    }

    #[test]
    fn an_edit_has_one_place() {
        let upstream = SocketAddr::from(([127, 0, 0, 1], 4));
        let workspace = Workspace::copy(&example(), upstream).unwrap();
        for (from, to) in super::super::story::EDITS {
            workspace.edit(from, to).unwrap();
            assert!(fs::read_to_string(workspace.file()).unwrap().contains(to));
        }
        let error = workspace.edit("no such text", "").unwrap_err();
        assert!(error.to_string().contains("in 0 places"), "{error}");
        let folder = workspace.folder.path().to_owned();
        drop(workspace);
        assert!(!folder.exists());
    }
}
