//! `outrider plugin list`: the catalog of built-in plugins.

use clap::Args;
use outrider_plugin_catalog::Builtin;
use outrider_plugin_formats::{Manifest, PluginPackage, Runtime};
use serde_json::json;

use crate::exit::Exit;
use crate::output::{self, BOLD, DIM, Styled};

const EXAMPLES: &str = "\
Examples:
  outrider plugin list
  outrider plugin list --json | jq -r '.plugins[].source'";

/// List the plugins that are inside this command
///
/// A gateway's file uses one with `source: builtin:NAME`; no file and no network is needed.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Print JSON: {"plugins": [{"name", "source", "version", "language", "group", "description", "digest", "size"}]}
    #[arg(long)]
    json: bool,
}

/// The language of a plugin, as people call it.
pub(super) fn language(manifest: &Manifest) -> &'static str {
    match manifest.runtime {
        Runtime::Lua => "Lua",
        Runtime::Wasm => "Wasm",
    }
}

/// The package of a built-in plugin.
pub(super) fn package(plugin: Builtin) -> anyhow::Result<PluginPackage> {
    plugin.open().map_err(|problems| {
        let first = problems.first().map(ToString::to_string);
        anyhow::anyhow!(
            "the built-in plugin {}: {}",
            plugin.name,
            first.unwrap_or_default()
        )
    })
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let mut rows = Vec::new();
    for plugin in outrider_plugin_catalog::all() {
        rows.push((plugin, package(plugin)?));
    }
    if arguments.json {
        let plugins = rows.iter().map(|(plugin, package)| {
            let Manifest {
                version,
                group,
                description,
                ..
            } = &package.manifest;
            json!({
                "name": plugin.name,
                "source": format!("builtin:{}", plugin.name),
                "version": version,
                "language": language(&package.manifest),
                "group": group,
                "description": description,
                "digest": package.digest,
                "size": plugin.size(),
            })
        });
        output::json(&json!({ "plugins": plugins.collect::<Vec<_>>() }));
        return Ok(Exit::Good);
    }
    let width = rows.iter().map(|(plugin, _)| plugin.name.len()).max();
    let width = width.unwrap_or(0);
    for (plugin, package) in &rows {
        let manifest = &package.manifest;
        output::line(format_args!(
            "{}  {}  {}  {}",
            Styled(BOLD, format!("{:width$}", plugin.name)),
            manifest.version.as_deref().unwrap_or("-"),
            language(manifest),
            manifest.description.as_deref().unwrap_or_default(),
        ));
    }
    output::line(Styled(
        DIM,
        "\n`source: builtin:NAME` uses one; `outrider plugin info NAME` shows its configuration and an example",
    ));
    Ok(Exit::Good)
}
