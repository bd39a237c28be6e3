//! Events whose bytes Envoy frees when its hook returns, and that are delivered later.

use outrider_plugin_api::CalloutRequest;

use super::*;

/// Headers and pieces of a body that Envoy lends for one hook.
struct Lent {
    _bytes: Vec<Vec<u8>>,
    headers: Vec<EnvoyHeader>,
    pieces: Vec<EnvoyBuffer>,
}

impl Lent {
    fn new(headers: &[(&str, &str)], pieces: &[&str]) -> Self {
        let mut bytes = Vec::new();
        let mut lend = |text: &str| {
            let own = text.as_bytes().to_vec();
            let buffer = EnvoyBuffer {
                pointer: own.as_ptr(),
                length: own.len(),
            };
            bytes.push(own);
            buffer
        };
        let headers = headers.iter().map(|(name, value)| EnvoyHeader {
            name: lend(name),
            value: lend(value),
        });
        let headers = headers.collect();
        let pieces = pieces.iter().map(|piece| lend(piece)).collect();
        Self {
            _bytes: bytes,
            headers,
            pieces,
        }
    }
}

const HEADERS: [(&str, &str); 2] = [(":status", "200"), ("x-empty", "")];

fn bytes_of(texts: &[&str]) -> String {
    format!(
        "{:?}",
        texts.iter().map(|text| text.as_bytes()).collect::<Vec<_>>()
    )
}

fn pairs_of(pairs: &[(&str, &str)]) -> String {
    let pairs = pairs
        .iter()
        .map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    format!("{:?}", pairs.collect::<Vec<_>>())
}

#[test]
fn callout_response_is_delivered_after_its_hook() {
    let plugin = Arc::new(TestPlugin::new(|call, stream| {
        if call.phase != Phase::RequestHeaders {
            return Ok(Decision::Continue);
        }
        let request = CalloutRequest {
            cluster: b"upstream",
            headers: &[
                (b":method", b"GET"),
                (b":path", b"/"),
                (b":authority", b"upstream"),
            ],
            body: b"",
            timeout: None,
        };
        stream.start_callout(&request).unwrap();
        Ok(Decision::Pause(Pause::Event))
    }));
    let mut stream = TestStream::new(&plugin);
    stream.request_headers();
    let lent = Lent::new(&HEADERS, &["one", "two"]);
    // SAFETY: the filter is alive, and what is lent outlives the call. The stub's callouts have the number 0.
    unsafe {
        envoy_dynamic_module_on_http_filter_http_callout_done(
            stream.filter,
            stream.module,
            0,
            0,
            lent.headers.as_ptr(),
            lent.headers.len(),
            lent.pieces.as_ptr(),
            lent.pieces.len(),
        );
    }
    drop(lent);
    assert!(plugin.heard().is_empty());
    let heard = stream.hear(&plugin, 1).concat();
    assert!(heard.contains(&pairs_of(&HEADERS)), "{heard}");
    assert!(heard.contains(&bytes_of(&["one", "two"])), "{heard}");
}

#[test]
fn http_stream_headers_and_trailers_are_delivered_after_their_hooks() {
    let plugin = opener();
    let mut stream = TestStream::new(&plugin);
    stream.request_headers();
    let id = stream.started();
    let headers = Lent::new(&HEADERS, &[]);
    let trailers = Lent::new(&[("x-trailer", "of the end")], &[]);
    // SAFETY: the filter is alive, and what is lent outlives the calls.
    unsafe {
        envoy_dynamic_module_on_http_filter_http_stream_headers(
            stream.filter,
            stream.module,
            id,
            headers.headers.as_ptr(),
            headers.headers.len(),
            false,
        );
        envoy_dynamic_module_on_http_filter_http_stream_trailers(
            stream.filter,
            stream.module,
            id,
            trailers.headers.as_ptr(),
            trailers.headers.len(),
        );
    }
    drop((headers, trailers));
    let heard = stream.hear(&plugin, 2).concat();
    assert!(heard.contains(&pairs_of(&HEADERS)), "{heard}");
    let trailers = pairs_of(&[("x-trailer", "of the end")]);
    assert!(heard.contains(&trailers), "{heard}");
}
