//! The work: the same counts, names and values as the benchmark's scripts.

use crate::abi::{
    BUFFERED_REQUEST_BODY, EnvoyBuffer, FilterPtr, ModuleBuffer, RECEIVED_REQUEST_BODY,
    REQUEST_HEADERS, RESPONSE_HEADERS, add_header, append_body, drain_body, get_body_chunks,
    get_body_chunks_size, get_header, received_buffered_request_body, send_response, set_header,
};

const VALUE: &[u8] = b"value";
/// Where what was not as expected is told, and in a telling configuration everything.
const TELL: &[u8] = b"x-bench";
/// A body of more slices than this is not the benchmark's, and its sum comes out wrong.
const SLICES: usize = 16;

/// The token that may pass, and the word that is replaced.
const SECRET: &[u8] = b"secret";
const HIDDEN: &[u8] = b"******";

/// What one filter does, read once from its configuration.
#[derive(Debug)]
pub(crate) struct Work {
    set: Vec<Box<[u8]>>,
    read: Vec<Box<[u8]>>,
    remove: Vec<Box<[u8]>>,
    body_reads: usize,
    /// Whether responses are told of; a hook for them is called in any case.
    responses: bool,
    /// How many bytes the header reads bring; nothing: tell what came.
    header_bytes: Option<usize>,
    body_bytes: Option<usize>,
    /// What it does besides.
    job: Job,
}

/// What plugins that ship do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Job {
    Nothing,
    /// Requests without the token are refused.
    Token,
    /// Every request is.
    Abort,
    /// A word in the request's body is replaced.
    Rewrite,
}

impl Work {
    /// Reads `sets=20 reads=10 removals=20 body_reads=30 header_bytes=50 body_bytes=30720`; a number
    /// that is not there is 0, a count of bytes that is not there is not expected but told. With
    /// `responses=1` responses are told of, too. `token=1` refuses requests without the token, `abort=1` all of them,
    /// and `rewrite=1` replaces a word in the request's body.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut counts = [0; 5];
        let mut job = Job::Nothing;
        let mut expected = [None; 2];
        for word in text.split_ascii_whitespace() {
            let (key, number) = word.split_once('=')?;
            let number: usize = number.parse().ok()?;
            match key {
                "sets" => counts[0] = number,
                "reads" => counts[1] = number,
                "removals" => counts[2] = number,
                "body_reads" => counts[3] = number,
                "responses" => counts[4] = number,
                "token" => job = Job::Token,
                "abort" => job = Job::Abort,
                "rewrite" => job = Job::Rewrite,
                "header_bytes" => expected[0] = Some(number),
                "body_bytes" => expected[1] = Some(number),
                _ => return None,
            }
        }
        let [sets, reads, removals, body_reads, responses] = counts;
        let [header_bytes, body_bytes] = expected;
        Some(Self {
            set: names(sets),
            read: names(reads),
            remove: names(removals),
            body_reads,
            responses: responses > 0,
            header_bytes,
            body_bytes,
            job,
        })
    }

    /// Whether the body has to be complete before the stream goes on.
    pub(crate) fn wants_body(&self) -> bool {
        self.body_reads > 0 || self.job == Job::Rewrite
    }

    /// Returns whether the request goes on; if not, it was answered.
    pub(crate) fn on_request_headers(&self, filter: FilterPtr) -> bool {
        let is_refused = match self.job {
            Job::Abort => true,
            Job::Token => !has_token(filter),
            Job::Nothing | Job::Rewrite => false,
        };
        if is_refused {
            let body: &[u8] = if self.job == Job::Abort {
                b"fault"
            } else {
                b"forbidden"
            };
            // SAFETY: the filter is Envoy's, inside a hook of its stream; Envoy copies the body, and there are no
            // headers to be read.
            unsafe {
                send_response(
                    filter,
                    403,
                    std::ptr::null(),
                    0,
                    ModuleBuffer::new(body),
                    ModuleBuffer::NOTHING,
                );
            }
            return false;
        }
        for name in &self.set {
            set(filter, name, ModuleBuffer::new(VALUE));
        }
        let mut bytes = 0;
        for name in &self.read {
            bytes += length_of(filter, name);
        }
        for name in &self.remove {
            set(filter, name, ModuleBuffer::NOTHING);
        }
        if self.header_bytes != Some(bytes) {
            tell(filter, REQUEST_HEADERS, &format!("headers {bytes}"));
        }
        true
    }

    pub(crate) fn on_request_body(&self, filter: FilterPtr) {
        if self.job == Job::Rewrite {
            rewrite(filter);
            return;
        }
        // SAFETY: the filter is Envoy's, inside a hook of its stream.
        let received_is_all = unsafe { received_buffered_request_body(filter) };
        // What was held back before the last piece; mostly nothing, which is asked once.
        let held = !received_is_all && body_length(filter, BUFFERED_REQUEST_BODY) > 0;
        let mut bytes = 0;
        for _ in 0..self.body_reads {
            if held {
                bytes += body_length(filter, BUFFERED_REQUEST_BODY);
            }
            bytes += body_length(filter, RECEIVED_REQUEST_BODY);
        }
        if self.body_bytes != Some(bytes) {
            tell(filter, REQUEST_HEADERS, &format!("body {bytes}"));
        }
    }

    pub(crate) fn on_response_headers(&self, filter: FilterPtr) {
        if self.responses {
            tell(filter, RESPONSE_HEADERS, "response");
        }
    }
}

/// `x-h-1`, `x-h-2` and so on.
fn names(count: usize) -> Vec<Box<[u8]>> {
    (1..=count)
        .map(|number| format!("x-h-{number}").into_bytes().into_boxed_slice())
        .collect()
}

fn set(filter: FilterPtr, name: &[u8], value: ModuleBuffer) {
    // SAFETY: the filter is Envoy's, inside a hook of its stream; Envoy copies name and value.
    unsafe { set_header(filter, REQUEST_HEADERS, ModuleBuffer::new(name), value) };
}

fn length_of(filter: FilterPtr, name: &[u8]) -> usize {
    header(filter, name).length()
}

fn has_token(filter: FilterPtr) -> bool {
    // SAFETY: Envoy's bytes live until the header changes, and nothing is called in between.
    unsafe { header(filter, b"x-token").bytes() == SECRET }
}

/// Replaces the word in the whole body: what was held back, and the last piece.
fn rewrite(filter: FilterPtr) {
    let mut body = Vec::new();
    // SAFETY: the filter is Envoy's, inside a body hook of its stream.
    let received_is_all = unsafe { received_buffered_request_body(filter) };
    if !received_is_all {
        take(filter, BUFFERED_REQUEST_BODY, &mut body);
    }
    take(filter, RECEIVED_REQUEST_BODY, &mut body);
    if let Some(place) = body.windows(SECRET.len()).position(|part| part == SECRET)
        && let Some(word) = body.get_mut(place..place + SECRET.len())
    {
        word.copy_from_slice(HIDDEN);
    }
    // SAFETY: as above; Envoy copies the bytes.
    unsafe { append_body(filter, RECEIVED_REQUEST_BODY, ModuleBuffer::new(&body)) };
}

/// Moves one of the stream's buffers to the end of `body`.
fn take(filter: FilterPtr, buffer: u32, body: &mut Vec<u8>) {
    // SAFETY: the filter is Envoy's, inside a body hook of its stream; Envoy writes as many slices as it said, there is
    // room for them, and their bytes are copied before the buffer changes.
    unsafe {
        let count = get_body_chunks_size(filter, buffer);
        let mut slices = vec![EnvoyBuffer::EMPTY; count];
        if count == 0 || !get_body_chunks(filter, buffer, slices.as_mut_ptr()) {
            return;
        }
        let before = body.len();
        for slice in slices {
            body.extend_from_slice(slice.bytes());
        }
        drain_body(filter, buffer, body.len() - before);
    }
}

fn header(filter: FilterPtr, name: &[u8]) -> EnvoyBuffer {
    let mut value = EnvoyBuffer::EMPTY;
    // SAFETY: the filter is Envoy's, inside a hook of its stream; the value is written to, and no
    // count is asked for.
    unsafe {
        get_header(
            filter,
            REQUEST_HEADERS,
            ModuleBuffer::new(name),
            &raw mut value,
            0,
            std::ptr::null_mut(),
        )
    };
    value
}

/// Brings the slices of one of the stream's buffers, and says how many bytes they have. They are
/// read where they are: native code needs no copy.
fn body_length(filter: FilterPtr, body: u32) -> usize {
    let mut slices = [EnvoyBuffer::EMPTY; SLICES];
    // SAFETY: the filter is Envoy's, inside a body hook of its stream; Envoy writes as many slices as
    // it said, and there is room for them.
    unsafe {
        let count = get_body_chunks_size(filter, body);
        if count > SLICES || !get_body_chunks(filter, body, slices.as_mut_ptr()) {
            return 0;
        }
    }
    slices.iter().map(|slice| slice.length()).sum()
}

fn tell(filter: FilterPtr, map: u32, what: &str) {
    // SAFETY: the filter is Envoy's, inside a hook of its stream; Envoy copies name and value.
    unsafe {
        add_header(
            filter,
            map,
            ModuleBuffer::new(TELL),
            ModuleBuffer::new(what.as_bytes()),
        )
    };
}
