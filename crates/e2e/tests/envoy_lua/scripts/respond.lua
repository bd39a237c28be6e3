--@ request GET /plain
--@ request GET /headers
--@ request GET /nothing
--@ request POST /after-body body:hello
--@ request GET /plain h2
--@ same
function envoy_on_request(handle)
  local path = handle:headers():get(":path")
  if path == "/plain" then
    handle:respond({ [":status"] = "403" }, "nope")
  elseif path == "/headers" then
    handle:respond({ [":status"] = 201, ["content-type"] = "text/html", ["x-number"] = 5,
      ["x-list"] = { "a", "b" } }, "<b>made</b>")
  elseif path == "/nothing" then
    handle:respond({ [":status"] = "204" })
  else
    handle:respond({ [":status"] = "200" }, "got " .. handle:body():length())
  end
  handle:logInfo("not reached")
end
