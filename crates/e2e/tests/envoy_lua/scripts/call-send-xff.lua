--@ request GET /bytes/5
--@ calls 1
--@ differs `send_xff = false` has no effect: `x-forwarded-for` is sent; `trace_sampled` is taken, and the span follows its parent
function envoy_on_request(handle)
  handle:httpCall("lua_cluster", { [":method"] = "GET", [":path"] = "/", [":authority"] = "a" }, nil,
    { timeout_ms = 5000, send_xff = false })
end
