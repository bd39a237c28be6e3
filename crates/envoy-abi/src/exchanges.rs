//! HTTP streams that belong to no stream of the proxy's: gRPC of plugins' roots rides on them.
//!
//! Envoy has them for filter configurations, on its main thread. So what plugins want is queued, and done when
//! the main thread comes by (see `background`); the newest configuration carries them, and all end when a newer
//! one comes.
//!
//! The traps: a stream does not keep its configuration alive. Envoy may destroy a configuration on any thread, and
//! drops its streams without an event: so its destroy hook ends them first ([`abandon`]), and Envoy is only called
//! inside of [`background::with_config`], which delays that hook. Envoy raises events inside of the calls that
//! start, feed and reset a stream: no lock is held then, nor while a plugin is told, which only fills a mailbox.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outrider_plugin_api::{
    CalloutFailure, HttpStreamEvent, HttpStreamHandle, HttpStreamId, HttpStreamRequest,
    HttpStreamTold, OwnedHeaders, own_headers,
};

use crate::background;
use crate::callout::{Doubtful, Judged, started};
use crate::hooks::{fields, guarded, pieces_of};
use crate::host::milliseconds;
use crate::raw::{ConfigPtr, EnvoyBuffer, EnvoyHeader, ModuleBuffer, ModuleHeader};

/// A stream by Envoy's names: its configuration, and its number there.
type Carried = (usize, u64);

struct Begin {
    cluster: Vec<u8>,
    headers: OwnedHeaders,
    body: Vec<u8>,
    end_of_stream: bool,
    timeout: Option<Duration>,
}

enum Command {
    Begin(Begin),
    Send(Vec<u8>, bool),
    Reset,
    /// Its configuration is gone: it has failed.
    Fail,
    /// It fails, and is reset in Envoy.
    End,
}

#[derive(Default)]
struct Exchanges {
    last: u64,
    /// Each with the number of its stream, in the order in which they are done.
    commands: VecDeque<(u64, Command)>,
    told: BTreeMap<u64, HttpStreamTold>,
    carried: BTreeMap<u64, Carried>,
    /// It is being started: Envoy may tell of it before it tells its number.
    starting: Option<(usize, u64)>,
    doubtful: Doubtful,
}

static EXCHANGES: LazyLock<Mutex<Exchanges>> = LazyLock::new(Mutex::default);

fn exchanges() -> MutexGuard<'static, Exchanges> {
    // Valid between any two statements that change it.
    EXCHANGES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct Handle(u64);

impl Handle {
    fn command(&self, command: Command) {
        exchanges().commands.push_back((self.0, command));
        background::come_by();
    }
}

impl HttpStreamHandle for Handle {
    fn send(&self, data: &[u8], end_of_stream: bool) -> Result<(), CalloutFailure> {
        self.command(Command::Send(data.to_vec(), end_of_stream));
        Ok(())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let told = exchanges().told.remove(&self.0);
        drop(told);
        self.command(Command::Reset);
    }
}

/// Queues a stream; see [`outrider_plugin_api::Background::start_http_stream`].
pub(crate) fn begin(
    request: &HttpStreamRequest<'_>,
    told: HttpStreamTold,
) -> Box<dyn HttpStreamHandle> {
    let mut exchanges = exchanges();
    exchanges.last += 1;
    let number = exchanges.last;
    exchanges.told.insert(number, told);
    drop(exchanges);
    let handle = Handle(number);
    handle.command(Command::Begin(Begin {
        cluster: request.cluster.to_vec(),
        headers: own_headers(request.headers),
        body: request.body.to_vec(),
        end_of_stream: request.end_of_stream,
        timeout: request.timeout,
    }));
    Box::new(handle)
}

/// Does what was queued. Main thread.
pub(crate) fn run() {
    loop {
        // Apart, so that the lock is not held in what follows.
        let next = exchanges().commands.pop_front();
        let Some((number, command)) = next else {
            return;
        };
        match command {
            Command::Begin(begin) => start(number, &begin),
            Command::Send(data, end_of_stream) => send(number, &data, end_of_stream),
            Command::Reset => reset(forget(number)),
            Command::Fail => tell(number, HttpStreamEvent::Failed(CalloutFailure::Reset)),
            Command::End => end(number),
        }
    }
}

fn start(number: u64, begin: &Begin) {
    let headers = ModuleHeader::all(&begin.headers);
    let mut id = 0;
    let result = background::with_newest_config(|callbacks, config| {
        exchanges().starting = Some((config as usize, number));
        // SAFETY: the configuration is not destroyed meanwhile; everything lent outlives the call, and Envoy
        // copies it.
        let result = unsafe {
            (callbacks.http_filter_config_start_http_stream)(
                config,
                &raw mut id,
                ModuleBuffer::new(&begin.cluster),
                headers.as_ptr(),
                headers.len(),
                ModuleBuffer::new(&begin.body),
                begin.end_of_stream,
                milliseconds(begin.timeout),
            )
        };
        let mut exchanges = exchanges();
        // An event that came meanwhile has taken it.
        let (config, number) = exchanges.starting.take()?;
        let outcome = started(result);
        if outcome.is_ok() {
            exchanges.carried.insert(number, (config, id));
        }
        Some(outcome)
    });
    match result {
        Some(None | Some(Ok(()))) => {}
        Some(Some(Err(failure))) => tell(number, HttpStreamEvent::Failed(failure)),
        None => tell(number, HttpStreamEvent::Failed(CalloutFailure::CannotStart)),
    }
}

fn carried(number: u64) -> Option<Carried> {
    exchanges().carried.get(&number).copied()
}

fn send(number: u64, data: &[u8], end_of_stream: bool) {
    let Some((config, id)) = carried(number) else {
        return;
    };
    background::with_config(config, |callbacks, config| {
        // SAFETY: the configuration is not destroyed meanwhile; Envoy copies the bytes, and knows which of its
        // streams are over.
        unsafe {
            (callbacks.http_filter_config_stream_send_data)(
                config,
                id,
                ModuleBuffer::new(data),
                end_of_stream,
            )
        }
    });
}

fn reset(found: Option<Carried>) {
    let Some((config, id)) = found else { return };
    background::with_config(config, |callbacks, config| {
        // SAFETY: the configuration is not destroyed meanwhile, and Envoy knows which of its streams are over.
        unsafe { (callbacks.http_filter_config_reset_http_stream)(config, id) }
    });
}

/// Nothing is told of a stream any more.
fn forget(number: u64) -> Option<Carried> {
    let mut exchanges = exchanges();
    let told = exchanges.told.remove(&number);
    let found = exchanges.carried.remove(&number);
    exchanges.doubtful.forget(HttpStreamId(number));
    drop(exchanges);
    drop(told);
    found
}

/// Ends all streams in a later event of the main thread: a newer configuration has come.
pub(crate) fn end_all_later() {
    let mut exchanges = exchanges();
    let numbers: Vec<u64> = exchanges.carried.keys().copied().collect();
    let ends = numbers.into_iter().map(|number| (number, Command::End));
    exchanges.commands.extend(ends);
    drop(exchanges);
    background::come_by();
}

/// Ends all streams at once: Envoy shuts down, and no later event comes. Main thread.
pub(crate) fn end_all() {
    let numbers: Vec<u64> = exchanges().carried.keys().copied().collect();
    for number in numbers {
        end(number);
    }
}

fn end(number: u64) {
    // In this order: Envoy's event for the reset reaches no plugin.
    let found = exchanges().carried.remove(&number);
    tell(number, HttpStreamEvent::Failed(CalloutFailure::Reset));
    reset(found);
}

/// Takes the streams of a configuration that Envoy destroys; their plugins hear on the main thread that they have
/// failed. Called after [`background::remove_config`], on any thread.
pub(crate) fn abandon(config: ConfigPtr) {
    let config = config as usize;
    let mut exchanges = exchanges();
    let mut lost: Vec<u64> = exchanges
        .carried
        .iter()
        .filter(|(_, (carrier, _))| *carrier == config)
        .map(|(number, _)| *number)
        .collect();
    lost.extend(
        exchanges
            .starting
            .take_if(|(starting, _)| *starting == config)
            .map(|(_, number)| number),
    );
    if lost.is_empty() {
        return;
    }
    for number in lost {
        exchanges.carried.remove(&number);
        exchanges.commands.push_back((number, Command::Fail));
    }
    drop(exchanges);
    background::come_by();
}

/// Tells the plugin.
fn tell(number: u64, event: HttpStreamEvent<'_>) {
    let told = exchanges().told.remove(&number);
    let Some(mut told) = told else { return };
    told(event);
    if matches!(
        event,
        HttpStreamEvent::Complete | HttpStreamEvent::Failed(_)
    ) {
        forget(number);
    } else {
        // Were the handle gone meanwhile, its reset is queued, and takes this away.
        exchanges().told.insert(number, told);
    }
}

/// Envoy tells of a stream.
fn on_event(config: ConfigPtr, id: u64, event: HttpStreamEvent<'_>) {
    let carrier = (config as usize, id);
    let mut exchanges = exchanges();
    let known = exchanges
        .carried
        .iter()
        .find(|(_, carried)| **carried == carrier)
        .map(|(number, _)| *number);
    let starting = exchanges
        .starting
        .take_if(|(starting, _)| known.is_none() && *starting == carrier.0);
    let Some(number) = known.or(starting.map(|(_, number)| number)) else {
        return;
    };
    exchanges.carried.insert(number, carrier);
    let judged = exchanges.doubtful.judge(HttpStreamId(number), &event);
    drop(exchanges);
    match judged {
        Judged::Wait => {}
        Judged::Real(before) => {
            if let Some(before) = before {
                before.with(|before| tell(number, before));
            }
            tell(number, event);
        }
        Judged::MadeUp(failure) => tell(number, HttpStreamEvent::Failed(failure)),
    }
}

/// The headers of a response.
///
/// # Safety
/// Called by Envoy, as its ABI says.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_http_stream_headers(
    config: ConfigPtr,
    _module: *const c_void,
    id: u64,
    headers: *const EnvoyHeader,
    length: usize,
    end_of_stream: bool,
) {
    guarded((), || {
        // SAFETY: Envoy's array lives until the hook returns; an empty one may be null.
        let headers = unsafe { fields(headers, length) };
        let event = HttpStreamEvent::Headers {
            headers: &headers,
            end_of_stream,
        };
        on_event(config, id, event);
    });
}

/// A part of the body of a response.
///
/// # Safety
/// Called by Envoy, as its ABI says.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_http_stream_data(
    config: ConfigPtr,
    _module: *const c_void,
    id: u64,
    pieces: *const EnvoyBuffer,
    length: usize,
    end_of_stream: bool,
) {
    guarded((), || {
        // SAFETY: Envoy's array lives until the hook returns; an empty one may be null.
        let pieces = unsafe { pieces_of(pieces, length) };
        let event = HttpStreamEvent::Data {
            pieces: &pieces,
            end_of_stream,
        };
        on_event(config, id, event);
    });
}

/// The trailers of a response.
///
/// # Safety
/// Called by Envoy, as its ABI says.
#[unsafe(no_mangle)]
unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_http_stream_trailers(
    config: ConfigPtr,
    _module: *const c_void,
    id: u64,
    trailers: *const EnvoyHeader,
    length: usize,
) {
    guarded((), || {
        // SAFETY: Envoy's array lives until the hook returns; an empty one may be null.
        let trailers = unsafe { fields(trailers, length) };
        on_event(config, id, HttpStreamEvent::Trailers(&trailers));
    });
}

/// Request and response are complete.
#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_config_http_stream_complete(
    config: ConfigPtr,
    _module: *const c_void,
    id: u64,
) {
    guarded((), || on_event(config, id, HttpStreamEvent::Complete));
}

/// A stream was reset. Envoy names the same reason for whatever it was.
#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_config_http_stream_reset(
    config: ConfigPtr,
    _module: *const c_void,
    id: u64,
    _reason: u32,
) {
    guarded((), || {
        on_event(config, id, HttpStreamEvent::Failed(CalloutFailure::Reset));
    });
}

#[cfg(test)]
pub(crate) mod tests;
