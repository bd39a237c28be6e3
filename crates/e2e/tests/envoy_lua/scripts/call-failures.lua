--@ request GET /bytes/5
--@ same
local function attempt(handle, ...)
  local _, problem = pcall(handle.httpCall, handle, ...)
  handle:logInfo((tostring(problem):gsub("^.-%d: ", "")))
end
function envoy_on_request(handle)
  local whole = { [":method"] = "GET", [":path"] = "/", [":authority"] = "a" }
  attempt(handle, "none", whole, nil, 100)
  attempt(handle, "lua_cluster", { [":method"] = "GET" }, nil, 100)
  attempt(handle, "lua_cluster", whole, nil, -1)
  attempt(handle, "lua_cluster", whole, nil, 100, "yes")
  local headers, body = handle:httpCall("nobody", whole, nil, 5000)
  handle:logInfo(headers[":status"] .. tostring(body ~= nil))
end
