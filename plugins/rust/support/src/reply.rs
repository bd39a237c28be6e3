//! A reply that carries a response-code detail, so that access logs can tell one refusal from another.
//! The SDK's `send_http_response` has no place for it, so this calls the same host function itself.
//!
//! The trap: after a reply the callback has to return `Action::Pause`.

#[link(wasm_import_module = "env")]
unsafe extern "C" {
    fn proxy_send_local_response(
        status_code: u32,
        details_data: *const u8,
        details_size: usize,
        body_data: *const u8,
        body_size: usize,
        headers_data: *const u8,
        headers_size: usize,
        grpc_status: i32,
    ) -> u32;
}

/// No `grpc-status` of its own: the proxy derives one where the request is gRPC.
const NO_GRPC_STATUS: i32 = -1;

/// Ends the current stream with this status, these headers and this body, instead of asking the upstream.
/// `details` is what access logs show as response-code detail; without spaces.
///
/// Returns whether the proxy took it: it does not where the response is already on its way.
pub fn reply(status: u32, headers: &[(&str, &str)], body: &[u8], details: &str) -> bool {
    let headers = serialized(headers);
    // SAFETY: each pointer is that of a slice that outlives the call, beside this slice's own length; the
    // host only reads, and keeps nothing.
    let status = unsafe {
        proxy_send_local_response(
            status,
            details.as_ptr(),
            details.len(),
            body.as_ptr(),
            body.len(),
            headers.as_ptr(),
            headers.len(),
            NO_GRPC_STATUS,
        )
    };
    status == 0
}

/// A header map as the ABI has it: how many pairs, the lengths of each, then keys and values, each with a
/// NUL behind it.
fn serialized(headers: &[(&str, &str)]) -> Vec<u8> {
    let texts: usize = headers
        .iter()
        .map(|(name, value)| name.len() + value.len() + 2)
        .sum();
    let mut bytes = Vec::with_capacity(4 + 8 * headers.len() + texts);
    // Lengths are those of texts in a memory of 32 bits.
    bytes.extend((headers.len() as u32).to_le_bytes());
    for (name, value) in headers {
        bytes.extend((name.len() as u32).to_le_bytes());
        bytes.extend((value.len() as u32).to_le_bytes());
    }
    for (name, value) in headers {
        bytes.extend(name.as_bytes());
        bytes.push(0);
        bytes.extend(value.as_bytes());
        bytes.push(0);
    }
    bytes
}
