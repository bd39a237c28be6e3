--@ request GET /bytes/5
--@ closed
--@ differs an error gets the stream the plugin's failure policy, which is a reply with status 500 where nothing else is said; Envoy's filter lets the stream go on. `failure_policy: open` does the same
function envoy_on_request(handle)
  error("boom")
end
