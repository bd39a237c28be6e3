//! All that the compiler cannot check of this crate: what is lent to host calls for the time of one call of
//! the guest, the loading of compiled code ([`deserialize`]), a thread's priority, and the user of this process.
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

use std::fs::File;
use std::ptr::NonNull;

use outrider_plugin_api::{Metrics, Stream};
use wasmtime::{Engine, Module, Store};

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

/// Lowers the priority of the calling thread: it makes way for workers where there are more threads than processors.
pub(crate) fn lower_thread_priority() {
    // SAFETY: it takes numbers, and touches no memory of ours. On Linux, 0 is the calling thread. Where it fails, the
    // priority stays.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 5) };
}

/// The loan of one call of the guest. Only this module makes one that holds something, so it cannot be moved out of a
/// store and live on: nothing can be put in its place but an empty one, which is never needed elsewhere.
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
    /// An empty loan.
    pub(crate) const NOTHING: Self = Self {
        stream: None,
        metrics: None,
    };

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
            Loan::Nothing => Lent::NOTHING,
        }
    }
}

/// Takes the loan out again, also when a panic passes.
struct Lending<'a>(&'a mut Store<State>);

impl Drop for Lending<'_> {
    fn drop(&mut self) {
        self.0.data_mut().lent = Lent::NOTHING;
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
