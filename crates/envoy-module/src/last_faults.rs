//! The last failure of each plugin, by name, for the pages: an update does not forget it. When lines
//! are logged is a generation's own matter: the first failure of new code is always said.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use outrider_plugin_api::LastFaults;

/// How many plugins' failures are kept for the pages; the metrics of a process allow for fewer plugins.
const CAPACITY: usize = 4096;

static KNOWN: Mutex<BTreeMap<String, Arc<LastFaults>>> = Mutex::new(BTreeMap::new());

/// The place of a plugin's last failure. Only the main thread comes here.
pub(crate) fn of(plugin: &str) -> Arc<LastFaults> {
    // A map is valid between any two statements that change it.
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(place) = known.get(plugin) {
        return Arc::clone(place);
    }
    let place = Arc::new(LastFaults::default());
    if known.len() < CAPACITY {
        known.insert(plugin.to_owned(), Arc::clone(&place));
    }
    place
}
