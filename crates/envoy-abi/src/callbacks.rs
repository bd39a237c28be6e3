//! The functions of Envoy that the module calls.
//!
//! They are looked up by name in the running executable when the library is loaded, and not left to
//! the linker: so an Envoy that lacks one is told apart by name, and tests of everything above link
//! without an Envoy.

use std::sync::OnceLock;

use crate::raw::{
    ClusterPtr, ConfigPtr, EnvoyBuffer, EnvoyHeader, FilterPtr, LogBytes, LogTimes, LoggerPtr,
    ModuleBuffer, ModuleHeader, SchedulerPtr, TimingInfo,
};

/// Envoy does not export functions that the module needs.
#[derive(Debug, thiserror::Error)]
#[error(
    "this Envoy lacks {}: Outrider needs Envoy 1.40 or the minor after it",
    names.join(", ")
)]
pub struct MissingCallbacks {
    names: Vec<String>,
}

macro_rules! callbacks {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// The functions, by their names without `envoy_dynamic_module_callback_`.
        pub(crate) struct Callbacks {
            $(pub(crate) $name: unsafe extern "C" fn($($argument: $type),*) $(-> $result)?,)*
        }

        impl Callbacks {
            fn find(library: &libloading::os::unix::Library) -> Result<Self, MissingCallbacks> {
                let mut names = Vec::new();
                $(
                    let name = concat!("envoy_dynamic_module_callback_", stringify!($name), "\0");
                    // SAFETY: the type is that of the function in Envoy's ABI header.
                    let $name = unsafe {
                        library.get::<unsafe extern "C" fn($($argument: $type),*) $(-> $result)?>(
                            name.as_bytes(),
                        )
                    };
                    if $name.is_err() {
                        names.push(name.trim_end_matches('\0').to_owned());
                    }
                )*
                match ($($name.ok(),)*) {
                    ($(Some($name),)*) => Ok(Self { $($name: *$name,)* }),
                    _ => Err(MissingCallbacks { names }),
                }
            }

            /// Functions that do nothing and return null, zero or `false`, for tests without an Envoy.
            #[cfg(test)]
            pub(crate) fn stub() -> Self {
                $(
                    unsafe extern "C" fn $name($(_: $type),*) $(-> $result)? {
                        $(<$result as StubResult>::RESULT)?
                    }
                )*
                Self { $($name,)* }
            }
        }
    };
}

// A tuple of all would outgrow what the standard library's traits cover, so plain matching only.
callbacks! {
    fn log(level: u32, message: ModuleBuffer);
    fn log_enabled(level: u32) -> bool;
    fn get_concurrency() -> u32;

    fn http_filter_config_define_counter(
        config: ConfigPtr, name: ModuleBuffer, labels: *const ModuleBuffer, labels_length: usize, id: *mut usize,
    ) -> u32;
    fn http_filter_config_define_gauge(
        config: ConfigPtr, name: ModuleBuffer, labels: *const ModuleBuffer, labels_length: usize, id: *mut usize,
    ) -> u32;
    fn http_filter_config_define_histogram(
        config: ConfigPtr, name: ModuleBuffer, labels: *const ModuleBuffer, labels_length: usize, id: *mut usize,
    ) -> u32;
    fn http_filter_config_increment_counter(
        config: ConfigPtr, id: usize, labels: *const ModuleBuffer, labels_length: usize, value: u64,
    ) -> u32;
    fn http_filter_config_increment_gauge(
        config: ConfigPtr, id: usize, labels: *const ModuleBuffer, labels_length: usize, value: u64,
    ) -> u32;
    fn http_filter_config_decrement_gauge(
        config: ConfigPtr, id: usize, labels: *const ModuleBuffer, labels_length: usize, value: u64,
    ) -> u32;
    fn http_filter_config_set_gauge(
        config: ConfigPtr, id: usize, labels: *const ModuleBuffer, labels_length: usize, value: u64,
    ) -> u32;
    fn http_filter_config_record_histogram_value(
        config: ConfigPtr, id: usize, labels: *const ModuleBuffer, labels_length: usize, value: u64,
    ) -> u32;
    fn http_filter_increment_counter(
        filter: FilterPtr, id: usize, labels: *const ModuleBuffer, labels_length: usize, value: u64,
    ) -> u32;
    fn http_filter_increment_gauge(
        filter: FilterPtr, id: usize, labels: *const ModuleBuffer, labels_length: usize, value: u64,
    ) -> u32;
    fn http_filter_decrement_gauge(
        filter: FilterPtr, id: usize, labels: *const ModuleBuffer, labels_length: usize, value: u64,
    ) -> u32;
    fn http_filter_set_gauge(
        filter: FilterPtr, id: usize, labels: *const ModuleBuffer, labels_length: usize, value: u64,
    ) -> u32;
    fn http_filter_record_histogram_value(
        filter: FilterPtr, id: usize, labels: *const ModuleBuffer, labels_length: usize, value: u64,
    ) -> u32;

    fn http_get_header(
        filter: FilterPtr, map: u32, key: ModuleBuffer, value: *mut EnvoyBuffer, index: usize, count: *mut usize,
    ) -> bool;
    fn http_get_headers_size(filter: FilterPtr, map: u32) -> usize;
    fn http_get_headers(filter: FilterPtr, map: u32, headers: *mut EnvoyHeader) -> bool;
    fn http_add_header(filter: FilterPtr, map: u32, key: ModuleBuffer, value: ModuleBuffer) -> bool;
    fn http_set_header(filter: FilterPtr, map: u32, key: ModuleBuffer, value: ModuleBuffer) -> bool;

    fn http_send_response(
        filter: FilterPtr, status: u32, headers: *const ModuleHeader, headers_length: usize,
        body: ModuleBuffer, details: ModuleBuffer,
    );
    fn http_filter_reset_stream(filter: FilterPtr, reason: u32, details: ModuleBuffer);
    fn http_filter_continue_decoding(filter: FilterPtr);
    fn http_filter_continue_encoding(filter: FilterPtr);

    fn http_get_body_size(filter: FilterPtr, body: u32) -> usize;
    fn http_get_body_chunks_size(filter: FilterPtr, body: u32) -> usize;
    fn http_get_body_chunks(filter: FilterPtr, body: u32, chunks: *mut EnvoyBuffer) -> bool;
    fn http_append_body(filter: FilterPtr, body: u32, data: ModuleBuffer) -> bool;
    fn http_drain_body(filter: FilterPtr, body: u32, length: usize) -> bool;
    fn http_received_buffered_request_body(filter: FilterPtr) -> bool;
    fn http_received_buffered_response_body(filter: FilterPtr) -> bool;
    fn http_get_buffer_limit(filter: FilterPtr) -> u64;
    fn http_set_buffer_limit(filter: FilterPtr, limit: u64);

    fn http_get_metadata_string(
        filter: FilterPtr, source: u32, namespace: ModuleBuffer, key: ModuleBuffer, value: *mut EnvoyBuffer,
    ) -> bool;
    fn http_get_metadata_number(
        filter: FilterPtr, source: u32, namespace: ModuleBuffer, key: ModuleBuffer, value: *mut f64,
    ) -> bool;
    fn http_get_metadata_bool(
        filter: FilterPtr, source: u32, namespace: ModuleBuffer, key: ModuleBuffer, value: *mut bool,
    ) -> bool;
    fn http_set_dynamic_metadata_string(
        filter: FilterPtr, namespace: ModuleBuffer, key: ModuleBuffer, value: ModuleBuffer,
    );
    fn http_set_dynamic_metadata_number(
        filter: FilterPtr, namespace: ModuleBuffer, key: ModuleBuffer, value: f64,
    );
    fn http_set_dynamic_metadata_bool(
        filter: FilterPtr, namespace: ModuleBuffer, key: ModuleBuffer, value: bool,
    );

    fn http_set_dynamic_metadata_struct(filter: FilterPtr, namespace: ModuleBuffer, fields: ModuleBuffer);
    fn http_get_metadata_list_size(
        filter: FilterPtr, source: u32, namespace: ModuleBuffer, key: ModuleBuffer, size: *mut usize,
    ) -> bool;
    fn http_get_metadata_list_string(
        filter: FilterPtr, source: u32, namespace: ModuleBuffer, key: ModuleBuffer, index: usize,
        value: *mut EnvoyBuffer,
    ) -> bool;
    fn http_get_metadata_list_number(
        filter: FilterPtr, source: u32, namespace: ModuleBuffer, key: ModuleBuffer, index: usize,
        value: *mut f64,
    ) -> bool;
    fn http_get_metadata_list_bool(
        filter: FilterPtr, source: u32, namespace: ModuleBuffer, key: ModuleBuffer, index: usize,
        value: *mut bool,
    ) -> bool;
    fn http_get_metadata_keys_count(filter: FilterPtr, source: u32, namespace: ModuleBuffer) -> usize;
    fn http_get_metadata_keys(
        filter: FilterPtr, source: u32, namespace: ModuleBuffer, keys: *mut EnvoyBuffer,
    ) -> bool;
    fn http_get_metadata_namespaces_count(filter: FilterPtr, source: u32) -> usize;
    fn http_get_metadata_namespaces(filter: FilterPtr, source: u32, namespaces: *mut EnvoyBuffer) -> bool;

    fn http_has_filter_state(filter: FilterPtr, key: ModuleBuffer) -> bool;
    fn http_get_filter_state_bytes(filter: FilterPtr, key: ModuleBuffer, value: *mut EnvoyBuffer) -> bool;
    fn http_get_filter_state_typed(filter: FilterPtr, key: ModuleBuffer, value: *mut EnvoyBuffer) -> bool;
    fn http_set_filter_state_bytes(filter: FilterPtr, key: ModuleBuffer, value: ModuleBuffer) -> bool;
    fn http_set_filter_state_typed(filter: FilterPtr, key: ModuleBuffer, value: ModuleBuffer) -> bool;
    fn http_set_upstream_override_host(filter: FilterPtr, host: ModuleBuffer, strict: bool) -> bool;

    fn http_filter_get_attribute_string(filter: FilterPtr, id: u32, value: *mut EnvoyBuffer) -> bool;
    fn http_filter_get_attribute_int(filter: FilterPtr, id: u32, value: *mut u64) -> bool;
    fn http_filter_get_attribute_bool(filter: FilterPtr, id: u32, value: *mut bool) -> bool;
    fn http_get_timing_info(filter: FilterPtr, info: *mut TimingInfo);
    fn http_get_downstream_direct_remote_address(filter: FilterPtr, value: *mut EnvoyBuffer) -> bool;
    fn http_get_cluster_name(filter: FilterPtr, value: *mut EnvoyBuffer) -> bool;
    fn http_get_cluster_host_count(
        filter: FilterPtr, priority: u32, total: *mut usize, healthy: *mut usize, degraded: *mut usize,
    ) -> bool;
    fn http_clear_route_cache(filter: FilterPtr);
    fn get_most_specific_route_config(filter: FilterPtr) -> *const std::ffi::c_void;

    fn http_filter_http_callout(
        filter: FilterPtr, id: *mut u64, cluster: ModuleBuffer, headers: *const ModuleHeader,
        headers_length: usize, body: ModuleBuffer, timeout_milliseconds: u64,
    ) -> u32;
    fn http_filter_start_http_stream(
        filter: FilterPtr, id: *mut u64, cluster: ModuleBuffer, headers: *const ModuleHeader,
        headers_length: usize, body: ModuleBuffer, end_of_stream: bool, timeout_milliseconds: u64,
    ) -> u32;
    fn http_filter_reset_http_stream(filter: FilterPtr, id: u64);
    fn http_stream_send_data(filter: FilterPtr, id: u64, data: ModuleBuffer, end_of_stream: bool) -> bool;
    fn http_stream_send_trailers(
        filter: FilterPtr, id: u64, trailers: *const ModuleHeader, trailers_length: usize,
    ) -> bool;
    fn http_filter_config_start_http_stream(
        config: ConfigPtr, id: *mut u64, cluster: ModuleBuffer, headers: *const ModuleHeader,
        headers_length: usize, body: ModuleBuffer, end_of_stream: bool, timeout_milliseconds: u64,
    ) -> u32;
    fn http_filter_config_reset_http_stream(config: ConfigPtr, id: u64);
    fn http_filter_config_stream_send_data(
        config: ConfigPtr, id: u64, data: ModuleBuffer, end_of_stream: bool,
    ) -> bool;
    fn http_filter_scheduler_new(filter: FilterPtr) -> SchedulerPtr;
    fn http_filter_scheduler_commit(scheduler: SchedulerPtr, event: u64);
    fn http_filter_scheduler_delete(scheduler: SchedulerPtr);

    fn cluster_pre_init_complete(cluster: ClusterPtr);
    fn cluster_scheduler_new(cluster: ClusterPtr) -> SchedulerPtr;
    fn cluster_scheduler_commit(scheduler: SchedulerPtr, event: u64);
    fn cluster_scheduler_delete(scheduler: SchedulerPtr);
    fn cluster_run_on_all_workers(cluster: ClusterPtr, event: u64);
    fn cluster_http_callout(
        cluster: ClusterPtr, id: *mut u64, upstream: ModuleBuffer, headers: *const ModuleHeader,
        headers_length: usize, body: ModuleBuffer, timeout_milliseconds: u64,
    ) -> u32;

    fn access_logger_config_define_counter(config: ConfigPtr, name: ModuleBuffer, id: *mut usize) -> u32;
    fn access_logger_increment_counter(config: ConfigPtr, id: usize, value: u64) -> u32;
    fn access_logger_get_headers_size(logger: LoggerPtr, map: u32) -> usize;
    fn access_logger_get_headers(logger: LoggerPtr, map: u32, headers: *mut EnvoyHeader) -> bool;
    fn access_logger_get_attribute_string(logger: LoggerPtr, id: u32, value: *mut EnvoyBuffer) -> bool;
    fn access_logger_get_attribute_int(logger: LoggerPtr, id: u32, value: *mut u64) -> bool;
    fn access_logger_get_response_flags(logger: LoggerPtr) -> u64;
    fn access_logger_get_timing_info(logger: LoggerPtr, info: *mut LogTimes);
    fn access_logger_get_bytes_info(logger: LoggerPtr, info: *mut LogBytes);
    fn access_logger_get_route_name(logger: LoggerPtr, value: *mut EnvoyBuffer) -> bool;
    fn access_logger_get_virtual_cluster_name(logger: LoggerPtr, value: *mut EnvoyBuffer) -> bool;
    fn access_logger_get_downstream_remote_address(
        logger: LoggerPtr, address: *mut EnvoyBuffer, port: *mut u32,
    ) -> bool;
    fn access_logger_get_downstream_local_address(
        logger: LoggerPtr, address: *mut EnvoyBuffer, port: *mut u32,
    ) -> bool;
    fn access_logger_get_downstream_direct_remote_address(
        logger: LoggerPtr, address: *mut EnvoyBuffer, port: *mut u32,
    ) -> bool;
    fn access_logger_get_downstream_direct_local_address(
        logger: LoggerPtr, address: *mut EnvoyBuffer, port: *mut u32,
    ) -> bool;
    fn access_logger_get_upstream_cluster(logger: LoggerPtr, value: *mut EnvoyBuffer) -> bool;
    fn access_logger_get_upstream_connection_id(logger: LoggerPtr) -> u64;
    fn access_logger_get_upstream_protocol(logger: LoggerPtr, value: *mut EnvoyBuffer) -> bool;
    fn access_logger_get_request_headers_bytes(logger: LoggerPtr) -> u64;
    fn access_logger_get_response_headers_bytes(logger: LoggerPtr) -> u64;
    fn access_logger_get_response_trailers_bytes(logger: LoggerPtr) -> u64;
    fn access_logger_get_trace_id(logger: LoggerPtr, value: *mut EnvoyBuffer) -> bool;
    fn access_logger_get_span_id(logger: LoggerPtr, value: *mut EnvoyBuffer) -> bool;
    fn access_logger_get_dynamic_metadata(
        logger: LoggerPtr, namespace: ModuleBuffer, path: ModuleBuffer, value: *mut EnvoyBuffer,
    ) -> bool;
    fn access_logger_get_dynamic_metadata_number(
        logger: LoggerPtr, namespace: ModuleBuffer, path: ModuleBuffer, value: *mut f64,
    ) -> bool;
    fn access_logger_get_dynamic_metadata_bool(
        logger: LoggerPtr, namespace: ModuleBuffer, path: ModuleBuffer, value: *mut bool,
    ) -> bool;

    fn bootstrap_extension_config_signal_init_complete(config: ConfigPtr);
    fn bootstrap_extension_register_admin_handler(
        config: ConfigPtr, path: ModuleBuffer, help: ModuleBuffer, removable: bool, mutates_state: bool,
    ) -> bool;
    fn bootstrap_extension_remove_admin_handler(config: ConfigPtr, path: ModuleBuffer) -> bool;
    fn bootstrap_extension_admin_set_response(config: ConfigPtr, body: ModuleBuffer);
    fn bootstrap_extension_config_define_gauge(
        config: ConfigPtr, name: ModuleBuffer, labels: *const ModuleBuffer, labels_length: usize, id: *mut usize,
    ) -> u32;
    fn bootstrap_extension_config_set_gauge(
        config: ConfigPtr, id: usize, labels: *const ModuleBuffer, labels_length: usize, value: u64,
    ) -> u32;
}

static CALLBACKS: OnceLock<Callbacks> = OnceLock::new();

/// Finds Envoy's functions in the running executable, once.
///
/// # Errors
/// Names those that are missing.
pub fn resolve() -> Result<(), MissingCallbacks> {
    if CALLBACKS.get().is_none() {
        let found = Callbacks::find(&libloading::os::unix::Library::this())?;
        // A second thread that came first found the same functions.
        let _same = CALLBACKS.set(found);
    }
    Ok(())
}

/// What [`Callbacks::stub`] returns for a type.
#[cfg(test)]
trait StubResult {
    const RESULT: Self;
}

#[cfg(test)]
macro_rules! stub_results {
    ($($type:ty = $result:expr;)*) => {$(
        impl StubResult for $type {
            const RESULT: Self = $result;
        }
    )*};
}

#[cfg(test)]
stub_results! {
    bool = false;
    u32 = 0;
    u64 = 0;
    usize = 0;
    SchedulerPtr = std::ptr::null_mut();
    *const std::ffi::c_void = std::ptr::null();
}

/// Makes a table of a test's own the process's. The first one stays.
#[cfg(test)]
pub(crate) fn install_stub(table: impl FnOnce() -> Callbacks) -> &'static Callbacks {
    CALLBACKS.get_or_init(table)
}

/// Envoy's functions; none before [`resolve`] found them, as in a test without Envoy.
pub(crate) fn callbacks() -> Option<&'static Callbacks> {
    CALLBACKS.get()
}
