--@ request GET /bytes/5
--@ same
-- Envoy's functions return no value, rather than nil, where there is none.
local function show(value) return tostring(value) end
function envoy_on_request(handle)
  local metadata = handle:streamInfo():dynamicMetadata()
  metadata:set("mine", "text", "a")
  metadata:set("mine", "number", 1.5)
  metadata:set("mine", "truth", false)
  metadata:set("mine", "list", { 1, 2, 3 })
  metadata:set("mine", "tree", { a = { b = { "c", { d = true } } } })
  metadata:set("mine", "gone", "x")
  metadata:set("mine", "gone", nil)
  metadata:set("other", "key", "value")
  local found = metadata:get("mine")
  handle:logInfo(found.text .. found.number .. tostring(found.truth) .. #found.list .. tostring(found.gone)
    .. show(metadata:get("none")))
end
function envoy_on_response(handle)
  local metadata = handle:streamInfo():dynamicMetadata()
  local found = metadata:get("mine")
  handle:logInfo(found.tree.a.b[1] .. tostring(found.tree.a.b[2].d) .. found.list[3])
  local names = {}
  for name, members in pairs(metadata) do
    names[#names + 1] = name .. type(members)
  end
  table.sort(names)
  handle:logInfo(table.concat(names, ","))
  local _, problem = pcall(function() metadata:set("mine", "f", print) end)
  handle:logInfo((tostring(problem):gsub("^.-%d: ", "")))
end
