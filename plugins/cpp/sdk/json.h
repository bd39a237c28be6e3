// A reader of JSON (RFC 8259), for configurations. It neither throws nor ends the VM.

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace json {

struct Value;

/// Members in the order in which they are written; a name that comes twice is there twice.
using Object = std::vector<std::pair<std::string, Value>>;
using Array = std::vector<Value>;

/// A value; `std::monostate` is `null`.
struct Value {
  std::variant<std::monostate, bool, double, std::string, Array, Object> content;

  bool is_null() const { return std::holds_alternative<std::monostate>(content); }
  /// The value as what is asked for, or null when it is something else.
  template <typename Content> const Content *as() const { return std::get_if<Content>(&content); }
};

/// Reads the one value that `text` is. What is wrong goes to `wrong`.
std::optional<Value> parse(std::string_view text, std::string &wrong);

} // namespace json
