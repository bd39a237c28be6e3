#include "credentials.h"

#include <cstdint>

#include "proxy_wasm/host.h"

namespace {

constexpr std::string_view alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Decodes base64 (RFC 4648, section 4), with its padding; nothing when it is anything else.
std::optional<std::string> decode(std::string_view encoded) {
  if (encoded.size() % 4 != 0) {
    return std::nullopt;
  }
  size_t padding = 0;
  while (padding < 2 && !encoded.empty() && encoded.back() == '=') {
    encoded.remove_suffix(1);
    padding++;
  }
  std::string decoded;
  decoded.reserve(encoded.size() / 4 * 3 + 2);
  uint32_t bits = 0;
  unsigned held = 0;
  for (char c : encoded) {
    auto digit = alphabet.find(c);
    if (digit == std::string_view::npos) {
      return std::nullopt;
    }
    bits = (bits << 6) | static_cast<uint32_t>(digit);
    held += 6;
    if (held >= 8) {
      held -= 8;
      decoded.push_back(static_cast<char>(bits >> held));
      bits &= (1U << held) - 1;
    }
  }
  // Bits that stand for nothing must be zero: one text has one encoding.
  if (bits != 0) {
    return std::nullopt;
  }
  return decoded;
}

std::string_view without_spaces(std::string_view text) {
  while (!text.empty() && text.front() == ' ') {
    text.remove_prefix(1);
  }
  while (!text.empty() && text.back() == ' ') {
    text.remove_suffix(1);
  }
  return text;
}

} // namespace

std::optional<Credentials> Credentials::parse(std::string_view value) {
  auto space = value.find(' ');
  if (space == std::string_view::npos || !proxy_wasm::equal_ignoring_case(value.substr(0, space), "basic")) {
    return std::nullopt;
  }
  auto decoded = decode(without_spaces(value.substr(space)));
  // Only the name cannot contain a colon.
  auto colon = decoded ? decoded->find(':') : std::string::npos;
  if (colon == std::string::npos) {
    return std::nullopt;
  }
  return Credentials{decoded->substr(0, colon), decoded->substr(colon + 1)};
}

bool equal(std::string_view given, std::string_view secret) {
  // Volatile: the compiler must not find out that a difference, once there, stays.
  volatile size_t difference = given.size() ^ secret.size();
  for (size_t i = 0; i < given.size(); i++) {
    difference = difference | static_cast<unsigned char>(given[i] ^ secret[i % secret.size()]);
  }
  return difference == 0;
}
