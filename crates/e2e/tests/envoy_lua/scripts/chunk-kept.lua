--@ request POST /echo?whole pieces:one|two
--@ differs a chunk that was kept means the one that came last; Envoy raises an error. Keep its bytes, as a text
function envoy_on_request(handle)
  local first
  for chunk in handle:bodyChunks() do
    first = first or chunk
  end
  handle:logInfo(tostring((pcall(function() return first:length() end))))
end
