--@ request GET /bytes/5
--@ calls 2
--@ same
local request = { [":method"] = "GET", [":path"] = "/", [":authority"] = "a" }
function envoy_on_request(handle)
  local headers = handle:httpCall("lua_cluster", request, nil,
    { timeout_ms = 5000, return_duplicate_headers = true, asynchronous = false })
  handle:logInfo(table.concat(headers.key, ",") .. headers.foo)
  headers = handle:httpCall("lua_cluster", request, nil, { timeout_ms = 5000, trace_sampled = false })
  handle:logInfo(headers.key)
  local _, problem = pcall(handle.httpCall, handle, "lua_cluster", request, nil, { timeout = 5 })
  handle:logInfo((tostring(problem):gsub("^.-%d: ", "")))
end
