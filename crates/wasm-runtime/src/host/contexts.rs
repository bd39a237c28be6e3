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
    if !known || id == 0 {
        return Ok(Status::BadArgument);
    }
    state.effective = id;
    Ok(Status::Ok)
}

pub(crate) fn done(guest: &mut Guest<'_>) -> Answer {
    let state = guest.data_mut();
    let pending = state
        .context_mut()
        .filter(|context| context.done_is_pending);
    let Some(context) = pending else {
        return Ok(Status::NotFound);
    };
    context.done_is_pending = false;
    let id = context.id;
    state.done.push(id);
    Ok(Status::Ok)
}

pub(crate) fn set_tick_period(guest: &mut Guest<'_>, period: i32) -> Answer {
    let state = guest.data_mut();
    let now = state.shared.clock.now();
    let root = state.effective_root();
    if let Some(root) = state.contexts.root(root) {
        root.tick = period as u32;
        root.next_tick = now + Duration::from_millis(u64::from(root.tick));
    }
    Ok(Status::Ok)
}
