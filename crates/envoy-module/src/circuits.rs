//! The circuits of the process, by plugin version and configuration: an update that leaves both as they
//! were leaves their circuit as it is, open or not; one that changes either begins with a closed one.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use outrider_plugin_api::{Circuit, CircuitPolicy, CircuitStatus, OpenCircuits};
use outrider_plugin_formats::{self as formats, PluginEntry};
use serde_json::Value;

use crate::plugin::CodeKey;

/// A plugin's circuits, by a digest of what they stand for: two that should collide share one, which
/// is safe.
#[derive(Debug, Default)]
struct Known {
    circuits: BTreeMap<u64, Weak<Circuit>>,
    open: Arc<OpenCircuits>,
    /// How many were in use when those that are not were last forgotten.
    in_use: usize,
}

static KNOWN: Mutex<BTreeMap<String, Known>> = Mutex::new(BTreeMap::new());

fn known() -> MutexGuard<'static, BTreeMap<String, Known>> {
    // A map is valid between any two statements that change it. No circuit is dropped in here.
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The circuit of a plugin's configuration: the one that lives, or a new one, which is closed.
pub(crate) fn of(
    entry: &PluginEntry,
    key: &CodeKey,
    scope: &str,
    patch: Option<&Value>,
) -> Arc<Circuit> {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    let text = |value: Option<&Value>| value.map(Value::to_string);
    text(entry.config.as_ref()).hash(&mut hasher);
    text(patch).hash(&mut hasher);
    let policy = policy(entry.circuit);
    policy
        .map(|policy| (policy.failures, policy.pause, policy.longest_pause))
        .hash(&mut hasher);
    let digest = hasher.finish();
    let mut all = known();
    let known = all.entry(entry.name.clone()).or_default();
    if let Some(living) = known.circuits.get(&digest).and_then(Weak::upgrade) {
        return living;
    }
    let made = Circuit::new(scope.to_owned(), policy, Arc::clone(&known.open));
    let made = Arc::new(made);
    known.circuits.insert(digest, Arc::downgrade(&made));
    // Now and then only: 10,000 routes come one by one.
    if known.circuits.len() > 64 + 2 * known.in_use {
        known.circuits.retain(|_, old| old.strong_count() > 0);
        known.in_use = known.circuits.len();
    }
    made
}

fn policy(circuit: formats::Circuit) -> Option<CircuitPolicy> {
    let limits = circuit.limits()?;
    let millis = |number: u32| Duration::from_millis(u64::from(number));
    Some(CircuitPolicy {
        failures: limits.failures,
        pause: millis(limits.pause_ms),
        longest_pause: millis(limits.longest_pause_ms),
    })
}

/// A circuit that never opens: of what is not called anyhow.
pub(crate) fn none() -> Arc<Circuit> {
    Arc::new(Circuit::new(String::new(), None, Arc::default()))
}

/// Where a plugin's circuits stand that have something to tell: one that is not closed, or that has
/// been open, or whose last stream failed.
pub(crate) fn statuses(plugin: &str) -> Vec<CircuitStatus> {
    let living: Vec<Arc<Circuit>> = known()
        .get(plugin)
        .map(|known| known.circuits.values().filter_map(Weak::upgrade).collect())
        .unwrap_or_default();
    // Outside of the lock, for this may be their last use.
    living
        .iter()
        .map(|circuit| circuit.status())
        .filter(|status| status.openings > 0 || status.failures > 0)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::Place;
    use outrider_plugin_api::Admission;
    use serde_json::json;

    fn entry(value: &Value) -> PluginEntry {
        let mut whole = json!({"name": "circuits-test", "runtime": "lua", "digest": "x",
            "source": {"inline": {}}, "entry": "main.lua"});
        for (key, value) in value.as_object().unwrap() {
            whole[key] = value.clone();
        }
        serde_json::from_value(whole).unwrap()
    }

    fn circuit(entry: &PluginEntry, patch: Option<&Value>) -> Arc<Circuit> {
        let place = Place {
            workers: 1,
            log_folder: None,
            compiled_folder: None,
        };
        of(entry, &CodeKey::new(entry, &place), "gateway", patch)
    }

    #[test]
    fn what_an_update_leaves_as_it_was_keeps_its_circuit() {
        let before = entry(&json!({"circuit": {"failures": 1}, "config": {"a": 1}}));
        let first = circuit(&before, None);
        first.failed(Admission::Go, "bad", 1000);
        assert_eq!(statuses("circuits-test").len(), 1);
        // An order that differs is not its matter.
        let moved = entry(&json!({"circuit": {"failures": 1}, "config": {"a": 1}, "priority": 7}));
        assert!(Arc::ptr_eq(&first, &circuit(&moved, None)));
        let others = [
            circuit(&before, Some(&json!({"a": 2}))),
            circuit(
                &entry(&json!({"circuit": {"failures": 1}, "config": {"a": 2}})),
                None,
            ),
            circuit(
                &entry(&json!({"circuit": {"failures": 2}, "config": {"a": 1}})),
                None,
            ),
            circuit(&entry(&json!({"circuit": "off", "config": {"a": 1}})), None),
            circuit(
                &entry(&json!({"circuit": {"failures": 1}, "config": {"a": 1}, "digest": "y"})),
                None,
            ),
        ];
        for other in &others {
            assert!(!Arc::ptr_eq(&first, other));
            assert_eq!(other.admit(1000).0, Admission::Go);
        }
        assert_eq!(first.admit(1000).0, Admission::Refused);
        drop(first);
        assert_eq!(statuses("circuits-test"), []);
    }
}
