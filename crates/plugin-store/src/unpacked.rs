//! Plugins whose files are in memory: of the `outrider` binary, an archive or an image.

use std::collections::BTreeMap;
use std::path::Path;

use outrider_plugin_formats::{Places, PluginCode, PluginPackage, Problem, Runtime, WasmModule};
use outrider_yaml::suggest;
use serde_json::Value;

use crate::digest::{digest, module_digest};
use crate::folder::{MANIFEST, SCHEMA};
use crate::manifest::{self, Located};
use crate::module;
use crate::problems::{at, of_whole};

/// Files of a plugin.
#[derive(Debug, Default)]
pub struct Unpacked {
    /// The name of its folder in messages, such as `builtin:cors`.
    pub label: String,
    /// The name of the plugin if there is no manifest.
    pub name: String,
    /// Text of `plugin.yaml`, if there is one.
    pub manifest: Option<String>,
    /// Text of `config.schema.json`, if there is one.
    pub schema: Option<String>,
    /// Lua files, by path in the plugin's folder.
    pub lua: BTreeMap<String, String>,
    /// The module of a Wasm plugin, whose file holds the same bytes.
    pub module: Option<WasmModule>,
}

/// Checks whether bytes begin and end as a WebAssembly module does. The error is the problem, and how to fix it.
pub fn check_module(bytes: &[u8]) -> Result<(), (&'static str, &'static str)> {
    module::look(bytes)
}

/// Makes a package of files in memory, as [`crate::open`] does of a folder.
///
/// # Errors
/// Everything that is wrong with it.
pub fn open_unpacked(unpacked: Unpacked) -> Result<PluginPackage, Vec<Problem>> {
    let label = Path::new(&unpacked.label);
    let mut problems = Vec::new();
    let located = unpacked.manifest.as_deref().map(|text| {
        manifest::read(&label.join(MANIFEST), text).map_err(|found| problems.extend(found))
    });
    let schema = unpacked
        .schema
        .as_deref()
        .and_then(|text| parse_schema(&label.join(SCHEMA), text, &mut problems));
    let located = match located {
        Some(Err(())) => return Err(problems),
        Some(Ok(located)) => Some(located),
        None => None,
    };
    let runtime = match &located {
        Some(located) => located.manifest.runtime,
        None if unpacked.module.is_some() => Runtime::Wasm,
        None => Runtime::Lua,
    };
    let code = match runtime {
        Runtime::Wasm => of_module(unpacked.module, label),
        Runtime::Lua => of_lua(unpacked.lua, located.as_ref(), label),
    };
    let (entry, digest, code) = match code {
        Ok(code) => code,
        Err(problem) => {
            problems.push(problem);
            return Err(problems);
        }
    };
    if !problems.is_empty() {
        return Err(problems);
    }
    let (places, manifest) = match located {
        Some(located) => (located.places(), {
            let mut manifest = located.manifest;
            manifest.entry = Some(entry);
            manifest
        }),
        None => (
            Places::default(),
            manifest::implied(manifest::name_from(&unpacked.name), runtime, entry),
        ),
    };
    Ok(PluginPackage {
        manifest,
        places,
        digest,
        code,
        schema,
        folder: unpacked.label,
    })
}

type Parts = (String, String, PluginCode);

fn of_module(module: Option<WasmModule>, label: &Path) -> Result<Parts, Problem> {
    let Some(module) = module else {
        return Err(of_whole(
            label,
            "there is no plugin.wasm in it",
            Some("pack the built module as plugin.wasm; `outrider plugin push` does"),
        ));
    };
    module::look(&module.bytes).map_err(|(message, mend)| of_whole(label, message, Some(mend)))?;
    Ok((
        "plugin.wasm".to_owned(),
        module_digest(&module.bytes),
        PluginCode::Module(module),
    ))
}

fn of_lua(
    files: BTreeMap<String, String>,
    located: Option<&Located>,
    label: &Path,
) -> Result<Parts, Problem> {
    let named = located.and_then(|located| located.manifest.entry.clone());
    let only = match files.len() {
        1 if located.is_none() => files.keys().next().cloned(),
        _ => None,
    };
    let entry = named.or(only).unwrap_or_else(|| "main.lua".to_owned());
    if files.contains_key(&entry) {
        let digest = digest(&files);
        return Ok((entry, digest, PluginCode::Files(files)));
    }
    let message = format!("the plugin's first file, {entry}, is not in it");
    let near = suggest(&entry, files.keys().map(String::as_str));
    let mend = near
        .map(str::to_owned)
        .or_else(|| files.keys().next().cloned())
        .map(|near| format!("set `entry: {near}`, or name the file {entry}"));
    Err(match located {
        Some(located) => located.problem(&["entry"], message, mend),
        None => of_whole(label, message, mend.as_deref()),
    })
}

fn parse_schema(file: &Path, text: &str, problems: &mut Vec<Problem>) -> Option<Value> {
    serde_json::from_str(text)
        .map_err(|error| problems.push(not_json(file, &error)))
        .ok()
}

/// The problem of a schema file.
pub(crate) fn not_json(file: &Path, error: &serde_json::Error) -> Problem {
    // serde_json ends its message with the place, which the problem has by itself.
    let message = error.to_string();
    let message = message
        .split_once(" at line ")
        .map_or(message.as_str(), |(message, _)| message);
    at(
        file,
        error.line(),
        error.column(),
        format!("this is not JSON: {message}"),
        None,
    )
}
