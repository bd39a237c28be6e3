--@ request GET /bytes/5
--@ same
-- Envoy's functions return no value, rather than nil, where there is none.
local function show(value) return tostring(value) end
function envoy_on_request(handle)
  local info = handle:connectionStreamInfo()
  handle:logInfo(show(info:dynamicMetadata():get("none")) .. show(info:dynamicTypedMetadata("none")))
  for name in pairs(info:dynamicMetadata()) do
    handle:logInfo(name)
  end
end
