//! The functions that the SDK calls through FFI: flat arguments, an `int32_t` for an answer, and
//! everything larger through the head of the call's state. One group of them a file.
//!
//! One list declares them for Rust and for C ([`host_functions`]), so that the two cannot drift.
//! Answers: 0 and above as each function says, `NO_STREAM`, or `BROKEN`.
//!
//! The trap: none of these may raise, panic through, or call back into Lua. LuaJIT compiles calls of
//! them into traces, where nothing of that is allowed.

mod bodies;
mod crypto;
mod facts;
mod frame;
mod headers;
mod loading;
mod logs;
mod lua_patterns;
mod metadata;
mod metrics;
mod patterns;
mod schemas;
mod store;
mod texts;
mod times;
mod urls;
mod waiting;

use std::ffi::c_void;

use super::call::CallState;

macro_rules! host_functions {
    ($($group:ident { $($name:ident($($argument:ident: $kind:ident),*);)* })*) => {
        /// Pointers to all functions, as Lua's `struct outrider_host` lays them out.
        #[repr(C)]
        pub(super) struct HostTable {
            $($($name: unsafe extern "C" fn(*mut CallState $(, host_functions!(@rust $kind))*) -> i32,)*)*
        }

        /// The table whose address Lua is given.
        pub(super) static HOST: HostTable = HostTable { $($($name: $group::$name,)*)* };

        /// The table's declaration in C.
        pub(super) const HOST_DECLARATION: &str = concat!(
            "struct outrider_host {",
            $($("int32_t (*", stringify!($name), ")(struct outrider_call*"
                $(, ", ", host_functions!(@c $kind))*, ");",)*)*
            "};",
        );
    };
    (@rust int) => { i32 };
    (@rust real) => { f64 };
    (@rust text) => { *const u8 };
    (@c int) => { "int32_t" };
    (@c real) => { "double" };
    (@c text) => { "const char*" };
}

host_functions! {
    headers {
        header(map: int, name: text, length: int, index: int);
        header_count(map: int, name: text, length: int);
        headers(map: int);
        set_header(map: int, name: text, length: int, value: text, value_length: int);
        add_header(map: int, name: text, length: int, value: text, value_length: int);
        remove_header(map: int, name: text, length: int);
        replace_headers(map: int);
        stage_clear();
        stage(name: text, length: int, value: text, value_length: int);
        query(limit: int);
    }
    bodies {
        body_length(direction: int);
        body(direction: int);
        body_part(direction: int, first: int, last: int);
        set_body(direction: int, body: text, length: int);
        splice_body(direction: int, start: int, length: int, body: text, body_length: int);
    }
    metadata {
        metadata(source: int, namespace: text, length: int, key: text, key_length: int);
        set_metadata(namespace: text, length: int, key: text, key_length: int,
                     kind: int, value: text, value_length: int, number: real);
        set_metadata_json(namespace: text, length: int, key: text, key_length: int,
                          value: text, value_length: int);
        metadata_list(source: int, namespace: text, length: int, key: text, key_length: int);
        metadata_names(source: int, within: int, namespace: text, length: int);
        filter_state(key: text, length: int);
        set_filter_state(typed: int, key: text, length: int, value: text, value_length: int);
        override_host(host: text, length: int, strict: int);
    }
    facts {
        attribute(which: int);
        attribute_number(name: text, length: int);
        timing();
        response_code();
        clear_route_cache();
        now();
        start_time();
        stream_index();
    }
    waiting {
        callout(cluster: text, length: int, body: text, body_length: int, timeout: real);
        timer(delay: real);
        open_stream(cluster: text, length: int, body: text, body_length: int, timeout: real, end: int);
        send_data(id: real, data: text, length: int, end: int);
        send_trailers(id: real);
        stream_part(id: real, part: int);
        wait_for(kind: int, id: real);
        outcome(kind: int, id: real);
        has_outcome(kind: int, id: real);
        cancel(kind: int, id: real);
        due_timer();
        wait_body();
        wait_chunk();
        wait_trailers();
        reply(status: int, body: text, length: int, details: text, details_length: int,
              audience: int);
    }
    metrics {
        metric_define(kind: int, name: text, length: int);
        metric_add(id: int, amount: real);
        metric_record(id: int, value: real);
        metric_get(id: int);
    }
    logs {
        log_enabled(level: int);
        log(level: int, message: text, length: int);
        file_log(message: text, length: int);
    }
    loading {
        argument(index: int);
        result(kind: int, value: text, length: int);
        file(name: text, length: int);
    }
    texts {
        json_parse(value: text, length: int);
        json_begin();
        json_raw(value: text, length: int);
        json_number(value: real);
        json_string(value: text, length: int);
        json_end();
        base64_encode(value: text, length: int);
        base64_decode(value: text, length: int);
    }
    times {
        clock();
        clock_micros();
        monotonic();
        format_time(kind: int, at: real);
        parse_time(kind: int, value: text, length: int);
    }
    crypto {
        digest(which: int, value: text, length: int);
        hmac(which: int, key: text, key_length: int, value: text, length: int);
        import_key(key: text, length: int);
        verify(hash: text, hash_length: int, key: text, key_length: int,
               signature: text, signature_length: int, value: text, length: int);
        equal(first: text, first_length: int, second: text, second_length: int);
        hex_encode(value: text, length: int);
        hex_decode(value: text, length: int);
        uuid();
    }
    urls {
        url_encode(value: text, length: int);
        url_decode(value: text, length: int);
        parse_query(value: text, length: int, limit: int);
    }
    patterns {
        re_find(pattern: text, pattern_length: int, subject: text, length: int, from: int);
        re_captures(pattern: text, pattern_length: int, subject: text, length: int, from: int);
        re_replace(pattern: text, pattern_length: int, subject: text, length: int,
                   replacement: text, replacement_length: int, limit: int);
    }
    lua_patterns {
        lua_match(kind: int, subject: text, length: int, pattern: text, pattern_length: int, from: int);
        lua_replace(subject: text, length: int, pattern: text, pattern_length: int,
                    replacement: text, replacement_length: int, most: int);
    }
    schemas {
        schema_compile(schema: text, length: int);
        schema_validate(number: int, document: text, length: int);
    }
    store {
        store_get(key: text, length: int);
        store_set(key: text, length: int, kind: int, value: text, value_length: int,
                  number: real, time: real, only_new: int);
        store_increment(key: text, length: int, amount: real, initial: real, time: real);
        store_take(key: text, length: int, amount: real, capacity: real, interval: real);
        store_delete(key: text, length: int);
        store_remaining(key: text, length: int);
    }
}

/// The address of [`HOST`], for Lua.
pub(super) fn host_address() -> *mut c_void {
    (&raw const HOST).cast_mut().cast()
}
