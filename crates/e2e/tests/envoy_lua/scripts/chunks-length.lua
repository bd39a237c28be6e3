--@ request GET /bytes/7
--@ request POST /echo?whole body:goodbye
--@ request POST /echo?whole pieces:good|bye
--@ differs a `content-length` that a script writes before it changes chunks is not sent, because nothing shows yet that it is right: the body goes in chunks
function envoy_on_request(handle)
  if handle:headers():get(":method") == "GET" then return end
  handle:headers():replace("content-length", 2)
  local last
  for chunk in handle:bodyChunks() do
    chunk:setBytes("")
    last = chunk
  end
  if last then last:setBytes("ok") end
end
function envoy_on_response(handle)
  handle:headers():replace("content-length", 2)
  local last
  for chunk in handle:bodyChunks() do
    chunk:setBytes("")
    last = chunk
  end
  last:setBytes("ok")
end
