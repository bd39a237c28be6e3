//! Which context a guest acts for, and when its root is called.

use std::time::Duration;

use crate::abi::Status;
use crate::guest_memory::{Answer, Guest};

pub(crate) fn set_effective(guest: &mut Guest<'_>, id: i32) -> Answer {
    let state = guest.data_mut();
    let id = id as u32;
    let known = id == state.own_id
        || state.contexts.root(id).is_some()
        || state.contexts.find(id).is_some();
    if id == 0 {
        // As in Envoy: there is none of that number, and nothing changes.
        return Ok(Status::Ok);
    }
    if !known {
        return Ok(Status::BadArgument);
    }
    state.effective = id;
    Ok(Status::Ok)
}

/// As in Envoy, a stream's context is done with when the stream is: there is nothing to be told later.
pub(crate) fn done(_guest: &mut Guest<'_>) -> Answer {
    Ok(Status::NotFound)
}

pub(crate) fn set_tick_period(guest: &mut Guest<'_>, period: i32) -> Answer {
    let state = guest.data_mut();
    let now = state.shared.clock.now();
    let root = state.effective_root();
    let millis = period as u32;
    let period = Duration::from_millis(u64::from(millis));
    if state.contexts.set_tick(root, millis, now + period) && millis > 0 {
        state.shared.ring_in(period);
    }
    Ok(Status::Ok)
}
