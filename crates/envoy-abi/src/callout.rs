//! Telling what became of a callout.
//!
//! Envoy's HTTP client for filters reports most failures as responses that it makes up itself
//! (`source/common/router/router.cc` and `async_client_impl.cc`): 504 when the time is over, 503 when
//! no connection could be had. Plugins should not have to know that.

use outrider_plugin_api::CalloutFailure;

/// The failure that a response made up by Envoy stands for, or `None` for a response that an upstream
/// sent. A made-up response has no headers but these three, and one of these texts as its body.
pub(crate) fn made_up(headers: &[(&[u8], &[u8])], body: &[&[u8]]) -> Option<CalloutFailure> {
    let only_bare_headers = headers
        .iter()
        .all(|(name, _)| matches!(*name, b":status" | b"content-length" | b"content-type"));
    let status = headers
        .iter()
        .find(|(name, _)| *name == b":status")
        .map(|(_, value)| *value)?;
    let [text] = body else { return None };
    if !only_bare_headers {
        return None;
    }
    match status {
        b"504" if *text == b"upstream request timeout" => Some(CalloutFailure::Timeout),
        b"503" if *text == b"no healthy upstream" => Some(CalloutFailure::CannotStart),
        b"503"
            if text.starts_with(b"upstream connect error or disconnect/reset before headers") =>
        {
            Some(CalloutFailure::Reset)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Headers<'a> = &'a [(&'a [u8], &'a [u8])];

    #[test]
    fn responses_that_envoy_makes_up_are_failures() {
        let bare: Headers<'_> = &[
            (b":status", b"504"),
            (b"content-length", b"24"),
            (b"content-type", b"text/plain"),
        ];
        assert_eq!(
            made_up(bare, &[b"upstream request timeout"]),
            Some(CalloutFailure::Timeout)
        );
        let bare: Headers<'_> = &[(b":status", b"503")];
        assert_eq!(
            made_up(bare, &[b"no healthy upstream"]),
            Some(CalloutFailure::CannotStart)
        );
        let text = b"upstream connect error or disconnect/reset before headers. reset reason: x";
        assert_eq!(made_up(bare, &[text]), Some(CalloutFailure::Reset));
    }

    #[test]
    fn an_upstream_s_own_errors_are_responses() {
        let own: Headers<'_> = &[(b":status", b"503"), (b"server", b"nginx")];
        assert_eq!(made_up(own, &[b"no healthy upstream"]), None);
        let bare: Headers<'_> = &[(b":status", b"503")];
        assert_eq!(made_up(bare, &[b"overloaded"]), None);
        assert_eq!(made_up(bare, &[]), None);
    }
}
