//! What the caller says of a plugin that is to be loaded.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A plugin's file and its settings.
#[derive(Debug, Clone)]
pub struct WasmSource {
    /// The plugin's name.
    pub name: String,
    /// Its file as the user knows it, for messages.
    pub file: String,
    /// The file's bytes.
    pub module: Arc<[u8]>,
    /// How many bytes each VM's memory may have.
    pub memory_budget: usize,
    /// How long one call may take.
    pub time_budget: Duration,
    /// Where compiled code is kept; none: it is compiled each time.
    pub compiled_folder: Option<PathBuf>,
    /// How it is run.
    pub options: WasmOptions,
    /// What time it is.
    pub clock: Clock,
}

/// What guests are told the time is. Tests put their own in the place of the system's.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl Clock {
    /// A clock that answers the time since the Unix epoch.
    pub fn new(now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// Time since the Unix epoch.
    pub(crate) fn now(&self) -> Duration {
        (self.0)()
    }
}

impl Default for Clock {
    /// The system's.
    fn default() -> Self {
        Self::new(|| {
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
        })
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

/// How a plugin is run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WasmOptions {
    /// Host functions answer what helps plugins' authors, where Envoy's host does not.
    pub relaxed: bool,
    /// `StopIteration` of a headers callback stops the headers only: body callbacks still come.
    pub allow_on_headers_stop_iteration: bool,
    /// Environment variables of the guest.
    pub environment: BTreeMap<String, String>,
    /// Plugins of the same name here have their shared data and queues in common.
    pub vm_id: String,
    /// The property `plugin_root_id`.
    pub root_id: String,
    /// What `proxy_on_vm_start` may read.
    pub vm_configuration: Vec<u8>,
    /// Each call across the boundary is logged.
    pub trace: bool,
}
