//! The target of a load: its address, and how it is spoken to.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::sync::Arc;

use http::Uri;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use serde::{Deserialize, Serialize};

use crate::error::LoadError;

/// Protocol of the requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// HTTP/1.1 with keep-alive.
    #[default]
    #[serde(rename = "http1")]
    Http1,
    /// HTTP/2; without TLS by prior knowledge.
    #[serde(rename = "http2")]
    Http2,
    /// gRPC unary calls over HTTP/2.
    #[serde(rename = "grpc")]
    Grpc,
}

/// Certificates that are accepted from a target with TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Trust {
    /// Those that a public authority signed.
    #[default]
    PublicAuthorities,
    /// Those that an authority of this PEM file signed.
    File(PathBuf),
    /// Any, unchecked.
    Anything,
}

/// Server that gets the load.
#[derive(Debug, Clone)]
pub struct Target {
    pub(crate) address: SocketAddr,
    /// Host as the URL has it, without brackets.
    pub(crate) host: String,
    /// Host and port as the `host` header has them.
    pub(crate) authority: String,
    /// Path and query.
    pub(crate) path: String,
    pub(crate) is_tls: bool,
}

impl Target {
    /// Reads a URL and looks its host up.
    pub fn parse(url: &str) -> Result<Self, LoadError> {
        let wrong = |reason: String| LoadError::Url {
            url: url.to_owned(),
            reason,
        };
        let uri: Uri = url
            .parse()
            .map_err(|error: http::uri::InvalidUri| wrong(error.to_string()))?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            Some(other) => {
                return Err(wrong(format!("scheme `{other}` is neither http nor https")));
            }
            None => return Err(wrong("the scheme is missing".to_owned())),
        };
        let authority = uri
            .authority()
            .ok_or_else(|| wrong("the host is missing".to_owned()))?;
        if authority.as_str().contains('@') {
            return Err(wrong(
                "user and password are not sent; use a header".to_owned(),
            ));
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let has_port = authority.as_str().len() > authority.host().len();
        let port = match (authority.port(), is_tls) {
            (None, _) if has_port => {
                return Err(wrong("the port is not a number below 65536".to_owned()));
            }
            (Some(port), _) => port.as_u16(),
            (None, false) => 80,
            (None, true) => 443,
        };
        let address = (host.as_str(), port)
            .to_socket_addrs()
            .map_err(|error| LoadError::Resolve {
                host: host.clone(),
                reason: error.to_string(),
            })?
            .next()
            .ok_or_else(|| LoadError::Resolve {
                host: host.clone(),
                reason: "the resolver returned no address".to_owned(),
            })?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        Ok(Self {
            address,
            host,
            authority: authority.as_str().to_owned(),
            path: path.to_owned(),
            is_tls,
        })
    }

    /// The target's address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Path and query of the URL.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// `https` or `http`.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.is_tls { "https" } else { "http" }
    }

    /// TLS settings, with the protocol's ALPN name; `None` without TLS.
    pub(crate) fn tls(
        &self,
        trust: &Trust,
        protocol: Protocol,
    ) -> Result<Option<Arc<ClientConfig>>, LoadError> {
        if !self.is_tls {
            return Ok(None);
        }
        let failed = |reason: String| LoadError::Tls {
            address: self.address,
            reason,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(error.to_string()))?;
        let builder = match trust {
            Trust::Anything => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AcceptAnything(provider))),
            Trust::PublicAuthorities => builder.with_root_certificates(RootCertStore {
                roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
            }),
            Trust::File(path) => {
                let name = path.display();
                let mut roots = RootCertStore::empty();
                let certificates = CertificateDer::pem_file_iter(path)
                    .map_err(|error| failed(format!("cannot read {name}: {error}")))?;
                for certificate in certificates {
                    let certificate =
                        certificate.map_err(|error| failed(format!("{name}: {error}")))?;
                    roots
                        .add(certificate)
                        .map_err(|error| failed(format!("{name}: {error}")))?;
                }
                if roots.is_empty() {
                    return Err(failed(format!("{name} holds no certificate in PEM form")));
                }
                builder.with_root_certificates(roots)
            }
        };
        let mut config = builder.with_no_client_auth();
        config.alpn_protocols = vec![match protocol {
            Protocol::Http1 => b"http/1.1".to_vec(),
            Protocol::Http2 | Protocol::Grpc => b"h2".to_vec(),
        }];
        Ok(Some(Arc::new(config)))
    }

    /// The name that the target's certificate has to be for.
    pub(crate) fn server_name(&self) -> Result<ServerName<'static>, LoadError> {
        ServerName::try_from(self.host.clone()).map_err(|error| LoadError::Tls {
            address: self.address,
            reason: format!("`{}`: {error}", self.host),
        })
    }
}

/// Verifier that accepts any certificate, but still checks signatures of the handshake.
#[derive(Debug)]
struct AcceptAnything(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnything {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_gives_address_authority_and_path() {
        let target = Target::parse("http://127.0.0.1:8080/a?b=c").unwrap();
        assert_eq!(target.address(), SocketAddr::from(([127, 0, 0, 1], 8080)));
        assert_eq!(
            (target.authority.as_str(), target.path()),
            ("127.0.0.1:8080", "/a?b=c")
        );
        let target = Target::parse("https://[::1]").unwrap();
        assert_eq!(target.address().port(), 443);
        assert_eq!((target.host.as_str(), target.path()), ("::1", "/"));
        assert!(target.is_tls);
    }

    #[test]
    fn url_that_cannot_be_loaded_is_refused_with_its_reason() {
        for (url, words) in [
            ("127.0.0.1:80/", "is not a URL"),
            ("/path", "scheme is missing"),
            ("ftp://127.0.0.1/", "neither http nor https"),
            ("http://user:secret@127.0.0.1/", "use a header"),
            ("http://127.0.0.1:99999/", "is not a URL"),
            ("http://name.invalid/", "has no address"),
        ] {
            let error = Target::parse(url).unwrap_err().to_string();
            assert!(error.contains(words), "{url}: {error}");
        }
    }
}
