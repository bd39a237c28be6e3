--@ request GET /bytes/5
--@ request GET /bytes/5
--@ same
count = 0
function envoy_on_request(handle)
  count = count + 1
  local parts = {}
  for word in ("a,b,c"):gmatch("[^,]+") do
    table.insert(parts, word:upper())
  end
  handle:logInfo(count .. table.concat(parts, "-") .. string.format("%05.1f", 2.5) .. bit.band(6, 3)
    .. tostring(os.time() > 1.7e9) .. type(os.date("!%Y")) .. tostring(tonumber("0x10"))
    .. select("#", 1, 2) .. rawlen({ 1, 2 }) .. math.max(1, 2) .. tostring(pcall(error)))
end
