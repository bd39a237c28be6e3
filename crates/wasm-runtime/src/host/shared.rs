//! Shared data and shared queues, for guests.

use std::time::Duration;

use crate::abi::Status;
use crate::guest_memory::{Answer, Guest, bytes, hand_over, split, write_u32};
use crate::shared_data;

pub(crate) fn get(
    guest: &mut Guest<'_>,
    key: i32,
    key_length: i32,
    value: i32,
    length: i32,
    cas: i32,
) -> Answer {
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let Some(key) = bytes(memory, key, key_length) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    state.scratch.clear();
    let Some(number) = state.shared.namespace.get(key, &mut state.scratch) else {
        return Ok(Status::NotFound);
    };
    let handed = hand_over(guest, value, length)?;
    if handed != Status::Ok {
        return Ok(handed);
    }
    let Some((memory, _)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    Ok(write_u32(memory, cas, number))
}

pub(crate) fn set(
    guest: &mut Guest<'_>,
    key: i32,
    key_length: i32,
    value: i32,
    length: i32,
    cas: i32,
) -> Answer {
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    Ok(
        match (bytes(memory, key, key_length), bytes(memory, value, length)) {
            (Some(key), Some(value)) => state.shared.namespace.set(key, value, cas as u32),
            _ => Status::InvalidMemoryAccess,
        },
    )
}

pub(crate) fn register_queue(guest: &mut Guest<'_>, name: i32, length: i32, token: i32) -> Answer {
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let Some(name) = bytes(memory, name, length) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let Some(number) = state.shared.namespace.register_queue(name) else {
        return Ok(Status::InternalFailure);
    };
    let root = state.effective_root();
    // A VM on which a configuration is only checked takes it from nobody.
    if state.lent.metrics_mut().is_none() {
        match &mut state.queues {
            None => shared_data::listen(number, &state.mailbox, root),
            Some(queues) if queues.contains(&(number, root)) => {}
            Some(queues) => queues.push((number, root)),
        }
    }
    Ok(write_u32(memory, token, number))
}

pub(crate) fn resolve_queue(
    guest: &mut Guest<'_>,
    vm: i32,
    vm_length: i32,
    name: i32,
    length: i32,
    token: i32,
) -> Answer {
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let (Some(vm), Some(name)) = (bytes(memory, vm, vm_length), bytes(memory, name, length)) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let vm = if vm.is_empty() {
        state.shared.options.vm_id.as_bytes()
    } else {
        vm
    };
    let found = std::str::from_utf8(vm)
        .ok()
        .and_then(|vm| shared_data::resolve_queue(vm, name));
    Ok(match found {
        Some(number) => write_u32(memory, token, number),
        None => Status::NotFound,
    })
}

pub(crate) fn dequeue(guest: &mut Guest<'_>, token: i32, value: i32, length: i32) -> Answer {
    let state = guest.data_mut();
    state.scratch.clear();
    let status = shared_data::dequeue(token as u32, &mut state.scratch);
    if status == Status::Ok {
        hand_over(guest, value, length)
    } else {
        Ok(status)
    }
}

pub(crate) fn enqueue(guest: &mut Guest<'_>, token: i32, value: i32, length: i32) -> Answer {
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    Ok(match bytes(memory, value, length) {
        Some(value) => {
            let status = shared_data::enqueue(token as u32, value);
            if status == Status::Ok {
                // Whoever listens may be on a worker without streams.
                state.shared.ring_in(Duration::ZERO);
            }
            status
        }
        None => Status::InvalidMemoryAccess,
    })
}
