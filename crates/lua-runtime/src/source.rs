//! What a Lua plugin is made of.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use outrider_plugin_api::{BodyMode, LogBudget};

/// A plugin's code and what its manifest says about running it.
#[derive(Debug, Clone)]
pub struct LuaSource {
    /// The instance's name, as users know it.
    pub plugin: String,
    /// Shown before each file in messages: `folder/main.lua:12:`.
    pub folder: String,
    /// Each file's text by its path in the plugin, with `/`: `main.lua`, `lib/tokens.lua`.
    pub files: BTreeMap<String, String>,
    /// The file that returns the handlers.
    pub entry: String,
    /// How bodies of requests are handed over, if the plugin has a handler for them.
    pub request_body: BodyMode,
    /// How bodies of responses are handed over, if the plugin has a handler for them.
    pub response_body: BodyMode,
    /// How long one call may take, and each part of one that pauses.
    pub time_budget: Duration,
    /// How many bytes each VM may allocate.
    pub memory_budget: usize,
    /// How much of one worker's CPU time the plugin may use over a short window, in per cent; 100: any.
    pub share: u32,
    /// Whether calls come on a proxy's workers: VMs are made, and `on_configure` runs, on maker threads. Where
    /// plugins are only tried, on the calling thread.
    pub off_worker: bool,
    /// Where `envoy.filelog` writes `<plugin>.log`. None: it writes to the proxy's log.
    pub log_folder: Option<LogFolder>,
}

/// Folder of plugins' log files, and the budget that one plugin has for its own.
#[derive(Debug, Clone)]
pub struct LogFolder {
    /// The folder; it is made when the first line is written.
    pub folder: PathBuf,
    /// The budget for all that the plugin logs.
    pub budget: Arc<LogBudget>,
}
