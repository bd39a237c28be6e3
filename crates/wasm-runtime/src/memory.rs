//! All that the compiler cannot check of this crate: what is lent to host calls for the time of one call of
//! the guest, the byte by which a guest is told to look at the time ([`Watched`]), the loading of compiled code
//! ([`deserialize`]), and who this process is.
//!
//! A stream is handed to a plugin as `&mut dyn Stream`, for the time of a call. Host functions run inside of
//! that call, but Wasmtime gives them only the store's data, which outlives the call. So the reference is
//! put there without its lifetime, and taken out before the call returns: [`lend`] is the only way in, and
//! it takes out what it put in whatever happens in between, panics included.

#![expect(
    unsafe_code,
    reason = "a reference whose lifetime is a call's lies in data that outlives it; compiled code is taken as \
              it is"
)]

use std::collections::BTreeMap;
use std::fs::File;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use outrider_plugin_api::{Metrics, Stream};
use wasmtime::{Engine, Memory, Module, Store};

use crate::state::State;

/// Maps the compiled code in a file that [`Cache::get`](crate::cache::Cache::get) has handed out.
///
/// # Errors
/// Wasmtime does not know it for its own: it is of another version or has other settings.
pub(crate) fn deserialize(engine: &Engine, file: File) -> Result<Module, String> {
    // SAFETY: the file holds what `Module::serialize` made, byte for byte, and nobody but this user can have
    // put it there or can change it: `Cache::get` looks at owner, mode, length and checksum through this very
    // file, under a key that names engine, settings and CPU. Files of the cache are replaced by renaming, and
    // never written to once they are there, so the mapping stays as it is.
    unsafe { Module::deserialize_open_file(engine, file) }.map_err(|error| format!("{error:#}"))
}

/// The user that this process acts as.
pub(crate) fn own_user() -> u32 {
    // SAFETY: it takes nothing, touches no memory of ours, and cannot fail.
    unsafe { libc::geteuid() }
}

/// The byte by which a guest is told to look at the time ([`crate::looks`]): the first of a memory of its instance
/// that nobody else has. By default it is nobody's.
#[derive(Debug)]
pub(crate) struct Watched {
    byte: Byte,
    /// Under which number the thread that ticks knows it.
    number: u64,
}

#[derive(Debug, Clone, Copy)]
struct Byte(NonNull<AtomicU8>);

// SAFETY: what it points to is atomic.
unsafe impl Send for Byte {}
// SAFETY: as above.
unsafe impl Sync for Byte {}

/// Those of all guests.
static WATCHED: Mutex<BTreeMap<u64, Byte>> = Mutex::new(BTreeMap::new());
static NUMBERS: AtomicU64 = AtomicU64::new(1);
static NOBODYS: AtomicU8 = AtomicU8::new(0);

fn watched() -> MutexGuard<'static, BTreeMap<u64, Byte>> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Watched {
    fn default() -> Self {
        Self {
            byte: Byte(NonNull::from(&NOBODYS)),
            number: 0,
        }
    }
}

impl Watched {
    /// The guest has not been told to look, or has done so.
    #[inline]
    pub(crate) fn take_back(&self) {
        // SAFETY: whoever has this has it out of the data of the store whose memory the byte is in (`watch`), or
        // it is a static.
        unsafe { self.byte.0.as_ref() }.store(0, Ordering::Relaxed);
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if self.number != 0 {
            watched().remove(&self.number);
        }
    }
}

/// From now on the guest in a store is told by the first byte of a memory, which has one page and keeps it.
pub(crate) fn watch(store: &mut Store<State>, memory: Memory) {
    let Some(byte) = NonNull::new(memory.data_ptr(&*store).cast::<AtomicU8>()) else {
        return;
    };
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let byte = Byte(byte);
    watched().insert(number, byte);
    // There it is dropped before the store's memories are: `Store` drops its data first.
    store.data_mut().watched = Watched { byte, number };
}

/// Tells all guests to look at the time.
pub(crate) fn tell_all() {
    for byte in watched().values() {
        // SAFETY: while the lock is held it is in `WATCHED`, so the `Watched` that removes it is there, and so is
        // the memory. The guest's compiled code reads the byte, and does nothing else with that memory; an `AtomicU8`
        // is a byte in memory.
        let byte = unsafe { byte.0.as_ref() };
        // Read first: of guests that do not run, the byte stays where it is in the processors' caches.
        if byte.load(Ordering::Relaxed) == 0 {
            byte.store(1, Ordering::Relaxed);
        }
    }
}

/// What host calls may use during one call of the guest.
#[derive(Default)]
pub(crate) struct Lent {
    stream: Option<NonNull<dyn Stream>>,
    metrics: Option<NonNull<dyn Metrics>>,
}

// SAFETY: outside of `lend` both are none, and within it the store does not leave its thread: `lend` holds
// it by an exclusive reference.
unsafe impl Send for Lent {}

impl std::fmt::Debug for Lent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lent")
            .field("stream", &self.stream.is_some())
            .field("metrics", &self.metrics.is_some())
            .finish()
    }
}

impl Lent {
    /// The stream of the call that is going on.
    #[inline]
    pub(crate) fn stream(&self) -> Option<&dyn Stream> {
        // SAFETY: `lend` put it there and holds the reference that it was made of, exclusively, until it
        // takes it out; whoever has `&self` has it within that time, and nobody has `&mut self`.
        self.stream.map(|stream| unsafe { stream.as_ref() })
    }

    /// The same, to change.
    #[inline]
    pub(crate) fn stream_mut(&mut self) -> Option<&mut (dyn Stream + 'static)> {
        // SAFETY: as above; `&mut self` makes it the only reference.
        self.stream.map(|mut stream| unsafe { stream.as_mut() })
    }

    /// What the proxy offers while a plugin is loaded or configured.
    pub(crate) fn metrics_mut(&mut self) -> Option<&mut (dyn Metrics + 'static)> {
        // SAFETY: as for the stream.
        self.metrics.map(|mut metrics| unsafe { metrics.as_mut() })
    }
}

/// What is lent for one call.
pub(crate) enum Loan<'a> {
    Stream(&'a mut dyn Stream),
    Metrics(&'a mut dyn Metrics),
    Nothing,
}

impl Loan<'_> {
    fn erase(self) -> Lent {
        match self {
            Loan::Stream(stream) => {
                let stream = NonNull::from(stream);
                // SAFETY: the two types differ in the trait object's lifetime only. `lend` sees to it that
                // the pointer is not used after that.
                let stream = unsafe {
                    std::mem::transmute::<NonNull<dyn Stream + '_>, NonNull<dyn Stream + 'static>>(
                        stream,
                    )
                };
                Lent {
                    stream: Some(stream),
                    metrics: None,
                }
            }
            Loan::Metrics(metrics) => {
                let metrics = NonNull::from(metrics);
                // SAFETY: as above.
                let metrics = unsafe {
                    std::mem::transmute::<NonNull<dyn Metrics + '_>, NonNull<dyn Metrics + 'static>>(
                        metrics,
                    )
                };
                Lent {
                    stream: None,
                    metrics: Some(metrics),
                }
            }
            Loan::Nothing => Lent::default(),
        }
    }
}

/// Takes the loan out again, also when a panic passes.
struct Lending<'a>(&'a mut Store<State>);

impl Drop for Lending<'_> {
    fn drop(&mut self) {
        self.0.data_mut().lent = Lent::default();
    }
}

/// Runs `run` with the loan in the store's data.
#[inline]
pub(crate) fn lend<R>(
    store: &mut Store<State>,
    loan: Loan<'_>,
    run: impl FnOnce(&mut Store<State>) -> R,
) -> R {
    // Nothing is lent within a loan: who could do so has the store, and that is borrowed until this returns.
    store.data_mut().lent = loan.erase();
    let lending = Lending(store);
    run(lending.0)
}
