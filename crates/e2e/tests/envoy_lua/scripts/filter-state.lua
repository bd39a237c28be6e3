--@ request GET /bytes/5
--@ same
-- Envoy's functions return no value, rather than nil, where there is none.
local function show(value) return tostring(value) end
function envoy_on_request(handle)
  local state = handle:streamInfo():filterState()
  state:set("my.key", "envoy.string", "value")
  handle:logInfo(show(state:get("my.key")) .. show(state:get("none")))
end
function envoy_on_response(handle)
  handle:logInfo(show(handle:streamInfo():filterState():get("my.key")))
end
