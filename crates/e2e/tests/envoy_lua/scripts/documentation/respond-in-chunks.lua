-- From the documentation of Envoy's Lua filter (Envoy authors, Apache License 2.0), unchanged.
-- The documentation calls it invalid: it raises an error in both.
--@ request POST /echo?whole pieces:a|b
--@ same
function envoy_on_request(request_handle)
  for chunk in request_handle:bodyChunks() do
    request_handle:respond(
      {[":status"] = "100"},
      "nope")
  end
end
