//! `outrider render envoy`: a gateway as plain Envoy configuration.

use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use outrider_gateway::Plan;
use outrider_gateway::envoy::{Layout, Secrets, files, secret_file, static_bootstrap, to_yaml};

use crate::exit::{self, Exit};
use crate::fetching::FetchArguments;
use crate::loader::compile_file;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  outrider render envoy gateway.yaml --static > envoy.yaml
  ENVOY_DYNAMIC_MODULES_SEARCH_PATH=/usr/lib/outrider envoy -c envoy.yaml

  outrider render envoy gateway.yaml --output /etc/envoy/gateway
  ENVOY_DYNAMIC_MODULES_SEARCH_PATH=/usr/lib/outrider envoy -c /etc/envoy/gateway/bootstrap.json

The search path is the folder of liboutrider.so. Code of plugins is inside; certificates are named by \
their absolute paths. Where the gateway's file names no admin address, it is 127.0.0.1:9901.";

/// Bootstrap of the form with files.
const BOOTSTRAP: &str = "bootstrap.json";
/// The static form.
const STATIC: &str = "envoy.yaml";

/// Print a gateway as plain Envoy configuration
///
/// The usual form is a bootstrap and four files that Envoy watches (listeners, clusters, routes, the
/// filter), as `outrider up` runs it; --static puts everything into one file.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
pub(super) struct Arguments {
    /// The gateway's file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Everything in one file, with nothing that changes while Envoy runs
    #[arg(long = "static")]
    fixed: bool,
    /// Write into this folder instead of printing
    #[arg(long, short, value_name = "FOLDER")]
    output: Option<PathBuf>,
    #[command(flatten)]
    fetch: FetchArguments,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    arguments.fetch.apply();
    let compiled = compile_file(&arguments.file);
    let Some(plan) = compiled.plan else {
        output::problems(&compiled.problems);
        return Ok(Exit::Problems);
    };
    let folder = arguments.output.as_deref().unwrap_or(Path::new("."));
    let documents = documents(&plan, folder, arguments.fixed)?;
    match &arguments.output {
        Some(folder) => write(folder, &documents)?,
        None => print(&documents),
    }
    Ok(Exit::Good)
}

/// One file.
struct Document {
    name: String,
    /// For people, and for Envoy where the file's name says so.
    yaml: String,
    /// For Envoy.
    json: String,
}

fn documents(plan: &Plan, folder: &Path, fixed: bool) -> anyhow::Result<Vec<Document>> {
    let layout = Layout {
        directory: std::path::absolute(folder)?.to_string_lossy().into_owned(),
        admin: plan
            .admin
            .unwrap_or_else(|| SocketAddr::from((Ipv4Addr::LOCALHOST, 9901))),
        node: "outrider".to_owned(),
        secrets: Secrets::Named,
    };
    let document = |name: &str, value: &serde_json::Value| Document {
        name: name.to_owned(),
        yaml: to_yaml(value),
        json: format!("{value:#}\n"),
    };
    if fixed {
        return Ok(vec![document(STATIC, &static_bootstrap(plan, &layout))]);
    }
    let files = files(plan, &layout);
    let watched = files.watched();
    let secrets = files
        .secrets
        .iter()
        .map(|(name, value)| document(&secret_file(name), value));
    Ok([(BOOTSTRAP, &files.bootstrap)]
        .into_iter()
        .chain(watched)
        .map(|(name, value)| document(name, value))
        .chain(secrets)
        .collect())
}

fn print(documents: &[Document]) {
    let text = match documents {
        [only] => only.yaml.clone(),
        several => several
            .iter()
            .map(|document| format!("# {}\n{}", document.name, document.yaml))
            .collect::<Vec<_>>()
            .join("---\n"),
    };
    output::raw(text.as_bytes());
}

/// The documents hold what plugins are configured with, secrets too: they are for the owner alone, and
/// so is a folder that is made for them.
fn write(folder: &Path, documents: &[Document]) -> anyhow::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .with_context(|| format!("the folder {} cannot be made", folder.display()))?;
    for document in documents {
        let path = folder.join(&document.name);
        let text = if document.name == STATIC {
            &document.yaml
        } else {
            &document.json
        };
        write_private(&path, text)
            .with_context(|| format!("{} cannot be written", path.display()))?;
        output::line(path.display());
    }
    Ok(())
}

fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    // One that was there keeps its mode otherwise.
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    file.write_all(text.as_bytes())
}
