#include "config.h"

#include <algorithm>

#include "json.h"
#include "proxy_wasm/host.h"

namespace {

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

/// What RFC 9110 allows in a header's name.
bool is_header_name(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("!#$%&'*+.^_`|~-").find(c) != std::string_view::npos;
  });
}

/// Reads members one after another; the first thing that is wrong stays.
class Reading {
public:
  explicit Reading(std::string &wrong) : wrong_(wrong) {}

  bool refuse(std::string reason) {
    if (wrong_.empty()) {
      wrong_ = std::move(reason);
    }
    return false;
  }

  bool text(std::string_view key, const json::Value &value, std::string &into) {
    const auto *text = value.as<std::string>();
    if (text == nullptr) {
      return refuse("`" + std::string(key) + "`: text is expected");
    }
    into = *text;
    return true;
  }

  bool header(std::string_view key, const json::Value &value, std::string &into) {
    if (!text(key, value, into)) {
      return false;
    }
    if (!is_header_name(into)) {
      return refuse("`" + std::string(key) + "`: `" + into + "` cannot be a header's name");
    }
    return true;
  }

  bool users(const json::Value &value, Config &config) {
    const auto *members = value.as<json::Object>();
    if (members == nullptr || members->empty()) {
      return refuse("`users`: passwords by user name are expected, at least one");
    }
    for (const auto &[name, password] : *members) {
      auto forbidden = [](char c) { return c == ':' || is_control(c); };
      if (name.empty() || std::any_of(name.begin(), name.end(), forbidden)) {
        return refuse("users: `" + name + "` cannot be a name; one has no colon and no control characters");
      }
      if (!text("users." + name, password, config.users[name])) {
        return false;
      }
      if (config.users[name].empty()) {
        return refuse("users." + name + ": the password is empty");
      }
    }
    return true;
  }

  bool token(const json::Value &value, Config &config) {
    const auto *members = value.as<json::Object>();
    if (members == nullptr) {
      return refuse("`token`: an object is expected");
    }
    auto &token = config.token.emplace();
    for (const auto &[name, item] : *members) {
      if (item.is_null()) {
        continue;
      }
      bool right = name == "header"  ? header("token.header", item, token.header)
                   : name == "value" ? text("token.value", item, token.value)
                                     : refuse("`token." + name + "` is unknown; there are `header` and `value`");
      if (!right) {
        return false;
      }
    }
    return !token.value.empty() || refuse("`token.value` is missing or empty");
  }

private:
  std::string &wrong_;
};

std::string challenge_of(std::string_view realm) {
  std::string challenge = "Basic realm=\"";
  for (char c : realm) {
    if (c == '"' || c == '\\') {
      challenge.push_back('\\');
    }
    challenge.push_back(c);
  }
  return challenge + "\", charset=\"UTF-8\"";
}

} // namespace

std::optional<Config> Config::read(std::string_view text, std::string &wrong) {
  auto document = json::parse(text.empty() ? "{}" : text, wrong);
  if (!document) {
    wrong = "configuration: " + wrong;
    return std::nullopt;
  }
  Reading reading(wrong);
  const auto *members = document->as<json::Object>();
  if (members == nullptr) {
    reading.refuse("configuration: an object is expected");
    return std::nullopt;
  }

  Config config;
  std::optional<std::string> realm;
  for (const auto &[name, value] : *members) {
    if (value.is_null()) {
      continue;
    }
    bool right = true;
    if (name == "users") {
      right = reading.users(value, config);
    } else if (name == "token") {
      right = reading.token(value, config);
    } else if (name == "realm") {
      right = reading.text(name, value, realm.emplace());
    } else if (name == "user_header") {
      right = reading.header(name, value, config.user_header);
    } else if (const auto *hide = value.as<bool>(); name == "hide_credentials" && hide != nullptr) {
      config.hide_credentials = *hide;
    } else if (name == "hide_credentials") {
      right = reading.refuse("`hide_credentials`: true or false is expected");
    } else {
      right = reading.refuse("configuration: `" + name + "` is unknown; there are `users`, `realm`, `user_header`, "
                             "`token` and `hide_credentials`");
    }
    if (!right) {
      return std::nullopt;
    }
  }

  if (config.users.empty() == !config.token) {
    reading.refuse("exactly one of `users` and `token` must be there");
  } else if (config.token && realm) {
    reading.refuse("`realm` has no meaning with `token`; remove it, or use `users`");
  } else if (config.token && !config.user_header.empty()) {
    reading.refuse("`user_header` has no meaning with `token`; remove it, or use `users`");
  } else if (proxy_wasm::equal_ignoring_case(config.user_header, "authorization")) {
    reading.refuse("`user_header` cannot be `authorization`; choose a header of its own, for example x-user");
  } else if (realm && std::any_of(realm->begin(), realm->end(), is_control)) {
    reading.refuse("`realm` cannot contain control characters");
  } else {
    config.challenge = challenge_of(realm ? *realm : "restricted");
    return config;
  }
  return std::nullopt;
}
