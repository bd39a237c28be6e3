//! A request in one line of text, as scripts of comparisons write it.

use anyhow::{Context as _, bail};
use outrider_lab::Protocol;
use outrider_lab::client::Request;

/// One request and the protocol that it comes by.
#[derive(Debug, Clone)]
pub struct Sent {
    /// HTTP/1.1 where nothing is said.
    pub protocol: Protocol,
    /// The request.
    pub request: Request,
}

impl Sent {
    /// Reads `POST /path body:text pieces:a|b trailer:name=value header:name=value h2`.
    ///
    /// # Errors
    /// A word is none of these.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let mut words = text.split(' ');
        let method = words.next().unwrap_or_default();
        let path = words
            .next()
            .with_context(|| format!("no path in {text:?}"))?;
        let mut sent = Self {
            protocol: Protocol::Http1,
            request: Request::new(method, path),
        };
        for word in words {
            let request = sent.request.clone();
            let pair = |text: &str| -> anyhow::Result<(String, String)> {
                let (name, value) = text
                    .split_once('=')
                    .with_context(|| format!("no = in {text:?}"))?;
                Ok((name.to_owned(), value.to_owned()))
            };
            sent.request = match word.split_once(':').unwrap_or((word, "")) {
                ("body", body) => request.body(body.to_owned()),
                ("pieces", pieces) => request.pieces(pieces.split('|').map(ToOwned::to_owned)),
                ("trailer", text) => {
                    let (name, value) = pair(text)?;
                    request.trailer(&name, &value)
                }
                ("header", text) => {
                    let (name, value) = pair(text)?;
                    request.header(&name, &value)
                }
                ("h2", "") => {
                    sent.protocol = Protocol::Http2;
                    request
                }
                _ => bail!("what is {word:?} in {text:?}?"),
            };
        }
        Ok(sent)
    }
}
