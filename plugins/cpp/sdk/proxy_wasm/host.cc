#include "proxy_wasm/host.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace proxy_wasm {
namespace {

/// No `grpc-status` of its own: the proxy derives one where the request is gRPC.
constexpr int32_t no_grpc_status = -1;

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

/// The number that begins at `offset`, or nothing when the bytes end before.
std::optional<uint32_t> number_at(std::string_view bytes, size_t offset) {
  uint32_t number;
  if (offset > bytes.size() || bytes.size() - offset < sizeof(number)) {
    return std::nullopt;
  }
  memcpy(&number, bytes.data() + offset, sizeof(number));
  return number;
}

/// The `size` bytes at `*offset`, which moves past them and the NUL behind them; nothing when the bytes end
/// before.
std::optional<std::string_view> text_at(std::string_view bytes, size_t *offset, uint32_t size) {
  if (*offset > bytes.size() || bytes.size() - *offset <= size) {
    return std::nullopt;
  }
  auto text = bytes.substr(*offset, size);
  *offset += size_t{size} + 1;
  return text;
}

/// Takes a header map apart: how many pairs, the lengths of each, then names and values, each with a NUL
/// behind it.
std::vector<Pair> pairs_of(std::string_view bytes) {
  std::vector<Pair> pairs;
  auto count = number_at(bytes, 0);
  if (!count || *count > bytes.size() / 8) {
    return pairs;
  }
  pairs.reserve(*count);
  size_t sizes = sizeof(uint32_t);
  size_t texts = sizes + *count * 2 * sizeof(uint32_t);
  for (uint32_t i = 0; i < *count; i++) {
    auto name_size = number_at(bytes, sizes);
    auto value_size = number_at(bytes, sizes + sizeof(uint32_t));
    sizes += 2 * sizeof(uint32_t);
    if (!name_size || !value_size) {
      return {};
    }
    auto name = text_at(bytes, &texts, *name_size);
    auto value = name ? text_at(bytes, &texts, *value_size) : std::nullopt;
    if (!value) {
      return {};
    }
    pairs.emplace_back(*name, *value);
  }
  return pairs;
}

void append_number(std::string &bytes, size_t number) {
  auto value = static_cast<uint32_t>(number);
  bytes.append(reinterpret_cast<const char *>(&value), sizeof(value));
}

/// The opposite of `pairs_of`.
std::string serialized(std::initializer_list<Pair> pairs) {
  std::string bytes;
  append_number(bytes, pairs.size());
  for (const auto &[name, value] : pairs) {
    append_number(bytes, name.size());
    append_number(bytes, value.size());
  }
  for (const auto &[name, value] : pairs) {
    bytes.append(name).push_back('\0');
    bytes.append(value).push_back('\0');
  }
  return bytes;
}

} // namespace

Bytes::Bytes(char *bytes, size_t size) : bytes_(bytes), size_(bytes == nullptr ? 0 : size) {}

Bytes::~Bytes() { free(bytes_); }

Bytes::Bytes(Bytes &&other) noexcept
    : bytes_(std::exchange(other.bytes_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Bytes &Bytes::operator=(Bytes &&other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(size_, other.size_);
  return *this;
}

Headers Headers::of(HeaderMap map) {
  char *bytes = nullptr;
  size_t size = 0;
  Headers headers;
  if (abi::proxy_get_header_map_pairs(map, &bytes, &size) == Status::ok) {
    headers.bytes_ = Bytes(bytes, size);
    headers.pairs_ = pairs_of(headers.bytes_.text());
  }
  return headers;
}

std::optional<std::string_view> Headers::single(std::string_view name) const {
  std::optional<std::string_view> found;
  for (const auto &[key, value] : pairs_) {
    if (!equal_ignoring_case(key, name)) {
      continue;
    }
    if (found) {
      return std::nullopt;
    }
    found = value;
  }
  return found;
}

void log(LogLevel level, std::string_view message) { abi::proxy_log(level, message.data(), message.size()); }

bool set_header(HeaderMap map, std::string_view name, std::string_view value) {
  return abi::proxy_replace_header_map_value(map, name.data(), name.size(), value.data(), value.size()) ==
         Status::ok;
}

bool remove_header(HeaderMap map, std::string_view name) {
  return abi::proxy_remove_header_map_value(map, name.data(), name.size()) == Status::ok;
}

bool reply(uint32_t status, std::initializer_list<Pair> headers, std::string_view body, std::string_view details) {
  auto pairs = serialized(headers);
  return abi::proxy_send_local_response(status, details.data(), details.size(), body.data(), body.size(),
                                        pairs.data(), pairs.size(), no_grpc_status) == Status::ok;
}

bool equal_ignoring_case(std::string_view left, std::string_view right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [](char a, char b) { return lower(a) == lower(b); });
}

} // namespace proxy_wasm
