-- Nobody passes without a name.
function envoy_on_request(handle)
  if handle:headers():get("authorization") == nil then
    handle:respond({[":status"] = "401"}, "who are you?")
  end
end
