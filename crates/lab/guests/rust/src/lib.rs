//! The benchmark's guest in Rust: the same counts, names and values as the native module
//! (`bench-native`), written as a careful author writes a plugin with the SDK. Names are made once; what
//! is read is added up and compared with what is expected, and a difference is told in a header.

use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType};

proxy_wasm::main! {{
    proxy_wasm::set_root_context(|_| Box::new(Bench { work: Rc::default() }));
}}

const VALUE: &[u8] = b"value";
/// Where what was not as expected is told, and in a telling configuration everything.
const TELL: &str = "x-bench";

/// The word that is replaced, and what replaces it.
const SECRET: &[u8] = b"secret";
const HIDDEN: &[u8] = b"******";

/// What one configuration does.
#[derive(Default)]
struct Work {
    set: Vec<String>,
    read: Vec<String>,
    remove: Vec<String>,
    body_reads: usize,
    /// Whether responses are told of.
    responses: bool,
    /// How many bytes the header reads bring; nothing: tell what came.
    header_bytes: Option<usize>,
    body_bytes: Option<usize>,
    /// Whether a word in the request's body is replaced.
    rewrite: bool,
}

impl Work {
    /// Reads `sets=20 reads=10 removals=20 body_reads=30 header_bytes=50 body_bytes=30720`, as
    /// `bench-native` does.
    fn parse(text: &str) -> Option<Self> {
        let mut work = Self::default();
        for word in text.split_ascii_whitespace() {
            let (key, number) = word.split_once('=')?;
            let number: usize = number.parse().ok()?;
            match key {
                "sets" => work.set = names(number),
                "reads" => work.read = names(number),
                "removals" => work.remove = names(number),
                "body_reads" => work.body_reads = number,
                "responses" => work.responses = number > 0,
                "header_bytes" => work.header_bytes = Some(number),
                "body_bytes" => work.body_bytes = Some(number),
                "rewrite" => work.rewrite = number > 0,
                _ => return None,
            }
        }
        Some(work)
    }
}

/// `x-h-1`, `x-h-2` and so on.
fn names(count: usize) -> Vec<String> {
    (1..=count).map(|number| format!("x-h-{number}")).collect()
}

/// One configuration.
struct Bench {
    work: Rc<Work>,
}

impl Context for Bench {}

impl RootContext for Bench {
    fn on_configure(&mut self, _size: usize) -> bool {
        let text = self.get_plugin_configuration().unwrap_or_default();
        let work = std::str::from_utf8(&text).ok().and_then(Work::parse);
        let is_right = work.is_some();
        self.work = Rc::new(work.unwrap_or_default());
        is_right
    }

    fn create_http_context(&self, _id: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Request {
            work: Rc::clone(&self.work),
        }))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

/// One request.
struct Request {
    work: Rc<Work>,
}

impl Context for Request {}

impl HttpContext for Request {
    fn on_http_request_headers(&mut self, _count: usize, end_of_stream: bool) -> Action {
        let work = &self.work;
        for name in &work.set {
            self.set_http_request_header_bytes(name, Some(VALUE));
        }
        let mut bytes = 0;
        for name in &work.read {
            bytes += self
                .get_http_request_header_bytes(name)
                .map_or(0, |value| value.len());
        }
        for name in &work.remove {
            self.set_http_request_header_bytes(name, None);
        }
        if work.header_bytes != Some(bytes) {
            self.add_http_request_header(TELL, &format!("headers {bytes}"));
        }
        if (work.body_reads > 0 || work.rewrite) && !end_of_stream {
            Action::Pause
        } else {
            Action::Continue
        }
    }

    fn on_http_request_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        let work = &self.work;
        if work.body_reads == 0 && !work.rewrite {
            return Action::Continue;
        }
        if !end_of_stream {
            return Action::Pause;
        }
        if work.rewrite {
            let mut body = self.get_http_request_body(0, size).unwrap_or_default();
            if let Some(place) = body.windows(SECRET.len()).position(|part| part == SECRET) {
                body[place..place + SECRET.len()].copy_from_slice(HIDDEN);
                self.set_http_request_body(0, size, &body);
            }
            return Action::Continue;
        }
        let mut bytes = 0;
        for _ in 0..work.body_reads {
            bytes += self
                .get_http_request_body(0, size)
                .map_or(0, |body| body.len());
        }
        if work.body_bytes != Some(bytes) {
            self.add_http_request_header(TELL, &format!("body {bytes}"));
        }
        Action::Continue
    }

    fn on_http_response_headers(&mut self, _count: usize, _end_of_stream: bool) -> Action {
        if self.work.responses {
            self.add_http_response_header(TELL, "response");
        }
        Action::Continue
    }
}
