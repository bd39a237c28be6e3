--@ request GET /bytes/5
--@ same
-- Envoy's functions return no value, rather than nil, where there is none.
local function show(value) return tostring(value) end
function envoy_on_request(handle)
  local metadata = handle:metadata()
  handle:logInfo(show(metadata:get("text")) .. show(metadata:get("number"))
    .. show(metadata:get("truth")) .. show(metadata:get("none")))
  handle:logInfo(table.concat(metadata:get("list"), ","))
  handle:logInfo(show(handle:route():metadata():get("text")))
  local names = {}
  for name, value in pairs(metadata) do
    names[#names + 1] = name
  end
  table.sort(names)
  handle:logInfo(table.concat(names, ","))
end
