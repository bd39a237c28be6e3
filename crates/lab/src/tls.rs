//! Certificates made on the spot, and TLS for both ends of a loopback connection.
//!
//! Keys made here are for tests and demonstrations: nothing protects them.

use std::sync::Arc;

use anyhow::Context as _;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};

use crate::Protocol;

/// A self-signed certificate with its key, both PEM.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The certificate; a client that trusts it as an authority accepts it.
    pub certificate: String,
    /// Its private key, PKCS #8.
    pub private_key: String,
}

impl Identity {
    /// Makes one for these names; IP addresses are allowed among them.
    pub fn generate(names: &[&str]) -> anyhow::Result<Self> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let made =
            rcgen::generate_simple_self_signed(names).context("cannot make a certificate")?;
        Ok(Self {
            certificate: made.cert.pem(),
            private_key: made.signing_key.serialize_pem(),
        })
    }

    /// Makes one for a client: its common name, and names of the forms `https://…`, `spiffe://…` (URIs)
    /// and `client.example.com` (DNS).
    pub fn for_client(common_name: &str, names: &[&str]) -> anyhow::Result<Self> {
        let mut parameters = rcgen::CertificateParams::default();
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        parameters
            .distinguished_name
            .push(rcgen::DnType::CommonName, common_name);
        parameters.subject_alt_names = names
            .iter()
            .map(|name| {
                let text = (*name)
                    .try_into()
                    .with_context(|| format!("name {name:?}"))?;
                Ok(if name.contains("://") {
                    rcgen::SanType::URI(text)
                } else {
                    rcgen::SanType::DnsName(text)
                })
            })
            .collect::<anyhow::Result<_>>()?;
        let key = rcgen::KeyPair::generate().context("cannot make a key")?;
        let certificate = parameters
            .self_signed(&key)
            .context("cannot make a certificate")?;
        Ok(Self {
            certificate: certificate.pem(),
            private_key: key.serialize_pem(),
        })
    }

    /// A server's side, which offers HTTP/2 and HTTP/1.1 by ALPN.
    pub(crate) fn server(&self) -> anyhow::Result<ServerConfig> {
        let chain = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(self.private_key.as_bytes())
            .context("cannot read the private key")?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .context("certificate and private key do not fit")?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// Which certificates a client accepts.
#[derive(Debug, Clone)]
pub enum Trust {
    /// Any: for tests that are not about certificates.
    Anything,
    /// Those that this certificate (PEM) signed, or itself when self-signed.
    Authority(String),
}

/// A client's side, which asks for one protocol by ALPN, and shows a certificate if it has one.
pub(crate) fn client(
    trust: &Trust,
    protocol: Protocol,
    identity: Option<&Identity>,
) -> anyhow::Result<ClientConfig> {
    let builder =
        ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = match trust {
        Trust::Anything => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AcceptAnything(provider()))),
        Trust::Authority(pem) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(pem)? {
                roots
                    .add(certificate)
                    .context("cannot trust the certificate")?;
            }
            builder.with_root_certificates(roots)
        }
    };
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let key = PrivateKeyDer::from_pem_slice(identity.private_key.as_bytes())
                .context("cannot read the client's private key")?;
            builder
                .with_client_auth_cert(certificates(&identity.certificate)?, key)
                .context("the client's certificate and private key do not fit")?
        }
    };
    config.alpn_protocols = vec![match protocol {
        Protocol::Http1 => b"http/1.1".to_vec(),
        Protocol::Http2 => b"h2".to_vec(),
    }];
    Ok(config)
}

// Named at each use: a process-wide default would be a race between tests.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn certificates(pem: &str) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let chain = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .context("cannot read the certificate")?;
    anyhow::ensure!(!chain.is_empty(), "there is no certificate in the PEM text");
    Ok(chain)
}

/// Accepts each certificate, but still checks that the peer holds its key.
#[derive(Debug)]
struct AcceptAnything(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnything {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
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
        rustls::crypto::verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
