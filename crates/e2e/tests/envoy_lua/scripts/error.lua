-- With the failure policy `open`, as Envoy's filter has it.
--@ request GET /bytes/5
--@ request GET /bytes/6
--@ differs the changes of a function that fails are undone (here the header `x-before`); Envoy keeps those made before the error
function envoy_on_request(handle)
  handle:headers():add("x-before", "1")
  local none
  none.member = 1
end
