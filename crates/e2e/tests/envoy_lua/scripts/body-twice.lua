--@ request POST /echo?whole pieces:one|two
--@ request GET /bytes/5
--@ same
local function attempt(handle, run)
  local _, problem = pcall(run)
  handle:logInfo((tostring(problem):gsub("^.-%d: ", "")))
end
function envoy_on_request(handle)
  local body = handle:body()
  handle:logInfo(tostring(body and body:length()))
  attempt(handle, function() handle:bodyChunks() end)
end
function envoy_on_response(handle)
  local iterator = handle:bodyChunks()
  iterator()
  attempt(handle, function() handle:bodyChunks() end)
  attempt(handle, function() handle:body() end)
end
