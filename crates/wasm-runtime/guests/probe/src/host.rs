//! Every function that a Proxy-Wasm host provides, with what its parameters are, so that a script can name
//! any of them.
//!
//! The trap: an import that the host does not know makes the whole guest unloadable. What only some versions
//! of the ABI have is imported only by the guest that is marked with them.

/// One host function.
///
/// A letter of `kinds` for each parameter of the C declaration, or for a group of them:
/// `n` a number, `l` a 64-bit number, `s` bytes in (pointer, length), `v` bytes in, as one vector of I/O,
/// `o` bytes out (pointer to pointer, pointer to length), `m` the same with a serialized map, `u` and `w` a
/// 32-bit and a 64-bit number out, `b` a buffer to be filled (pointer, length), `p` 64 bytes to be filled
/// (pointer), `q` the same, of which nothing is told (it holds addresses), `r` a vector of I/O to be filled.
pub struct Function {
    pub name: &'static str,
    pub kinds: &'static str,
    /// Calls it with the parameters of the Wasm function.
    pub call: fn(&[u64]) -> i32,
}

macro_rules! functions {
    ($table:ident, $module:literal, $($(#[$meta:meta])* $name:ident $kinds:literal ($($argument:ident: $type:ty),*);)*) => {
        pub mod $table {
            use super::Function;

            #[link(wasm_import_module = $module)]
            unsafe extern "C" {
                $($(#[$meta])* safe fn $name($($argument: $type),*) -> i32;)*
            }

            pub static TABLE: &[Function] = &[$(
                $(#[$meta])*
                Function {
                    name: stringify!($name),
                    kinds: $kinds,
                    call: |parameters| {
                        let mut _parameters = parameters.iter().copied();
                        $(let $argument = _parameters.next().unwrap_or(0) as $type;)*
                        $name($($argument),*)
                    },
                },
            )*];
        }
    };
}

functions! { proxy, "env",
    proxy_log "ns" (a: i32, b: i32, c: i32);
    proxy_get_status "uo" (a: i32, b: i32, c: i32);
    proxy_set_property "ss" (a: i32, b: i32, c: i32, d: i32);
    proxy_get_property "so" (a: i32, b: i32, c: i32, d: i32);
    proxy_send_local_response "nsssn" (a: i32, b: i32, c: i32, d: i32, e: i32, f: i32, g: i32, h: i32);
    proxy_get_shared_data "sou" (a: i32, b: i32, c: i32, d: i32, e: i32);
    proxy_set_shared_data "ssn" (a: i32, b: i32, c: i32, d: i32, e: i32);
    proxy_register_shared_queue "su" (a: i32, b: i32, c: i32);
    proxy_resolve_shared_queue "ssu" (a: i32, b: i32, c: i32, d: i32, e: i32);
    proxy_dequeue_shared_queue "no" (a: i32, b: i32, c: i32);
    proxy_enqueue_shared_queue "ns" (a: i32, b: i32, c: i32);
    proxy_get_header_map_value "nso" (a: i32, b: i32, c: i32, d: i32, e: i32);
    proxy_add_header_map_value "nss" (a: i32, b: i32, c: i32, d: i32, e: i32);
    proxy_replace_header_map_value "nss" (a: i32, b: i32, c: i32, d: i32, e: i32);
    proxy_remove_header_map_value "ns" (a: i32, b: i32, c: i32);
    proxy_get_header_map_pairs "nm" (a: i32, b: i32, c: i32);
    proxy_set_header_map_pairs "ns" (a: i32, b: i32, c: i32);
    proxy_get_header_map_size "nu" (a: i32, b: i32);
    proxy_get_buffer_status "nuu" (a: i32, b: i32, c: i32);
    proxy_get_buffer_bytes "nnno" (a: i32, b: i32, c: i32, d: i32, e: i32);
    proxy_set_buffer_bytes "nnns" (a: i32, b: i32, c: i32, d: i32, e: i32);
    proxy_http_call "ssssnu" (a: i32, b: i32, c: i32, d: i32, e: i32, f: i32, g: i32, h: i32, i: i32, j: i32);
    proxy_grpc_call "sssssnu" (a: i32, b: i32, c: i32, d: i32, e: i32, f: i32, g: i32, h: i32, i: i32, j: i32, k: i32, l: i32);
    proxy_grpc_stream "ssssu" (a: i32, b: i32, c: i32, d: i32, e: i32, f: i32, g: i32, h: i32, i: i32);
    proxy_grpc_send "nsn" (a: i32, b: i32, c: i32, d: i32);
    proxy_grpc_cancel "n" (a: i32);
    proxy_grpc_close "n" (a: i32);
    proxy_set_tick_period_milliseconds "n" (a: i32);
    proxy_get_current_time_nanoseconds "w" (a: i32);
    proxy_define_metric "nsu" (a: i32, b: i32, c: i32, d: i32);
    proxy_increment_metric "nl" (a: i32, b: i64);
    proxy_record_metric "nl" (a: i32, b: i64);
    proxy_get_metric "nw" (a: i32, b: i32);
    proxy_set_effective_context "n" (a: i32);
    proxy_done "" ();
    proxy_call_foreign_function "sso" (a: i32, b: i32, c: i32, d: i32, e: i32, f: i32);
    pthread_equal "nn" (a: i32, b: i32);
    #[cfg(feature = "abi_0_1_0")]
    proxy_get_configuration "o" (a: i32, b: i32);
    #[cfg(feature = "abi_0_1_0")]
    proxy_continue_request "" ();
    #[cfg(feature = "abi_0_1_0")]
    proxy_continue_response "" ();
    #[cfg(feature = "abi_0_1_0")]
    proxy_clear_route_cache "" ();
    #[cfg(not(feature = "abi_0_1_0"))]
    proxy_continue_stream "n" (a: i32);
    #[cfg(not(feature = "abi_0_1_0"))]
    proxy_close_stream "n" (a: i32);
    #[cfg(feature = "abi_0_2_1")]
    proxy_get_log_level "u" (a: i32);
}

macro_rules! wasi {
    ($table:ident, $module:literal) => {
        functions! { $table, $module,
            args_get "pp" (a: i32, b: i32);
            args_sizes_get "uu" (a: i32, b: i32);
            environ_get "qp" (a: i32, b: i32);
            environ_sizes_get "uu" (a: i32, b: i32);
            clock_res_get "nw" (a: i32, b: i32);
            clock_time_get "nlw" (a: i32, b: i64, c: i32);
            fd_advise "nlln" (a: i32, b: i64, c: i64, d: i32);
            fd_allocate "nll" (a: i32, b: i64, c: i64);
            fd_close "n" (a: i32);
            fd_datasync "n" (a: i32);
            fd_fdstat_get "np" (a: i32, b: i32);
            fd_fdstat_set_flags "nn" (a: i32, b: i32);
            fd_fdstat_set_rights "nll" (a: i32, b: i64, c: i64);
            fd_filestat_get "np" (a: i32, b: i32);
            fd_filestat_set_size "nl" (a: i32, b: i64);
            fd_filestat_set_times "nlln" (a: i32, b: i64, c: i64, d: i32);
            fd_pread "nrlu" (a: i32, b: i32, c: i32, d: i64, e: i32);
            fd_prestat_get "np" (a: i32, b: i32);
            fd_prestat_dir_name "nb" (a: i32, b: i32, c: i32);
            fd_pwrite "nvlu" (a: i32, b: i32, c: i32, d: i64, e: i32);
            fd_read "nru" (a: i32, b: i32, c: i32, d: i32);
            fd_readdir "nblu" (a: i32, b: i32, c: i32, d: i64, e: i32);
            fd_renumber "nn" (a: i32, b: i32);
            fd_seek "nlnw" (a: i32, b: i64, c: i32, d: i32);
            fd_sync "n" (a: i32);
            fd_tell "nw" (a: i32, b: i32);
            fd_write "nvu" (a: i32, b: i32, c: i32, d: i32);
            path_create_directory "ns" (a: i32, b: i32, c: i32);
            path_filestat_get "nnsp" (a: i32, b: i32, c: i32, d: i32, e: i32);
            path_filestat_set_times "nnslln" (a: i32, b: i32, c: i32, d: i32, e: i64, f: i64, g: i32);
            path_open "nnsnllnu" (a: i32, b: i32, c: i32, d: i32, e: i32, f: i64, g: i64, h: i32, i: i32);
            path_readlink "nsbu" (a: i32, b: i32, c: i32, d: i32, e: i32, f: i32);
            path_remove_directory "ns" (a: i32, b: i32, c: i32);
            path_rename "nsns" (a: i32, b: i32, c: i32, d: i32, e: i32, f: i32);
            path_unlink_file "ns" (a: i32, b: i32, c: i32);
            poll_oneoff "ppnu" (a: i32, b: i32, c: i32, d: i32);
            random_get "b" (a: i32, b: i32);
            sched_yield "" ();
            sock_accept "nnu" (a: i32, b: i32, c: i32);
            sock_recv "nrnuu" (a: i32, b: i32, c: i32, d: i32, e: i32, f: i32);
            sock_send "nvnu" (a: i32, b: i32, c: i32, d: i32, e: i32);
            sock_shutdown "nn" (a: i32, b: i32);
        }
    };
}

wasi! { wasi, "wasi_snapshot_preview1" }
wasi! { unstable, "wasi_unstable" }

/// Those that return nothing, or do not return.
mod other {
    #[link(wasm_import_module = "env")]
    unsafe extern "C" {
        pub safe fn emscripten_notify_memory_growth(memory: i32);
    }

    #[link(wasm_import_module = "wasi_snapshot_preview1")]
    unsafe extern "C" {
        pub safe fn proc_exit(code: i32);
    }
}

static OTHER: &[Function] = &[
    Function {
        name: "emscripten_notify_memory_growth",
        kinds: "n",
        call: |parameters| {
            other::emscripten_notify_memory_growth(
                parameters.first().map_or(0, |value| *value as i32),
            );
            0
        },
    },
    Function {
        name: "proc_exit",
        kinds: "n",
        call: |parameters| {
            other::proc_exit(parameters.first().map_or(0, |value| *value as i32));
            0
        },
    },
];

/// The function that a script calls so: with `proxy_` left out or not, and `wasi_unstable.` in front where
/// the older module is meant.
pub fn find(name: &str) -> Option<&'static Function> {
    let (tables, name): (&[&'static [Function]], &str) = match name.split_once('.') {
        Some(("wasi_unstable", name)) => (&[unstable::TABLE], name),
        Some(_) => return None,
        None => (&[proxy::TABLE, wasi::TABLE, OTHER], name),
    };
    tables
        .iter()
        .flat_map(|table| table.iter())
        .find(|function| {
            function.name == name || function.name.strip_prefix("proxy_") == Some(name)
        })
}
