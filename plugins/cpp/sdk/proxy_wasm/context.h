// What a plugin is made of: a root context for each of its configurations, a stream context for each request.
//
// The host calls context.cc, which keeps the contexts by their numbers and calls them. A plugin derives from
// both classes and defines `make_root`.

#pragma once

#include <memory>
#include <string_view>

#include "proxy_wasm/abi.h"

namespace proxy_wasm {

/// One request with its response. It goes when the stream has gone.
class StreamContext {
public:
  virtual ~StreamContext() = default;

  /// The request's headers are complete.
  virtual HeadersStatus on_request_headers() { return HeadersStatus::proceed; }
};

/// One configuration of the plugin. The streams that it creates go before it does.
class RootContext {
public:
  virtual ~RootContext() = default;

  /// Takes the configuration; false refuses it, after a line of log that says why.
  virtual bool on_configure(std::string_view configuration) = 0;

  /// A request begins.
  virtual std::unique_ptr<StreamContext> create_stream() = 0;
};

/// The plugin: defined by whoever derives from the classes above.
std::unique_ptr<RootContext> make_root();

} // namespace proxy_wasm
