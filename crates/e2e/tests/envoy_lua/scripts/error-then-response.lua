--@ request GET /bytes/5
--@ differs after an error in the request's function the script is not called on that stream again; Envoy calls the response's
function envoy_on_request(handle)
  error("boom")
end
function envoy_on_response(handle)
  handle:headers():add("x-response", "1")
end
