//! gRPC over an HTTP stream: messages with their five bytes before them, statuses, and who is called.
//!
//! The trap: a message may come in any number of chunks, and a chunk may bring any number of messages.

use outrider_plugin_api::HttpStreamHandle;

/// A call has one message in each direction; a stream any number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Call,
    Stream,
}

/// gRPC's statuses that the host itself gives.
pub(crate) mod code {
    pub(crate) const OK: u32 = 0;
    pub(crate) const UNKNOWN: u32 = 2;
    pub(crate) const RESOURCE_EXHAUSTED: u32 = 8;
    pub(crate) const INTERNAL: u32 = 13;
    pub(crate) const UNAVAILABLE: u32 = 14;
}

/// How an exchange ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: u32,
    pub(crate) message: String,
}

/// What has come of an exchange so far.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) kind: Kind,
    /// The guest may send more.
    pub(crate) sends: bool,
    unread: Vec<u8>,
    /// The message of a call, which is told when the call has ended well.
    pub(crate) answer: Option<Vec<u8>>,
    /// Larger messages than this end the exchange.
    most: usize,
    /// Of an exchange that no stream has.
    pub(crate) handle: Option<Box<dyn HttpStreamHandle>>,
}

/// What a chunk brought.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Message(Vec<u8>),
    /// More has to come.
    Nothing,
}

/// The bytes before a message.
const PREFIX: usize = 5;

/// A message as it is sent.
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PREFIX + message.len());
    bytes.push(0);
    bytes.extend_from_slice(&(message.len() as u32).to_be_bytes());
    bytes.extend_from_slice(message);
    bytes
}

impl Incoming {
    pub(crate) fn new(kind: Kind, most: usize) -> Self {
        Self {
            kind,
            sends: kind == Kind::Stream,
            unread: Vec::new(),
            answer: None,
            most,
            handle: None,
        }
    }

    /// A chunk has come.
    pub(crate) fn feed(&mut self, pieces: &[&[u8]]) {
        for piece in pieces {
            self.unread.extend_from_slice(piece);
        }
    }

    /// The next message of what has come.
    ///
    /// # Errors
    /// It is compressed, or larger than the plugin's budget.
    pub(crate) fn next(&mut self) -> Result<Part, Failure> {
        let Some((prefix, rest)) = self.unread.split_at_checked(PREFIX) else {
            return Ok(Part::Nothing);
        };
        let [compressed, length @ ..] = prefix else {
            return Ok(Part::Nothing);
        };
        let length = length
            .iter()
            .fold(0_usize, |length, byte| length << 8 | usize::from(*byte));
        if *compressed != 0 {
            return Err(Failure {
                code: code::INTERNAL,
                message: "a compressed message came, which was not asked for".to_owned(),
            });
        }
        if length > self.most {
            return Err(Failure {
                code: code::RESOURCE_EXHAUSTED,
                message: format!(
                    "a message of {length} bytes came; at most {} are taken",
                    self.most
                ),
            });
        }
        let Some(message) = rest.get(..length) else {
            return Ok(Part::Nothing);
        };
        let message = message.to_vec();
        self.unread.drain(..PREFIX + length);
        Ok(Part::Message(message))
    }
}

/// The status that headers or trailers say.
pub(crate) fn status(pairs: &[(&[u8], &[u8])]) -> Option<Failure> {
    let value = |wanted: &[u8]| {
        pairs
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(wanted))
            .map(|(_, value)| String::from_utf8_lossy(value).into_owned())
    };
    let code = value(b"grpc-status")?;
    Some(Failure {
        code: code.trim().parse().unwrap_or(code::UNKNOWN),
        message: value(b"grpc-message").unwrap_or_default(),
    })
}

/// The status of a response that is not gRPC's, as gRPC's documents map it.
pub(crate) fn of_http(headers: &[(&[u8], &[u8])]) -> Option<Failure> {
    let (_, status) = headers.iter().find(|(name, _)| *name == b":status")?;
    let status = std::str::from_utf8(status).ok()?.parse::<u16>().ok()?;
    (status != 200).then(|| Failure {
        code: code_of_http(status),
        message: format!("HTTP status {status}"),
    })
}

/// gRPC's `http-grpc-status-mapping.md`.
pub(crate) fn code_of_http(status: u16) -> u32 {
    match status {
        400 => code::INTERNAL,
        401 => 16,
        403 => 7,
        404 => 12,
        429 | 502 | 503 | 504 => code::UNAVAILABLE,
        _ => code::UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_come_out_as_they_went_in_however_they_are_cut(
            messages in proptest::collection::vec(any::<Vec<u8>>(), 0..6),
            cuts in proptest::collection::vec(1_usize..9, 1..40),
        ) {
            let bytes: Vec<u8> = messages.iter().flat_map(|message| framed(message)).collect();
            let mut incoming = Incoming::new(Kind::Stream, 1 << 20);
            let (mut got, mut rest, mut cuts) = (Vec::new(), bytes.as_slice(), cuts.iter().cycle());
            while !rest.is_empty() {
                let length = (*cuts.next().unwrap()).min(rest.len());
                let (piece, left) = rest.split_at(length);
                rest = left;
                incoming.feed(&[piece]);
                while let Part::Message(message) = incoming.next().unwrap() {
                    got.push(message);
                }
            }
            prop_assert_eq!(got, messages);
        }
    }

    #[test]
    fn what_is_too_large_or_compressed_ends_the_exchange() {
        let mut incoming = Incoming::new(Kind::Call, 3);
        incoming.feed(&[&framed(b"abcd")]);
        assert_eq!(incoming.next().unwrap_err().code, code::RESOURCE_EXHAUSTED);
        let mut incoming = Incoming::new(Kind::Call, 3);
        incoming.feed(&[&[1, 0, 0, 0, 0]]);
        assert_eq!(incoming.next().unwrap_err().code, code::INTERNAL);
    }

    #[test]
    fn statuses() {
        let trailers: &[(&[u8], &[u8])] = &[(b"grpc-status", b"7"), (b"grpc-message", b"no")];
        assert_eq!(
            status(trailers),
            Some(Failure {
                code: 7,
                message: "no".to_owned()
            })
        );
        assert_eq!(status(&[]), None);
        assert_eq!(of_http(&[(b":status", b"200")]), None);
        assert_eq!(of_http(&[(b":status", b"503")]).unwrap().code, 14);
    }
}
