--@ request GET /bytes/5
--@ differs `require` finds no `ffi`, `jit` and `string.buffer`; there is no `module`
function envoy_on_request(handle)
  handle:logInfo(tostring(pcall(require, "string.buffer")) .. type(module))
end
