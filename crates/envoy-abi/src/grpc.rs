//! Replies to gRPC requests. Envoy makes a reply of HTTP into one of gRPC by itself, but for modules it
//! says `grpc-status: 0`, which is success, whatever the reply's status; so the status is named here.

use outrider_plugin_api::Reply;

use crate::host::EnvoyHost;

/// Names the gRPC status that a reply stands for, if the request is one of gRPC and the plugin has not
/// named one.
pub(crate) fn name_status(reply: &mut Reply, host: &EnvoyHost<'_>) {
    let named = reply
        .headers
        .iter()
        .any(|(name, _)| name.eq_ignore_ascii_case(b"grpc-status"));
    if !named && host.is_grpc() {
        let status = status(reply.status).as_bytes().to_vec();
        reply.headers.push((b"grpc-status".to_vec(), status));
    }
}

pub(crate) fn is_grpc(content_type: Option<&[u8]>) -> bool {
    content_type
        .and_then(|content_type| content_type.strip_prefix(b"application/grpc"))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"+"))
}

/// As gRPC's `http-grpc-status-mapping.md` says.
fn status(http: u16) -> &'static str {
    match http {
        400 => "13",
        401 => "16",
        403 => "7",
        404 => "12",
        429 | 502 | 503 | 504 => "14",
        _ => "2",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_as_grpc() {
        for (content_type, expected) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc-web", false),
            ("application/json", false),
        ] {
            assert_eq!(is_grpc(Some(content_type.as_bytes())), expected);
        }
        assert!(!is_grpc(None));
    }
}
