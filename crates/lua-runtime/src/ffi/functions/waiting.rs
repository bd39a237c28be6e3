//! What a handler waits for, and how it ends a stream: callouts, timers, bodies, replies. Each
//! says what the handler wants; the SDK yields after it.

use std::time::Duration;

use outrider_plugin_api::{Audience, CalloutRequest, Reply, Wake, WakeId};

use super::super::call::{CallState, Pending};
use super::frame::{bytes, pair, show, show_pairs, show_scratch, show_text, text, with_stream};

fn duration(milliseconds: f64) -> Duration {
    const LONGEST: f64 = 24.0 * 3600.0 * 1000.0;
    // What is not a number becomes 0.
    Duration::from_millis(milliseconds.clamp(0.0, LONGEST) as u64)
}

/// Starts a callout with the staged headers. 1: done; 0: it failed, and here is why.
pub(super) unsafe extern "C" fn callout(
    call: *mut CallState,
    cluster: *const u8,
    length: i32,
    body: *const u8,
    body_length: i32,
    timeout: f64,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and strings.
    unsafe {
        with_stream(call, |state, stream| {
            let headers: Vec<(&[u8], &[u8])> = state
                .staged
                .iter()
                .map(|(name, value)| (name.as_slice(), value.as_slice()))
                .collect();
            let started = stream.start_callout(&CalloutRequest {
                cluster: bytes(cluster, length),
                headers: &headers,
                body: bytes(body, body_length),
                timeout: duration(timeout),
            });
            state.staged.clear();
            match started {
                Ok(id) => {
                    state.pending = Pending::Event(WakeId::Callout(id));
                    1
                }
                Err(failure) => {
                    show_text(state, &failure.to_string());
                    0
                }
            }
        })
    }
}

/// 1: started; 0: the stream is over.
pub(super) unsafe extern "C" fn timer(call: *mut CallState, delay: f64) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| {
            match stream.start_timer(duration(delay)) {
                Ok(id) => {
                    state.pending = Pending::Event(WakeId::Timer(id));
                    1
                }
                Err(_) => 0,
            }
        })
    }
}

/// 1: the handler may yield now, to be woken when the body is here.
pub(super) unsafe extern "C" fn wait_body(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, _| {
            state.pending = Pending::Body;
            1
        })
    }
}

/// 1: the handler may yield now, to be woken by the next chunk of the body, or by its end.
pub(super) unsafe extern "C" fn wait_chunk(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, _| {
            state.pending = Pending::Chunk;
            1
        })
    }
}

/// 1: the handler may yield now, to be woken by the trailers, or by the body's end without any.
pub(super) unsafe extern "C" fn wait_trailers(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, _| {
            state.pending = Pending::Trailers;
            1
        })
    }
}

/// What woke the handler. 1: a callout, with headers as pairs and its body; 2: a callout that
/// failed, with the reason; 3: a timer; 4: the body; 0: nothing.
pub(super) unsafe extern "C" fn wake(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, _| {
            let Some(wake) = state.wake else { return 0 };
            // SAFETY: a wake is there only while its borrow lasts.
            match *wake.as_ref() {
                Wake::Callout(_, Ok(response)) => {
                    state.pairs.clear();
                    state.pairs.extend(
                        response
                            .headers
                            .iter()
                            .map(|(name, value)| pair(name, value)),
                    );
                    show_pairs(state);
                    if let [piece] = response.body {
                        show(state, piece);
                    } else {
                        state.scratch.clear();
                        for piece in response.body {
                            state.scratch.extend_from_slice(piece);
                        }
                        show_scratch(state);
                    }
                    1
                }
                Wake::Callout(_, Err(failure)) => {
                    show_text(state, &failure.to_string());
                    2
                }
                Wake::Timer(_) | Wake::HttpStream(..) => 3,
                Wake::Body => 4,
            }
        })
    }
}

/// 1: the staged headers and this body are the reply, once the handler yields or returns. An audience
/// of 1: the plugin itself sees it as the response, too.
pub(super) unsafe extern "C" fn reply(
    call: *mut CallState,
    status: i32,
    body: *const u8,
    length: i32,
    details: *const u8,
    details_length: i32,
    audience: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and strings.
    unsafe {
        with_stream(call, |state, _| {
            state.pending = Pending::Reply(Box::new(Reply {
                status: u16::try_from(status).unwrap_or(500),
                headers: std::mem::take(&mut state.staged),
                body: bytes(body, length).to_vec(),
                details: text(bytes(details, details_length)).into_owned(),
                audience: if audience == 1 {
                    Audience::Everyone
                } else {
                    Audience::Others
                },
            }));
            1
        })
    }
}
