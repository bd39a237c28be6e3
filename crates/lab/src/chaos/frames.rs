//! HTTP/2 frames as bytes, sound and unsound ones, for peers that break the protocol on purpose (RFC 9113).
//!
//! Header blocks are literals without indexing and without Huffman coding, so they need no state.

/// What a client sends first.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// Returns one frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let mut bytes = length.into_iter().skip(1).collect::<Vec<u8>>();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Returns a header block.
pub(crate) fn block(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in headers {
        bytes.push(0);
        for text in [name, value] {
            let text: Vec<u8> = text.bytes().take(126).collect();
            bytes.push(text.len() as u8);
            bytes.extend(text);
        }
    }
    bytes
}

/// Head of a frame: length of the payload, kind, flags, stream.
pub(crate) fn parse(head: [u8; 9]) -> (usize, u8, u8, u32) {
    let [high, middle, low, kind, flags, stream @ ..] = head;
    let length = u32::from_be_bytes([0, high, middle, low]) as usize;
    (
        length,
        kind,
        flags,
        u32::from_be_bytes(stream) & 0x7fff_ffff,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_head_is_read_as_it_was_written() {
        let bytes = frame(HEADERS, END_HEADERS, 7, &block(&[(":status", "200")]));
        let head: [u8; 9] = bytes[..9].try_into().unwrap();
        assert_eq!(parse(head), (13, HEADERS, END_HEADERS, 7));
        assert_eq!(&bytes[9..], b"\0\x07:status\x03200");
    }
}
