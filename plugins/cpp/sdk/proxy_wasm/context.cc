// What the host calls. The traps: a number that is not known is the host's mistake, and ignored; no context
// is called while another's call is under way.

#include "proxy_wasm/context.h"

#include <cstdlib>
#include <unordered_map>

#include "proxy_wasm/host.h"

namespace proxy_wasm {
namespace {

/// The contexts by their numbers.
struct Contexts {
  std::unordered_map<uint32_t, std::unique_ptr<RootContext>> roots;
  std::unordered_map<uint32_t, std::unique_ptr<StreamContext>> streams;
};

Contexts &contexts() {
  // Never destroyed: the VM's memory goes as a whole.
  static auto *contexts = new Contexts;
  return *contexts;
}

} // namespace

extern "C" {

#define PROXY_WASM_EXPORT(name) __attribute__((export_name(#name))) name

/// Says which version of the ABI this is; never called.
void PROXY_WASM_EXPORT(proxy_abi_version_0_2_1)() {}

void *PROXY_WASM_EXPORT(proxy_on_memory_allocate)(size_t size) { return malloc(size); }

/// A context begins; `parent` is 0 for a root.
void PROXY_WASM_EXPORT(proxy_on_context_create)(uint32_t id, uint32_t parent) {
  if (parent == 0) {
    contexts().roots.emplace(id, make_root());
    return;
  }
  if (auto root = contexts().roots.find(parent); root != contexts().roots.end()) {
    contexts().streams.emplace(id, root->second->create_stream());
  }
}

uint32_t PROXY_WASM_EXPORT(proxy_on_configure)(uint32_t id, uint32_t) {
  auto root = contexts().roots.find(id);
  if (root == contexts().roots.end()) {
    return false;
  }
  char *bytes = nullptr;
  size_t size = 0;
  // A length beyond the configuration's own is cut to it.
  abi::proxy_get_buffer_bytes(Buffer::plugin_configuration, 0, UINT32_MAX, &bytes, &size);
  Bytes configuration(bytes, size);
  return root->second->on_configure(configuration.text());
}

HeadersStatus PROXY_WASM_EXPORT(proxy_on_request_headers)(uint32_t id, uint32_t, uint32_t) {
  auto stream = contexts().streams.find(id);
  return stream == contexts().streams.end() ? HeadersStatus::proceed : stream->second->on_request_headers();
}

void PROXY_WASM_EXPORT(proxy_on_delete)(uint32_t id) {
  contexts().streams.erase(id);
  contexts().roots.erase(id);
}

#undef PROXY_WASM_EXPORT
}

} // namespace proxy_wasm
