-- From the documentation of Envoy's Lua filter (Envoy authors, Apache License 2.0), unchanged.
--@ request GET /bytes/5
--@ same
function envoy_on_request(request_handle)
  -- Access typed metadata set by the set_metadata filter
  local typed_meta = request_handle:streamInfo():dynamicTypedMetadata("envoy.filters.http.set_metadata")

  -- Check if metadata exists
  if typed_meta then
    -- Access specific fields
    local metadata_namespace = typed_meta.metadata_namespace
    local allow_overwrite = typed_meta.allow_overwrite

    request_handle:logInfo(string.format("Metadata namespace: %s, Allow overwrite: %s",
                                        metadata_namespace or "none", tostring(allow_overwrite)))
  else
    request_handle:logInfo("No set_metadata typed metadata available")
  end
end
