//! The WASI calls that guests import: as many as Envoy's host has, and no more of the world behind them than
//! it has: two streams to the log, clocks, random numbers, environment variables.
//!
//! Compilers' runtimes call the rest as they start; what they are answered is what they take for "there is
//! no file system and no network here".

use outrider_plugin_api::LogLevel;
use wasmtime::{Caller, Linker};

use crate::guest_memory::{Guest, bytes, bytes_mut, read_u32, split, write_u32, write_u64};
use crate::state::State;

use super::HostFunction;
use super::logs::MOST_LINE;

/// `errno`, as far as it is answered.
mod errno {
    pub(super) const SUCCESS: i32 = 0;
    pub(super) const BADF: i32 = 8;
    pub(super) const FAULT: i32 = 21;
    pub(super) const INVAL: i32 = 28;
    pub(super) const NOENT: i32 = 44;
    pub(super) const NOSYS: i32 = 52;
    pub(super) const NOTDIR: i32 = 20;
    pub(super) const NOTSUP: i32 = 58;
}

/// The guest ended itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it called proc_exit({0})")]
pub(crate) struct Exit(pub(crate) i32);

/// The names of the module: an older one, and the one of today.
const MODULES: [&str; 2] = ["wasi_snapshot_preview1", "wasi_unstable"];

/// More random bytes than this are not given at once.
const MOST_RANDOM: i32 = 65_536;
/// More parts than this one write does not have.
const MOST_PARTS: i32 = 1024;

macro_rules! wasi {
    ($($name:ident($($argument:ident: $kind:ty),*) = $function:expr;)*) => {
        /// Their names.
        pub(super) const NAMES: &[&str] = &[$(stringify!($name)),*];

        pub(super) fn define(linker: &mut Linker<State>) -> wasmtime::Result<()> {
            for module in MODULES {
                $(
                    linker.func_wrap(
                        module,
                        stringify!($name),
                        move |mut caller: Caller<'_, State>, $($argument: $kind),*| -> wasmtime::Result<i32> {
                            let function: fn(&mut Guest<'_>, $($kind),*) -> i32 = $function;
                            if caller.data().gate.is_open() {
                                return Ok(function(&mut caller, $($argument),*));
                            }
                            super::guarded(
                                module,
                                stringify!($name),
                                &mut caller,
                                &[$(super::Traced::number($argument)),*],
                                |caller| Ok(function(caller, $($argument),*)),
                            )
                        },
                    )?;
                )*
                linker.func_wrap(
                    module,
                    "proc_exit",
                    |code: i32| -> wasmtime::Result<()> { Err(Exit(code).into()) },
                )?;
            }
            linker.func_wrap("env", "emscripten_notify_memory_growth", |_index: i32| {})?;
            linker.func_wrap("env", "pthread_equal", |one: i32, other: i32| {
                i32::from(one == other)
            })?;
            Ok(())
        }
    };
}

wasi! {
    fd_write(fd: i32, parts: i32, count: i32, written: i32) = fd_write;
    fd_pwrite(fd: i32, parts: i32, count: i32, offset: i64, written: i32)
        = |guest, fd, parts, count, _, written| fd_write(guest, fd, parts, count, written);
    fd_read(fd: i32, parts: i32, count: i32, read: i32) = |_, _, _, _, _| errno::NOSYS;
    fd_pread(fd: i32, parts: i32, count: i32, offset: i64, read: i32) = |_, _, _, _, _, _| errno::NOSYS;
    // As in Envoy, the position is not written.
    fd_seek(fd: i32, offset: i64, whence: i32, position: i32) = |_, _, _, _, _| errno::SUCCESS;
    fd_tell(fd: i32, position: i32) = fd_tell;
    fd_close(fd: i32) = |_, _| errno::SUCCESS;
    fd_fdstat_get(fd: i32, place: i32) = fd_fdstat_get;
    fd_fdstat_set_flags(fd: i32, flags: i32) = |_, _, _| errno::NOSYS;
    fd_fdstat_set_rights(fd: i32, base: i64, inheriting: i64) = |_, fd, _, _| of_standard(fd);
    fd_filestat_get(fd: i32, place: i32) = |_, _, _| errno::BADF;
    fd_filestat_set_size(fd: i32, size: i64) = |_, fd, _| of_standard(fd);
    fd_filestat_set_times(fd: i32, access: i64, modification: i64, flags: i32)
        = |_, fd, _, _, _| of_standard(fd);
    fd_sync(fd: i32) = |_, fd| of_standard(fd);
    fd_datasync(fd: i32) = |_, fd| of_standard(fd);
    fd_allocate(fd: i32, offset: i64, length: i64) = |_, fd, _, _| of_standard(fd);
    fd_advise(fd: i32, offset: i64, length: i64, advice: i32) = |_, _, _, _, _| errno::SUCCESS;
    fd_prestat_get(fd: i32, place: i32) = |_, _, _| errno::BADF;
    fd_prestat_dir_name(fd: i32, place: i32, length: i32) = |_, _, _, _| errno::NOSYS;
    fd_readdir(fd: i32, place: i32, length: i32, cookie: i64, used: i32)
        = |guest, _, _, _, _, used| nothing(guest, used, errno::NOTDIR);
    fd_renumber(from: i32, to: i32) = |_, from, to| match (of_standard(from), of_standard(to)) {
        (errno::SUCCESS, errno::SUCCESS) => errno::NOTSUP,
        _ => errno::BADF,
    };

    path_open(
        fd: i32, lookup: i32, path: i32, length: i32, flags: i32, rights: i64, inheriting: i64, fd_flags: i32,
        opened: i32
    ) = |_, _, _, _, _, _, _, _, _, _| errno::NOENT;
    path_create_directory(fd: i32, path: i32, length: i32) = |_, _, _, _| errno::NOTSUP;
    path_filestat_get(fd: i32, flags: i32, path: i32, length: i32, place: i32)
        = |_, _, _, _, _, _| errno::NOTSUP;
    path_filestat_set_times(
        fd: i32, lookup: i32, path: i32, length: i32, access: i64, modification: i64, flags: i32
    ) = |_, _, _, _, _, _, _, _| errno::NOTSUP;
    path_link(
        fd: i32, flags: i32, path: i32, length: i32, new_fd: i32, new_path: i32, new_length: i32
    ) = |_, _, _, _, _, _, _, _| errno::NOTSUP;
    path_readlink(fd: i32, path: i32, length: i32, place: i32, most: i32, used: i32)
        = |guest, _, _, _, _, _, used| nothing(guest, used, errno::NOTSUP);
    path_remove_directory(fd: i32, path: i32, length: i32) = |_, _, _, _| errno::NOTSUP;
    path_rename(fd: i32, path: i32, length: i32, new_fd: i32, new_path: i32, new_length: i32)
        = |_, _, _, _, _, _, _| errno::NOTSUP;
    path_symlink(old: i32, old_length: i32, fd: i32, path: i32, length: i32)
        = |_, _, _, _, _, _| errno::NOTSUP;
    path_unlink_file(fd: i32, path: i32, length: i32) = |_, _, _, _| errno::NOTSUP;

    sock_accept(fd: i32, flags: i32, accepted: i32) = |guest, _, _, accepted| nothing(guest, accepted, errno::NOTSUP);
    sock_recv(fd: i32, parts: i32, count: i32, flags: i32, received: i32, out_flags: i32)
        = |guest, _, _, _, _, received, out_flags| {
            nothing(guest, received, errno::NOTSUP);
            match write(guest, out_flags, &[0; 2]) {
                errno::SUCCESS => errno::NOTSUP,
                fault => fault,
            }
        };
    sock_send(fd: i32, parts: i32, count: i32, flags: i32, sent: i32)
        = |guest, _, _, _, _, sent| nothing(guest, sent, errno::NOTSUP);
    sock_shutdown(fd: i32, how: i32) = |_, _, _| errno::NOTSUP;

    environ_sizes_get(count: i32, bytes: i32) = environ_sizes_get;
    environ_get(pointers: i32, contents: i32) = environ_get;
    args_sizes_get(count: i32, bytes: i32) = |guest, count, bytes| match write(guest, count, &[0; 4]) {
        errno::SUCCESS => write(guest, bytes, &[0; 4]),
        fault => fault,
    };
    args_get(pointers: i32, contents: i32) = |_, _, _| errno::SUCCESS;
    clock_time_get(clock: i32, precision: i64, time: i32) = clock_time_get;
    clock_res_get(clock: i32, resolution: i32) = |guest, clock, resolution| {
        if matches!(clock, 0 | 1) {
            write(guest, resolution, &1_u64.to_le_bytes())
        } else {
            errno::NOTSUP
        }
    };
    random_get(place: i32, length: i32) = random_get;
    // Nothing is ever waited for; Go's runtime takes anything but success for its end.
    poll_oneoff(subscriptions: i32, events: i32, count: i32, happened: i32)
        = |guest, _, _, _, happened| write(guest, happened, &[0; 4]);
    sched_yield() = |_| errno::SUCCESS;
}

/// All of them, with the modules that they are imported from.
pub(crate) fn functions() -> impl Iterator<Item = HostFunction> {
    MODULES.into_iter().flat_map(|module| {
        NAMES
            .iter()
            .chain(&["proc_exit"])
            .map(move |name| HostFunction { module, name })
    })
}

/// Copies bytes to a place.
fn write(guest: &mut Guest<'_>, place: i32, contents: &[u8]) -> i32 {
    let Some((memory, _)) = split(guest) else {
        return errno::FAULT;
    };
    match bytes_mut(memory, place, contents.len()) {
        Some(place) => {
            place.copy_from_slice(contents);
            errno::SUCCESS
        }
        None => errno::FAULT,
    }
}

fn of_standard(fd: i32) -> i32 {
    if matches!(fd, 1 | 2) {
        errno::SUCCESS
    } else {
        errno::BADF
    }
}

/// As in Envoy, nothing has passed yet, wherever the stream is.
fn fd_tell(guest: &mut Guest<'_>, fd: i32, position: i32) -> i32 {
    match of_standard(fd) {
        errno::SUCCESS => write(guest, position, &[0; 8]),
        fault => fault,
    }
}

/// Says that there are none of something, and why.
fn nothing(guest: &mut Guest<'_>, place: i32, why: i32) -> i32 {
    match write(guest, place, &[0; 4]) {
        errno::SUCCESS => why,
        fault => fault,
    }
}

fn fd_write(guest: &mut Guest<'_>, fd: i32, parts: i32, count: i32, written: i32) -> i32 {
    let level = match fd {
        1 => LogLevel::Info,
        2 => LogLevel::Error,
        _ => return errno::BADF,
    };
    if !(0..=MOST_PARTS).contains(&count) {
        return errno::FAULT;
    }
    let Some((memory, state)) = split(guest) else {
        return errno::FAULT;
    };
    let mut text = std::mem::take(&mut state.scratch);
    text.clear();
    let gathered = gather(memory, parts, count, &mut text);
    if gathered.is_some() {
        let line = text.strip_suffix(b"\n").unwrap_or(&text);
        state.note_line(level, line);
        if !line.is_empty() && state.log_enabled(level) {
            state.log(level, &String::from_utf8_lossy(line));
        }
    }
    state.scratch = text;
    let Some(length) = gathered else {
        return errno::FAULT;
    };
    match write_u32(memory, written, length as u32) {
        crate::abi::Status::Ok => errno::SUCCESS,
        _ => errno::FAULT,
    }
}

/// Collects the parts of a write, up to the length of a line. Returns the length of all of them, or `None` if one lies
/// outside of the guest's memory, or together they are longer than it.
fn gather(memory: &[u8], parts: i32, count: i32, into: &mut Vec<u8>) -> Option<usize> {
    let mut length = 0;
    for index in 0..count {
        let at = parts.wrapping_add(index.wrapping_mul(8));
        let (pointer, size) = (read_u32(memory, at)?, read_u32(memory, at.wrapping_add(4))?);
        let part = bytes(memory, pointer.cast_signed(), size.cast_signed())?;
        length += part.len();
        if length > memory.len() {
            return None;
        }
        let room = MOST_LINE.saturating_sub(into.len()).min(part.len());
        into.extend_from_slice(part.get(..room).unwrap_or_default());
    }
    Some(length)
}

fn fd_fdstat_get(guest: &mut Guest<'_>, fd: i32, place: i32) -> i32 {
    if of_standard(fd) != errno::SUCCESS {
        return errno::BADF;
    }
    let mut stat = [0_u8; 24];
    // The right to write.
    if let Some(rights) = stat.get_mut(8) {
        *rights = 64;
    }
    write(guest, place, &stat)
}

fn environ_sizes_get(guest: &mut Guest<'_>, count: i32, length: i32) -> i32 {
    let shared = &guest.data().shared;
    let number = shared.environment.len() as u32;
    let bytes: usize = shared.environment.iter().map(Vec::len).sum();
    match write(guest, count, &number.to_le_bytes()) {
        errno::SUCCESS => write(guest, length, &(bytes as u32).to_le_bytes()),
        fault => fault,
    }
}

fn environ_get(guest: &mut Guest<'_>, pointers: i32, contents: i32) -> i32 {
    let Some((memory, state)) = split(guest) else {
        return errno::FAULT;
    };
    let mut place = contents;
    for (index, variable) in state.shared.environment.iter().enumerate() {
        let pointer = pointers.wrapping_add((index as u32).wrapping_mul(4).cast_signed());
        if write_u32(memory, pointer, place as u32) != crate::abi::Status::Ok {
            return errno::FAULT;
        }
        let Some(to) = bytes_mut(memory, place, variable.len()) else {
            return errno::FAULT;
        };
        to.copy_from_slice(variable);
        place = place.wrapping_add((variable.len() as u32).cast_signed());
    }
    errno::SUCCESS
}

fn clock_time_get(guest: &mut Guest<'_>, clock: i32, _precision: i64, place: i32) -> i32 {
    // Both clocks are the one that tests can put forward; it is set back only by whoever sets the machine's.
    if !matches!(clock, 0 | 1) {
        return errno::NOTSUP;
    }
    let Some((memory, state)) = split(guest) else {
        return errno::FAULT;
    };
    let now = state.shared.clock.now().as_nanos();
    match write_u64(memory, place, u64::try_from(now).unwrap_or(u64::MAX)) {
        crate::abi::Status::Ok => errno::SUCCESS,
        _ => errno::FAULT,
    }
}

fn random_get(guest: &mut Guest<'_>, place: i32, length: i32) -> i32 {
    if !(0..=MOST_RANDOM).contains(&length) {
        return errno::INVAL;
    }
    let Some((memory, _)) = split(guest) else {
        return errno::FAULT;
    };
    let Some(place) = bytes_mut(memory, place, length as usize) else {
        return errno::FAULT;
    };
    let filled = ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), place);
    if filled.is_ok() {
        errno::SUCCESS
    } else {
        errno::NOSYS
    }
}
