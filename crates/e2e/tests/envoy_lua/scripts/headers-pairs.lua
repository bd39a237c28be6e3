--@ request GET /bytes/5 header:x-one=1 header:x-two=first header:x-two=second
--@ same
function envoy_on_request(handle)
  for name, value in pairs(handle:headers()) do
    if name:sub(1, 2) == "x-" and name ~= "x-request-id" then
      handle:logInfo(name .. "=" .. value)
    end
  end
  handle:headers():add("x-after", "1")
end
