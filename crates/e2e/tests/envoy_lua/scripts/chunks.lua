--@ request POST /echo?whole pieces:one|two|three
--@ request POST /echo?whole pieces:one|two trailer:x-t=1
--@ request POST /echo?whole body:whole
--@ request GET /bytes/70000
--@ request GET /bytes/0
--@ request POST /echo?whole pieces:one|two|three h2
--@ same
-- Where chunks are cut is no filter's to say: what they add up to is told.
local function follow(handle)
  local text, count = "", 0
  for chunk in handle:bodyChunks() do
    count = count + 1
    text = text .. chunk:getBytes(0, chunk:length())
  end
  handle:logInfo(#text .. " " .. text:sub(1, 12) .. " " .. tostring(count > 0))
end
function envoy_on_request(handle)
  handle:headers():add("x-before", "1")
  follow(handle)
end
function envoy_on_response(handle)
  handle:headers():add("x-before", "1")
  follow(handle)
end
