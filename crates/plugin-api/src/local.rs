//! A reply that one plugin made, while the other plugins of the chain see it as the response.
//!
//! Envoy sends a filter's local reply through the other filters of its chain, but not through the
//! filter that made it. Outrider's plugins share one filter, so the chain shows the reply to them
//! itself, and hands it to Envoy when they are done.

use crate::framing;
use crate::plugin::Reply;

/// A response that is not Envoy's yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocalResponse {
    headers: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
    details: String,
}

impl LocalResponse {
    /// The response as Envoy will make it of `reply`: with `:status`, and for a body with its length
    /// and, unless the reply names one, the type `text/plain` (Envoy's `Utility::prepareLocalReply`).
    pub(crate) fn new(reply: Reply) -> Self {
        let Reply {
            status,
            headers,
            body,
            details,
            audience: _,
        } = reply;
        let mut response = Self {
            headers: vec![(b":status".to_vec(), status.to_string().into_bytes())],
            body,
            details,
        };
        for (name, value) in headers {
            response.add(&name, &value);
        }
        if !response.body.is_empty() {
            if response.get(b"content-type", 0).is_none() {
                response.set(b"content-type", b"text/plain");
            }
            let length = response.body.len().to_string();
            response.set(b"content-length", length.as_bytes());
        }
        response
    }

    /// What Envoy is asked to send. It adds the status itself; the length stands among the headers, so
    /// that it keeps its place.
    pub(crate) fn into_reply(self) -> Reply {
        let status = self
            .get(b":status", 0)
            .and_then(|value| std::str::from_utf8(value).ok())
            .and_then(|value| value.parse().ok())
            .unwrap_or(500);
        let mut body = self.body;
        if framing::has_no_body(status) {
            body.clear();
        }
        // The length keeps its place among the headers, and is the body's whatever plugins wrote.
        let length = body.len().to_string().into_bytes();
        let mut headers = self.headers;
        headers.retain_mut(|(name, value)| {
            if name == b"content-length" {
                value.clone_from(&length);
                return !body.is_empty();
            }
            !name.starts_with(b":")
        });
        Reply {
            status,
            headers,
            body,
            details: self.details,
            ..Reply::default()
        }
    }

    /// The headers in order.
    pub(crate) fn headers(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.headers
            .iter()
            .map(|(name, value)| (name.as_slice(), value.as_slice()))
    }

    fn values<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.headers()
            .filter(move |(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    pub(crate) fn get<'a>(&'a self, name: &'a [u8], index: usize) -> Option<&'a [u8]> {
        // The name is borrowed for as long as the answer only because both come from one iterator.
        self.values(name).nth(index)
    }

    pub(crate) fn count(&self, name: &[u8]) -> usize {
        self.values(name).count()
    }

    /// As in Envoy, a header that is set goes to the end of the list.
    pub(crate) fn set(&mut self, name: &[u8], value: &[u8]) {
        self.remove(name);
        self.add(name, value);
    }

    pub(crate) fn add(&mut self, name: &[u8], value: &[u8]) {
        self.headers
            .push((name.to_ascii_lowercase(), value.to_vec()));
    }

    pub(crate) fn remove(&mut self, name: &[u8]) {
        self.headers
            .retain(|(key, _)| !key.eq_ignore_ascii_case(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_becomes_the_response_that_envoy_makes_of_it_and_back() {
        let reply = Reply {
            status: 403,
            headers: vec![(b"X-Why".to_vec(), b"no".to_vec())],
            body: b"go away".to_vec(),
            details: "d".into(),
            ..Reply::default()
        };
        let mut response = LocalResponse::new(reply);
        let seen: Vec<_> = response
            .headers()
            .map(|(name, value)| {
                format!(
                    "{}={}",
                    String::from_utf8_lossy(name),
                    String::from_utf8_lossy(value)
                )
            })
            .collect();
        assert_eq!(
            seen,
            [
                ":status=403",
                "x-why=no",
                "content-type=text/plain",
                "content-length=7"
            ]
        );
        response.set(b":status", b"418");
        response.add(b"x-why", b"because");
        response.set(b"x-why", b"one");
        response.remove(b"content-type");
        let reply = response.into_reply();
        assert_eq!(reply.status, 418);
        let lines: Vec<_> = reply
            .headers
            .iter()
            .map(|(name, value)| format!("{}={}", name.escape_ascii(), value.escape_ascii()))
            .collect();
        assert_eq!(lines, ["content-length=7", "x-why=one"]);
        assert_eq!(reply.details, "d");
    }
}
