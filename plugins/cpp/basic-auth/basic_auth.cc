// Authentication by password (RFC 7617) or by a shared token.
//
// Who sends no valid password gets 401 and may try again; who sends no valid token gets 403.

#include "config.h"
#include "credentials.h"
#include "proxy_wasm/context.h"
#include "proxy_wasm/host.h"

using proxy_wasm::HeaderMap;
using proxy_wasm::Headers;
using proxy_wasm::HeadersStatus;

namespace {

/// One request.
class Request : public proxy_wasm::StreamContext {
public:
  explicit Request(std::shared_ptr<const Config> config) : config_(std::move(config)) {}

  HeadersStatus on_request_headers() override {
    bool passes = config_->token ? check_token(*config_->token) : check_password();
    return passes ? HeadersStatus::proceed : HeadersStatus::wait;
  }

private:
  /// Whether the request carries a known user's password; it has its answer when not.
  bool check_password() {
    // Two credentials in one request mean that somebody hopes the two of us read different ones.
    auto headers = Headers::of(HeaderMap::request_headers);
    if (!config_->user_header.empty()) {
      proxy_wasm::remove_header(HeaderMap::request_headers, config_->user_header);
    }
    auto value = headers.single("authorization");
    if (!value) {
      return challenge("outrider.basic-auth.no_credentials");
    }
    auto credentials = Credentials::parse(*value);
    if (!credentials) {
      return challenge("outrider.basic-auth.malformed_credentials");
    }

    // A name that is not known is compared too, so that time does not tell which names are.
    auto known = config_->users.find(credentials->name);
    bool is_known = known != config_->users.end();
    std::string_view expected = is_known ? std::string_view(known->second) : std::string_view("\0", 1);
    if (!equal(credentials->password, expected) || !is_known) {
      return challenge("outrider.basic-auth.wrong_credentials");
    }

    if (!config_->user_header.empty()) {
      proxy_wasm::set_header(HeaderMap::request_headers, config_->user_header, credentials->name);
    }
    hide("authorization");
    return true;
  }

  /// Whether the request carries the token; it has its answer when not.
  bool check_token(const Token &token) {
    auto headers = Headers::of(HeaderMap::request_headers);
    auto given = headers.single(token.header);
    if (!given || !equal(*given, token.value)) {
      proxy_wasm::reply(403, {{"content-type", "text/plain"}}, "forbidden\n", "outrider.basic-auth.wrong_token");
      return false;
    }
    hide(token.header);
    return true;
  }

  /// Asks for a password; `details` says why in access logs.
  bool challenge(std::string_view details) {
    proxy_wasm::reply(401, {{"content-type", "text/plain"}, {"www-authenticate", config_->challenge}},
                      "unauthorized\n", details);
    return false;
  }

  /// Keeps credentials from the upstream, where that is asked for.
  void hide(std::string_view header) {
    if (config_->hide_credentials) {
      proxy_wasm::remove_header(HeaderMap::request_headers, header);
    }
  }

  std::shared_ptr<const Config> config_;
};

/// One configuration of the plugin.
class BasicAuth : public proxy_wasm::RootContext {
public:
  bool on_configure(std::string_view configuration) override {
    std::string wrong;
    auto config = Config::read(configuration, wrong);
    if (!config) {
      proxy_wasm::log(proxy_wasm::LogLevel::error, wrong);
      return false;
    }
    config_ = std::make_shared<const Config>(std::move(*config));
    return true;
  }

  std::unique_ptr<proxy_wasm::StreamContext> create_stream() override { return std::make_unique<Request>(config_); }

private:
  std::shared_ptr<const Config> config_ = std::make_shared<const Config>();
};

} // namespace

std::unique_ptr<proxy_wasm::RootContext> proxy_wasm::make_root() { return std::make_unique<BasicAuth>(); }
