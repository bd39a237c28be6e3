//! A collector of telemetry that reads everything and keeps nothing: what Envoy exports to it costs Envoy what it costs,
//! and the collector as little as possible.

use std::path::Path;

use bytes::Bytes;
use h2::server::SendResponse;

use crate::grpc_server::{GrpcServer, begin, finish, framed};

/// Starts a collector on a Unix socket. It answers every unary call of gRPC with an empty message, which is what the
/// services of OTLP answer where all was taken.
///
/// # Errors
///
/// The socket cannot be made.
pub(crate) fn start_telemetry_sink(socket: &Path) -> anyhow::Result<GrpcServer> {
    GrpcServer::start("telemetry-sink", socket, |request, respond| async move {
        // A call that breaks off is Envoy's to report.
        let _ = take(request.into_body(), respond).await;
    })
}

async fn take(mut body: h2::RecvStream, mut respond: SendResponse<Bytes>) -> Result<(), h2::Error> {
    while let Some(data) = body.data().await {
        body.flow_control().release_capacity(data?.len())?;
    }
    let mut stream = begin(&mut respond)?;
    stream.send_data(framed(&()).unwrap_or_default(), false)?;
    finish(&mut stream, "0")
}
