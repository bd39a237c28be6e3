--@ request GET /bytes/5
--@ same
function envoy_on_request(handle)
  coroutine.yield()
end
