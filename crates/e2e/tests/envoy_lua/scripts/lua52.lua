--@ request GET /bytes/5
--@ same
-- What LuaJIT has beyond Lua 5.1.
function envoy_on_request(handle)
  local packed = table.pack("a", nil, "c")
  handle:logInfo(packed.n .. packed[3] .. select("#", table.unpack(packed, 1, packed.n)) .. table.getn({ 1, 2 }))
  handle:logInfo(table.concat(table.move({ 1, 2, 3 }, 1, 3, 2), ","))
  handle:logInfo(tostring(require("bit") == bit) .. tostring(require("string") == string)
    .. tostring(require("table") == table) .. require("bit").band(6, 3))
  local list = require("table.new")(8, 0)
  list[1] = "x"
  require("table.clear")(list)
  handle:logInfo(tostring(next(list)))
  handle:logInfo(tostring(load("return 1", "x", "b")) .. load("return 1", "x", "t")())
  for _, value in pairs(setmetatable({}, { __pairs = function() return next, { "own" }, nil end })) do
    handle:logInfo(value)
  end
  handle:logInfo(tostring(rawlen({ 1, 2 })))
end
