--@ request GET /bytes/5
--@ same
-- Envoy's functions return no value, rather than nil, where there is none.
local function show(value) return tostring(value) end
function envoy_on_request(handle)
  handle:logInfo(handle:base64Escape("a\0b\255") .. handle:base64Escape("") .. handle:base64Escape(12))
  handle:logInfo(show(handle:base64Decode("YWI=")) .. show(handle:base64Decode("YWI"))
    .. show(handle:base64Decode("!!")) .. show(handle:base64Decode("")))
end
