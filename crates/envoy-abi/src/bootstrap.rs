//! The bootstrap extension: pages on Envoy's admin port. Optional: without it in Envoy's bootstrap,
//! the filter works all the same.
//!
//! Everything here runs on Envoy's main thread, but for the hook that tells of a worker's start,
//! which does nothing. Envoy resolves every bootstrap hook when the extension loads, so all are here.
//!
//! The trap: Envoy's handlers hold the extension's configuration, and the configuration outlives the
//! extension because of them. So the pages are taken away when Envoy shuts down, and nothing here
//! touches Envoy when the configuration is destroyed.

use std::ffi::c_void;
use std::ptr;

use outrider_plugin_api::LogLevel;

use crate::callbacks::callbacks;
use crate::hooks::guarded;
use crate::module::module;
use crate::raw::{ConfigPtr, EnvoyBuffer, ExtensionPtr, ModuleBuffer};

/// A page on Envoy's admin port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdminPage {
    /// Its path; Envoy looks for exactly this, with or without a query.
    pub path: &'static str,
    /// What it shows, for the list that Envoy's own first page has.
    pub help: &'static str,
}

/// A request for a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdminRequest<'r> {
    /// `GET`, `POST`.
    pub method: &'r str,
    /// The page's path.
    pub path: &'r str,
    /// What follows the question mark.
    pub query: &'r str,
    /// The body, empty without one.
    pub body: &'r [u8],
}

/// What a page answers. Envoy sends it as `text/plain`, whatever it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminAnswer {
    /// HTTP status code.
    pub status: u16,
    /// The body.
    pub body: String,
    /// The gauge's new value, where the request changes it.
    pub gauge: Option<u64>,
}

/// The pages that a module has.
pub trait AdminPages {
    /// All of them.
    fn pages(&self) -> &'static [AdminPage];

    /// The name of a gauge that pages set; it is 0 at first.
    fn gauge(&self) -> &'static str;

    /// Answers a request for one of them, on Envoy's main thread: never waits for a worker.
    fn answer(&self, request: AdminRequest<'_>) -> AdminAnswer;
}

/// `envoy_dynamic_module_type_metrics_result_Success`.
const SUCCESS: u32 = 0;

/// The extension of one bootstrap; made by `config_new`, and again, as the extension, by `new`.
struct Extension {
    config: ConfigPtr,
    /// Of the gauge; none: Envoy did not define it.
    gauge: Option<usize>,
}

/// The extension's configuration has come.
///
/// # Safety
/// Called by Envoy, as its ABI says.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_bootstrap_extension_config_new(
    config: ConfigPtr,
    _name: EnvoyBuffer,
    _document: EnvoyBuffer,
) -> *const c_void {
    guarded(ptr::null(), || {
        let (Some(module), Some(callbacks)) = (module(), callbacks()) else {
            return ptr::null();
        };
        for page in module.admin().pages() {
            // SAFETY: the configuration is alive during its own hook; Envoy copies both texts.
            let registered = unsafe {
                (callbacks.bootstrap_extension_register_admin_handler)(
                    config,
                    ModuleBuffer::new(page.path.as_bytes()),
                    ModuleBuffer::new(page.help.as_bytes()),
                    true,
                    false,
                )
            };
            if !registered {
                // As in `--mode validate`, and where the bootstrap has no admin port.
                crate::log::log(
                    LogLevel::Info,
                    &format!("Envoy has no admin port for {}", page.path),
                );
            }
        }
        let mut id = 0;
        let name = ModuleBuffer::new(module.admin().gauge().as_bytes());
        // SAFETY: the configuration is alive during its own hook; Envoy copies the name. There are no labels.
        let result = unsafe {
            (callbacks.bootstrap_extension_config_define_gauge)(
                config,
                name,
                ptr::null(),
                0,
                &raw mut id,
            )
        };
        let gauge = (result == SUCCESS).then_some(id);
        // SAFETY: the configuration is alive during its own hook. Envoy starts no worker before this.
        unsafe { (callbacks.bootstrap_extension_config_signal_init_complete)(config) }
        Box::into_raw(Box::new(Extension { config, gauge }))
            .cast_const()
            .cast()
    })
}

/// The extension's configuration is gone.
///
/// # Safety
/// Called by Envoy, as its ABI says, once for what the hook above returned.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_bootstrap_extension_config_destroy(
    module: *const c_void,
) {
    guarded((), || {
        // SAFETY: made by `Box::into_raw` above, and given back once.
        drop(unsafe { Box::from_raw(module.cast_mut().cast::<Extension>()) });
    });
}

/// The extension begins.
///
/// # Safety
/// Called by Envoy, as its ABI says, with what `config_new` returned.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_bootstrap_extension_new(
    module: *const c_void,
    _extension: ExtensionPtr,
) -> *const c_void {
    guarded(ptr::null(), || {
        // SAFETY: made by `config_new`, and alive as long as extensions are made of it.
        let &Extension { config, gauge } = unsafe { &*module.cast::<Extension>() };
        Box::into_raw(Box::new(Extension { config, gauge }))
            .cast_const()
            .cast()
    })
}

/// The extension is gone.
///
/// # Safety
/// Called by Envoy, as its ABI says, once for what the hook above returned.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_bootstrap_extension_destroy(module: *const c_void) {
    guarded((), || {
        // SAFETY: made by `Box::into_raw` above, and given back once.
        drop(unsafe { Box::from_raw(module.cast_mut().cast::<Extension>()) });
    });
}

/// Envoy shuts down: the pages go. Envoy waits for `done`.
///
/// # Safety
/// Called by Envoy, as its ABI says, with what `new` returned.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_bootstrap_extension_shutdown(
    _extension: ExtensionPtr,
    extension: *const c_void,
    done: Option<unsafe extern "C" fn(*mut c_void)>,
    context: *mut c_void,
) {
    guarded((), || {
        // SAFETY: made by `new`, and not destroyed yet.
        let config = unsafe { &*extension.cast::<Extension>() }.config;
        if let (Some(module), Some(callbacks)) = (module(), callbacks()) {
            for page in module.admin().pages() {
                // SAFETY: the extension, which is alive, holds its configuration. `false`, which says
                // that there was no such page, is no trouble.
                unsafe {
                    (callbacks.bootstrap_extension_remove_admin_handler)(
                        config,
                        ModuleBuffer::new(page.path.as_bytes()),
                    );
                }
            }
        }
    });
    if let Some(done) = done {
        // SAFETY: Envoy's own, called once with its own context, as the hook has to.
        unsafe { done(context) }
    }
}

/// One of the pages is asked for.
///
/// # Safety
/// Called by Envoy, as its ABI says, with what `config_new` returned.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_bootstrap_extension_admin_request(
    config: ConfigPtr,
    extension: *const c_void,
    method: EnvoyBuffer,
    path: EnvoyBuffer,
    body: EnvoyBuffer,
) -> u32 {
    guarded(500, || {
        let (Some(module), Some(callbacks)) = (module(), callbacks()) else {
            return 500;
        };
        // SAFETY: Envoy's buffers live until the hook returns.
        let (method, path, body) = unsafe { (method.bytes(), path.bytes(), body.bytes()) };
        let (method, path) = (
            String::from_utf8_lossy(method),
            String::from_utf8_lossy(path),
        );
        let (path, query) = path.split_once('?').unwrap_or((&path, ""));
        let answer = module.admin().answer(AdminRequest {
            method: &method,
            path,
            query,
            body,
        });
        // SAFETY: made by `config_new`, and alive as long as its pages.
        let gauge = unsafe { extension.cast::<Extension>().as_ref() }.and_then(|made| made.gauge);
        if let (Some(id), Some(value)) = (gauge, answer.gauge) {
            // SAFETY: the configuration is alive during its own hook, and the gauge is its own.
            unsafe {
                (callbacks.bootstrap_extension_config_set_gauge)(config, id, ptr::null(), 0, value);
            }
        }
        // SAFETY: the configuration is alive during its own hook; Envoy copies the text.
        unsafe {
            (callbacks.bootstrap_extension_admin_set_response)(
                config,
                ModuleBuffer::new(answer.body.as_bytes()),
            );
        }
        u32::from(answer.status)
    })
}

macro_rules! unused_hooks {
    ($($name:ident($($type:ty),*);)*) => {$(
        /// Not used: nothing that leads to it is ever asked of Envoy, or it tells of what is of no
        /// concern here.
        #[unsafe(no_mangle)]
        extern "C" fn $name($(_: $type),*) {}
    )*};
}

type Pointer = *const c_void;

unused_hooks! {
    envoy_dynamic_module_on_bootstrap_extension_server_initialized(ExtensionPtr, Pointer);
    envoy_dynamic_module_on_bootstrap_extension_worker_thread_initialized(ExtensionPtr, Pointer);
    envoy_dynamic_module_on_bootstrap_extension_drain_started(ExtensionPtr, Pointer);
    envoy_dynamic_module_on_bootstrap_extension_config_scheduled(ConfigPtr, Pointer, u64);
    envoy_dynamic_module_on_bootstrap_extension_http_callout_done(ConfigPtr, Pointer, u64, u32, Pointer, usize, Pointer, usize);
    envoy_dynamic_module_on_bootstrap_extension_timer_fired(ConfigPtr, Pointer, Pointer);
    envoy_dynamic_module_on_bootstrap_extension_file_changed(ConfigPtr, Pointer, EnvoyBuffer, u32);
    envoy_dynamic_module_on_bootstrap_extension_cluster_add_or_update(ConfigPtr, Pointer, EnvoyBuffer);
    envoy_dynamic_module_on_bootstrap_extension_cluster_removal(ConfigPtr, Pointer, EnvoyBuffer);
    envoy_dynamic_module_on_bootstrap_extension_listener_add_or_update(ConfigPtr, Pointer, EnvoyBuffer);
    envoy_dynamic_module_on_bootstrap_extension_listener_removal(ConfigPtr, Pointer, EnvoyBuffer);
}
