//! Shared data and shared queues, for guests.

use std::time::Duration;

use crate::abi::Status;
use crate::guest_memory::{Answer, Guest, bytes, hand_over, split, write_u32};

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
    let shared = &state.shared;
    let Some((found, number)) = shared.namespace.get(&shared.options.vm_id, key) else {
        return Ok(Status::NotFound);
    };
    state.scratch.clear();
    state.time.append(&mut state.scratch, &found)?;
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
    let (Some(key), Some(value)) = (bytes(memory, key, key_length), bytes(memory, value, length))
    else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let mut kept = Vec::new();
    state.time.append(&mut kept, value)?;
    let shared = &state.shared;
    let vm_id = &shared.options.vm_id;
    Ok(shared.namespace.set(vm_id, key, kept, cas as u32))
}

pub(crate) fn register_queue(guest: &mut Guest<'_>, name: i32, length: i32, token: i32) -> Answer {
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let Some(name) = bytes(memory, name, length) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let shared = &state.shared;
    let Some(number) = shared.namespace.register_queue(&shared.options.vm_id, name) else {
        return Ok(Status::InternalFailure);
    };
    let root = state.effective_root();
    // A VM on which a configuration is only checked takes it from nobody.
    if state.lent.metrics_mut().is_none() {
        match &mut state.queues {
            None => shared.namespace.listen(number, &state.mailbox, root),
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
    let shared = &state.shared;
    let vm = if vm.is_empty() {
        shared.options.vm_id.as_bytes()
    } else {
        vm
    };
    let found = std::str::from_utf8(vm)
        .ok()
        .and_then(|vm| shared.namespace.resolve_queue(vm, name));
    Ok(match found {
        Some(number) => write_u32(memory, token, number),
        None => Status::NotFound,
    })
}

pub(crate) fn dequeue(guest: &mut Guest<'_>, token: i32, value: i32, length: i32) -> Answer {
    let state = guest.data_mut();
    match state.shared.namespace.dequeue(token as u32) {
        Ok(item) => {
            state.scratch = item;
            hand_over(guest, value, length)
        }
        Err(status) => Ok(status),
    }
}

pub(crate) fn enqueue(guest: &mut Guest<'_>, token: i32, value: i32, length: i32) -> Answer {
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let Some(value) = bytes(memory, value, length) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let mut item = Vec::new();
    state.time.append(&mut item, value)?;
    let status = state.shared.namespace.enqueue(token as u32, item);
    if status == Status::Ok {
        // The listener may be on a worker without streams.
        state.shared.ring_in(Duration::ZERO);
    }
    Ok(status)
}
