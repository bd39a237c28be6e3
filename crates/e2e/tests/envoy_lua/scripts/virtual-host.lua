--@ request GET /bytes/5
--@ differs its metadata is always empty, with a warning in the log: Envoy does not show it to modules
-- Envoy's functions return no value, rather than nil, where there is none.
local function show(value) return tostring(value) end
function envoy_on_request(handle)
  handle:logInfo(show(handle:virtualHost():metadata():get("text")))
end
