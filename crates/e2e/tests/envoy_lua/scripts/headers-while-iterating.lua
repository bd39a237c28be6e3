--@ request GET /bytes/5 header:x-one=1
--@ differs headers can be changed during the iteration, which goes on with what was there at its beginning, and a loop can be left early; Envoy raises an error at the change
function envoy_on_request(handle)
  for name in pairs(handle:headers()) do
    if name == "x-one" then
      handle:headers():remove(name)
    end
  end
end
