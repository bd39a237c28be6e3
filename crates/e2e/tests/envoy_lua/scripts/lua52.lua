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
  local function own() return next, { "own" }, nil end
  local with_metamethods = setmetatable({ 1 }, { __pairs = own, __ipairs = own, __len = function() return 7 end })
  for _, value in pairs(with_metamethods) do
    handle:logInfo(value)
  end
  for _, value in ipairs(with_metamethods) do
    handle:logInfo(value)
  end
  handle:logInfo(#with_metamethods .. rawlen(with_metamethods) .. table.concat(with_metamethods))
  handle:logInfo(tostring(("abc"):find("", 10)) .. tostring(("abc"):find("", 4)))
end
