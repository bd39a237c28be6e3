//! `outrider plugin build` and `strip`: from source to a module that is fit to be pushed.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use clap::Args;
use outrider_plugin_formats::{Manifest, PluginCode, Problem};
use outrider_plugin_registry::strip as strip_module;
use outrider_yaml::Document;

use crate::exit::{self, Exit};
use crate::fetching::{print_failure, shown};
use crate::output::{self, GOOD, Styled};

const BUILD_EXAMPLES: &str = "\
Examples:
  outrider plugin build hello
  outrider plugin build hello && outrider plugin push hello oci://registry.example.com/team/hello:1.0

The manifest's `build:` command runs in the plugin's folder by `sh -c`. It is its author's: read it before you build \
what somebody else wrote.";

/// Build a plugin by its manifest's command
#[derive(Debug, Args)]
#[command(after_help = format!("{BUILD_EXAMPLES}\n\n{}", exit::HELP))]
pub(crate) struct Build {
    /// The plugin's folder
    #[arg(value_name = "FOLDER", default_value = ".")]
    folder: PathBuf,
}

const STRIP_EXAMPLES: &str = "\
Examples:
  outrider plugin strip plugin.wasm                     in place
  outrider plugin strip debug.wasm --output plugin.wasm";

/// Remove names and debug information from a WebAssembly module
///
/// Custom sections with names, DWARF, producers and relocations are removed, and everything else stays to the byte.
/// Backtraces then name functions by number.
#[derive(Debug, Args)]
#[command(after_help = format!("{STRIP_EXAMPLES}\n\n{}", exit::HELP))]
pub(crate) struct Strip {
    /// The module
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Write it there, instead of in place
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// The manifest of a folder, whose module may not be built yet.
fn manifest(folder: &Path) -> Result<Manifest, Vec<Problem>> {
    let file = folder.join(outrider_plugin_store::MANIFEST);
    let name = file.display().to_string();
    let text = outrider_plugin_store::read_text(&file).map_err(|why| {
        vec![Problem {
            file: name.clone(),
            line: 0,
            column: 0,
            message: format!("the manifest cannot be read: {why}"),
            mend: None,
        }]
    })?;
    Document::parse(&name, &text)?.read::<Manifest>()
}

pub(crate) fn build(arguments: &Build) -> anyhow::Result<Exit> {
    let folder = &arguments.folder;
    let manifest = match manifest(folder) {
        Ok(manifest) => manifest,
        Err(problems) => {
            output::problems(&problems);
            return Ok(Exit::Problems);
        }
    };
    if let Some(command) = &manifest.build {
        output::note(format_args!("{command} (in {})", shown(folder)));
        let status = Command::new("sh")
            .arg("-c")
            .arg(command)
            .current_dir(folder)
            .status();
        let status = match status {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                anyhow::bail!("`build:` needs `sh`, which is not there")
            }
            status => status.context("`build:` cannot be run")?,
        };
        if !status.success() {
            let program = command.split_whitespace().next().unwrap_or(command);
            match status.code() {
                Some(127) => output::note(format_args!(
                    "`{program}` is missing: install what `{command}` needs; the plugin's README says what"
                )),
                _ => output::note(format_args!("`{command}` failed ({status})")),
            }
            return Ok(Exit::Problems);
        }
    }
    match outrider_plugin_store::open(folder) {
        Ok(package) => {
            let size = match &package.code {
                PluginCode::Module(module) => format!(", {} bytes", module.bytes.len()),
                PluginCode::Files(files) => {
                    format!(", {}", output::counted(files.len(), "Lua file"))
                }
            };
            output::line(format_args!(
                "{} {} ({}{size})",
                Styled(GOOD, "built"),
                package.manifest.name,
                package.digest
            ));
            Ok(Exit::Good)
        }
        Err(problems) => {
            output::problems(&problems);
            Ok(Exit::Problems)
        }
    }
}

pub(crate) fn strip(arguments: &Strip) -> anyhow::Result<Exit> {
    let file = &arguments.file;
    let module =
        std::fs::read(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let stripped = match strip_module(&module) {
        Ok(stripped) => stripped,
        Err(error) => {
            print_failure(&file.display().to_string(), &error);
            return Ok(Exit::Problems);
        }
    };
    let target = arguments.output.as_ref().unwrap_or(file);
    // A module that is half written would be taken by a gateway that watches it.
    let mut beside = target.clone().into_os_string();
    beside.push(".new");
    let written =
        std::fs::write(&beside, &stripped.module).and_then(|()| std::fs::rename(&beside, target));
    written.with_context(|| format!("{} cannot be written", target.display()))?;
    for (name, size) in &stripped.removed {
        output::line(format_args!("  removed {name}: {size} bytes"));
    }
    output::line(format_args!(
        "{} {}: {} bytes before, {} bytes after",
        Styled(GOOD, "stripped"),
        target.display(),
        module.len(),
        stripped.module.len()
    ));
    Ok(Exit::Good)
}
