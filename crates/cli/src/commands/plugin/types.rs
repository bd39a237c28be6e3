//! `outrider plugin types`: what editors need to complete and check plugins.
//!
//! The annotations go into a folder whose name begins with a dot, which is no part of any plugin.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;

use crate::exit::{self, Exit};
use crate::output::{self, GOOD, Styled};

const EXAMPLES: &str = "\
Examples:
  outrider plugin types                   for plugins in this folder and below
  outrider plugin types --into plugins";

/// The annotations' folder, as it stands in the settings.
const FOLDER: &str = ".outrider-types";
const SETTINGS: &str = ".luarc.json";

/// Write annotations of the Lua SDK, for editors
///
/// With them, lua-language-server completes and checks what plugins call, scripts for Envoy's Lua
/// filter included. Settings that are there already are left as they are.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
pub(crate) struct Arguments {
    /// The folder that the editor opens
    #[arg(long, value_name = "DIR", default_value = ".")]
    into: PathBuf,
}

/// The settings of lua-language-server.
fn settings() -> String {
    let settings = serde_json::json!({
        "runtime.version": "LuaJIT",
        "runtime.builtin": {
            "debug": "disable",
            "ffi": "disable",
            "io": "disable",
            "jit": "disable",
        },
        "workspace.library": [FOLDER],
    });
    format!("{settings:#}\n")
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    let types = arguments.into.join(FOLDER).join("outrider.lua");
    write(&types, outrider_lua_runtime::TYPES)?;
    output::line(format_args!("{} {}", Styled(GOOD, "wrote"), shown(&types)));
    let file = arguments.into.join(SETTINGS);
    if file.exists() {
        output::line(format_args!(
            "{} is there already; it needs \"workspace.library\": [\"{FOLDER}\"]",
            shown(&file)
        ));
    } else {
        write(&file, &settings())?;
        output::line(format_args!("{} {}", Styled(GOOD, "wrote"), shown(&file)));
    }
    Ok(Exit::Good)
}

fn shown(path: &Path) -> String {
    path.strip_prefix(".").unwrap_or(path).display().to_string()
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)
            .with_context(|| format!("the folder {} cannot be made", folder.display()))?;
    }
    fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_written_anew_and_settings_once() {
        let folder = tempfile::tempdir().unwrap();
        let arguments = Arguments {
            into: folder.path().join("plugins"),
        };
        assert_eq!(run(&arguments).unwrap(), Exit::Good);
        let types = arguments.into.join(".outrider-types/outrider.lua");
        let settings = arguments.into.join(".luarc.json");
        assert!(fs::read_to_string(&types).unwrap().starts_with("---@meta"));
        let found: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(&settings).unwrap()).unwrap();
        assert_eq!(found["workspace.library"][0], ".outrider-types");
        for library in ["debug", "ffi", "io", "jit"] {
            assert_eq!(found["runtime.builtin"][library], "disable");
        }
        fs::write(&types, "old").unwrap();
        fs::write(&settings, "{}").unwrap();
        assert_eq!(run(&arguments).unwrap(), Exit::Good);
        assert!(fs::read_to_string(&types).unwrap().starts_with("---@meta"));
        assert_eq!(fs::read_to_string(&settings).unwrap(), "{}");
    }
}
