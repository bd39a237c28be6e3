// The configuration, checked and prepared.
//
// config.schema.json says the same to those who have a schema's reader; this holds where nobody has looked at
// the schema.

#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

/// A secret that all who may pass share.
struct Token {
  std::string header = "x-token";
  std::string value;
};

/// Who may pass. One without users and without a token lets nobody pass.
struct Config {
  /// Passwords by name.
  std::map<std::string, std::string, std::less<>> users;
  /// Value of `www-authenticate`.
  std::string challenge;
  /// The request header that tells the upstream the user's name; empty for none.
  std::string user_header;
  /// Instead of users.
  std::optional<Token> token;
  /// Whether the upstream sees neither password nor token.
  bool hide_credentials = false;

  /// Reads the configuration; `wrong` is for whoever wrote it.
  static std::optional<Config> read(std::string_view text, std::string &wrong);
};
