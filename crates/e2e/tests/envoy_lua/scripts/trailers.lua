--@ request POST /echo?whole pieces:one|two trailer:x-t=1 trailer:x-u=2 header:te=trailers
--@ request POST /echo?whole pieces:one|two
--@ request GET /trailers header:te=trailers
--@ request POST /echo?whole pieces:one|two trailer:x-t=1 header:te=trailers h2
--@ same
local function follow(handle)
  for _ in handle:bodyChunks() do end
  local trailers = handle:trailers()
  if not trailers then
    handle:logInfo("no trailers")
    return
  end
  for name, value in pairs(trailers) do
    handle:logInfo(name .. "=" .. value)
  end
  trailers:add("x-new", "added")
  trailers:replace("x-t", "other")
  trailers:remove("x-u")
end
function envoy_on_request(handle)
  follow(handle)
end
function envoy_on_response(handle)
  follow(handle)
end
