--@ request GET /bytes/5
--@ set-metadata
--@ differs nested values that another filter has written are nil: Envoy does not show them to modules, and a warning says so once; [a filter can copy them](#nested-metadata). What the script itself has written is there
function envoy_on_request(handle)
  local found = handle:streamInfo():dynamicMetadata():get("foreign")
  handle:logInfo(found.text .. #found.list .. tostring(found.tree and found.tree.inner))
end
