--@ request GET /bytes/5
--@ differs the metamethods `__len` of tables and `__ipairs` have no effect; `require` finds no `ffi`, `jit` and `string.buffer`; there is no `module`
function envoy_on_request(handle)
  local list = setmetatable({ 1 }, { __len = function() return 7 end })
  handle:logInfo(#list .. tostring(pcall(require, "string.buffer")) .. type(module))
end
