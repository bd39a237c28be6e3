//! A revision of a gateway's configuration: what Envoy is told, and what that was made from.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use outrider_gateway::Plan;
use outrider_gateway::envoy::{self, Files};
use outrider_plugin_formats::{PluginEntry, PluginSource};
use serde_json::{Value, json};

use crate::courier::replace;
use crate::rendered::layout;
use crate::state::State;

/// The file of the last good revision.
const LAST_GOOD: &str = "last-good.json";

/// See the module.
#[derive(Debug)]
pub(crate) struct Revision {
    /// `None`: it is of an earlier run.
    pub(crate) plan: Option<Plan>,
    pub(crate) files: Files,
    pub(crate) workers: Option<u32>,
    /// WebAssembly modules by digest, and where the user has them.
    modules: Vec<(String, PathBuf)>,
}

/// A revision equals itself only: the state machine compares revisions many times a second, and they may be large.
impl PartialEq for Revision {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Revision {
    /// Renders a plan, with copies of modules in the place of the user's.
    pub(crate) fn new(plan: Plan, state: &State) -> Self {
        let (files, modules) = render(&plan, state, &state.run_folder());
        Self {
            files,
            workers: plan.workers,
            plan: Some(plan),
            modules,
        }
    }

    /// Renders its plan for an Envoy that tries it beside the one that serves: it listens nowhere but at a free port for
    /// its admin interface.
    pub(crate) fn trial(&self, state: &State, folder: &Path) -> Option<Files> {
        let (mut files, _) = render(self.plan.as_ref()?, state, folder);
        let listeners = files.lds.get_mut("resources").and_then(Value::as_array_mut);
        for listener in listeners.into_iter().flatten() {
            if let Some(listener) = listener.as_object_mut() {
                listener.insert("bind_to_port".to_owned(), json!(false));
            }
        }
        let admin = files
            .bootstrap
            .pointer_mut("/admin/address/socket_address")?;
        *admin = json!({ "address": "127.0.0.1", "port_value": 0 });
        Some(files)
    }

    /// Makes the copies that it refers to.
    ///
    /// # Errors
    /// A module cannot be copied, or changed since it was compiled.
    pub(crate) fn keep_modules(&self, state: &State) -> anyhow::Result<()> {
        let mut modules = self.modules.iter();
        modules.try_for_each(|(digest, file)| state.keep_wasm(file, digest))
    }

    /// Keeps it as the last good revision, and forgets the modules of others.
    pub(crate) fn keep(&self, state: &State) -> anyhow::Result<()> {
        let Files {
            bootstrap,
            cds,
            ecds,
            rds,
            lds,
            secrets,
        } = &self.files;
        let digests: Vec<&str> = self
            .modules
            .iter()
            .map(|(digest, _)| digest.as_str())
            .collect();
        let text = json!({
            "bootstrap": bootstrap,
            "cds": cds,
            "ecds": ecds,
            "rds": rds,
            "lds": lds,
            "secrets": secrets,
            "workers": self.workers,
            "modules": digests,
            "folder": state.run_folder(),
        });
        replace(&state.file(LAST_GOOD), &text.to_string())?;
        state.forget_wasm_except(&digests);
        Ok(())
    }

    /// Returns the last good revision of an earlier run with this state folder.
    ///
    /// # Errors
    /// Its file cannot be read.
    pub(crate) fn last_good(state: &State) -> anyhow::Result<Option<Self>> {
        let path = state.file(LAST_GOOD);
        if !path.exists() {
            return Ok(None);
        }
        read(&path, &state.run_folder())
            .with_context(|| format!("the last good configuration in {}", path.display()))
    }
}

/// A plan as files in a folder, and its WebAssembly modules by digest.
fn render(plan: &Plan, state: &State, folder: &Path) -> (Files, Vec<(String, PathBuf)>) {
    let mut rendered = plan.clone();
    let mut modules = Vec::new();
    for PluginEntry { source, digest, .. } in &mut rendered.filter.plugins {
        if let PluginSource::Module(file) = source {
            let copy = state.wasm(digest).to_string_lossy().into_owned();
            let file = std::mem::replace(file, copy);
            modules.push((digest.clone(), PathBuf::from(file)));
        }
    }
    let files = envoy::files(&rendered, &layout(&rendered, folder));
    (files, modules)
}

/// Replaces the folder of each path in a document.
fn move_paths(value: &mut Value, from: &str, to: &str) {
    match value {
        Value::String(text) => {
            let rest = text.strip_prefix(from);
            if let Some(rest) = rest.filter(|rest| rest.starts_with('/')) {
                *text = format!("{to}{rest}");
            }
        }
        Value::Array(values) => values
            .iter_mut()
            .for_each(|value| move_paths(value, from, to)),
        Value::Object(values) => values
            .values_mut()
            .for_each(|value| move_paths(value, from, to)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn read(path: &Path, folder: &Path) -> anyhow::Result<Option<Revision>> {
    let mut kept: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    // It may be of a gateway that had taken over, and read another folder. Not: what a plugin says, which is text.
    if let (Some(from), Some(to)) = (kept.get("folder").cloned(), folder.to_str())
        && let Some(from) = from.as_str().filter(|from| *from != to)
    {
        for document in ["bootstrap", "cds", "ecds", "rds", "lds"] {
            if let Some(document) = kept.get_mut(document) {
                move_paths(document, from, to);
            }
        }
    }
    let mut take = |name: &str| {
        let value = kept.get_mut(name).map(Value::take);
        value.with_context(|| format!("{name} is missing"))
    };
    let modules = take("modules")?;
    // Private keys, and the text of certificates: read without words that would hold a part of them.
    let secrets = serde_json::from_value(take("secrets").unwrap_or_else(|_| json!({})))
        .map_err(|_| anyhow::anyhow!("secrets are no mapping"))?;
    Ok(Some(Revision {
        plan: None,
        files: Files {
            bootstrap: take("bootstrap")?,
            cds: take("cds")?,
            ecds: take("ecds")?,
            rds: take("rds")?,
            lds: take("lds")?,
            secrets,
        },
        workers: take("workers")?
            .as_u64()
            .and_then(|count| u32::try_from(count).ok()),
        // Their copies are in the state folder, or Envoy refuses their plugins.
        modules: (modules.as_array().into_iter().flatten())
            .filter_map(|digest| Some((digest.as_str()?.to_owned(), PathBuf::new())))
            .collect(),
    }))
}
