--@ request GET /bytes/5
--@ differs a field of an object that is there cannot be read, which raises an error; an object whose factory is not `envoy.string` has to bear its factory's name
function envoy_on_request(handle)
  local state = handle:streamInfo():filterState()
  state:set("my.key", "envoy.string", "value")
  local _, field = pcall(function() return state:get("my.key", "field") end)
  handle:logInfo(tostring(field))
end
