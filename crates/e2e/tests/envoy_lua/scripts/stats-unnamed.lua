--@ request GET /bytes/5
--@ differs names are found in the script's text, as metrics are defined while a plugin loads: one that is put together while it runs raises an error. The statistics are those of a plugin's metrics, without Envoy's prefix and the histogram's unit
function envoy_on_request(handle)
  local counter = handle:stats():counter("se" .. "en")
  counter:inc()
  handle:logInfo(tostring(counter:value()))
end
