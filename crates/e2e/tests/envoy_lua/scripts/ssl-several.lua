--@ request GET /bytes/5
--@ tls
--@ differs of several names the first alone: Envoy shows modules no more
function envoy_on_request(handle)
  local ssl = handle:streamInfo():downstreamSslConnection()
  handle:logInfo(table.concat(ssl:dnsSansLocalCertificate(), ",") .. table.concat(ssl:uriSanLocalCertificate(), ","))
end
