-- The response handler sees the reply of the request handler.
--@ request GET /
--@ same
function envoy_on_request(handle)
  handle:respond({ [":status"] = "403", ["x-by"] = "request" }, "nope")
end
function envoy_on_response(handle)
  handle:logInfo(handle:headers():get(":status") .. handle:headers():get("x-by"))
  handle:headers():add("x-seen", "1")
  handle:body():setBytes("changed")
end
