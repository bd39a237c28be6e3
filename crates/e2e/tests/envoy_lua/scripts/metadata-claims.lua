--@ request GET /bytes/5
--@ claims
--@ same
-- What is nested is there where `set_filter_state` copies it; see "Nested metadata".
function envoy_on_request(handle)
  local payload = handle:streamInfo():dynamicMetadata():get("envoy.filters.http.jwt_authn")["jwt_payload"]
  handle:logInfo(payload.sub .. " " .. table.concat(payload.aud, ",") .. " " .. payload.exp
    .. " " .. payload.realm_access.roles[1] .. " " .. tostring(payload.nothing))
end
