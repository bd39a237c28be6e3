//! What a handler starts and waits for, and how it ends a stream: callouts, HTTP streams, timers, bodies,
//! replies. What is said to be awaited is so once the SDK yields.

use std::time::Duration;

use outrider_plugin_api::{
    Audience, CalloutFailure, CalloutId, CalloutRequest, HttpStreamId, HttpStreamRequest, Reply,
    Stream, Wake, WakeId,
};
use smallvec::SmallVec;

use super::super::call::{CallState, Pending};
use super::frame::{bytes, pair, show, show_pairs, show_scratch, show_text, text, with_stream};
use crate::outcomes::{Missing, Pairs, Parts};
use crate::streams::Lookup;

fn duration(milliseconds: f64) -> Duration {
    const LONGEST: f64 = 24.0 * 3600.0 * 1000.0;
    // What is not a number becomes 0.
    Duration::from_millis(milliseconds.clamp(0.0, LONGEST) as u64)
}

/// The kinds of what a handler can wait for, as `wait.lua` numbers them.
mod kind {
    pub(super) const CALLOUT: i32 = 1;
    pub(super) const TIMER: i32 = 2;
    pub(super) const HTTP_STREAM: i32 = 3;
}

/// Which part of an HTTP stream is asked for, as `callout.lua` numbers them.
mod part {
    pub(super) const HEADERS: i32 = 0;
    pub(super) const CHUNK: i32 = 1;
}

/// The name of a kind and a number, which Lua holds as a `double`: whole, and below 2^53.
fn name_of(kind: i32, id: f64) -> Option<WakeId> {
    let id = id as u64;
    match kind {
        kind::CALLOUT => Some(WakeId::Callout(CalloutId(id))),
        kind::TIMER => Some(WakeId::Timer(id)),
        kind::HTTP_STREAM => Some(WakeId::HttpStream(HttpStreamId(id))),
        _ => None,
    }
}

/// Returns the number of a callout or an HTTP stream to Lua, or why it was not started.
fn called(
    state: &mut CallState,
    stream: &dyn Stream,
    cluster: &[u8],
    result: Result<u64, CalloutFailure>,
) -> i32 {
    if result == Err(CalloutFailure::NotAllowed) {
        show_text(state, &stream.upstream_denied(cluster));
        return 0;
    }
    started(state, result)
}

/// Hands the number of what was started to Lua, or why it was not.
fn started(state: &mut CallState, result: Result<u64, CalloutFailure>) -> i32 {
    match result {
        Ok(id) => {
            state.head.number = id as f64;
            1
        }
        Err(failure) => {
            show_text(state, &failure.to_string());
            0
        }
    }
}

/// Starts a callout with the staged headers. 1: this is its number; 0: it failed, and here is why.
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
            let cluster = bytes(cluster, length);
            let result = stream.start_callout(&CalloutRequest {
                cluster,
                headers: &staged(state),
                body: bytes(body, body_length),
                timeout: Some(duration(timeout)),
            });
            state.staged.clear();
            called(state, stream, cluster, result.map(|id| id.0))
        })
    }
}

fn staged(state: &CallState) -> SmallVec<[(&[u8], &[u8]); 16]> {
    state
        .staged
        .iter()
        .map(|(name, value)| (name.as_slice(), value.as_slice()))
        .collect()
}

/// Opens an HTTP stream with the staged headers. A timeout of 0: none. Answers as `callout`.
pub(super) unsafe extern "C" fn open_stream(
    call: *mut CallState,
    cluster: *const u8,
    length: i32,
    body: *const u8,
    body_length: i32,
    timeout: f64,
    end: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and strings.
    unsafe {
        with_stream(call, |state, stream| {
            let cluster = bytes(cluster, length);
            let result = stream.start_http_stream(&HttpStreamRequest {
                cluster,
                headers: &staged(state),
                body: bytes(body, body_length),
                end_of_stream: end == 1,
                timeout: (timeout > 0.0).then(|| duration(timeout)),
            });
            state.staged.clear();
            called(state, stream, cluster, result.map(|id| id.0))
        })
    }
}

/// The answer when something is refused, with the reason.
const REFUSED: i32 = -4;

/// Answers what became of a part that was sent.
fn sent(state: &mut CallState, result: Result<(), CalloutFailure>) -> i32 {
    match result {
        Ok(()) => 1,
        Err(CalloutFailure::StreamOver) => 0,
        Err(failure) => {
            show_text(state, &failure.to_string());
            REFUSED
        }
    }
}

/// Sends on an HTTP stream. 1: sent; 0: it takes no more; [`REFUSED`]: here is why not.
pub(super) unsafe extern "C" fn send_data(
    call: *mut CallState,
    id: f64,
    data: *const u8,
    length: i32,
    end: i32,
) -> i32 {
    // SAFETY: called by the SDK, with its call state and strings.
    unsafe {
        with_stream(call, |state, stream| {
            let (id, data) = (HttpStreamId(id as u64), bytes(data, length));
            let result = stream.send_http_stream_data(id, data, end == 1);
            sent(state, result)
        })
    }
}

/// Sends the staged pairs as the trailers of an HTTP stream. Answers as `send_data`.
pub(super) unsafe extern "C" fn send_trailers(call: *mut CallState, id: f64) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| {
            let id = HttpStreamId(id as u64);
            let result = stream.send_http_stream_trailers(id, &staged(state));
            state.staged.clear();
            sent(state, result)
        })
    }
}

/// Starts a timer. Answers as `callout`.
pub(super) unsafe extern "C" fn timer(call: *mut CallState, delay: f64) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| {
            let result = stream.start_timer(duration(delay));
            started(state, result)
        })
    }
}

/// 1: this is one more of the events with which the handler goes on once it has yielded.
pub(super) unsafe extern "C" fn wait_for(call: *mut CallState, kind: i32, id: f64) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, _| {
            let Some(name) = name_of(kind, id) else {
                return 0;
            };
            if let Pending::Events(awaited) = &mut state.pending {
                awaited.push(name);
            } else {
                state.pending = Pending::Events(smallvec::smallvec![name]);
            }
            1
        })
    }
}

/// What came of a callout or a timer. 1: a response, with headers as pairs and its body; 2: none, for
/// this reason; 3: the timer is due; 0: nothing yet. It is taken with this.
pub(super) unsafe extern "C" fn outcome(call: *mut CallState, kind: i32, id: f64) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, _| {
            let Some(name) = name_of(kind, id) else {
                return 0;
            };
            // SAFETY: a wake is there only while its borrow lasts.
            let wake = state.wake.map(|wake| *wake.as_ref());
            if let Some(wake) = wake.filter(|wake| wake.id() == Some(name)) {
                state.wake = None;
                return show_wake(state, &wake);
            }
            let CallState { streams, slot, .. } = state;
            if streams.look_up(*slot) == Lookup::None {
                return 0;
            }
            if kind == kind::TIMER {
                let due = streams.outcomes(slot, |outcomes| outcomes.take_timer(name));
                return if due == Some(true) { 3 } else { 0 };
            }
            match streams.outcomes(slot, |outcomes| outcomes.take_response(name)) {
                Some(Some(Ok(response))) => {
                    show_taken(state, response.headers);
                    state.scratch = response.body;
                    show_scratch(state);
                    1
                }
                Some(Some(Err(missing))) => {
                    show_text(state, &missing.to_string());
                    2
                }
                Some(None) => 0,
                None => LOST,
            }
        })
    }
}

/// The answer where the stream's state went with the VM that held it.
const LOST: i32 = -3;

/// Shows pairs that were kept.
fn show_taken(state: &mut CallState, taken: Pairs) {
    state.taken = taken;
    state.pairs.clear();
    let pairs = state.taken.iter().map(|(name, value)| pair(name, value));
    state.pairs.extend(pairs);
    show_pairs(state);
}

/// Shows what woke the handler; as `outcome`.
fn show_wake(state: &mut CallState, wake: &Wake<'_>) -> i32 {
    match wake {
        Wake::Callout(_, Ok(response)) => {
            state.pairs.clear();
            let pairs = response.headers.iter();
            state
                .pairs
                .extend(pairs.map(|(name, value)| pair(name, value)));
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
        Wake::Timer(_) => 3,
        Wake::HttpStream(..) | Wake::Body => 0,
    }
}

/// 1: something came that was not taken, so that waiting for it is not needed; 0: nothing.
pub(super) unsafe extern "C" fn has_outcome(call: *mut CallState, kind: i32, id: f64) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, _| {
            let Some(name) = name_of(kind, id) else {
                return 0;
            };
            // SAFETY: a wake is there only while its borrow lasts.
            let awake = state
                .wake
                .is_some_and(|wake| wake.as_ref().id() == Some(name));
            let CallState { streams, slot, .. } = state;
            if awake && kind != kind::HTTP_STREAM {
                return 1;
            }
            match streams.look_up(*slot) {
                Lookup::None => 0,
                Lookup::Lost => LOST,
                Lookup::At(_) => streams
                    .outcomes(slot, |outcomes| outcomes.has(name))
                    .map_or(LOST, i32::from),
            }
        })
    }
}

/// What came on an HTTP stream. 1: the part that was asked for, pairs or bytes, which is taken with this;
/// 2: it will not come, for this reason; 3: it will not come, as the response has none; 0: nothing yet.
pub(super) unsafe extern "C" fn stream_part(call: *mut CallState, id: f64, wanted: i32) -> i32 {
    enum Taken {
        Pairs(Pairs),
        Bytes(Vec<u8>),
        Missing(Missing),
        Ended,
        Nothing,
    }
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, _| {
            let CallState { streams, slot, .. } = state;
            if streams.look_up(*slot) == Lookup::None {
                return 0;
            }
            let id = HttpStreamId(id as u64);
            let take = |parts: &mut Parts| {
                let taken = match wanted {
                    part::HEADERS => parts.headers.take().map(Taken::Pairs),
                    part::CHUNK => parts.chunks.pop_front().map(Taken::Bytes),
                    _ => parts.trailers.take().map(Taken::Pairs),
                };
                taken.unwrap_or(match parts.missing {
                    Some(missing) => Taken::Missing(missing),
                    None if parts.ended => Taken::Ended,
                    None => Taken::Nothing,
                })
            };
            match streams.outcomes(slot, |outcomes| outcomes.parts(id, take)) {
                None => LOST,
                Some(None | Some(Taken::Nothing)) => 0,
                Some(Some(Taken::Pairs(pairs))) => {
                    show_taken(state, pairs);
                    1
                }
                Some(Some(Taken::Bytes(chunk))) => {
                    state.scratch = chunk;
                    show_scratch(state);
                    1
                }
                Some(Some(Taken::Missing(missing))) => {
                    show_text(state, &missing.to_string());
                    2
                }
                Some(Some(Taken::Ended)) => 3,
            }
        })
    }
}

/// 1: nothing is heard of it any more. Whoever waits for it goes on soon.
pub(super) unsafe extern "C" fn cancel(call: *mut CallState, kind: i32, id: f64) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| {
            if let Some(name) = name_of(kind, id) {
                let CallState { streams, slot, .. } = state;
                if let Lookup::At(_) = streams.look_up(*slot) {
                    let is_awaited = streams.is_awaited(*slot, name);
                    if is_awaited && let Ok(timer) = stream.start_timer(Duration::ZERO) {
                        streams.await_instead(*slot, name, WakeId::Timer(timer));
                    } else if is_awaited {
                        // Its own end has to do.
                        return 1;
                    }
                    streams.outcomes(slot, |outcomes| outcomes.drop_kept(name));
                }
                stream.cancel(name);
            }
            1
        })
    }
}

/// 1: this is the number of the timer whose function is to run.
pub(super) unsafe extern "C" fn due_timer(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, _| {
            // SAFETY: a wake is there only while its borrow lasts.
            match state.wake.map(|wake| *wake.as_ref()) {
                Some(Wake::Timer(id)) => {
                    state.head.number = id as f64;
                    1
                }
                _ => 0,
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
