--@ request POST /echo?whole pieces:one|two|three
--@ request GET /bytes/500?chunked h2
--@ same
function envoy_on_request(handle)
  for chunk in handle:bodyChunks() do
    local length = chunk:length()
    chunk:setBytes(string.rep("x", length * 2))
  end
end
function envoy_on_response(handle)
  for chunk in handle:bodyChunks() do
    chunk:setBytes(chunk:getBytes(0, chunk:length()):upper())
  end
end
