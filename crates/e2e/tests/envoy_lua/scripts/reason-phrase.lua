--@ request GET /bytes/5
--@ raw
--@ differs no effect, with a warning in the log: modules of Envoy cannot set the reason phrase
function envoy_on_response(handle)
  handle:headers():setHttp1ReasonPhrase("Fine")
end
