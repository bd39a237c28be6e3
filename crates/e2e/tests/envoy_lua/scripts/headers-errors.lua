--@ request GET /bytes/5
--@ same
local function attempt(handle, run)
  local done, problem = pcall(run)
  -- Envoy's texts of wrong arguments name no function; what was expected is the same.
  problem = tostring(problem):gsub("^.-%d: ", ""):gsub("bad argument #%d to '.-' ", "")
  handle:logInfo(tostring(done) .. " " .. problem)
end
function envoy_on_request(handle)
  attempt(handle, function() handle:headers():add("a", true) end)
  attempt(handle, function() handle:headers():replace("a", {}) end)
  attempt(handle, function() handle:headers():remove({}) end)
  attempt(handle, function() handle:logInfo({}) end)
  attempt(handle, function() handle:headers().none() end)
end
