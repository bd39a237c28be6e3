--@ request POST /echo?whole pieces:one|two
--@ same
local function attempt(handle, run)
  local _, problem = pcall(run)
  handle:logInfo((tostring(problem):gsub("^.-%d: ", "")))
end
function envoy_on_request(handle)
  for chunk in handle:bodyChunks() do end
  attempt(handle, function() handle:headers():add("a", "b") end)
  attempt(handle, function() handle:headers():replace("a", "b") end)
  attempt(handle, function() handle:headers():remove("a") end)
  attempt(handle, function() handle:respond({ [":status"] = "200" }) end)
  attempt(handle, function() handle:body() end)
  handle:logInfo(tostring(handle:headers():get(":path")))
end
