//! The facts that Envoy calls attributes, by the names that its page "Attributes" gives them.
//!
//! One list: names, kinds, and Envoy's numbers cannot drift from each other. What follows from the
//! stream's own headers is answered here, so that it is the same for every host and true of a response
//! that a plugin has just made; the host is asked for the rest.
//!
//! The trap: Envoy names more attributes than it shows to modules. Those are in the list, too, with
//! where else to look, so that nobody takes "Envoy does not say" for "there is none".

use crate::phase::HeaderMap;
use crate::stream::Scalar;

/// What an attribute is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttributeKind {
    /// Text.
    String,
    /// A number; times and durations in milliseconds.
    Number,
    /// A truth value.
    Bool,
    /// Envoy does not show it to modules; what to do instead.
    Hidden(&'static str),
}

macro_rules! attributes {
    ($($variant:ident $name:literal $kind:expr;)*) => {
        /// A fact about the stream or its connections. The first are numbered as in Envoy's ABI.
        #[expect(missing_docs, reason = "each is what Envoy's page says of its name")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum Attribute { $($variant,)* }

        impl Attribute {
            /// All of them, in order.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// What it is.
            pub fn kind(self) -> AttributeKind {
                use AttributeKind::{Bool, Hidden, Number, String};
                match self { $(Self::$variant => $kind,)* }
            }
        }
    };
}

const HEADERS: &str = "read the headers with get_headers()";
const METADATA: &str = "read metadata with envoy.metadata.get()";
const NOWHERE: &str = "an access log has it";

attributes! {
    RequestPath "request.path" String;
    RequestUrlPath "request.url_path" String;
    RequestHost "request.host" String;
    RequestScheme "request.scheme" String;
    RequestMethod "request.method" String;
    RequestHeaders "request.headers" Hidden(HEADERS);
    RequestReferer "request.referer" String;
    RequestUserAgent "request.useragent" String;
    RequestTime "request.time" Number;
    RequestId "request.id" String;
    RequestProtocol "request.protocol" String;
    RequestQuery "request.query" String;
    RequestDuration "request.duration" Number;
    RequestSize "request.size" Number;
    RequestTotalSize "request.total_size" Hidden(NOWHERE);
    ResponseCode "response.code" Number;
    ResponseCodeDetails "response.code_details" String;
    ResponseFlags "response.flags" Hidden(NOWHERE);
    ResponseGrpcStatus "response.grpc_status" Number;
    ResponseHeaders "response.headers" Hidden(HEADERS);
    ResponseTrailers "response.trailers" Hidden("read the trailers with get_trailers()");
    ResponseSize "response.size" Hidden(NOWHERE);
    ResponseTotalSize "response.total_size" Hidden(NOWHERE);
    ResponseBackendLatency "response.backend_latency" Number;
    SourceAddress "source.address" String;
    SourcePort "source.port" Number;
    DestinationAddress "destination.address" String;
    DestinationPort "destination.port" Number;
    ConnectionId "connection.id" Number;
    ConnectionMtls "connection.mtls" Bool;
    ConnectionRequestedServerName "connection.requested_server_name" String;
    ConnectionTlsVersion "connection.tls_version" String;
    ConnectionSubjectLocalCertificate "connection.subject_local_certificate" String;
    ConnectionSubjectPeerCertificate "connection.subject_peer_certificate" String;
    ConnectionDnsSanLocalCertificate "connection.dns_san_local_certificate" String;
    ConnectionDnsSanPeerCertificate "connection.dns_san_peer_certificate" String;
    ConnectionUriSanLocalCertificate "connection.uri_san_local_certificate" String;
    ConnectionUriSanPeerCertificate "connection.uri_san_peer_certificate" String;
    ConnectionSha256PeerCertificateDigest "connection.sha256_peer_certificate_digest" String;
    ConnectionTransportFailureReason "connection.transport_failure_reason" String;
    ConnectionTerminationDetails "connection.termination_details" String;
    UpstreamAddress "upstream.address" String;
    UpstreamPort "upstream.port" Number;
    UpstreamTlsVersion "upstream.tls_version" String;
    UpstreamSubjectLocalCertificate "upstream.subject_local_certificate" String;
    UpstreamSubjectPeerCertificate "upstream.subject_peer_certificate" String;
    UpstreamDnsSanLocalCertificate "upstream.dns_san_local_certificate" String;
    UpstreamDnsSanPeerCertificate "upstream.dns_san_peer_certificate" String;
    UpstreamUriSanLocalCertificate "upstream.uri_san_local_certificate" String;
    UpstreamUriSanPeerCertificate "upstream.uri_san_peer_certificate" String;
    UpstreamSha256PeerCertificateDigest "upstream.sha256_peer_certificate_digest" String;
    UpstreamLocalAddress "upstream.local_address" String;
    UpstreamTransportFailureReason "upstream.transport_failure_reason" String;
    UpstreamRequestAttemptCount "upstream.request_attempt_count" Number;
    UpstreamCxPoolReadyDuration "upstream.cx_pool_ready_duration" Hidden(NOWHERE);
    UpstreamLocality "upstream.locality" Hidden(NOWHERE);
    XdsNode "xds.node" Hidden("put what the plugin needs of it into its configuration");
    XdsClusterName "xds.cluster_name" String;
    XdsClusterMetadata "xds.cluster_metadata" Hidden(METADATA);
    XdsListenerDirection "xds.listener_direction" Hidden(NOWHERE);
    XdsListenerMetadata "xds.listener_metadata" Hidden(NOWHERE);
    XdsRouteName "xds.route_name" String;
    XdsRouteMetadata "xds.route_metadata" Hidden(METADATA);
    XdsVirtualHostName "xds.virtual_host_name" Hidden("tell projects apart by their configuration");
    XdsVirtualHostMetadata "xds.virtual_host_metadata" Hidden(NOWHERE);
    XdsUpstreamHostMetadata "xds.upstream_host_metadata" Hidden(METADATA);
    XdsFilterChainName "xds.filter_chain_name" Hidden(NOWHERE);
    HealthCheck "health_check" Bool;
    // Not among Envoy's attributes: the peer of the connection itself, whatever `x-forwarded-for` says.
    SourceDirectAddress "source.direct_address" String;
}

/// Text as a number.
fn number(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

impl Attribute {
    /// The attribute of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|attribute| attribute.name() == name)
    }

    /// Whether it follows from the stream's headers, by [`Attribute::of_headers`] alone.
    pub fn follows_from_headers(self) -> bool {
        matches!(
            self,
            Self::RequestPath
                | Self::RequestUrlPath
                | Self::RequestHost
                | Self::RequestScheme
                | Self::RequestMethod
                | Self::RequestReferer
                | Self::RequestUserAgent
                | Self::RequestQuery
                | Self::RequestSize
                | Self::ResponseGrpcStatus
        )
    }

    /// Its value, if it follows from headers, which `header` reads: the first value of a name.
    pub fn of_headers<'a>(
        self,
        header: impl Fn(HeaderMap, &'static [u8]) -> Option<&'a [u8]>,
    ) -> Option<Scalar<'a>> {
        let request = |name| header(HeaderMap::RequestHeaders, name);
        // Where the query begins, and where the path ends.
        let path = || {
            let path = request(b":path")?;
            let query = path.iter().position(|byte| *byte == b'?');
            Some((path, query))
        };
        let text = match self {
            Self::RequestPath => request(b":path"),
            Self::RequestUrlPath => {
                let (path, query) = path()?;
                path.get(..query.unwrap_or(path.len()))
            }
            Self::RequestQuery => {
                let (path, query) = path()?;
                let query = path.get(query? + 1..)?;
                query.split(|byte| *byte == b'#').next()
            }
            Self::RequestHost => request(b":authority"),
            Self::RequestScheme => request(b":scheme"),
            Self::RequestMethod => request(b":method"),
            Self::RequestReferer => request(b"referer"),
            Self::RequestUserAgent => request(b"user-agent"),
            Self::RequestSize => {
                return request(b"content-length")
                    .and_then(number)
                    .map(Scalar::Number);
            }
            Self::ResponseGrpcStatus => {
                return header(HeaderMap::ResponseTrailers, b"grpc-status")
                    .or_else(|| header(HeaderMap::ResponseHeaders, b"grpc-status"))
                    .and_then(number)
                    .map(Scalar::Number);
            }
            _ => None,
        };
        text.map(Scalar::String)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_abi() {
        for (attribute, number) in [
            (Attribute::RequestPath, 0),
            (Attribute::RequestProtocol, 10),
            (Attribute::ResponseCode, 15),
            (Attribute::SourceAddress, 24),
            (Attribute::UpstreamAddress, 41),
            (Attribute::XdsRouteName, 61),
            (Attribute::HealthCheck, 67),
        ] {
            assert_eq!(attribute as u32, number, "{attribute:?}");
        }
    }

    #[test]
    fn names_are_found_again_and_are_unique() {
        for attribute in Attribute::ALL {
            assert_eq!(Attribute::named(attribute.name()), Some(*attribute));
        }
        assert_eq!(Attribute::named("request.pat"), None);
    }

    #[test]
    fn what_headers_say() {
        let header = |map, name: &[u8]| -> Option<&'static [u8]> {
            Some(match (map, name) {
                (HeaderMap::RequestHeaders, b":path") => b"/cart?item=1#top",
                (HeaderMap::RequestHeaders, b"content-length") => b"12",
                (HeaderMap::ResponseHeaders, b"grpc-status") => b"7",
                _ => return None,
            })
        };
        let text = |text: &'static str| Some(Scalar::String(text.as_bytes()));
        for (attribute, expected) in [
            (Attribute::RequestPath, text("/cart?item=1#top")),
            (Attribute::RequestUrlPath, text("/cart")),
            (Attribute::RequestQuery, text("item=1")),
            (Attribute::RequestSize, Some(Scalar::Number(12.0))),
            (Attribute::ResponseGrpcStatus, Some(Scalar::Number(7.0))),
            (Attribute::RequestHost, None),
            (Attribute::SourceAddress, None),
        ] {
            assert_eq!(attribute.of_headers(header), expected, "{attribute:?}");
        }
    }
}
