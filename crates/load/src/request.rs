//! Requests that a load repeats.
//!
//! A request file holds one or more requests in the form of HTTP/1.1, separated by a line `###` (the form of `.http`
//! files): a line `METHOD PATH`, headers, and after an empty line the body.

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderName, HeaderValue, Method};

use crate::target::{Protocol, Target};

/// Error in a request.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RequestError {
    /// The method is no token of HTTP.
    #[error("`{0}` is not an HTTP method")]
    Method(String),
    /// The path has characters that a request line cannot carry.
    #[error("path `{0}` must begin with `/` and hold no spaces or control characters")]
    Path(String),
    /// A header that HTTP does not allow.
    #[error("header `{0}` is not written as `name: value`")]
    Header(String),
    /// A header that the load generator sets itself.
    #[error("header `{0}` is set by the load generator; leave it out")]
    OwnHeader(String),
    /// A request file's error.
    #[error("request {number} of the file (line {line}): {problem}")]
    File {
        /// Number of the request, from 1.
        number: usize,
        /// Line of its first line, from 1.
        line: usize,
        /// The problem.
        problem: String,
    },
    /// The file has no request.
    #[error("the request file holds no request; write for example `GET /path`")]
    Empty,
}

/// Request as the user described it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestTemplate {
    /// Method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Headers in order. `host` replaces the target's.
    pub headers: Vec<(String, String)>,
    /// Body; for gRPC the message without its prefix.
    pub body: Bytes,
}

impl RequestTemplate {
    /// A GET of this path.
    pub fn get(path: &str) -> Self {
        Self {
            method: "GET".to_owned(),
            path: path.to_owned(),
            headers: Vec::new(),
            body: Bytes::new(),
        }
    }

    /// Adds a header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds a header that is written as `name: value`.
    pub fn header_line(self, line: &str) -> Result<Self, RequestError> {
        let (name, value) = line
            .split_once(':')
            .ok_or_else(|| RequestError::Header(line.to_owned()))?;
        Ok(self.header(name.trim(), value.trim()))
    }

    fn check(&self) -> Result<(), RequestError> {
        Method::from_bytes(self.method.as_bytes())
            .map_err(|_| RequestError::Method(self.method.clone()))?;
        let is_plain = |byte: u8| byte > b' ' && byte != 0x7f;
        if !self.path.starts_with('/') || !self.path.bytes().all(is_plain) {
            return Err(RequestError::Path(self.path.clone()));
        }
        for (name, value) in &self.headers {
            let line = || format!("{name}: {value}");
            let name = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| RequestError::Header(line()))?;
            HeaderValue::from_str(value).map_err(|_| RequestError::Header(line()))?;
            if ["content-length", "transfer-encoding", "connection"].contains(&name.as_str()) {
                return Err(RequestError::OwnHeader(name.as_str().to_owned()));
            }
        }
        Ok(())
    }

    fn host<'request>(&'request self, target: &'request Target) -> &'request str {
        self.headers
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case("host"))
            .map_or(target.authority.as_str(), |(_, value)| value.as_str())
    }

    /// The bytes of an HTTP/1.1 request.
    pub(crate) fn http1(&self, target: &Target) -> Result<Bytes, RequestError> {
        self.check()?;
        let mut bytes = BytesMut::new();
        let mut line = |parts: &[&str]| {
            for part in parts {
                bytes.put_slice(part.as_bytes());
            }
            bytes.put_slice(b"\r\n");
        };
        line(&[&self.method, " ", &self.path, " HTTP/1.1"]);
        line(&["host: ", self.host(target)]);
        for (name, value) in &self.headers {
            if !name.eq_ignore_ascii_case("host") {
                line(&[name, ": ", value]);
            }
        }
        let has_body =
            !self.body.is_empty() || !matches!(self.method.as_str(), "GET" | "HEAD" | "OPTIONS");
        if has_body {
            line(&["content-length: ", &self.body.len().to_string()]);
        }
        line(&[]);
        bytes.put_slice(&self.body);
        Ok(bytes.freeze())
    }

    /// The head of an HTTP/2 request, and its body; that of gRPC with its prefix of five bytes.
    pub(crate) fn http2(
        &self,
        target: &Target,
        protocol: Protocol,
    ) -> Result<(http::Request<()>, Bytes), RequestError> {
        self.check()?;
        let uri = format!("{}://{}{}", target.scheme(), self.host(target), self.path);
        let is_grpc = protocol == Protocol::Grpc;
        let method = if is_grpc {
            "POST"
        } else {
            self.method.as_str()
        };
        let mut builder = http::Request::builder()
            .method(method)
            .uri(uri)
            .version(http::Version::HTTP_2);
        let mut has_type = false;
        for (name, value) in &self.headers {
            if !name.eq_ignore_ascii_case("host") {
                has_type |= name.eq_ignore_ascii_case("content-type");
                builder = builder.header(name.as_str(), value.as_str());
            }
        }
        let mut body = self.body.clone();
        if is_grpc {
            builder = builder.header("te", "trailers");
            if !has_type {
                builder = builder.header("content-type", "application/grpc");
            }
            // https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md: compressed flag, length, message.
            let mut framed = BytesMut::with_capacity(body.len() + 5);
            framed.put_u8(0);
            framed.put_u32(u32::try_from(body.len()).unwrap_or(u32::MAX));
            framed.put_slice(&body);
            body = framed.freeze();
        } else if !body.is_empty() {
            builder = builder.header("content-length", body.len());
        }
        let request = builder
            .body(())
            .map_err(|_| RequestError::Path(self.path.clone()))?;
        Ok((request, body))
    }

    /// Whether its answers have no body whatever their headers say.
    pub(crate) fn is_head(&self) -> bool {
        self.method == "HEAD"
    }
}

/// Reads a request file.
pub fn parse_request_file(text: &str) -> Result<Vec<RequestTemplate>, RequestError> {
    let mut requests = Vec::new();
    let mut block: Vec<&str> = Vec::new();
    let mut begin = 1;
    let lines = text.lines().chain(std::iter::once("###"));
    for (index, line) in lines.enumerate() {
        if !line.starts_with("###") {
            block.push(line);
            continue;
        }
        if block.iter().any(|line| !line.trim().is_empty()) {
            let number = requests.len() + 1;
            let skipped = block
                .iter()
                .take_while(|line| line.trim().is_empty())
                .count();
            let request = parse_request(block.split_off(skipped).as_slice()).map_err(|error| {
                RequestError::File {
                    number,
                    line: begin + skipped,
                    problem: error.to_string(),
                }
            })?;
            requests.push(request);
        }
        block.clear();
        begin = index + 2;
    }
    if requests.is_empty() {
        return Err(RequestError::Empty);
    }
    Ok(requests)
}

fn parse_request(lines: &[&str]) -> Result<RequestTemplate, RequestError> {
    let mut lines = lines.iter();
    let mut first = lines.next().copied().unwrap_or_default().split_whitespace();
    let (method, path) = match (first.next(), first.next()) {
        (Some(method), Some(path)) => (method, path),
        (word, _) => return Err(RequestError::Path(word.unwrap_or_default().to_owned())),
    };
    let mut request = RequestTemplate {
        method: method.to_owned(),
        ..RequestTemplate::get(path)
    };
    for line in lines.by_ref() {
        if line.trim().is_empty() {
            break;
        }
        request = request.header_line(line)?;
    }
    let body: Vec<&str> = lines.copied().collect();
    request.body = Bytes::from(body.join("\n"));
    request.check()?;
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> Target {
        Target::parse("http://127.0.0.1:80/").unwrap()
    }

    #[test]
    fn http1_request_has_host_headers_and_length() {
        let mut request = RequestTemplate::get("/a").header("x-a", "b");
        assert_eq!(
            request.http1(&target()).unwrap(),
            "GET /a HTTP/1.1\r\nhost: 127.0.0.1:80\r\nx-a: b\r\n\r\n"
        );
        request = request.header("Host", "shop.test");
        request.method = "POST".to_owned();
        request.body = Bytes::from_static(b"body");
        assert_eq!(
            request.http1(&target()).unwrap(),
            "POST /a HTTP/1.1\r\nhost: shop.test\r\nx-a: b\r\ncontent-length: 4\r\n\r\nbody"
        );
    }

    #[test]
    fn grpc_request_has_the_prefix_of_its_message() {
        let mut request = RequestTemplate::get("/pkg.Service/Call");
        request.body = Bytes::from_static(b"abc");
        let (head, body) = request.http2(&target(), Protocol::Grpc).unwrap();
        assert_eq!(head.method(), "POST");
        assert_eq!(head.headers()["te"], "trailers");
        assert_eq!(body.as_ref(), b"\0\0\0\0\x03abc");
    }

    #[test]
    fn request_that_would_break_framing_is_refused() {
        for request in [
            RequestTemplate::get("a"),
            RequestTemplate::get("/a b"),
            RequestTemplate::get("/").header("x-a", "b\r\nx: y"),
            RequestTemplate::get("/").header("content-length", "3"),
            RequestTemplate::get("/").header("no name", "3"),
        ] {
            assert!(request.http1(&target()).is_err(), "{request:?}");
        }
    }

    #[test]
    fn request_file_holds_several_requests() {
        let text = "GET /a\nx-a: 1\n\n### second\n\nPOST /b\n\n{\"a\":\n1}\n###\n";
        let requests = parse_request_file(text).unwrap();
        assert_eq!(requests.len(), 2);
        assert_eq!(requests[0].headers, [("x-a".to_owned(), "1".to_owned())]);
        assert_eq!(requests[1].body, "{\"a\":\n1}");
        assert_eq!(parse_request_file(" \n"), Err(RequestError::Empty));
        let error = parse_request_file("GET /\n###\n\nGET\n")
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("request 2 of the file (line 4)"),
            "{error}"
        );
    }
}
