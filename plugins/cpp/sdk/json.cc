#include "json.h"

#include <cstdint>
#include <cstdlib>

namespace json {
namespace {

/// How deep arrays and objects may be in one another: each takes from the guest's stack.
constexpr int deepest = 32;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// The value of a hexadecimal digit, -1 for none.
int hexadecimal(char c) {
  if (is_digit(c)) {
    return c - '0';
  }
  char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

void append_utf8(std::string &text, uint32_t code) {
  if (code < 0x80) {
    text.push_back(static_cast<char>(code));
    return;
  }
  int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  constexpr unsigned char leads[] = {0, 0xc0, 0xe0, 0xf0};
  text.push_back(static_cast<char>(leads[more] | (code >> (6 * more))));
  while (more-- > 0) {
    text.push_back(static_cast<char>(0x80 | ((code >> (6 * more)) & 0x3f)));
  }
}

class Reader {
public:
  Reader(std::string_view text, std::string &wrong) : text_(text), wrong_(wrong) {}

  std::optional<Value> document() {
    auto value = this->value(0);
    space();
    if (value && !at_end()) {
      return fail("there is something after its end");
    }
    return value;
  }

private:
  std::nullopt_t fail(std::string_view reason) {
    if (wrong_.empty()) {
      wrong_ = std::string(reason) + ", at byte " + std::to_string(position_ + 1);
    }
    return std::nullopt;
  }

  bool at_end() const { return position_ >= text_.size(); }

  /// What comes next, NUL at the end.
  char peek() const { return at_end() ? '\0' : text_[position_]; }

  /// Passes over `expected`, if it comes next.
  bool take(std::string_view expected) {
    if (text_.substr(position_, expected.size()) != expected) {
      return false;
    }
    position_ += expected.size();
    return true;
  }

  void space() {
    while (!at_end() && std::string_view(" \t\n\r").find(peek()) != std::string_view::npos) {
      position_++;
    }
  }

  std::optional<Value> value(int depth) {
    space();
    if (depth > deepest) {
      return fail("it is nested too deep");
    }
    switch (peek()) {
    case '{':
      return object(depth);
    case '[':
      return array(depth);
    case '"':
      if (auto text = string()) {
        return Value{std::move(*text)};
      }
      return std::nullopt;
    default:
      break;
    }
    if (peek() == '-' || is_digit(peek())) {
      return number();
    }
    if (take("null")) {
      return Value{};
    }
    if (take("true")) {
      return Value{true};
    }
    if (take("false")) {
      return Value{false};
    }
    return fail(at_end() ? "it ends too early" : "a value is expected");
  }

  std::optional<Value> object(int depth) {
    Object members;
    position_++;
    space();
    if (take("}")) {
      return Value{std::move(members)};
    }
    while (true) {
      space();
      if (peek() != '"') {
        return fail("a name in quotes is expected");
      }
      auto name = string();
      if (!name) {
        return std::nullopt;
      }
      space();
      if (!take(":")) {
        return fail("a colon is expected");
      }
      auto item = value(depth + 1);
      if (!item) {
        return std::nullopt;
      }
      members.emplace_back(std::move(*name), std::move(*item));
      space();
      if (take("}")) {
        return Value{std::move(members)};
      }
      if (!take(",")) {
        return fail("a comma or `}` is expected");
      }
    }
  }

  std::optional<Value> array(int depth) {
    Array items;
    position_++;
    space();
    if (take("]")) {
      return Value{std::move(items)};
    }
    while (true) {
      auto item = value(depth + 1);
      if (!item) {
        return std::nullopt;
      }
      items.push_back(std::move(*item));
      space();
      if (take("]")) {
        return Value{std::move(items)};
      }
      if (!take(",")) {
        return fail("a comma or `]` is expected");
      }
    }
  }

  std::optional<std::string> string() {
    std::string text;
    position_++;
    while (!at_end()) {
      char c = text_[position_];
      if (c == '"') {
        position_++;
        return text;
      }
      if (static_cast<unsigned char>(c) < 0x20) {
        return fail("a control character in a text must be escaped");
      }
      position_++;
      if (c != '\\') {
        text.push_back(c);
      } else if (!escape(text)) {
        return fail("this escape is unknown");
      }
    }
    return fail("a text is not closed");
  }

  /// Appends what an escape stands for, past its backslash.
  bool escape(std::string &text) {
    char c = peek();
    position_++;
    constexpr std::string_view written = "\"\\/bfnrt";
    constexpr std::string_view meant = "\"\\/\b\f\n\r\t";
    if (auto place = written.find(c); c != '\0' && place != std::string_view::npos) {
      text.push_back(meant[place]);
      return true;
    }
    if (c != 'u') {
      return false;
    }
    auto unit = code_unit();
    if (!unit) {
      return false;
    }
    uint32_t code = *unit;
    if (code >= 0xd800 && code < 0xdc00) {
      // The first half of a pair.
      auto second = take("\\u") ? code_unit() : std::nullopt;
      if (!second || *second < 0xdc00 || *second > 0xdfff) {
        return false;
      }
      code = 0x10000 + ((code - 0xd800) << 10) + (*second - 0xdc00);
    } else if (code >= 0xdc00 && code <= 0xdfff) {
      return false;
    }
    append_utf8(text, code);
    return true;
  }

  std::optional<uint32_t> code_unit() {
    uint32_t unit = 0;
    for (int i = 0; i < 4; i++) {
      int digit = hexadecimal(peek());
      if (digit < 0) {
        return std::nullopt;
      }
      unit = unit * 16 + static_cast<uint32_t>(digit);
      position_++;
    }
    return unit;
  }

  std::optional<Value> number() {
    size_t start = position_;
    take("-");
    if (!take("0") && !digits()) {
      return fail("a digit is expected");
    }
    if (take(".") && !digits()) {
      return fail("a digit is expected");
    }
    if (take("e") || take("E")) {
      if (!take("+")) {
        take("-");
      }
      if (!digits()) {
        return fail("a digit is expected");
      }
    }
    return Value{strtod(std::string(text_.substr(start, position_ - start)).c_str(), nullptr)};
  }

  /// Passes over digits; whether there were any.
  bool digits() {
    size_t start = position_;
    while (is_digit(peek())) {
      position_++;
    }
    return position_ > start;
  }

  std::string_view text_;
  std::string &wrong_;
  size_t position_ = 0;
};

} // namespace

std::optional<Value> parse(std::string_view text, std::string &wrong) { return Reader(text, wrong).document(); }

} // namespace json
