-- From the documentation of Envoy's Lua filter (Envoy authors, Apache License 2.0), unchanged.
--@ request GET /bytes/5
--@ same
function envoy_on_request(request_handle)
  local filter_state = request_handle:streamInfo():filterState()

  -- All values returned as strings
  local auth_token = filter_state:get("auth.token")
  if auth_token then
    request_handle:headers():add("x-auth-token", auth_token)
  end

  -- Boolean-like string values
  local is_authenticated = filter_state:get("auth.authenticated")
  if is_authenticated == "true" then
    request_handle:headers():add("x-authenticated", "yes")
  end

  -- Access specific fields from objects that support field access
  local user_name = filter_state:get("user.info", "name")
  if user_name then
    request_handle:headers():add("x-user-name", user_name)
  end

  local user_id_str = filter_state:get("user.info", "id")
  if user_id_str then
    local user_id = tonumber(user_id_str)
    if user_id and user_id > 1000 then
      request_handle:headers():add("x-premium-user", "true")
    end
  end
end
