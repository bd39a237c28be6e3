//! What is known about the stream, its clock, and its place among those that the VM knows.

use outrider_plugin_api::Attribute;

use super::super::call::CallState;
use super::frame::{show, with_stream};

/// 1: here it is; 0: none.
pub(super) unsafe extern "C" fn attribute(call: *mut CallState, which: i32) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| {
            let which = match which {
                0 => Attribute::SourceAddress,
                1 => Attribute::DestinationAddress,
                2 => Attribute::UpstreamAddress,
                3 => Attribute::UpstreamCluster,
                4 => Attribute::RouteName,
                5 => Attribute::Protocol,
                _ => Attribute::ResponseCodeDetails,
            };
            match stream.attribute(which) {
                Some(value) => {
                    show(state, value);
                    1
                }
                None => 0,
            }
        })
    }
}

/// The status code, or 0.
pub(super) unsafe extern "C" fn response_code(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |_, stream| {
            stream.response_code().map_or(0, i32::from)
        })
    }
}

/// 1: done; 0: the route cannot change any more.
pub(super) unsafe extern "C" fn clear_route_cache(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe { with_stream(call, |_, stream| i32::from(stream.clear_route_cache())) }
}

/// 1: here it is.
pub(super) unsafe extern "C" fn now(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| {
            state.head.number = stream.unix_millis() as f64;
            1
        })
    }
}

/// 1: here it is.
pub(super) unsafe extern "C" fn start_time(call: *mut CallState) -> i32 {
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, stream| {
            state.head.number = stream.start_unix_millis() as f64;
            1
        })
    }
}

/// The number of the stream's entry, which is made; -3: it has been lost.
pub(super) unsafe extern "C" fn stream_index(call: *mut CallState) -> i32 {
    const LOST: i32 = -3;
    // SAFETY: called by the SDK, with its call state.
    unsafe {
        with_stream(call, |state, _| {
            match state.streams.entry(&mut state.slot) {
                Some((index, entry)) => {
                    entry.shares = true;
                    i32::try_from(index).unwrap_or(LOST)
                }
                None => LOST,
            }
        })
    }
}
