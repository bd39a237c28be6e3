//! The guest's memory as host functions use it: each pointer and length is checked, and what does not lie
//! within is an error status for the guest.

use wasmtime::{Caller, Extern};

use crate::abi::Status;
use crate::room::Asking;
use crate::state::{Gate, State};

/// The caller of a host function.
pub(crate) type Guest<'a> = Caller<'a, State>;

/// What a host function answers; an error ends the guest's call with a trap.
pub(crate) type Answer = wasmtime::Result<Status>;

/// Finds the guest's memory while it is being instantiated; after that it is known.
#[cold]
pub(crate) fn find_memory(guest: &mut Guest<'_>) {
    if let Some(Extern::Memory(memory)) = guest.get_export("memory") {
        guest.data_mut().memory = Some(memory);
    }
}

/// Memory and state at once. None: the guest has no memory that could be used.
#[inline]
pub(crate) fn split<'a>(guest: &'a mut Guest<'_>) -> Option<(&'a mut [u8], &'a mut State)> {
    let memory = guest.data().memory?;
    Some(memory.data_and_store_mut(guest))
}

#[inline]
fn place(pointer: i32) -> usize {
    pointer as u32 as usize
}

/// `length` bytes at a pointer.
#[inline]
pub(crate) fn bytes(memory: &[u8], pointer: i32, length: i32) -> Option<&[u8]> {
    let start = place(pointer);
    memory.get(start..start.checked_add(place(length))?)
}

/// The same, to change.
#[inline]
pub(crate) fn bytes_mut(memory: &mut [u8], pointer: i32, length: usize) -> Option<&mut [u8]> {
    let start = place(pointer);
    memory.get_mut(start..start.checked_add(length)?)
}

/// Writes a number of 32 bits.
#[inline]
pub(crate) fn write_u32(memory: &mut [u8], pointer: i32, value: u32) -> Status {
    match bytes_mut(memory, pointer, 4) {
        Some(place) => {
            place.copy_from_slice(&value.to_le_bytes());
            Status::Ok
        }
        None => Status::InvalidMemoryAccess,
    }
}

/// Writes a number of 64 bits.
#[inline]
pub(crate) fn write_u64(memory: &mut [u8], pointer: i32, value: u64) -> Status {
    match bytes_mut(memory, pointer, 8) {
        Some(place) => {
            place.copy_from_slice(&value.to_le_bytes());
            Status::Ok
        }
        None => Status::InvalidMemoryAccess,
    }
}

/// Reads a number of 32 bits.
pub(crate) fn read_u32(memory: &[u8], pointer: i32) -> Option<u32> {
    let bytes = bytes(memory, pointer, 4)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// Hands the scratch bytes to the guest: its allocator makes room, and where they are and how many is
/// written to two places of its memory. No bytes: both are 0, and the allocator is not called.
#[inline]
pub(crate) fn hand_over(guest: &mut Guest<'_>, pointer_place: i32, length_place: i32) -> Answer {
    let state = guest.data_mut();
    let Ok(length) = i32::try_from(state.scratch.len()) else {
        return Ok(Status::InternalFailure);
    };
    if length == 0 {
        return put(guest, 0, pointer_place, length_place);
    }
    if state.asking == Asking::Yes && state.allocate.is_some() {
        state.asking = Asking::Has(pointer_place, length_place);
        return Ok(Status::Ok);
    }
    hand_over_now(guest, length, (pointer_place, length_place))
}

#[inline(never)]
fn hand_over_now(
    guest: &mut Guest<'_>,
    length: i32,
    (pointer_place, length_place): (i32, i32),
) -> Answer {
    let state = guest.data_mut();
    // Taken out, as a copy is dear. Nothing that allocates can be called meanwhile.
    let Some(allocate) = state.allocate.take() else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let scratch = std::mem::take(&mut state.scratch);
    state.gate.set(Gate::ALLOCATING);
    let allocated = allocate.call(&mut *guest, length);
    let state = guest.data_mut();
    state.gate.unset(Gate::ALLOCATING);
    state.allocate = Some(allocate);
    state.scratch = scratch;
    put(guest, allocated?, pointer_place, length_place)
}

/// Puts the scratch bytes to where the guest's allocator has made room, which is nowhere where it could not.
#[inline]
pub(crate) fn put(
    guest: &mut Guest<'_>,
    pointer: i32,
    pointer_place: i32,
    length_place: i32,
) -> Answer {
    let Some((memory, state)) = split(guest) else {
        return Ok(Status::InvalidMemoryAccess);
    };
    let length = state.scratch.len();
    if length > 0 && pointer == 0 {
        return Ok(Status::InvalidMemoryAccess);
    }
    match bytes_mut(memory, pointer, length) {
        Some(place) => state.time.copy(place, &state.scratch)?,
        None => return Ok(Status::InvalidMemoryAccess),
    }
    if length > MOST_KEPT {
        // Room for one long value is not kept for as long as the VM lives.
        state.scratch = Vec::new();
    }
    Ok(match write_u32(memory, pointer_place, pointer as u32) {
        Status::Ok => write_u32(memory, length_place, length as u32),
        outside => outside,
    })
}

/// Bytes of room that a VM keeps for values on their way to the guest.
const MOST_KEPT: usize = 1024 * 1024;
