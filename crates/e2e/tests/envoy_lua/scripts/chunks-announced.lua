--@ request GET /bytes/5
--@ differs where the headers have announced a `content-length`, a chunk cannot be given another length: it raises an error that says so; Envoy's filter sends a body that is not as long as announced
function envoy_on_response(handle)
  for chunk in handle:bodyChunks() do
    chunk:setBytes("much longer than announced")
  end
end
