--@ request GET /bytes/5
--@ differs written at level `error`: modules have no higher one
function envoy_on_request(handle)
  handle:logCritical("critical")
end
