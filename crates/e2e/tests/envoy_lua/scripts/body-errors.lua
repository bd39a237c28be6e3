--@ request POST /echo?whole pieces:one|two
--@ request GET /bytes/5
--@ same
local function attempt(handle, run)
  local _, problem = pcall(run)
  problem = tostring(problem):gsub("^.-%d: ", ""):gsub("bad argument #%d to '.-' ", "")
  handle:logInfo(problem)
end
function envoy_on_request(handle)
  attempt(handle, function() handle:body(1) end)
  handle:body()
  attempt(handle, function() handle:body():getBytes(0, 100) end)
  attempt(handle, function() handle:body():getBytes(-1, 1) end)
end
function envoy_on_response(handle)
  attempt(handle, function() handle:body():getBytes("x", 1) end)
end
