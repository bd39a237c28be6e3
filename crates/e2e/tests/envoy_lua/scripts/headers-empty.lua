--@ request GET /bytes/5 header:x-one=1
--@ differs a header cannot be given an empty value: `replace` removes it, `add` does nothing (Envoy's modules cannot)
function envoy_on_request(handle)
  handle:headers():add("x-empty", "")
  handle:headers():replace("x-one", "")
  handle:logInfo(handle:headers():getNumValues("x-empty") .. handle:headers():getNumValues("x-one"))
end
