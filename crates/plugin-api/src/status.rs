//! What a loaded plugin uses at the moment, for people who look; nothing on the request path reads it.

/// See [`crate::Plugin::status`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PluginStatus {
    /// Its VMs, in the order of workers.
    pub workers: Vec<VmStatus>,
    /// Bytes in use by each VM that is kept ready for a worker whose own fails.
    pub spares: Vec<usize>,
    /// How many bytes each of them may allocate.
    pub memory_budget: usize,
    /// Lines that its own log file lost, since the plugin was loaded; none: it has no log file.
    pub log_lines_dropped: Option<u64>,
    /// How often its streams, timers and ticks had to wait for its share of CPU since it was loaded.
    pub share_waits: u64,
}

/// One worker's VM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VmStatus {
    /// Bytes in use; none: the VM is gone, and its replacement could not be made yet.
    pub memory: Option<usize>,
    /// How often the VM was replaced, as it had used up its memory.
    pub replacements: u64,
    /// Why the last attempt to replace it failed; none while a VM is there.
    pub trouble: Option<String>,
}
