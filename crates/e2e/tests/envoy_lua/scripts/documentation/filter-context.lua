-- From the documentation of Envoy's Lua filter (Envoy authors, Apache License 2.0), unchanged.
-- It reads a value and does nothing with it: `filter-context.lua` shows what it reads.
--@ request GET /bytes/5
--@ same
function envoy_on_request(request_handle)
  -- Get the filter context
  local filter_context = request_handle:filterContext()

  -- Access the filter context data
  local value = filter_context["key"]
end
