-- From the documentation of Envoy's Lua filter (Envoy authors, Apache License 2.0), unchanged.
--@ request GET /bytes/5
--@ same
function envoy_on_request(request_handle)
  -- Access proxy protocol typed metadata
  local ppv2_metadata = request_handle:connectionStreamInfo():dynamicTypedMetadata("envoy.filters.listener.proxy_protocol")

  -- Check if typed metadata exists
  if ppv2_metadata then
    -- Access TLV values
    local ppv2_typed_metadata = ppv2_metadata.typed_metadata

    -- Check if TLV values exist
    if ppv2_typed_metadata then
      for tlv_key, tlv_value in pairs(ppv2_typed_metadata) do
        -- Log each TLV key and value
        request_handle:logInfo(string.format("TLV: %s, Value: %s", tlv_key or "none", request_handle:base64Escape(tlv_value) or "none"))
      end
    else
      request_handle:logDebug("No typed metadata found in proxy protocol metadata.")
    end
  else
    request_handle:logInfo("No proxy protocol metadata available.")
  end
end
