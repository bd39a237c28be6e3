--@ request GET /bytes/5
--@ request GET /bytes/5 h2
--@ tls
--@ same
-- Envoy's functions return no value, rather than nil, where there is none.
local function show(value) return tostring(value) end
function envoy_on_request(handle)
  local info = handle:streamInfo()
  local ssl = info:downstreamSslConnection()
  handle:logInfo(show(ssl:peerCertificatePresented()) .. " " .. ssl:tlsVersion() .. " ["
    .. ssl:subjectLocalCertificate() .. "] [" .. ssl:subjectPeerCertificate() .. "] ["
    .. ssl:sha256PeerCertificateDigest() .. "] " .. info:requestedServerName())
  handle:logInfo(ssl:dnsSansLocalCertificate()[1] .. #ssl:uriSanLocalCertificate()
    .. #ssl:uriSanPeerCertificate() .. #ssl:dnsSansPeerCertificate()
    .. show(ssl:parsedSubjectPeerCertificate()))
  handle:logInfo(show(handle:connection():ssl() ~= nil))
end
