//! The cluster extension: a cluster without endpoints, by which Envoy calls the module on its workers (see
//! `background`). Optional: without it in Envoy's configuration, what plugins do beside streams is done while
//! streams pass.
//!
//! The trap: Envoy keeps the cluster's object alive beyond its shutdown, and on other threads. So what leads to
//! the workers is taken away when Envoy shuts down, not only when the cluster goes.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::background::{self, ClusterId};
use crate::callbacks::callbacks;
use crate::callout::Ended;
use crate::exchanges;
use crate::hooks::guarded;
use crate::module::module;
use crate::raw::{ClusterPtr, ConfigPtr, EnvoyBuffer, EnvoyHeader};

/// Stands for what has no state of its own: its configuration, and its load balancer on each worker.
fn nothing() -> *const c_void {
    NonNull::<u64>::dangling().as_ptr().cast()
}

/// A cluster. Its hooks come on several threads.
#[derive(Default)]
struct Cluster {
    /// 0: it has not begun, or is over.
    id: AtomicU64,
}

impl Cluster {
    fn end(&self) {
        let id = self.id.swap(0, Ordering::AcqRel);
        if id != 0 {
            background::remove_cluster(id);
        }
    }

    fn id(&self) -> Option<ClusterId> {
        Some(self.id.load(Ordering::Acquire)).filter(|id| *id != 0)
    }
}

/// # Safety
/// `module` is what `cluster_new` returned, and the cluster has not been destroyed.
unsafe fn cluster<'a>(module: *const c_void) -> &'a Cluster {
    // SAFETY: the caller's promise.
    unsafe { &*module.cast::<Cluster>() }
}

/// A cluster's configuration has come. There is nothing to configure.
#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_cluster_config_new(
    _config: ConfigPtr,
    _name: EnvoyBuffer,
    _document: EnvoyBuffer,
) -> *const c_void {
    match (module(), callbacks()) {
        (Some(_), Some(_)) => nothing(),
        _ => ptr::null(),
    }
}

/// A cluster's configuration is gone.
#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_cluster_config_destroy(_module: *const c_void) {}

/// A cluster is made.
#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_cluster_new(
    _module: *const c_void,
    _cluster: ClusterPtr,
) -> *const c_void {
    guarded(ptr::null(), || {
        Box::into_raw(Box::<Cluster>::default()).cast_const().cast()
    })
}

/// A cluster begins (main thread): it is ready at once.
///
/// # Safety
/// Called by Envoy, as its ABI says.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_cluster_init(
    envoy: ClusterPtr,
    module: *const c_void,
) {
    guarded((), || {
        // SAFETY: both are alive in this hook; before the cluster goes, or Envoy shuts down, `end` is called.
        unsafe {
            if let Some(id) = background::add_cluster(envoy) {
                cluster(module).id.store(id, Ordering::Release);
            }
        }
    });
    if let Some(callbacks) = callbacks() {
        // SAFETY: the cluster is alive during its own hook.
        unsafe { (callbacks.cluster_pre_init_complete)(envoy) }
    }
}

/// A cluster is gone.
///
/// # Safety
/// Called by Envoy, as its ABI says, once for what `new` returned.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_cluster_destroy(module: *const c_void) {
    guarded((), || {
        // SAFETY: made by `Box::into_raw` above, and given back once.
        unsafe { Box::from_raw(module.cast_mut().cast::<Cluster>()) }.end();
    });
}

/// Envoy shuts down (main thread): the workers are not called any more. Envoy waits for `done`.
///
/// # Safety
/// Called by Envoy, as its ABI says.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_cluster_shutdown(
    _cluster: ClusterPtr,
    module: *const c_void,
    done: Option<unsafe extern "C" fn(*mut c_void)>,
    context: *mut c_void,
) {
    guarded((), || {
        exchanges::end_all();
        // SAFETY: the cluster is alive in this hook.
        unsafe { cluster(module) }.end();
    });
    if let Some(done) = done {
        // SAFETY: Envoy's own, called once with its own context, as the hook has to.
        unsafe { done(context) }
    }
}

/// An event that was committed has come (main thread).
///
/// # Safety
/// Called by Envoy, as its ABI says.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_cluster_scheduled(
    envoy: ClusterPtr,
    module: *const c_void,
    _event: u64,
) {
    guarded((), || {
        // SAFETY: both are alive in this hook, which is on the main thread.
        unsafe {
            if let Some(id) = cluster(module).id() {
                background::on_main(envoy, id);
            }
        }
    });
}

/// A worker is called.
#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_cluster_worker_event(
    _cluster: ClusterPtr,
    _module: *const c_void,
    _event: u64,
) {
    guarded((), || {
        if let Some(module) = module() {
            background::on_worker(module);
        }
    });
}

/// A callout is over (main thread).
///
/// # Safety
/// Called by Envoy, as its ABI says.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_cluster_http_callout_done(
    _cluster: ClusterPtr,
    module: *const c_void,
    number: u64,
    result: u32,
    headers: *const EnvoyHeader,
    headers_length: usize,
    chunks: *const EnvoyBuffer,
    chunks_length: usize,
) {
    guarded((), || {
        // SAFETY: the cluster is alive in this hook, and Envoy's arrays live until it returns.
        let (id, ended) = unsafe {
            (
                cluster(module).id(),
                Ended::new(result, headers, headers_length, chunks, chunks_length),
            )
        };
        if let Some(id) = id {
            background::on_done(id, number, ended.outcome());
        }
    });
}

/// A worker gets its part of the cluster, which chooses no endpoint.
#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_cluster_lb_new(
    _module: *const c_void,
    _balancer: *mut c_void,
) -> *const c_void {
    nothing()
}

/// It gives it back.
#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_cluster_lb_destroy(_balancer: *const c_void) {}

/// A request is to be sent to the cluster: there is no endpoint.
///
/// # Safety
/// Called by Envoy, as its ABI says.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_cluster_lb_choose_host(
    _balancer: *const c_void,
    _context: *mut c_void,
    host: *mut *mut c_void,
    handle: *mut *mut c_void,
) {
    // SAFETY: both are places that Envoy wants written.
    unsafe {
        *host = ptr::null_mut();
        *handle = ptr::null_mut();
    }
}
