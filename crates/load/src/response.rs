//! Incremental reader of HTTP/1.1 responses: finds where each ends, and keeps nothing of its body.

use memchr::memmem;

/// Most bytes of a response's head.
const LARGEST_HEAD: usize = 64 * 1024;
/// Most headers of a response.
const MOST_HEADERS: usize = 128;

/// Finished response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Finished {
    pub(crate) status: u16,
    /// Whether the connection can carry another request.
    pub(crate) is_kept: bool,
}

/// The bytes are no HTTP/1.1 response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Head,
    /// A body with this many bytes left.
    Sized(u64),
    /// The size line of a chunk.
    ChunkSize,
    /// A chunk with this many bytes left, its line end included.
    Chunk(u64),
    Trailers,
    /// A body that ends with the connection.
    UntilClose,
}

/// Reader of the responses of one connection.
#[derive(Debug)]
pub(crate) struct ResponseReader {
    state: State,
    status: u16,
    is_kept: bool,
    /// Bytes of a head, a size line or trailers that are not complete yet.
    pending: Vec<u8>,
}

impl ResponseReader {
    pub(crate) fn new() -> Self {
        Self {
            state: State::Head,
            status: 0,
            is_kept: true,
            pending: Vec::new(),
        }
    }

    /// Takes in what was received. Returns the response if it ends here; bytes behind it are an error, as no second
    /// request is under way on a connection. `has_no_body` is true for answers to HEAD.
    pub(crate) fn read(
        &mut self,
        bytes: &[u8],
        has_no_body: bool,
    ) -> Result<Option<Finished>, Malformed> {
        if self.pending.is_empty() {
            return self.consume(bytes, has_no_body);
        }
        let mut joined = std::mem::take(&mut self.pending);
        joined.extend_from_slice(bytes);
        self.consume(&joined, has_no_body)
    }

    /// The connection was closed by the target. Returns the response whose body this ends.
    pub(crate) fn close(&mut self) -> Option<Finished> {
        (self.state == State::UntilClose).then(|| {
            self.state = State::Head;
            Finished {
                status: self.status,
                is_kept: false,
            }
        })
    }

    fn consume(
        &mut self,
        mut bytes: &[u8],
        has_no_body: bool,
    ) -> Result<Option<Finished>, Malformed> {
        loop {
            match self.state {
                State::Head => {
                    let Some(rest) = self.head(bytes, has_no_body)? else {
                        return Ok(None);
                    };
                    bytes = rest;
                    if self.state == State::Sized(0) {
                        return self.finish(bytes);
                    }
                }
                State::Sized(left) => {
                    let taken = left.min(bytes.len() as u64);
                    bytes = bytes.get(taken as usize..).unwrap_or_default();
                    self.state = State::Sized(left - taken);
                    return if left == taken {
                        self.finish(bytes)
                    } else {
                        Ok(None)
                    };
                }
                State::ChunkSize => match httparse::parse_chunk_size(bytes) {
                    Ok(httparse::Status::Complete((used, size))) => {
                        bytes = bytes.get(used..).unwrap_or_default();
                        self.state = match size {
                            0 => State::Trailers,
                            size => State::Chunk(size.saturating_add(2)),
                        };
                    }
                    Ok(httparse::Status::Partial) => return self.wait(bytes),
                    Err(_) => return Err(Malformed),
                },
                State::Chunk(left) => {
                    let taken = left.min(bytes.len() as u64);
                    bytes = bytes.get(taken as usize..).unwrap_or_default();
                    if left > taken {
                        self.state = State::Chunk(left - taken);
                        return Ok(None);
                    }
                    self.state = State::ChunkSize;
                }
                State::Trailers => {
                    if let Some(rest) = bytes.strip_prefix(b"\r\n") {
                        return self.finish(rest);
                    }
                    let Some(end) = memmem::find(bytes, b"\r\n\r\n") else {
                        return self.wait(bytes);
                    };
                    return self.finish(bytes.get(end + 4..).unwrap_or_default());
                }
                State::UntilClose => return Ok(None),
            }
        }
    }

    /// Reads a head. Returns the bytes behind it, or `None` if it is not complete.
    fn head<'bytes>(
        &mut self,
        bytes: &'bytes [u8],
        has_no_body: bool,
    ) -> Result<Option<&'bytes [u8]>, Malformed> {
        let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        let used = match response.parse(bytes) {
            Ok(httparse::Status::Complete(used)) => used,
            Ok(httparse::Status::Partial) => {
                self.wait(bytes)?;
                return Ok(None);
            }
            Err(_) => return Err(Malformed),
        };
        let rest = bytes.get(used..).unwrap_or_default();
        self.status = response.code.ok_or(Malformed)?;
        self.is_kept = response.version == Some(1);
        let mut length = None;
        let mut is_chunked = false;
        for header in response.headers.iter() {
            if header.name.eq_ignore_ascii_case("content-length") {
                let text = std::str::from_utf8(header.value).map_err(|_| Malformed)?;
                length = Some(text.trim().parse().map_err(|_| Malformed)?);
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                is_chunked = header.value.to_ascii_lowercase().ends_with(b"chunked");
            } else if header.name.eq_ignore_ascii_case("connection") {
                let value = header.value.to_ascii_lowercase();
                if memmem::find(&value, b"close").is_some() {
                    self.is_kept = false;
                } else if memmem::find(&value, b"keep-alive").is_some() {
                    self.is_kept = true;
                }
            }
        }
        self.state = match self.status {
            // Informational: the response follows.
            100..=199 => State::Head,
            204 | 304 => State::Sized(0),
            _ if has_no_body => State::Sized(0),
            _ if is_chunked => State::ChunkSize,
            _ => length.map_or(State::UntilClose, State::Sized),
        };
        Ok(Some(rest))
    }

    fn finish(&mut self, rest: &[u8]) -> Result<Option<Finished>, Malformed> {
        self.state = State::Head;
        if !rest.is_empty() {
            return Err(Malformed);
        }
        Ok(Some(Finished {
            status: self.status,
            is_kept: self.is_kept,
        }))
    }

    fn wait(&mut self, bytes: &[u8]) -> Result<Option<Finished>, Malformed> {
        if bytes.len() > LARGEST_HEAD {
            return Err(Malformed);
        }
        self.pending.clear();
        self.pending.extend_from_slice(bytes);
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASES: &[(&str, u16, bool)] = &[
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", 200, true),
        ("HTTP/1.1 204 No Content\r\n\r\n", 204, true),
        (
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            200,
            true,
        ),
        (
            "HTTP/1.1 503 No\r\nconnection: close\r\ncontent-length: 1\r\n\r\nx",
            503,
            false,
        ),
        ("HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\nx", 200, false),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n",
            200,
            true,
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx-t: 1\r\nx-u: 2\r\n\r\n",
            200,
            true,
        ),
    ];

    #[test]
    fn response_ends_where_it_does_however_it_is_split() {
        for (text, status, is_kept) in CASES {
            let bytes = text.as_bytes();
            for size in 1..=bytes.len() {
                let mut reader = ResponseReader::new();
                let mut finished = None;
                for piece in bytes.chunks(size) {
                    assert_eq!(finished, None, "{text:?} in pieces of {size}");
                    finished = reader.read(piece, false).unwrap();
                }
                let expected = Finished {
                    status: *status,
                    is_kept: *is_kept,
                };
                assert_eq!(finished, Some(expected), "{text:?} in pieces of {size}");
                assert_eq!(reader.state, State::Head);
            }
        }
    }

    #[test]
    fn body_without_length_ends_with_the_connection() {
        let mut reader = ResponseReader::new();
        assert_eq!(reader.read(b"HTTP/1.1 200 OK\r\n\r\nabc", false), Ok(None));
        assert_eq!(
            reader.close(),
            Some(Finished {
                status: 200,
                is_kept: false
            })
        );
        assert_eq!(reader.close(), None);
    }

    #[test]
    fn answer_to_head_has_no_body() {
        let mut reader = ResponseReader::new();
        let finished = reader.read(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", true);
        assert_eq!(finished.unwrap().unwrap().status, 200);
    }

    #[test]
    fn bytes_that_are_no_response_are_refused() {
        for text in [
            "SSH-2.0-OpenSSH\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nab",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        ] {
            assert_eq!(
                ResponseReader::new().read(text.as_bytes(), false),
                Err(Malformed),
                "{text:?}"
            );
        }
        let endless = vec![b'a'; LARGEST_HEAD + 1];
        let mut reader = ResponseReader::new();
        let head = [b"HTTP/1.1 200 OK\r\nx-a: ".as_slice(), &endless].concat();
        assert_eq!(reader.read(&head, false), Err(Malformed));
    }
}
