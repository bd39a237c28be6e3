--@ request POST /echo?whole body:hello
--@ request POST /echo?whole pieces:hel|lo|+world
--@ request POST /echo?whole pieces:hel|lo trailer:x-t=1
--@ request GET /bytes/70000
--@ request POST /echo?whole body:hello h2
--@ request GET /bytes/0
--@ same
local function tell(handle, body)
  if not body then
    handle:logInfo("no body")
    return
  end
  local length = body:length()
  handle:logInfo(length .. " " .. body:getBytes(0, math.min(5, length)) .. " "
    .. #body:getBytes(0, length) .. " " .. body:getBytes(length, 0))
  local done, problem = pcall(function() body:getBytes(1, length) end)
  handle:logInfo(tostring(done) .. " " .. tostring(problem):gsub("^.-%d: ", ""))
  -- A second time it is there at once.
  handle:logInfo(tostring(handle:body():length()))
end
function envoy_on_request(handle)
  tell(handle, handle:body())
end
function envoy_on_response(handle)
  tell(handle, handle:body())
end
