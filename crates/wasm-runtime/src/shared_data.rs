//! Shared data and queues: of one plugin on all workers, and of all plugins that `outrider.yaml` joins by a name
//! (`shared`). Within that, a `vm_id` has its own keys and queues, as in Envoy. They live as long as a version of one
//! of these plugins is loaded, so that an update finds them again, and count against the plugin's memory budget.
//!
//! The trap: a lock here is held for a look-up, never for a long copy, nor while a guest runs. Values and items are
//! shared or moved, and the caller copies them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use crate::abi::Status;
use crate::mailbox::Mailbox;

/// Shared data and queues of one plugin, or of plugins that are joined.
#[derive(Debug, Default)]
pub(crate) struct Namespace {
    data: Mutex<Data>,
}

#[derive(Debug, Default)]
struct Data {
    values: BTreeMap<Vec<u8>, Entry>,
    names: BTreeMap<Vec<u8>, u32>,
    /// By token, from 1.
    queues: BTreeMap<u32, Queue>,
    /// Bytes of all of it, with [`OVERHEAD`] for each value, queue and item.
    bytes: usize,
    limit: usize,
}

impl Data {
    /// Counts bytes in the place of others, if there is room for them.
    fn count(&mut self, bytes: usize, in_place_of: usize) -> bool {
        let others = self.bytes.saturating_sub(in_place_of);
        if bytes > self.limit.saturating_sub(others) {
            return false;
        }
        self.bytes = others + bytes;
        true
    }
}

/// Bytes that each value, queue and item counts for beyond its own: the parts of the tree, and what the allocator adds to
/// three small allocations. Measured with keys of four bytes and values of one: 150.
const OVERHEAD: usize = 160;
/// Bytes of one value or item.
const MOST_VALUE: usize = 16 * 1024 * 1024;
/// Bytes of a key, and of a queue's name.
const MOST_KEY: usize = 64 * 1024;

/// Returns the number of a value that is set; as in Envoy, one count for the process, and never 0.
fn next_cas() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    match LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1) {
        0 => LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1),
        number => number,
    }
}

#[derive(Debug)]
struct Entry {
    value: Arc<Vec<u8>>,
    cas: u32,
}

#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<Vec<u8>>,
    /// The VM that is notified of items, and the root that registered the queue last.
    listener: Option<(Weak<Mailbox>, u32)>,
}

/// Which plugins have a namespace in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// All versions of the plugin of this name.
    Plugin(String),
    /// All plugins that are joined by this name.
    Joined(String),
}

static NAMESPACES: LazyLock<Mutex<BTreeMap<Owner, Weak<Namespace>>>> =
    LazyLock::new(Mutex::default);

/// Returns the namespace of an owner. `limit`: the memory budget of a plugin, in bytes; of joined plugins, the largest
/// counts.
pub(crate) fn namespace(owner: Owner, limit: usize) -> Arc<Namespace> {
    let mut namespaces = NAMESPACES.lock().unwrap_or_else(PoisonError::into_inner);
    namespaces.retain(|_, namespace| namespace.strong_count() > 0);
    let known = namespaces.get(&owner).and_then(Weak::upgrade);
    let namespace = known.unwrap_or_default();
    namespaces.insert(owner, Arc::downgrade(&namespace));
    drop(namespaces);
    let mut data = namespace.data();
    data.limit = data.limit.max(limit);
    drop(data);
    namespace
}

/// Returns the key of a name of a `vm_id`.
fn key(vm_id: &str, name: &[u8]) -> Vec<u8> {
    [&vm_id.len().to_le_bytes(), vm_id.as_bytes(), name].concat()
}

impl Namespace {
    fn data(&self) -> MutexGuard<'_, Data> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a value, and its number for a later `set`.
    pub(crate) fn get(&self, vm_id: &str, name: &[u8]) -> Option<(Arc<Vec<u8>>, u32)> {
        let key = key(vm_id, name);
        let data = self.data();
        let entry = data.values.get(&key)?;
        Some((Arc::clone(&entry.value), entry.cas))
    }

    /// Sets a value. With `cas` other than 0 only if the present value has this number.
    pub(crate) fn set(&self, vm_id: &str, name: &[u8], value: Vec<u8>, cas: u32) -> Status {
        if name.len() > MOST_KEY || value.len() > MOST_VALUE {
            return Status::InternalFailure;
        }
        let key = key(vm_id, name);
        let mut guard = self.data();
        let data = &mut *guard;
        let old = match data.values.get(&key) {
            Some(entry) if cas != 0 && entry.cas != cas => return Status::CasMismatch,
            Some(entry) => key.len() + entry.value.len() + OVERHEAD,
            None => 0,
        };
        if !data.count(key.len() + value.len() + OVERHEAD, old) {
            return Status::InternalFailure;
        }
        let (value, cas) = (Arc::new(value), next_cas());
        let replaced = data.values.insert(key, Entry { value, cas });
        drop(guard);
        // After the lock: a large value takes time to free.
        drop(replaced);
        Status::Ok
    }

    /// Returns the token of the queue of a name, which is made if it is not there, or `None` if there is no room.
    pub(crate) fn register_queue(&self, vm_id: &str, name: &[u8]) -> Option<u32> {
        if name.len() > MOST_KEY {
            return None;
        }
        let key = key(vm_id, name);
        let mut guard = self.data();
        let data = &mut *guard;
        if let Some(token) = data.names.get(&key) {
            return Some(*token);
        }
        let token = u32::try_from(data.names.len() + 1).ok()?;
        if !data.count(key.len() + OVERHEAD, 0) {
            return None;
        }
        data.names.insert(key, token);
        data.queues.insert(token, Queue::default());
        Some(token)
    }

    /// Returns the token of a queue of a `vm_id`.
    pub(crate) fn resolve_queue(&self, vm_id: &str, name: &[u8]) -> Option<u32> {
        let key = key(vm_id, name);
        self.data().names.get(&key).copied()
    }

    /// Has a VM's root notified of a queue's items, and nobody else.
    pub(crate) fn listen(&self, token: u32, mailbox: &Arc<Mailbox>, root: u32) {
        if let Some(queue) = self.data().queues.get_mut(&token) {
            queue.listener = Some((Arc::downgrade(mailbox), root));
        }
    }

    /// Puts an item at the end of a queue.
    pub(crate) fn enqueue(&self, token: u32, item: Vec<u8>) -> Status {
        if item.len() > MOST_VALUE {
            return Status::InternalFailure;
        }
        let mut guard = self.data();
        let data = &mut *guard;
        if !data.queues.contains_key(&token) {
            return Status::NotFound;
        }
        if !data.count(item.len() + OVERHEAD, 0) {
            return Status::InternalFailure;
        }
        let listener = data.queues.get_mut(&token).and_then(|queue| {
            queue.items.push_back(item);
            queue.listener.clone()
        });
        drop(guard);
        if let Some((mailbox, root)) = listener
            && let Some(mailbox) = mailbox.upgrade()
        {
            mailbox.put_notice(root, token);
        }
        Status::Ok
    }

    /// Takes the first item of a queue.
    ///
    /// # Errors
    /// There is no such queue in this namespace, or it is empty.
    pub(crate) fn dequeue(&self, token: u32) -> Result<Vec<u8>, Status> {
        let mut guard = self.data();
        let data = &mut *guard;
        let queue = data.queues.get_mut(&token).ok_or(Status::NotFound)?;
        let item = queue.items.pop_front().ok_or(Status::Empty)?;
        data.bytes = data.bytes.saturating_sub(item.len() + OVERHEAD);
        Ok(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 1024 * 1024;

    fn of(plugin: &str) -> Arc<Namespace> {
        namespace(Owner::Plugin(plugin.to_owned()), LIMIT)
    }

    #[test]
    fn a_value_is_set_only_over_the_one_that_was_seen() {
        let space = of("shared-data-test");
        let read = || {
            space
                .get("", b"k")
                .map(|(value, cas)| (value.to_vec(), cas))
        };
        assert_eq!(read(), None);
        assert_eq!(
            space.set("", b"k", b"one".to_vec(), 7),
            Status::Ok,
            "a new key ignores it"
        );
        let (value, first) = read().unwrap();
        assert_eq!(value, b"one");
        assert_eq!(space.set("", b"k", b"two".to_vec(), first), Status::Ok);
        assert_eq!(
            space.set("", b"k", b"three".to_vec(), first),
            Status::CasMismatch
        );
        assert_eq!(space.set("", b"k", b"four".to_vec(), 0), Status::Ok);
        let (value, last) = read().unwrap();
        assert_ne!(last, first);
        assert_eq!(value, b"four");
        assert!(Arc::ptr_eq(&space, &of("shared-data-test")));
    }

    #[test]
    fn namespaces_of_other_plugins_are_apart_and_joined_ones_are_not() {
        let (one, other) = (of("apart-one"), of("apart-other"));
        assert_eq!(one.set("id", b"k", b"secret".to_vec(), 0), Status::Ok);
        assert_eq!(other.get("id", b"k"), None, "the same vm_id");
        let token = one.register_queue("id", b"q").unwrap();
        assert_eq!(one.enqueue(token, b"secret".to_vec()), Status::Ok);
        for forged in 0..200 {
            assert_eq!(other.dequeue(forged), Err(Status::NotFound));
            assert_eq!(other.enqueue(forged, Vec::new()), Status::NotFound);
        }
        assert_eq!(other.resolve_queue("id", b"q"), None);
        let joined = || namespace(Owner::Joined("apart-one".to_owned()), LIMIT);
        assert!(joined().get("id", b"k").is_none(), "a name is no plugin's");
        let kept = joined();
        assert!(Arc::ptr_eq(&kept, &joined()));
    }

    #[test]
    fn queues_have_a_token_for_each_name_and_vm_id() {
        let space = of("queue-test");
        let token = space.register_queue("a", b"q").unwrap();
        assert_eq!(space.register_queue("a", b"q"), Some(token));
        assert_ne!(space.register_queue("b", b"q"), Some(token));
        assert_eq!(space.resolve_queue("a", b"q"), Some(token));
        assert_eq!(space.resolve_queue("a", b"r"), None);
        assert_eq!(space.resolve_queue("c", b"q"), None);
        assert_eq!(space.dequeue(token), Err(Status::Empty));
        assert_eq!(space.enqueue(token, b"a".to_vec()), Status::Ok);
        assert_eq!(space.enqueue(token, b"b".to_vec()), Status::Ok);
        assert_eq!(space.dequeue(token), Ok(b"a".to_vec()));
        assert_eq!(space.enqueue(0, b"a".to_vec()), Status::NotFound);
        assert_eq!(space.dequeue(u32::MAX), Err(Status::NotFound));
    }

    /// Everything counts, empty items and queues without items too, and is given back.
    #[test]
    fn shared_data_over_the_limit_is_refused_and_freed_with_the_plugin() {
        let space = of("limit-test");
        let token = space.register_queue("", b"q").unwrap();
        let full =
            |mut add: Box<dyn FnMut(u32) -> bool + '_>| (0..100_000).find(|at| !add(*at)).unwrap();
        let items = full(Box::new(|_| space.enqueue(token, Vec::new()) == Status::Ok));
        assert!(items as usize <= LIMIT / OVERHEAD, "{items}");
        while space.dequeue(token).is_ok() {}
        let values = full(Box::new(|at| {
            space.set("", &at.to_le_bytes(), vec![0; 1000], 0) == Status::Ok
        }));
        assert!((800..1000).contains(&values), "{values}");
        for at in 0..values {
            assert_eq!(space.set("", &at.to_le_bytes(), Vec::new(), 0), Status::Ok);
        }
        let queues = full(Box::new(|at| {
            space.register_queue("", &at.to_be_bytes()).is_some()
        }));
        assert!(queues as usize <= LIMIT / OVERHEAD, "{queues}");
        assert_eq!(
            space.enqueue(token, vec![0; LIMIT]),
            Status::InternalFailure
        );
        drop(space);
        assert_eq!(of("limit-test").data().bytes, 0);
    }
}
