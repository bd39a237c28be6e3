// The part of the Proxy-Wasm ABI, version 0.2.1, that plugins here use, as the host has it: names, types and
// numbers are those of the specification.
//
// Not what plugins call: that is host.h and context.h. The trap: memory that a host function hands over
// belongs to the guest, which has to free it.

#pragma once

#include <cstddef>
#include <cstdint>

namespace proxy_wasm {

/// How a host function went.
enum class Status : uint32_t {
  ok = 0,
  not_found = 1,
  bad_argument = 2,
};

/// How important a line of log is.
enum class LogLevel : uint32_t { trace, debug, info, warn, error, critical };

/// Which headers or trailers.
enum class HeaderMap : uint32_t {
  request_headers = 0,
  request_trailers = 1,
  response_headers = 2,
  response_trailers = 3,
};

/// Which bytes.
enum class Buffer : uint32_t {
  request_body = 0,
  response_body = 1,
  vm_configuration = 6,
  plugin_configuration = 7,
};

/// What is to happen after headers were seen.
enum class HeadersStatus : uint32_t {
  /// They go on.
  proceed = 0,
  /// They, and all that follows them, stay here, until the stream is told to go on or has a reply.
  wait = 4,
};

namespace abi {

#define PROXY_WASM_IMPORT(name) __attribute__((import_module("env"), import_name(#name))) Status name

extern "C" {
PROXY_WASM_IMPORT(proxy_log)(LogLevel level, const char *message, size_t size);
PROXY_WASM_IMPORT(proxy_get_buffer_bytes)
(Buffer buffer, uint32_t start, uint32_t length, char **bytes, size_t *size);
PROXY_WASM_IMPORT(proxy_get_header_map_pairs)(HeaderMap map, char **pairs, size_t *size);
PROXY_WASM_IMPORT(proxy_replace_header_map_value)
(HeaderMap map, const char *name, size_t name_size, const char *value, size_t value_size);
PROXY_WASM_IMPORT(proxy_remove_header_map_value)(HeaderMap map, const char *name, size_t name_size);
PROXY_WASM_IMPORT(proxy_send_local_response)
(uint32_t status, const char *details, size_t details_size, const char *body, size_t body_size, const char *headers,
 size_t headers_size, int32_t grpc_status);
}

#undef PROXY_WASM_IMPORT

} // namespace abi
} // namespace proxy_wasm
