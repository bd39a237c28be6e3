--@ request GET /bytes/5 header:x-one=1 header:x-two=first header:x-two=second header:x-Case=Kept
--@ request GET /headers?x-up=1&x-up=2 h2
--@ same
-- Envoy's functions return no value, rather than nil, where there is none.
local function show(value) return tostring(value) end
function envoy_on_request(handle)
  local headers = handle:headers()
  handle:logInfo(show(headers:get("x-one")) .. " " .. show(headers:get("X-TWO")) .. " "
    .. show(headers:get("x-none")) .. " " .. show(headers:get("x-case")))
  handle:logInfo(show(headers:getAtIndex("x-two", 0)) .. show(headers:getAtIndex("x-two", 1))
    .. show(headers:getAtIndex("x-two", 2)) .. show(headers:getAtIndex("x-two", -1)))
  handle:logInfo(headers:getNumValues("x-two") .. headers:getNumValues("x-none") .. show(headers:getAtIndex("x-two", "1")))
  handle:logInfo(show(headers:get(":path")) .. show(headers:get(":method")))
end
function envoy_on_response(handle)
  local headers = handle:headers()
  handle:logInfo(show(headers:get(":status")) .. show(headers:get("x-up"))
    .. headers:getNumValues("x-up") .. show(headers:getAtIndex("x-up", 1)))
end
