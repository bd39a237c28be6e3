// What a client sends to be let in.

#pragma once

#include <optional>
#include <string>
#include <string_view>

/// The value of an `authorization` header, taken apart (RFC 7617). Clients may send any bytes.
struct Credentials {
  std::string name;
  std::string password;

  /// Nothing when the scheme is not Basic, or what follows it is not base64 of a name, a colon and a password.
  static std::optional<Credentials> parse(std::string_view value);
};

/// Whether two texts are equal, in a time that depends on the length of `given` alone: a comparison that stops
/// at the first difference tells a patient client how much of a secret it has guessed.
bool equal(std::string_view given, std::string_view secret);
