--@ request GET /bytes/5
--@ same
function envoy_on_request(handle)
  local now, text = handle:timestamp(), handle:timestampString()
  local micros = handle:timestampString(EnvoyTimestampResolution.MICROSECOND)
  handle:logInfo(type(now) .. #text .. #micros .. tostring(math.abs(tonumber(text) - now) < 1000)
    .. tostring(math.abs(tonumber(micros) / 1000 - now) < 1000))
  handle:logInfo(tostring(math.abs(handle:timestamp(EnvoyTimestampResolution.MILLISECOND) - now) < 1000))
  for _, unit in pairs({ "x", 7 }) do
    local _, problem = pcall(handle.timestampString, handle, unit)
    handle:logInfo((tostring(problem):gsub("^.-%d: ", "")))
  end
  local _, problem = pcall(handle.timestamp, handle, EnvoyTimestampResolution.MICROSECOND)
  handle:logInfo((tostring(problem):gsub("^.-%d: ", "")))
end
