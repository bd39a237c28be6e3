--@ request GET /echo?whole
--@ request GET /status/204
--@ same
function envoy_on_request(handle)
  handle:body(true):setBytes("added")
end
function envoy_on_response(handle)
  handle:headers():replace(":status", "200")
  handle:body(true):setBytes("made")
end
