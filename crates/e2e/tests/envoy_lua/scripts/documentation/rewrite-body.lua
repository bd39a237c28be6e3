-- From the documentation of Envoy's Lua filter (Envoy authors, Apache License 2.0), unchanged.
--@ request GET /bytes/500
--@ request GET /bytes/500?chunked
--@ request GET /bytes/500 h2
--@ same
function envoy_on_response(response_handle)
  response_handle:body():setBytes("<html><b>Not Found<b></html>")
  response_handle:headers():replace("content-type", "text/html")
end
