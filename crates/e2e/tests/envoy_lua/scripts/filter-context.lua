--@ request GET /bytes/5
--@ same
-- Envoy's functions return no value, rather than nil, where there is none.
local function show(value) return tostring(value) end
function envoy_on_request(handle)
  local context = handle:filterContext()
  handle:logInfo(context:get("key") .. show(context:get("none")) .. context:get("nested").list[2])
  local names = {}
  for name in pairs(context) do
    names[#names + 1] = name
  end
  table.sort(names)
  handle:logInfo(table.concat(names, ","))
end
