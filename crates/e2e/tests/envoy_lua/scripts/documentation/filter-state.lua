-- From the documentation of Envoy's Lua filter (Envoy authors, Apache License 2.0), unchanged.
--@ request GET /bytes/5
--@ same
function envoy_on_request(request_handle)
  local filter_state = request_handle:streamInfo():filterState()

  -- Get authentication result
  local auth_result = filter_state:get("auth.result")
  if auth_result then
    request_handle:headers():add("x-auth-result", auth_result)
  end

  -- Check rate limiting decision
  local rate_limit_remaining = filter_state:get("rate_limit.remaining")
  if rate_limit_remaining and rate_limit_remaining < 10 then
    request_handle:headers():add("x-rate-limit-warning", "low")
  end
end
