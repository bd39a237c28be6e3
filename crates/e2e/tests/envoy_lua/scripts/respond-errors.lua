--@ request GET /bytes/5
--@ same
local function attempt(handle, ...)
  local _, problem = pcall(handle.respond, handle, ...)
  problem = tostring(problem):gsub("^.-%d: ", ""):gsub("bad argument #%d to '.-' ", "")
  handle:logInfo(problem)
end
function envoy_on_request(handle)
  attempt(handle, "text")
  attempt(handle, {}, "none")
  attempt(handle, { [":status"] = "100" }, "")
  attempt(handle, { [":status"] = "600" }, "")
  attempt(handle, { [":status"] = "200", a = true }, "")
end
function envoy_on_response(handle)
  attempt(handle, { [":status"] = "200" }, "")
end
