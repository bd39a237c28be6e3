//! What a stream offers when it ends.

/// A map of headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HeaderMap {
    /// Request headers.
    Request,
    /// Response headers.
    Response,
    /// Response trailers.
    Trailer,
}

/// A text of the stream or of its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Text {
    /// `HTTP/1.1`.
    Protocol,
    /// Why the response has its status.
    ResponseCodeDetails,
    /// Name of the route.
    RouteName,
    /// Name of the virtual cluster.
    VirtualCluster,
    /// Name of the server that a TLS client asked for.
    RequestedServerName,
    /// Why Envoy closed the client's connection.
    ConnectionTerminationDetails,
    /// Why the client's transport failed.
    DownstreamTransportFailure,
    /// Version of TLS of the client's connection.
    DownstreamTlsVersion,
    /// Subject of the client's certificate.
    DownstreamPeerSubject,
    /// Name of the upstream's cluster.
    UpstreamCluster,
    /// Address and port of the upstream's host.
    UpstreamHost,
    /// Address and port that the upstream sees.
    UpstreamLocalAddress,
    /// Why the upstream's transport failed.
    UpstreamTransportFailure,
    /// Protocol that the upstream speaks.
    UpstreamProtocol,
    /// Version of TLS of the upstream's connection.
    UpstreamTlsVersion,
    /// Id of the stream's trace.
    TraceId,
    /// Id of the stream's span.
    SpanId,
}

/// An address with a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Address {
    /// The client's, as proxies in front told it.
    DownstreamRemote,
    /// The listener's, as proxies in front told it.
    DownstreamLocal,
    /// Of the other end of the client's connection.
    DownstreamDirectRemote,
    /// Of this end of the client's connection.
    DownstreamDirectLocal,
}

/// A number. Times are in nanoseconds since the stream began, but for [`Number::Start`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Number {
    /// When the stream began, in nanoseconds since 1970.
    Start,
    /// When it was complete.
    Complete,
    /// When the first byte of the request left for the upstream.
    FirstUpstreamSent,
    /// When the last byte of the request left for the upstream.
    LastUpstreamSent,
    /// When the first byte of the response came.
    FirstUpstreamReceived,
    /// When the last byte of the response came.
    LastUpstreamReceived,
    /// When the first byte of the response left for the client.
    FirstDownstreamSent,
    /// When the last byte of the response left for the client.
    LastDownstreamSent,
    /// Status of the response.
    ResponseCode,
    /// Response flags, as bits.
    ResponseFlags,
    /// Bytes of the request's body.
    BytesReceived,
    /// Bytes of the response's body.
    BytesSent,
    /// Bytes of the upstream's connection that were received for the stream.
    UpstreamWireBytesReceived,
    /// Bytes of the upstream's connection that were sent for the stream.
    UpstreamWireBytesSent,
    /// Bytes of request headers.
    RequestHeadersBytes,
    /// Bytes of response headers.
    ResponseHeadersBytes,
    /// Bytes of response trailers.
    ResponseTrailersBytes,
    /// Id of the client's connection.
    ConnectionId,
    /// Id of the upstream's connection; absent where it is 0.
    UpstreamConnectionId,
    /// How often the request was sent.
    UpstreamAttempts,
}

/// A value of dynamic metadata.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MetadataValue<'e> {
    /// A text.
    Text(&'e [u8]),
    /// A number.
    Number(f64),
    /// A truth value.
    Bool(bool),
}

/// A stream that has ended.
pub trait LogEvent {
    /// First value of a header; `name` is in lower case.
    fn header(&mut self, map: HeaderMap, name: &[u8]) -> Option<&[u8]>;
    /// A text, if the stream has it.
    fn text(&mut self, text: Text) -> Option<&[u8]>;
    /// An address without its port, and the port.
    fn address(&mut self, address: Address) -> Option<(&[u8], u32)>;
    /// A number, if the stream has it.
    fn number(&mut self, number: Number) -> Option<i64>;
    /// A value of dynamic metadata.
    fn metadata(&mut self, namespace: &[u8], path: &[u8]) -> Option<MetadataValue<'_>>;
}
