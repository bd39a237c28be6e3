// What a plugin may ask of the proxy, in C++'s terms.

#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proxy_wasm/abi.h"

namespace proxy_wasm {

/// A header, or anything else of a name and a value.
using Pair = std::pair<std::string_view, std::string_view>;

/// Bytes that the host handed over; they go when this goes.
class Bytes {
public:
  Bytes() = default;
  /// Takes what a host function wrote: memory from the guest's own allocator, or nothing.
  Bytes(char *bytes, size_t size);
  ~Bytes();
  Bytes(Bytes &&other) noexcept;
  Bytes &operator=(Bytes &&other) noexcept;
  Bytes(const Bytes &) = delete;
  Bytes &operator=(const Bytes &) = delete;

  std::string_view text() const { return {bytes_, size_}; }

private:
  char *bytes_ = nullptr;
  size_t size_ = 0;
};

/// Headers as they were when they were asked for.
class Headers {
public:
  /// All headers of the current stream's message; none where there is no such message.
  static Headers of(HeaderMap map);

  /// The value of a header, or nothing when it is missing, or there are several. Case does not matter.
  std::optional<std::string_view> single(std::string_view name) const;

  const std::vector<Pair> &pairs() const { return pairs_; }

private:
  Bytes bytes_;
  std::vector<Pair> pairs_;
};

/// Writes a line of log.
void log(LogLevel level, std::string_view message);

/// Sets a header of the current stream, in place of what it had.
bool set_header(HeaderMap map, std::string_view name, std::string_view value);

/// Removes a header of the current stream, with all its values.
bool remove_header(HeaderMap map, std::string_view name);

/// Ends the current stream with this status, these headers and this body, instead of asking the upstream.
/// `details` is what access logs show as response-code detail; without spaces. Returns whether the proxy took
/// it: it does not where the response is already on its way.
bool reply(uint32_t status, std::initializer_list<Pair> headers, std::string_view body, std::string_view details);

/// Whether two texts are equal but for the case of ASCII letters.
bool equal_ignoring_case(std::string_view left, std::string_view right);

} // namespace proxy_wasm
