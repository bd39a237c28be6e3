//! What `liboutrider.so` exports. Envoy refuses a filter whose module lacks any HTTP hook and a
//! bootstrap extension whose module lacks any of its own; hooks in a crate that the module does not name vanish
//! without a warning. An exported Lua function would be a second LuaJIT in Envoy's process, which has its
//! own.
#![allow(
    clippy::unwrap_used,
    reason = "a test, its helpers included, fails by panicking"
)]

use std::collections::BTreeSet;
use std::process::Command;

/// Every hook that Envoy 1.40 looks up for an access logger, for a bootstrap extension and for an HTTP filter, those of a cluster that
/// the module needs, and the one for the module.
const HOOKS: &[&str] = &[
    "access_logger_config_destroy",
    "access_logger_config_new",
    "access_logger_destroy",
    "access_logger_flush",
    "access_logger_log",
    "access_logger_new",
    "bootstrap_extension_admin_request",
    "bootstrap_extension_cluster_add_or_update",
    "bootstrap_extension_cluster_removal",
    "bootstrap_extension_config_destroy",
    "bootstrap_extension_config_new",
    "bootstrap_extension_config_scheduled",
    "bootstrap_extension_destroy",
    "bootstrap_extension_drain_started",
    "bootstrap_extension_file_changed",
    "bootstrap_extension_http_callout_done",
    "bootstrap_extension_listener_add_or_update",
    "bootstrap_extension_listener_removal",
    "bootstrap_extension_new",
    "bootstrap_extension_server_initialized",
    "bootstrap_extension_shutdown",
    "bootstrap_extension_timer_fired",
    "bootstrap_extension_worker_thread_initialized",
    "cluster_config_destroy",
    "cluster_config_new",
    "cluster_destroy",
    "cluster_http_callout_done",
    "cluster_init",
    "cluster_lb_choose_host",
    "cluster_lb_destroy",
    "cluster_lb_new",
    "cluster_new",
    "cluster_scheduled",
    "cluster_shutdown",
    "cluster_worker_event",
    "http_filter_config_destroy",
    "http_filter_config_http_callout_done",
    "http_filter_config_http_stream_complete",
    "http_filter_config_http_stream_data",
    "http_filter_config_http_stream_headers",
    "http_filter_config_http_stream_reset",
    "http_filter_config_http_stream_trailers",
    "http_filter_config_new",
    "http_filter_config_scheduled",
    "http_filter_destroy",
    "http_filter_downstream_above_write_buffer_high_watermark",
    "http_filter_downstream_below_write_buffer_low_watermark",
    "http_filter_http_callout_done",
    "http_filter_http_stream_complete",
    "http_filter_http_stream_data",
    "http_filter_http_stream_headers",
    "http_filter_http_stream_reset",
    "http_filter_http_stream_trailers",
    "http_filter_local_reply",
    "http_filter_new",
    "http_filter_per_route_config_destroy",
    "http_filter_per_route_config_new",
    "http_filter_request_body",
    "http_filter_request_headers",
    "http_filter_request_trailers",
    "http_filter_response_body",
    "http_filter_response_headers",
    "http_filter_response_trailers",
    "http_filter_scheduled",
    "http_filter_stream_complete",
    "program_init",
];

/// The names that the module's dynamic symbol table defines.
fn exported() -> BTreeSet<String> {
    let module = outrider_e2e::module().unwrap();
    let output = Command::new("nm")
        .args(["--dynamic", "--defined-only", "--format=posix"])
        .arg(&module)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "nm: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        // A symbol with a version is `name@@VERSION`.
        .filter_map(|name| name.split('@').next())
        .map(ToOwned::to_owned)
        .collect()
}

#[test]
fn the_module_exports_every_hook_that_envoy_looks_up_and_no_other() {
    let hooks: BTreeSet<String> = exported()
        .into_iter()
        .filter_map(|name| {
            let hook = name.strip_prefix("envoy_dynamic_module_on_")?;
            Some(hook.to_owned())
        })
        .collect();
    let expected: BTreeSet<String> = HOOKS.iter().map(ToString::to_string).collect();
    assert_eq!(hooks, expected);
}

#[test]
fn the_module_exports_nothing_of_lua() {
    let exported = exported();
    assert!(!exported.is_empty());
    let lua: Vec<&String> = exported
        .iter()
        .filter(|name| {
            ["lua_", "luaL_", "luaopen_", "luaJIT_", "lj_"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
        })
        .collect();
    assert!(lua.is_empty(), "{lua:?}");
}
