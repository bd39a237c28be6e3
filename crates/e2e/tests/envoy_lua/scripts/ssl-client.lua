--@ request GET /bytes/5
--@ mtls
--@ same
function envoy_on_request(handle)
  local ssl = handle:streamInfo():downstreamSslConnection()
  handle:logInfo(tostring(ssl:peerCertificatePresented()) .. " " .. ssl:subjectPeerCertificate() .. " "
    .. ssl:sha256PeerCertificateDigest() .. " " .. table.concat(ssl:dnsSansPeerCertificate(), ",")
    .. #ssl:uriSanPeerCertificate())
  local name = ssl:parsedSubjectPeerCertificate()
  handle:logInfo(name:commonName() .. " " .. #name:organizationName())
end
