// The benchmark's guest in C++: the same counts, names and values as the native module (bench-native), in the
// shape of the official C++ SDK, which is in no package registry: contexts by number in a hash map, virtual
// callbacks, all callbacks exported, and what the host hands over is freed by the guest.

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#define IMPORT(name) __attribute__((import_module("env"), import_name(#name))) name
#define EXPORT(name) __attribute__((export_name(#name))) name

extern "C" {
uint32_t IMPORT(proxy_get_buffer_bytes)(uint32_t buffer, uint32_t start, uint32_t length, char **bytes, size_t *size);
uint32_t IMPORT(proxy_get_header_map_value)(uint32_t map, const char *name, size_t name_size, char **value,
                                            size_t *value_size);
uint32_t IMPORT(proxy_add_header_map_value)(uint32_t map, const char *name, size_t name_size, const char *value,
                                            size_t value_size);
uint32_t IMPORT(proxy_replace_header_map_value)(uint32_t map, const char *name, size_t name_size, const char *value,
                                                size_t value_size);
uint32_t IMPORT(proxy_remove_header_map_value)(uint32_t map, const char *name, size_t name_size);
}

namespace {

constexpr uint32_t request_headers = 0;
constexpr uint32_t response_headers = 2;
constexpr uint32_t request_body = 0;
constexpr uint32_t plugin_configuration = 7;

constexpr uint32_t go_on = 0;
constexpr uint32_t stop = 1;

constexpr std::string_view value = "value";
/// Where what was not as expected is told, and in a telling configuration everything.
constexpr std::string_view tell_in = "x-bench";

/// Bytes that the host handed over; they go when this goes.
class Bytes {
public:
  Bytes(char *bytes, size_t size) : bytes_(bytes, &free), size_(bytes == nullptr ? 0 : size) {}
  std::string_view text() const { return {bytes_.get(), size_}; }

private:
  std::unique_ptr<char, decltype(&free)> bytes_;
  size_t size_;
};

Bytes buffer(uint32_t which, size_t length) {
  char *bytes = nullptr;
  size_t size = 0;
  proxy_get_buffer_bytes(which, 0, length, &bytes, &size);
  return {bytes, size};
}

Bytes header(std::string_view name) {
  char *bytes = nullptr;
  size_t size = 0;
  proxy_get_header_map_value(request_headers, name.data(), name.size(), &bytes, &size);
  return {bytes, size};
}

void tell(uint32_t map, const std::string &what) {
  proxy_add_header_map_value(map, tell_in.data(), tell_in.size(), what.data(), what.size());
}

/// `x-h-1`, `x-h-2` and so on.
std::vector<std::string> names(size_t count) {
  std::vector<std::string> names;
  for (size_t number = 1; number <= count; number++) {
    names.push_back("x-h-" + std::to_string(number));
  }
  return names;
}

/// What one configuration does.
struct Work {
  std::vector<std::string> set;
  std::vector<std::string> read;
  std::vector<std::string> remove;
  size_t body_reads = 0;
  /// Whether responses are told of.
  bool responses = false;
  /// How many bytes the header reads bring; nothing: tell what came.
  std::optional<size_t> header_bytes;
  std::optional<size_t> body_bytes;

  /// Takes one word of the configuration, such as `sets=20`; returns whether it is known.
  bool take(std::string_view word) {
    auto equals = word.find('=');
    size_t number = 0;
    if (equals == std::string_view::npos ||
        std::from_chars(word.data() + equals + 1, word.data() + word.size(), number).ptr != word.data() + word.size()) {
      return false;
    }
    auto key = word.substr(0, equals);
    if (key == "sets") {
      set = names(number);
    } else if (key == "reads") {
      read = names(number);
    } else if (key == "removals") {
      remove = names(number);
    } else if (key == "body_reads") {
      body_reads = number;
    } else if (key == "responses") {
      responses = number > 0;
    } else if (key == "header_bytes") {
      header_bytes = number;
    } else if (key == "body_bytes") {
      body_bytes = number;
    } else {
      return false;
    }
    return true;
  }

  /// Reads `sets=20 reads=10 removals=20 body_reads=30 header_bytes=50 body_bytes=30720`, as bench-native does.
  static std::optional<Work> parse(std::string_view text) {
    Work work;
    while (!text.empty()) {
      auto end = std::min(text.find(' '), text.size());
      if (!work.take(text.substr(0, end))) {
        return std::nullopt;
      }
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    return work;
  }
};

/// A configuration, or a request: the SDK has one class for both, too.
class Context {
public:
  virtual ~Context() = default;
  virtual bool on_configure() { return true; }
  virtual uint32_t on_request_headers(bool) { return go_on; }
  virtual uint32_t on_request_body(size_t, bool) { return go_on; }
  virtual uint32_t on_request_trailers() { return go_on; }
  virtual uint32_t on_response_headers() { return go_on; }
  virtual uint32_t on_response_body() { return go_on; }
  virtual uint32_t on_response_trailers() { return go_on; }
  virtual bool on_done() { return true; }
  virtual void on_log() {}
};

class Root : public Context {
public:
  bool on_configure() override {
    auto read = Work::parse(buffer(plugin_configuration, UINT32_MAX).text());
    if (!read) {
      return false;
    }
    work = std::make_shared<const Work>(std::move(*read));
    return true;
  }

  std::shared_ptr<const Work> work = std::make_shared<const Work>();
};

class Request : public Context {
public:
  explicit Request(std::shared_ptr<const Work> work) : work_(std::move(work)) {}

  uint32_t on_request_headers(bool end_of_stream) override {
    for (const auto &name : work_->set) {
      proxy_replace_header_map_value(request_headers, name.data(), name.size(), value.data(), value.size());
    }
    size_t bytes = 0;
    for (const auto &name : work_->read) {
      bytes += header(name).text().size();
    }
    for (const auto &name : work_->remove) {
      proxy_remove_header_map_value(request_headers, name.data(), name.size());
    }
    if (work_->header_bytes != bytes) {
      tell(request_headers, "headers " + std::to_string(bytes));
    }
    return work_->body_reads > 0 && !end_of_stream ? stop : go_on;
  }

  uint32_t on_request_body(size_t size, bool end_of_stream) override {
    if (work_->body_reads == 0) {
      return go_on;
    }
    if (!end_of_stream) {
      return stop;
    }
    size_t bytes = 0;
    for (size_t i = 0; i < work_->body_reads; i++) {
      bytes += buffer(request_body, size).text().size();
    }
    if (work_->body_bytes != bytes) {
      tell(request_headers, "body " + std::to_string(bytes));
    }
    return go_on;
  }

  uint32_t on_response_headers() override {
    if (work_->responses) {
      tell(response_headers, "response");
    }
    return go_on;
  }

private:
  std::shared_ptr<const Work> work_;
};

std::unordered_map<uint32_t, std::unique_ptr<Context>> &contexts() {
  // Never destroyed: the VM's memory goes as a whole.
  static auto *contexts = new std::unordered_map<uint32_t, std::unique_ptr<Context>>;
  return *contexts;
}

/// The context of a number that the host was told of.
Context &context(uint32_t id) { return *contexts().find(id)->second; }

} // namespace

extern "C" {

/// Says which version of the ABI this is; never called.
void EXPORT(proxy_abi_version_0_2_1)() {}

void *EXPORT(proxy_on_memory_allocate)(size_t size) { return malloc(size); }

void EXPORT(proxy_on_context_create)(uint32_t id, uint32_t parent) {
  if (parent == 0) {
    contexts().emplace(id, std::make_unique<Root>());
  } else {
    contexts().emplace(id, std::make_unique<Request>(static_cast<Root &>(context(parent)).work));
  }
}

uint32_t EXPORT(proxy_on_vm_start)(uint32_t, uint32_t) { return true; }
uint32_t EXPORT(proxy_on_configure)(uint32_t id, uint32_t) { return context(id).on_configure(); }

uint32_t EXPORT(proxy_on_request_headers)(uint32_t id, uint32_t, uint32_t end_of_stream) {
  return context(id).on_request_headers(end_of_stream != 0);
}
uint32_t EXPORT(proxy_on_request_body)(uint32_t id, uint32_t size, uint32_t end_of_stream) {
  return context(id).on_request_body(size, end_of_stream != 0);
}
uint32_t EXPORT(proxy_on_request_trailers)(uint32_t id, uint32_t) { return context(id).on_request_trailers(); }
uint32_t EXPORT(proxy_on_response_headers)(uint32_t id, uint32_t, uint32_t) {
  return context(id).on_response_headers();
}
uint32_t EXPORT(proxy_on_response_body)(uint32_t id, uint32_t, uint32_t) { return context(id).on_response_body(); }
uint32_t EXPORT(proxy_on_response_trailers)(uint32_t id, uint32_t) { return context(id).on_response_trailers(); }

uint32_t EXPORT(proxy_on_done)(uint32_t id) { return context(id).on_done(); }
void EXPORT(proxy_on_log)(uint32_t id) { context(id).on_log(); }
void EXPORT(proxy_on_delete)(uint32_t id) { contexts().erase(id); }
}
