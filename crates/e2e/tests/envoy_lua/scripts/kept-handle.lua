--@ request GET /bytes/5
--@ request GET /bytes/6
--@ differs a handle that was kept means the stream that is being served; Envoy raises an error
function envoy_on_request(handle)
  kept = kept or handle
  handle:logInfo(tostring(pcall(function() return kept:headers():get(":path") end)))
end
