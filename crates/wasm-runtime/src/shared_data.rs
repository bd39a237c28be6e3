//! Data and queues that VMs have in common, by their `vm_id`: of one plugin on all workers, and of all
//! plugins with the same `vm_id`. They live as long as the process, as in Envoy, so that an update of a
//! plugin finds them again.
//!
//! The trap: a lock here is held for a look-up and a copy, never while a guest runs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use crate::abi::Status;
use crate::mailbox::Mailbox;

/// What VMs with one `vm_id` share.
#[derive(Debug, Default)]
pub(crate) struct Namespace {
    data: Mutex<Data>,
}

#[derive(Debug, Default)]
struct Data {
    values: BTreeMap<Vec<u8>, Entry>,
    bytes: usize,
    queues: BTreeMap<Vec<u8>, u32>,
}

/// The number that stands for what was set last; as in Envoy, one count for the process, and never 0.
fn next_cas() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    match LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1) {
        0 => LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1),
        number => number,
    }
}

#[derive(Debug)]
struct Entry {
    value: Vec<u8>,
    cas: u32,
}

#[derive(Debug, Default)]
struct Registry {
    namespaces: BTreeMap<String, Arc<Namespace>>,
    /// By token, from 1.
    queues: Vec<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Who is told that there is something in it: a VM, and the root that registered it last.
    listener: Option<(Weak<Mailbox>, u32)>,
}

/// What one `vm_id` may keep, in bytes: shared data, and each queue.
const MOST_BYTES: usize = 256 * 1024 * 1024;
/// More queues than this a process does not have.
const MOST_QUEUES: usize = 65_536;

static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The namespace of a `vm_id`.
pub(crate) fn namespace(vm_id: &str) -> Arc<Namespace> {
    let mut registry = registry();
    Arc::clone(registry.namespaces.entry(vm_id.to_owned()).or_default())
}

impl Namespace {
    fn data(&self) -> MutexGuard<'_, Data> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies a value into `into`, and answers its number for a later `set`.
    pub(crate) fn get(&self, key: &[u8], into: &mut Vec<u8>) -> Option<u32> {
        let data = self.data();
        let entry = data.values.get(key)?;
        into.extend_from_slice(&entry.value);
        Some(entry.cas)
    }

    /// Sets a value. With `cas` other than 0 only if the value that is there has this number.
    pub(crate) fn set(&self, key: &[u8], value: &[u8], cas: u32) -> Status {
        let mut guard = self.data();
        let data = &mut *guard;
        let old = match data.values.get(key) {
            Some(entry) if cas != 0 && entry.cas != cas => return Status::CasMismatch,
            Some(entry) => entry.value.len(),
            None => 0,
        };
        let room = MOST_BYTES.saturating_sub(data.bytes.saturating_sub(old));
        if key.len() + value.len() > room {
            return Status::InternalFailure;
        }
        let cas = next_cas();
        if let Some(entry) = data.values.get_mut(key) {
            data.bytes = data.bytes - old + value.len();
            entry.value.clear();
            entry.value.extend_from_slice(value);
            entry.cas = cas;
        } else {
            data.bytes += key.len() + value.len();
            let value = value.to_vec();
            data.values.insert(key.to_vec(), Entry { value, cas });
        }
        Status::Ok
    }

    /// The token of the queue of a name, which is made if it is not there.
    pub(crate) fn register_queue(&self, name: &[u8]) -> Option<u32> {
        let mut data = self.data();
        if let Some(token) = data.queues.get(name) {
            return Some(*token);
        }
        let mut registry = registry();
        if registry.queues.len() >= MOST_QUEUES {
            return None;
        }
        registry.queues.push(Queue::default());
        let token = u32::try_from(registry.queues.len()).ok()?;
        data.queues.insert(name.to_vec(), token);
        Some(token)
    }

    fn queue(&self, name: &[u8]) -> Option<u32> {
        self.data().queues.get(name).copied()
    }
}

/// The token of a queue of any `vm_id`.
pub(crate) fn resolve_queue(vm_id: &str, name: &[u8]) -> Option<u32> {
    let namespace = registry().namespaces.get(vm_id).map(Arc::clone)?;
    namespace.queue(name)
}

fn with_queue<R>(token: u32, run: impl FnOnce(&mut Queue) -> R) -> Option<R> {
    let index = usize::try_from(token).ok()?.checked_sub(1)?;
    registry().queues.get_mut(index).map(run)
}

/// A root of a VM wants to be told of a queue; whoever did before is not told any more.
pub(crate) fn listen(token: u32, mailbox: &Arc<Mailbox>, root: u32) {
    with_queue(token, |queue| {
        queue.listener = Some((Arc::downgrade(mailbox), root));
    });
}

/// Puts an item at the end of a queue.
pub(crate) fn enqueue(token: u32, item: &[u8]) -> Status {
    let put = with_queue(token, |queue| {
        if queue.bytes + item.len() > MOST_BYTES {
            return Err(Status::InternalFailure);
        }
        queue.bytes += item.len();
        queue.items.push_back(item.to_vec());
        Ok(queue.listener.clone())
    });
    match put {
        None => Status::NotFound,
        Some(Err(status)) => status,
        Some(Ok(listener)) => {
            if let Some((mailbox, root)) = listener
                && let Some(mailbox) = mailbox.upgrade()
            {
                mailbox.put_notice(root, token);
            }
            Status::Ok
        }
    }
}

/// Takes the first item of a queue.
pub(crate) fn dequeue(token: u32, into: &mut Vec<u8>) -> Status {
    with_queue(token, |queue| match queue.items.pop_front() {
        Some(item) => {
            queue.bytes -= item.len();
            into.extend_from_slice(&item);
            Status::Ok
        }
        None => Status::Empty,
    })
    .unwrap_or(Status::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_set_only_over_the_one_that_was_seen() {
        let space = namespace("shared-data-test");
        let mut seen = Vec::new();
        assert_eq!(space.get(b"k", &mut seen), None);
        assert_eq!(
            space.set(b"k", b"one", 7),
            Status::Ok,
            "a new key ignores it"
        );
        let first = space.get(b"k", &mut seen).unwrap();
        assert_eq!(seen, b"one");
        assert_eq!(space.set(b"k", b"two", first), Status::Ok);
        assert_eq!(space.set(b"k", b"three", first), Status::CasMismatch);
        assert_eq!(space.set(b"k", b"four", 0), Status::Ok);
        seen.clear();
        assert_ne!(space.get(b"k", &mut seen), Some(first));
        assert_eq!(seen, b"four");
        let again = namespace("shared-data-test");
        assert!(Arc::ptr_eq(&space, &again));
        assert_eq!(namespace("another").get(b"k", &mut seen), None);
    }

    #[test]
    fn queues_have_a_token_for_each_name_and_namespace() {
        let space = namespace("queue-test");
        let token = space.register_queue(b"q").unwrap();
        assert_eq!(space.register_queue(b"q"), Some(token));
        assert_ne!(namespace("queue-test-2").register_queue(b"q"), Some(token));
        assert_eq!(resolve_queue("queue-test", b"q"), Some(token));
        assert_eq!(resolve_queue("queue-test", b"r"), None);
        assert_eq!(resolve_queue("nobody", b"q"), None);
        let mut item = Vec::new();
        assert_eq!(dequeue(token, &mut item), Status::Empty);
        assert_eq!(enqueue(token, b"a"), Status::Ok);
        assert_eq!(enqueue(token, b"b"), Status::Ok);
        assert_eq!(
            (dequeue(token, &mut item), item.as_slice()),
            (Status::Ok, &b"a"[..])
        );
        assert_eq!(enqueue(0, b"a"), Status::NotFound);
        assert_eq!(dequeue(u32::MAX, &mut item), Status::NotFound);
    }
}
