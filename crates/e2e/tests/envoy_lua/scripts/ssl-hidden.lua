--@ request GET /bytes/5
--@ tls
--@ differs raises an error: Envoy does not show it to modules
function envoy_on_request(handle)
  local ssl = handle:streamInfo():downstreamSslConnection()
  for _, name in pairs({
    "peerCertificateValidated", "serialNumberPeerCertificate", "serialNumberPeerCertificateIssuer",
    "sha256PeerCertificateIssuerDigest", "issuerPeerCertificate",
    "urlEncodedPemEncodedPeerCertificate", "urlEncodedPemEncodedPeerCertificateChain",
    "oidsPeerCertificate", "oidsLocalCertificate", "validFromPeerCertificate",
    "expirationPeerCertificate", "sessionId", "ciphersuiteId", "ciphersuiteString",
  }) do
    handle:logInfo(name .. tostring(pcall(function() return ssl[name](ssl) end)))
  end
end
