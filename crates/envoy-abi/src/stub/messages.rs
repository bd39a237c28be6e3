//! Headers and bodies of the stand-in, in memory that it frees as early as Envoy may: the bytes of a header map or of
//! a body at its next change. So Miri finds each use of bytes that are Envoy's no more.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::raw::{EnvoyBuffer, EnvoyHeader, FilterPtr, ModuleBuffer};

type Header = (Arc<[u8]>, Arc<[u8]>);
/// A filter's address, and the ABI's number of a header map or of a body.
type Key = (usize, u32);

struct Messages {
    headers: BTreeMap<Key, Vec<Header>>,
    bodies: BTreeMap<Key, Vec<Arc<[u8]>>>,
}

static MESSAGES: Mutex<Messages> = Mutex::new(Messages {
    headers: BTreeMap::new(),
    bodies: BTreeMap::new(),
});

fn messages() -> MutexGuard<'static, Messages> {
    MESSAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lent(bytes: &[u8]) -> EnvoyBuffer {
    EnvoyBuffer {
        pointer: bytes.as_ptr(),
        length: bytes.len(),
    }
}

/// A name as Envoy keeps it.
fn kept(name: &[u8]) -> Arc<[u8]> {
    let name = name.to_ascii_lowercase();
    if name == b"host" {
        return Arc::from(b":authority".as_slice());
    }
    name.into()
}

impl Messages {
    /// Changes a header map. All of it moves.
    fn change(&mut self, key: Key, change: impl FnOnce(&mut Vec<Header>)) {
        let headers = self.headers.entry(key).or_default();
        change(headers);
        for (name, value) in headers {
            *name = Arc::from(&**name);
            *value = Arc::from(&**value);
        }
    }

    fn change_body(&mut self, key: Key, change: impl FnOnce(Vec<u8>) -> Vec<u8>) {
        let pieces = self.bodies.entry(key).or_default();
        let body = change(pieces.concat());
        *pieces = body.chunks(5).map(Arc::from).collect();
    }
}

/// Returns names and values of a header map.
pub(crate) fn headers(filter: FilterPtr, map: u32) -> Vec<(Vec<u8>, Vec<u8>)> {
    let messages = messages();
    let headers = messages.headers.get(&(filter as usize, map));
    let headers = headers.into_iter().flatten();
    headers
        .map(|(name, value)| (name.to_vec(), value.to_vec()))
        .collect()
}

/// Returns the values of a header.
pub(crate) fn values(filter: FilterPtr, map: u32, name: &[u8]) -> Vec<Vec<u8>> {
    let name = kept(name);
    let headers = headers(filter, map).into_iter();
    headers
        .filter(|(other, _)| **other == *name)
        .map(|(_, value)| value)
        .collect()
}

/// Returns the bytes of a body.
pub(crate) fn body(filter: FilterPtr, body: u32) -> Vec<u8> {
    let messages = messages();
    let pieces = messages.bodies.get(&(filter as usize, body));
    pieces.map(|pieces| pieces.concat()).unwrap_or_default()
}

pub(super) unsafe extern "C" fn get_header(
    filter: FilterPtr,
    map: u32,
    key: ModuleBuffer,
    value: *mut EnvoyBuffer,
    index: usize,
    count: *mut usize,
) -> bool {
    // SAFETY: lent for this call.
    let name = kept(unsafe { key.bytes() });
    let messages = messages();
    let headers = messages.headers.get(&(filter as usize, map));
    let headers = headers.into_iter().flatten();
    let values: Vec<_> = headers.filter(|(other, _)| *other == name).collect();
    // SAFETY: places of the caller's.
    unsafe {
        *count = values.len();
        if let Some((_, found)) = values.get(index) {
            *value = lent(found);
            return true;
        }
    }
    false
}

pub(super) unsafe extern "C" fn get_headers_size(filter: FilterPtr, map: u32) -> usize {
    let messages = messages();
    let headers = messages.headers.get(&(filter as usize, map));
    headers.map_or(0, Vec::len)
}

pub(super) unsafe extern "C" fn get_headers(
    filter: FilterPtr,
    map: u32,
    into: *mut EnvoyHeader,
) -> bool {
    let messages = messages();
    let Some(headers) = messages.headers.get(&(filter as usize, map)) else {
        return false;
    };
    for (index, (name, value)) in headers.iter().enumerate() {
        let (name, value) = (lent(name), lent(value));
        // SAFETY: the caller's array has the size that it was told.
        unsafe { *into.add(index) = EnvoyHeader { name, value } };
    }
    true
}

pub(super) unsafe extern "C" fn add_header(
    filter: FilterPtr,
    map: u32,
    key: ModuleBuffer,
    value: ModuleBuffer,
) -> bool {
    // SAFETY: lent for this call.
    let header = unsafe { (kept(key.bytes()), Arc::from(value.bytes())) };
    messages().change((filter as usize, map), |headers| headers.push(header));
    true
}

pub(super) unsafe extern "C" fn set_header(
    filter: FilterPtr,
    map: u32,
    key: ModuleBuffer,
    value: ModuleBuffer,
) -> bool {
    // SAFETY: lent for this call.
    let (name, value): (_, Arc<[u8]>) = unsafe { (kept(key.bytes()), value.bytes().into()) };
    messages().change((filter as usize, map), |headers| {
        headers.retain(|(other, _)| *other != name);
        if !value.is_empty() {
            headers.push((name, value));
        }
    });
    true
}

pub(super) unsafe extern "C" fn get_body_size(filter: FilterPtr, number: u32) -> usize {
    body(filter, number).len()
}

pub(super) unsafe extern "C" fn get_body_chunks_size(filter: FilterPtr, body: u32) -> usize {
    let messages = messages();
    let pieces = messages.bodies.get(&(filter as usize, body));
    pieces.map_or(0, Vec::len)
}

pub(super) unsafe extern "C" fn get_body_chunks(
    filter: FilterPtr,
    body: u32,
    into: *mut EnvoyBuffer,
) -> bool {
    let messages = messages();
    let pieces = messages.bodies.get(&(filter as usize, body));
    for (index, piece) in pieces.into_iter().flatten().enumerate() {
        // SAFETY: the caller's array has the size that it was told.
        unsafe { *into.add(index) = lent(piece) };
    }
    pieces.is_some()
}

pub(super) unsafe extern "C" fn append_body(
    filter: FilterPtr,
    body: u32,
    data: ModuleBuffer,
) -> bool {
    // SAFETY: lent for this call.
    let data = unsafe { data.bytes() };
    let key = (filter as usize, body);
    messages().change_body(key, |body| [&*body, data].concat());
    true
}

pub(super) unsafe extern "C" fn drain_body(filter: FilterPtr, body: u32, length: usize) -> bool {
    let key = (filter as usize, body);
    messages().change_body(key, |body| body.into_iter().skip(length).collect());
    true
}
