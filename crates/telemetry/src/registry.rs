//! The access logs that records may name, by id.
//!
//! Configuration comes and goes with generations, while records of it are still in a ring. A definition is therefore kept
//! until the exporter has read all rings once after its last user was gone: the list of retired ids is taken before such a
//! pass, and the ids are forgotten after it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use outrider_plugin_formats as formats;

use crate::format::FormatProblem;
use crate::log::AccessLog;
use crate::sink::SinkKey;

/// An access log with its sink.
#[derive(Debug)]
pub struct Definition {
    pub(crate) id: u32,
    pub(crate) log: AccessLog,
    pub(crate) sink: formats::Sink,
    /// Its handle is gone: no record of it is written any more. No lock, because a worker may drop the handle.
    retired: AtomicBool,
}

/// The use of a definition by a configuration; its streams may write records of it.
#[derive(Debug)]
pub struct Handle {
    definition: Arc<Definition>,
}

impl Handle {
    /// The access log.
    pub fn log(&self) -> &AccessLog {
        &self.definition.log
    }

    /// The id in its records.
    pub fn id(&self) -> u32 {
        self.definition.id
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Release: whoever sees this sees the records that were pushed before.
        self.definition.retired.store(true, Ordering::Release);
    }
}

#[derive(Debug, Default)]
struct Registry {
    last_id: u32,
    definitions: BTreeMap<u32, Arc<Definition>>,
    /// Handles by what they stand for, so that all routes with an access log share one.
    handles: BTreeMap<String, Weak<Handle>>,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    last_id: 0,
    definitions: BTreeMap::new(),
    handles: BTreeMap::new(),
});

fn locked() -> MutexGuard<'static, Registry> {
    // Every state behind this lock is valid between any two statements that change it.
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers an access log; the same one again shares its handle.
///
/// # Errors
/// If its format has an operator that telemetry does not render.
pub fn register(
    log: &formats::AccessLog,
    sink: &formats::Sink,
) -> Result<Arc<Handle>, FormatProblem> {
    // Plain data with text keys always serializes.
    let key = serde_json::to_string(&(log, sink)).unwrap_or_default();
    let mut registry = locked();
    if let Some(handle) = registry.handles.get(&key).and_then(Weak::upgrade) {
        return Ok(handle);
    }
    let compiled = AccessLog::compile(log)?;
    registry.last_id += 1;
    let definition = Arc::new(Definition {
        id: registry.last_id,
        log: compiled,
        sink: sink.clone(),
        retired: AtomicBool::new(false),
    });
    registry
        .definitions
        .insert(definition.id, Arc::clone(&definition));
    let handle = Arc::new(Handle { definition });
    registry
        .handles
        .retain(|_, handle| handle.strong_count() > 0);
    registry.handles.insert(key, Arc::downgrade(&handle));
    Ok(handle)
}

/// The definition of an id.
pub(crate) fn definition(id: u32) -> Option<Arc<Definition>> {
    locked().definitions.get(&id).map(Arc::clone)
}

/// The ids whose handles are gone.
pub(crate) fn retired() -> Vec<u32> {
    let registry = locked();
    let definitions = registry.definitions.values();
    definitions
        .filter(|definition| definition.retired.load(Ordering::Acquire))
        .map(|definition| definition.id)
        .collect()
}

/// The sinks that records may still be written to.
pub(crate) fn sinks() -> BTreeSet<SinkKey> {
    let registry = locked();
    let definitions = registry.definitions.values();
    definitions
        .map(|definition| SinkKey::of(&definition.sink))
        .collect()
}

/// Forgets definitions whose records have all been read.
pub(crate) fn forget(ids: &[u32]) {
    let mut registry = locked();
    for id in ids {
        registry.definitions.remove(id);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use outrider_plugin_formats::{AccessLog, AccessLogFormat, Sink};

    use super::{definition, register};

    fn log(text: &str) -> AccessLog {
        AccessLog {
            name: "requests".to_owned(),
            sink: "out".to_owned(),
            format: AccessLogFormat::Text(text.to_owned()),
            only: None,
            sample: None,
            value_limit: None,
        }
    }

    #[test]
    fn same_access_log_shares_its_handle() {
        let first = register(&log("%DURATION% shared\n"), &Sink::Stdout).unwrap();
        let second = register(&log("%DURATION% shared\n"), &Sink::Stdout).unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        let other = register(&log("%PROTOCOL% shared\n"), &Sink::Stdout).unwrap();
        assert_ne!(other.id(), first.id());
        assert!(definition(first.id()).is_some());
        assert!(register(&log("%NOPE%"), &Sink::Stdout).is_err());
    }
}
