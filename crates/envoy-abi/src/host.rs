//! [`Host`] over one of Envoy's streams.

use std::cell::{Cell, RefCell};
use std::ptr;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use outrider_plugin_api::{
    Attribute, AttributeKind, BodyBuffer, CalloutFailure, CalloutId, CalloutRequest, Chain,
    Direction, Fault, FilterStateError, FilterStateKind, HeaderMap, Host, HttpStreamId,
    HttpStreamRequest, Link, LogLevel, MetadataSource, MetadataTree, MetricId, MetricKind,
    OverrideHostFallback, Phase, Scalar, Timing, WakeId,
};
use smallvec::SmallVec;

use crate::callbacks::Callbacks;
use crate::known_headers::{Known, KnownHeaders, MOST_HEADERS, Name};
use crate::metadata_kinds::{self, Kind};
use crate::module::{EnvoyMetric, FilterConfig, MetricTable};
use crate::raw::{
    EnvoyBuffer, EnvoyHeader, FilterPtr, ModuleBuffer, ModuleHeader, TimingInfo, body_type,
    header_type, metadata_source, timing,
};
use crate::wake_queue::{self, FilterKey, TimerKey};

/// One stream during one hook. Made anew for each hook, from what the hook was given.
pub(crate) struct EnvoyHost<'a> {
    pub(crate) callbacks: &'static Callbacks,
    /// The filter; alive for as long as the hook that made this host has not replied or resumed.
    pub(crate) filter: FilterPtr,
    pub(crate) config: &'a dyn FilterConfig,
    /// The direction of the body hook that is running, if one is.
    pub(crate) receiving: Option<Direction>,
    pub(crate) timer_keys: &'a mut SmallVec<[TimerKey; 1]>,
    pub(crate) start_millis: u64,
    pub(crate) worker: usize,
    pub(crate) was_grpc: &'a mut Option<bool>,
    /// Whether Envoy has been told how much of a body may be held back.
    pub(crate) limited: &'a mut bool,
    /// What this hook has learned of a header map.
    pub(crate) known: RefCell<KnownHeaders>,
    /// The filter in its worker's queue of wake-ups.
    pub(crate) wake_key: &'a Cell<FilterKey>,
}

const CONTENT_TYPE: &[u8] = b"content-type";

/// Nanoseconds of the process, by a clock that never goes back.
pub(crate) fn monotonic_nanos() -> u64 {
    static ZERO: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(ZERO.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) fn unix_millis() -> u64 {
    if cfg!(miri) {
        // Its clock, which makes each run like the one before, knows no calendar.
        return monotonic_nanos() / 1_000_000;
    }
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        })
}

fn map_number(map: HeaderMap) -> u32 {
    match map {
        HeaderMap::RequestHeaders => header_type::REQUEST_HEADER,
        HeaderMap::RequestTrailers => header_type::REQUEST_TRAILER,
        HeaderMap::ResponseHeaders => header_type::RESPONSE_HEADER,
        HeaderMap::ResponseTrailers => header_type::RESPONSE_TRAILER,
    }
}

fn source_number(source: MetadataSource) -> u32 {
    match source {
        MetadataSource::Dynamic => metadata_source::DYNAMIC,
        MetadataSource::Route => metadata_source::ROUTE,
        MetadataSource::Cluster => metadata_source::CLUSTER,
        MetadataSource::Host => metadata_source::HOST,
        MetadataSource::Locality => metadata_source::HOST_LOCALITY,
    }
}

fn body_number(direction: Direction, buffer: BodyBuffer) -> u32 {
    match (direction, buffer) {
        (Direction::Request, BodyBuffer::Received) => body_type::RECEIVED_REQUEST,
        (Direction::Request, BodyBuffer::Held) => body_type::BUFFERED_REQUEST,
        (Direction::Response, BodyBuffer::Received) => body_type::RECEIVED_RESPONSE,
        (Direction::Response, BodyBuffer::Held) => body_type::BUFFERED_RESPONSE,
    }
}

impl EnvoyHost<'_> {
    /// Something of the stream is held back from here on: Envoy is told how much of a body that may
    /// be. Most streams never come here.
    pub(crate) fn limit_bodies(&mut self) {
        if !std::mem::replace(self.limited, true)
            && let Some(limit) = self.config.body_limit()
        {
            // SAFETY: the filter is alive during its hook.
            unsafe { (self.callbacks.http_set_buffer_limit)(self.filter, u64::from(limit)) }
        }
    }

    /// Whether a buffer is there to be read now. What was received can be seen in body hooks only;
    /// and when an earlier filter held the body back, Envoy shows the same bytes as both.
    fn buffer_is_there(&self, direction: Direction, buffer: BodyBuffer) -> bool {
        let receiving = self.receiving == Some(direction);
        match buffer {
            BodyBuffer::Received => receiving,
            BodyBuffer::Held if receiving => !self.receives_held(direction),
            BodyBuffer::Held => true,
        }
    }

    /// Whether what is received is what another filter held back: then it lies in Envoy's own buffer.
    fn receives_held(&self, direction: Direction) -> bool {
        let same = match direction {
            Direction::Request => self.callbacks.http_received_buffered_request_body,
            Direction::Response => self.callbacks.http_received_buffered_response_body,
        };
        // SAFETY: the filter is alive during its hook.
        self.receiving == Some(direction) && unsafe { same(self.filter) }
    }

    /// Whether the request is one of gRPC, as it came.
    pub(crate) fn is_grpc(&self) -> bool {
        self.was_grpc.unwrap_or_else(|| {
            crate::grpc::is_grpc(self.header(HeaderMap::RequestHeaders, CONTENT_TYPE, 0))
        })
    }

    /// A request's header is about to change: what it says of gRPC is kept. Reads the header, and may list the map for
    /// that: so [`EnvoyHost::known`] is told of the change after this, else it would keep bytes that Envoy frees.
    #[expect(
        clippy::inline_always,
        reason = "called once for each header that is changed, and nearly all of it is the call: counted"
    )]
    #[inline(always)]
    fn note_grpc(&mut self, map: HeaderMap, name: &[u8]) {
        if name.len() == CONTENT_TYPE.len()
            && map == HeaderMap::RequestHeaders
            && self.was_grpc.is_none()
            && name.eq_ignore_ascii_case(CONTENT_TYPE)
        {
            *self.was_grpc = Some(self.is_grpc());
        }
    }

    /// The text that one of Envoy's functions answers, if it is there.
    fn text(
        &self,
        get: unsafe extern "C" fn(FilterPtr, *mut EnvoyBuffer) -> bool,
    ) -> Option<Scalar<'_>> {
        let mut value = EnvoyBuffer::EMPTY;
        // SAFETY: the filter is alive during its hook; the result goes to a local, and its bytes stay
        // until what they are about changes, which takes `&mut self`.
        unsafe { get(self.filter, &raw mut value).then(|| Scalar::String(value.bytes())) }
    }

    /// What is known of a header.
    #[inline]
    fn known_header(&self, map: HeaderMap, name: Name<'_>, index: usize) -> Known<&[u8]> {
        match self.known.try_borrow() {
            // SAFETY: Envoy keeps the value until a setter is called, which takes `&mut self`; and so does
            // `known` with what it has learned by heart.
            Ok(known) => known
                .value(map, name, index)
                .map(|value| unsafe { value.bytes() }),
            Err(_) => Known::Nothing,
        }
    }

    /// Asks Envoy for a header, or for all, if that is worth its while.
    #[inline(never)]
    fn ask_for_header(&self, map: HeaderMap, name: &[u8], index: usize) -> Option<&[u8]> {
        if let Ok(mut known) = self.known.try_borrow_mut()
            && known.is_worth_listing(map)
        {
            self.list(&mut known, map);
        }
        match self.known_header(map, Name::new(name), index) {
            Known::Absent => None,
            Known::Found(value) => Some(value),
            Known::Nothing => self.find_header(map, name, index).0,
        }
    }

    fn count_headers(&self, map: HeaderMap, name: &[u8]) -> usize {
        let known = self.known.try_borrow().ok();
        known
            .and_then(|known| known.count(map, Name::new(name)))
            .unwrap_or_else(|| self.find_header(map, name, 0).1)
    }

    fn add_to_map(&mut self, map: HeaderMap, name: &[u8], value: &[u8]) -> bool {
        // SAFETY: the filter is alive during its hook; name and value outlive the call, and Envoy
        // copies them.
        unsafe {
            (self.callbacks.http_add_header)(
                self.filter,
                map_number(map),
                ModuleBuffer::new(name),
                ModuleBuffer::new(value),
            )
        }
    }

    #[cold]
    fn list_now(&mut self, map: HeaderMap) {
        let mut known = std::mem::take(self.known.get_mut());
        self.list(&mut known, map);
        self.known = RefCell::new(known);
    }

    /// Lists a header map, if that is worth its while.
    fn list(&self, known: &mut KnownHeaders, map: HeaderMap) {
        let map = map_number(map);
        // SAFETY: the filter is alive during its hook.
        let size = unsafe { (self.callbacks.http_get_headers_size)(self.filter, map) };
        if size > MOST_HEADERS {
            return;
        }
        known.list(size, |headers| {
            // SAFETY: the array has the size that Envoy has just named.
            unsafe { (self.callbacks.http_get_headers)(self.filter, map, headers.as_mut_ptr()) }
        });
    }

    fn find_header(&self, map: HeaderMap, name: &[u8], index: usize) -> (Option<&[u8]>, usize) {
        let mut value = EnvoyBuffer::EMPTY;
        let mut count = 0;
        // SAFETY: the filter is alive during its hook; the name outlives the call; the results go to
        // locals.
        let found = unsafe {
            (self.callbacks.http_get_header)(
                self.filter,
                map_number(map),
                ModuleBuffer::new(name),
                &raw mut value,
                index,
                &raw mut count,
            )
        };
        if !found {
            return (None, count);
        }
        // SAFETY: Envoy keeps the value until a setter is called, which takes `&mut self`.
        (Some(unsafe { value.bytes() }), count)
    }
}

/// A time limit as Envoy takes it: 0 is none, and less than a millisecond is one.
pub(crate) fn milliseconds(limit: Option<Duration>) -> u64 {
    limit.map_or(0, |limit| {
        u64::try_from(limit.as_millis().max(1)).unwrap_or(u64::MAX)
    })
}

/// A metric in Envoy, with the value of its label if it is one of a family.
#[inline]
fn in_envoy(
    table: &dyn MetricTable,
    metric: MetricId,
) -> Option<(EnvoyMetric, Option<ModuleBuffer>)> {
    if let Some(envoy) = table.envoy(metric) {
        return Some((envoy, None));
    }
    let (family, label) = table.late(metric)?;
    Some((family, Some(ModuleBuffer::new(label.as_bytes()))))
}

/// Address and number of a metric's labels.
fn labels(label: Option<&ModuleBuffer>) -> (*const ModuleBuffer, usize) {
    label.map_or((ptr::null(), 0), |label| (ptr::from_ref(label), 1))
}

impl Host for EnvoyHost<'_> {
    fn worker(&self) -> usize {
        self.worker
    }

    fn header(&self, map: HeaderMap, name: &[u8], index: usize) -> Option<&[u8]> {
        match self.known_header(map, Name::new(name), index) {
            Known::Absent => None,
            Known::Found(value) => Some(value),
            Known::Nothing => self.ask_for_header(map, name, index),
        }
    }

    fn header_count(&self, map: HeaderMap, name: &[u8]) -> usize {
        self.count_headers(map, name)
    }

    fn header_map_len(&self, map: HeaderMap) -> Option<usize> {
        // SAFETY: the filter is alive during its hook.
        let size = unsafe { (self.callbacks.http_get_headers_size)(self.filter, map_number(map)) };
        (size > 0).then_some(size)
    }

    fn headers<'s>(&'s self, map: HeaderMap, visit: &mut dyn FnMut(&'s [u8], &'s [u8])) {
        let map = map_number(map);
        // SAFETY: the filter is alive during its hook.
        let size = unsafe { (self.callbacks.http_get_headers_size)(self.filter, map) };
        let mut headers: SmallVec<[EnvoyHeader; 32]> = SmallVec::with_capacity(size);
        // SAFETY: there is room for as many as Envoy has just named, and it fills all of them in if it answers `true`.
        unsafe {
            if !(self.callbacks.http_get_headers)(self.filter, map, headers.as_mut_ptr()) {
                return;
            }
            headers.set_len(size);
        }
        for header in headers {
            // SAFETY: Envoy filled the buffers in, and no setter is called while they are visited:
            // `self` is borrowed.
            visit(unsafe { header.name.bytes() }, unsafe {
                header.value.bytes()
            });
        }
    }

    fn set_header(&mut self, map: HeaderMap, name: &[u8], value: &[u8]) -> bool {
        self.note_grpc(map, name);
        let mut known = self.known.get_mut();
        if !known.is_listed(map) && known.is_worth_listing(map) {
            self.list_now(map);
            known = self.known.get_mut();
        }
        let own = Name::new(name);
        if value.is_empty() {
            if known.removes(map, own) {
                return true;
            }
        } else if known.sets(map, own, value) {
            // The same to Envoy, but that it need not look for an old value.
            return self.add_to_map(map, name, value);
        }
        // SAFETY: the filter is alive during its hook; name and value outlive the call, and Envoy
        // copies them. An empty value is for Envoy the wish to remove the header.
        unsafe {
            (self.callbacks.http_set_header)(
                self.filter,
                map_number(map),
                ModuleBuffer::new(name),
                ModuleBuffer::new(value),
            )
        }
    }

    fn add_header(&mut self, map: HeaderMap, name: &[u8], value: &[u8]) -> bool {
        if value.is_empty() {
            // Envoy cannot add an empty value, and says `false`, as for a map that is not there.
            return true;
        }
        self.note_grpc(map, name);
        self.known.get_mut().adds(map, Name::new(name));
        self.add_to_map(map, name, value)
    }

    fn remove_header(&mut self, map: HeaderMap, name: &[u8]) -> bool {
        self.note_grpc(map, name);
        if self.known.get_mut().removes(map, Name::new(name)) {
            return true;
        }
        // SAFETY: as for `set_header`; the null value asks for the removal.
        unsafe {
            (self.callbacks.http_set_header)(
                self.filter,
                map_number(map),
                ModuleBuffer::new(name),
                ModuleBuffer::EMPTY,
            )
        }
    }

    fn buffer_len(&self, direction: Direction, buffer: BodyBuffer) -> usize {
        if !self.buffer_is_there(direction, buffer) {
            return 0;
        }
        // SAFETY: the filter is alive during its hook.
        unsafe { (self.callbacks.http_get_body_size)(self.filter, body_number(direction, buffer)) }
    }

    fn buffer_pieces(
        &self,
        direction: Direction,
        buffer: BodyBuffer,
        visit: &mut dyn FnMut(&[u8]),
    ) {
        if !self.buffer_is_there(direction, buffer) {
            return;
        }
        let body = body_number(direction, buffer);
        // SAFETY: the filter is alive during its hook.
        let size = unsafe { (self.callbacks.http_get_body_chunks_size)(self.filter, body) };
        let mut pieces: SmallVec<[EnvoyBuffer; 16]> = smallvec::smallvec![EnvoyBuffer::EMPTY; size];
        // SAFETY: the array has the size that Envoy has just named.
        if unsafe { (self.callbacks.http_get_body_chunks)(self.filter, body, pieces.as_mut_ptr()) }
        {
            for piece in pieces {
                // SAFETY: Envoy filled the buffer in, and nothing changes the body while it is
                // visited: `self` is borrowed.
                visit(unsafe { piece.bytes() });
            }
        }
    }

    fn buffer_drain(&mut self, direction: Direction, buffer: BodyBuffer, length: usize) -> bool {
        // SAFETY: the filter is alive during its hook.
        self.buffer_is_there(direction, buffer)
            && unsafe {
                (self.callbacks.http_drain_body)(
                    self.filter,
                    body_number(direction, buffer),
                    length,
                )
            }
    }

    fn buffer_append(&mut self, direction: Direction, buffer: BodyBuffer, bytes: &[u8]) -> bool {
        // SAFETY: the filter is alive during its hook; the bytes outlive the call, and Envoy copies
        // them.
        self.buffer_is_there(direction, buffer)
            && unsafe {
                (self.callbacks.http_append_body)(
                    self.filter,
                    body_number(direction, buffer),
                    ModuleBuffer::new(bytes),
                )
            }
    }

    fn buffer_limit(&self) -> usize {
        // SAFETY: the filter is alive during its hook.
        let limit = unsafe { (self.callbacks.http_get_buffer_limit)(self.filter) };
        usize::try_from(limit).unwrap_or(usize::MAX)
    }

    fn metadata(&self, source: MetadataSource, namespace: &[u8], key: &[u8]) -> Option<Scalar<'_>> {
        let source = source_number(source);
        let known = metadata_kinds::known(source, namespace, key);
        let (space, name) = (ModuleBuffer::new(namespace), ModuleBuffer::new(key));
        let (filter, callbacks) = (self.filter, self.callbacks);
        if known == Some(Kind::List) {
            let mut size = 0;
            // SAFETY: the filter is alive during its hook; namespace and key outlive the call; the result goes to a
            // local.
            let is_list = unsafe {
                (callbacks.http_get_metadata_list_size)(filter, source, space, name, &raw mut size)
            };
            if is_list {
                return None;
            }
        }
        for kind in metadata_kinds::scalars(known) {
            let (mut text, mut number, mut truth) = (EnvoyBuffer::EMPTY, 0.0, false);
            // SAFETY: as above; Envoy keeps the text until metadata is written, which takes `&mut self`.
            let value = unsafe {
                match kind {
                    Kind::String | Kind::List => (callbacks.http_get_metadata_string)(
                        filter,
                        source,
                        space,
                        name,
                        &raw mut text,
                    )
                    .then(|| Scalar::String(text.bytes())),
                    Kind::Number => (callbacks.http_get_metadata_number)(
                        filter,
                        source,
                        space,
                        name,
                        &raw mut number,
                    )
                    .then_some(Scalar::Number(number)),
                    Kind::Bool => (callbacks.http_get_metadata_bool)(
                        filter,
                        source,
                        space,
                        name,
                        &raw mut truth,
                    )
                    .then_some(Scalar::Bool(truth)),
                }
            };
            if value.is_some() {
                if known != Some(kind) {
                    metadata_kinds::remember(source, namespace, key, kind);
                }
                return value;
            }
        }
        None
    }

    fn set_metadata(&mut self, namespace: &[u8], key: &[u8], value: Scalar<'_>) {
        let kind = match value {
            Scalar::String(_) => Kind::String,
            Scalar::Number(_) => Kind::Number,
            Scalar::Bool(_) => Kind::Bool,
        };
        metadata_kinds::remember(metadata_source::DYNAMIC, namespace, key, kind);
        let (namespace, key) = (ModuleBuffer::new(namespace), ModuleBuffer::new(key));
        // SAFETY: the filter is alive during its hook; all texts outlive the call, and Envoy copies
        // them.
        unsafe {
            match value {
                Scalar::String(text) => (self.callbacks.http_set_dynamic_metadata_string)(
                    self.filter,
                    namespace,
                    key,
                    ModuleBuffer::new(text),
                ),
                Scalar::Number(number) => (self.callbacks.http_set_dynamic_metadata_number)(
                    self.filter,
                    namespace,
                    key,
                    number,
                ),
                Scalar::Bool(truth) => (self.callbacks.http_set_dynamic_metadata_bool)(
                    self.filter,
                    namespace,
                    key,
                    truth,
                ),
            }
        }
    }

    fn set_metadata_tree(&mut self, namespace: &[u8], key: &[u8], value: &MetadataTree) {
        if matches!(value, MetadataTree::List(_)) {
            metadata_kinds::remember(metadata_source::DYNAMIC, namespace, key, Kind::List);
        }
        let encoded = crate::protobuf::structure(key, value);
        // SAFETY: the filter is alive during its hook; what is lent outlives the call, and Envoy makes
        // objects of its own from it.
        unsafe {
            (self.callbacks.http_set_dynamic_metadata_struct)(
                self.filter,
                ModuleBuffer::new(namespace),
                ModuleBuffer::new(&encoded),
            );
        }
    }

    fn metadata_list(
        &self,
        source: MetadataSource,
        namespace: &[u8],
        key: &[u8],
        visit: &mut dyn FnMut(Scalar<'_>),
    ) -> bool {
        let source = source_number(source);
        let list = (namespace, key);
        let (namespace, key) = (ModuleBuffer::new(namespace), ModuleBuffer::new(key));
        let Callbacks {
            http_get_metadata_list_size: get_size,
            http_get_metadata_list_string: get_string,
            http_get_metadata_list_number: get_number,
            http_get_metadata_list_bool: get_bool,
            ..
        } = self.callbacks;
        let filter = self.filter;
        let mut size = 0;
        // SAFETY: the filter is alive during its hook; namespace and key outlive the calls; the result
        // goes to a local.
        if !unsafe { get_size(filter, source, namespace, key, &raw mut size) } {
            return false;
        }
        metadata_kinds::remember(source, list.0, list.1, Kind::List);
        let mut last = None;
        for at in 0..size {
            let (mut text, mut number, mut truth) = (EnvoyBuffer::EMPTY, 0.0, false);
            // The items of a list are mostly of one kind.
            let found = metadata_kinds::scalars(last).into_iter().find(|kind| {
                // SAFETY: the same; Envoy keeps the text until metadata is written, which takes `&mut self`.
                unsafe {
                    match kind {
                        Kind::String | Kind::List => {
                            get_string(filter, source, namespace, key, at, &raw mut text)
                        }
                        Kind::Number => {
                            get_number(filter, source, namespace, key, at, &raw mut number)
                        }
                        Kind::Bool => get_bool(filter, source, namespace, key, at, &raw mut truth),
                    }
                }
            });
            last = found;
            let value = match found {
                // SAFETY: Envoy has filled it in.
                Some(Kind::String | Kind::List) => Scalar::String(unsafe { text.bytes() }),
                Some(Kind::Number) => Scalar::Number(number),
                Some(Kind::Bool) => Scalar::Bool(truth),
                None => continue,
            };
            visit(value);
        }
        true
    }

    fn metadata_names(
        &self,
        source: MetadataSource,
        namespace: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8]),
    ) {
        let source = source_number(source);
        let (callbacks, filter) = (self.callbacks, self.filter);
        let namespace = namespace.map(ModuleBuffer::new);
        // SAFETY: the filter is alive during its hook; the namespace outlives the call.
        let count = unsafe {
            match namespace {
                Some(namespace) => {
                    (callbacks.http_get_metadata_keys_count)(filter, source, namespace)
                }
                None => (callbacks.http_get_metadata_namespaces_count)(filter, source),
            }
        };
        let mut names: SmallVec<[EnvoyBuffer; 16]> = smallvec::smallvec![EnvoyBuffer::EMPTY; count];
        // SAFETY: the same; the array has the size that Envoy has just named.
        let found = count > 0
            && unsafe {
                match namespace {
                    Some(namespace) => (callbacks.http_get_metadata_keys)(
                        filter,
                        source,
                        namespace,
                        names.as_mut_ptr(),
                    ),
                    None => {
                        (callbacks.http_get_metadata_namespaces)(filter, source, names.as_mut_ptr())
                    }
                }
            };
        if found {
            for name in names {
                // SAFETY: Envoy filled it in, and keeps the name until metadata is written, which takes
                // `&mut self`.
                visit(unsafe { name.bytes() });
            }
        }
    }

    fn filter_state(&self, key: &[u8]) -> Option<&[u8]> {
        let key = ModuleBuffer::new(key);
        let mut value = EnvoyBuffer::EMPTY;
        // SAFETY: the filter is alive during its hook; the key outlives the calls; the result goes to a
        // local, and Envoy keeps its bytes until something is set, which takes `&mut self`.
        unsafe {
            let found =
                (self.callbacks.http_get_filter_state_bytes)(self.filter, key, &raw mut value)
                    || (self.callbacks.http_get_filter_state_typed)(
                        self.filter,
                        key,
                        &raw mut value,
                    );
            found.then(|| value.bytes())
        }
    }

    fn set_filter_state(
        &mut self,
        key: &[u8],
        value: &[u8],
        kind: FilterStateKind,
    ) -> Result<(), FilterStateError> {
        let (key, value) = (ModuleBuffer::new(key), ModuleBuffer::new(value));
        // What is set is read-only to Envoy; to set it again would count as a bug of Envoy's.
        // SAFETY: the filter is alive during its hook; the key outlives the call.
        if unsafe { (self.callbacks.http_has_filter_state)(self.filter, key) } {
            return Err(FilterStateError::Taken);
        }
        let set = match kind {
            FilterStateKind::Bytes => self.callbacks.http_set_filter_state_bytes,
            FilterStateKind::Typed => self.callbacks.http_set_filter_state_typed,
        };
        // SAFETY: the same; Envoy copies both.
        if unsafe { set(self.filter, key, value) } {
            Ok(())
        } else {
            Err(FilterStateError::Unknown)
        }
    }

    fn set_upstream_override_host(&mut self, host: &[u8], otherwise: OverrideHostFallback) -> bool {
        // SAFETY: the filter is alive during its hook; Envoy copies the address.
        unsafe {
            (self.callbacks.http_set_upstream_override_host)(
                self.filter,
                ModuleBuffer::new(host),
                otherwise == OverrideHostFallback::Fail,
            )
        }
    }

    fn attribute(&self, wanted: Attribute) -> Option<Scalar<'_>> {
        let id = wanted as u32;
        match wanted {
            Attribute::XdsClusterName => self.text(self.callbacks.http_get_cluster_name),
            Attribute::SourceDirectAddress => {
                self.text(self.callbacks.http_get_downstream_direct_remote_address)
            }
            _ => match wanted.kind() {
                AttributeKind::String => {
                    let mut value = EnvoyBuffer::EMPTY;
                    // SAFETY: the filter is alive during its hook; the result goes to a local, and
                    // Envoy keeps its bytes until the end of the hook.
                    let bytes = unsafe {
                        let found = (self.callbacks.http_filter_get_attribute_string)(
                            self.filter,
                            id,
                            &raw mut value,
                        );
                        found.then(|| value.bytes())
                    };
                    bytes.filter(|bytes| !bytes.is_empty()).map(Scalar::String)
                }
                AttributeKind::Number => {
                    let mut value = 0;
                    // SAFETY: the filter is alive during its hook; the result goes to a local.
                    let found = unsafe {
                        (self.callbacks.http_filter_get_attribute_int)(
                            self.filter,
                            id,
                            &raw mut value,
                        )
                    };
                    found.then_some(Scalar::Number(value as f64))
                }
                AttributeKind::Bool => {
                    let mut value = false;
                    // SAFETY: the same.
                    let found = unsafe {
                        (self.callbacks.http_filter_get_attribute_bool)(
                            self.filter,
                            id,
                            &raw mut value,
                        )
                    };
                    found.then_some(Scalar::Bool(value))
                }
                AttributeKind::Hidden(_) => None,
            },
        }
    }

    fn timing(&self) -> Timing {
        let mut info = TimingInfo::EMPTY;
        // SAFETY: the filter is alive during its hook; the result goes to a local that is larger than
        // what the ABI describes.
        unsafe { (self.callbacks.http_get_timing_info)(self.filter, &raw mut info) };
        Timing {
            complete: info.moment(timing::COMPLETE),
            first_upstream_sent: info.moment(timing::FIRST_UPSTREAM_SENT),
            last_upstream_sent: info.moment(timing::LAST_UPSTREAM_SENT),
            first_upstream_received: info.moment(timing::FIRST_UPSTREAM_RECEIVED),
            last_upstream_received: info.moment(timing::LAST_UPSTREAM_RECEIVED),
            first_downstream_sent: info.moment(timing::FIRST_DOWNSTREAM_SENT),
            last_downstream_sent: info.moment(timing::LAST_DOWNSTREAM_SENT),
        }
    }

    fn response_code(&self) -> Option<u16> {
        match self.attribute(Attribute::ResponseCode)? {
            // Three digits.
            Scalar::Number(code) => Some(code as u16),
            _ => None,
        }
    }

    fn usable_hosts(&self) -> usize {
        let mut usable = 0;
        for priority in 0.. {
            let (mut total, mut healthy, mut degraded) = (0, 0, 0);
            // SAFETY: the filter is alive during its hook; the results go to locals. Envoy chooses the route to answer.
            let is_there = unsafe {
                (self.callbacks.http_get_cluster_host_count)(
                    self.filter,
                    priority,
                    &raw mut total,
                    &raw mut healthy,
                    &raw mut degraded,
                )
            };
            if !is_there {
                break;
            }
            usable += healthy + degraded;
        }
        usable
    }

    fn clear_route_cache(&mut self) {
        // SAFETY: the filter is alive during its hook.
        unsafe { (self.callbacks.http_clear_route_cache)(self.filter) }
    }

    fn route_chain(&self) -> Option<Arc<Chain>> {
        if !self.config.may_have_routes() {
            return None;
        }
        // SAFETY: the filter is alive during its hook. Envoy chooses the route to answer.
        let route = unsafe { (self.callbacks.get_most_specific_route_config)(self.filter) };
        // SAFETY: not null, it is a pointer that the hook `per_route_config_new` returned; Envoy
        // keeps the route's configuration for as long as the stream has the route.
        let route = unsafe { route.cast::<crate::module::RouteConfig>().as_ref() };
        let is_matched = route.is_some()
            || self.attribute(Attribute::XdsRouteName).is_some()
            || self.attribute(Attribute::XdsClusterName).is_some();
        is_matched.then(|| self.config.chain(route))
    }

    fn start_callout(&mut self, request: &CalloutRequest<'_>) -> Result<CalloutId, CalloutFailure> {
        let headers = ModuleHeader::all(request.headers);
        let mut id = 0;
        // SAFETY: the filter is alive during its hook; everything lent outlives the call, and Envoy
        // copies it.
        let result = unsafe {
            (self.callbacks.http_filter_http_callout)(
                self.filter,
                &raw mut id,
                ModuleBuffer::new(request.cluster),
                headers.as_ptr(),
                headers.len(),
                ModuleBuffer::new(request.body),
                milliseconds(request.timeout),
            )
        };
        crate::callout::started(result).map(|()| CalloutId(id))
    }

    fn start_http_stream(
        &mut self,
        request: &HttpStreamRequest<'_>,
    ) -> Result<HttpStreamId, CalloutFailure> {
        let headers = ModuleHeader::all(request.headers);
        let mut id = 0;
        // SAFETY: the filter is alive during its hook; everything lent outlives the call, and Envoy
        // copies it. Events that come inside of the call are queued (see `Filter::queue`).
        let result = unsafe {
            (self.callbacks.http_filter_start_http_stream)(
                self.filter,
                &raw mut id,
                ModuleBuffer::new(request.cluster),
                headers.as_ptr(),
                headers.len(),
                ModuleBuffer::new(request.body),
                request.end_of_stream,
                milliseconds(request.timeout),
            )
        };
        crate::callout::started(result).map(|()| HttpStreamId(id))
    }

    fn send_http_stream_data(
        &mut self,
        id: HttpStreamId,
        data: &[u8],
        end_of_stream: bool,
    ) -> bool {
        // SAFETY: the filter is alive during its hook; Envoy copies the bytes, and knows which of its
        // streams are over.
        unsafe {
            (self.callbacks.http_stream_send_data)(
                self.filter,
                id.0,
                ModuleBuffer::new(data),
                end_of_stream,
            )
        }
    }

    fn send_http_stream_trailers(&mut self, id: HttpStreamId, trailers: &[(&[u8], &[u8])]) -> bool {
        let trailers = ModuleHeader::all(trailers);
        // SAFETY: as for data.
        unsafe {
            (self.callbacks.http_stream_send_trailers)(
                self.filter,
                id.0,
                trailers.as_ptr(),
                trailers.len(),
            )
        }
    }

    fn start_timer(&mut self, delay: Duration) -> Option<u64> {
        let key = wake_queue::start_timer(self.callbacks, self.filter, self.wake_key, delay)?;
        self.timer_keys.push(key);
        Some(key.1)
    }

    fn cancel(&mut self, id: WakeId) {
        match id {
            WakeId::Timer(number) => {
                let found = self.timer_keys.iter().position(|key| key.1 == number);
                if let Some(index) = found {
                    wake_queue::cancel_timer(self.timer_keys.swap_remove(index));
                }
            }
            // SAFETY: the filter is alive during its hook; Envoy knows which of its streams are over.
            WakeId::HttpStream(id) => unsafe {
                (self.callbacks.http_filter_reset_http_stream)(self.filter, id.0);
            },
            WakeId::Callout(_) => {}
        }
    }

    fn add_metric(&mut self, metric: MetricId, amount: i64) {
        let table = self.config.metrics();
        let Some((envoy, label)) = in_envoy(table, metric) else {
            return;
        };
        let change = match envoy.kind {
            MetricKind::Counter if amount > 0 => self.callbacks.http_filter_increment_counter,
            MetricKind::Gauge if amount >= 0 => self.callbacks.http_filter_increment_gauge,
            MetricKind::Gauge => self.callbacks.http_filter_decrement_gauge,
            MetricKind::Counter | MetricKind::Histogram => return,
        };
        let (labels, count) = labels(label.as_ref());
        // SAFETY: the filter is alive during its hook, and of the configuration that defined the
        // metric, with as many labels; the label outlives the call.
        unsafe {
            change(
                self.filter,
                envoy.id(),
                labels,
                count,
                amount.unsigned_abs(),
            )
        };
        table.note(metric, amount, false);
    }

    fn record_metric(&mut self, metric: MetricId, value: u64) {
        let table = self.config.metrics();
        let Some((envoy, label)) = in_envoy(table, metric) else {
            return;
        };
        let record = match envoy.kind {
            MetricKind::Gauge => self.callbacks.http_filter_set_gauge,
            MetricKind::Histogram => self.callbacks.http_filter_record_histogram_value,
            MetricKind::Counter => return,
        };
        let (labels, count) = labels(label.as_ref());
        // SAFETY: as for `add_metric`.
        unsafe { record(self.filter, envoy.id(), labels, count, value) };
        table.note(metric, i64::try_from(value).unwrap_or(i64::MAX), true);
    }

    fn metric(&self, metric: MetricId) -> Option<u64> {
        self.config.metrics().value(metric)
    }

    fn log_enabled(&self, level: LogLevel) -> bool {
        crate::log::log_enabled(level)
    }

    fn log(&self, level: LogLevel, plugin: &str, message: &str) {
        crate::log::log(level, &format!("plugin {plugin}: {message}"));
    }

    fn unix_millis(&self) -> u64 {
        unix_millis()
    }

    fn monotonic_nanos(&self) -> u64 {
        monotonic_nanos()
    }

    fn start_unix_millis(&self) -> u64 {
        self.start_millis
    }

    fn report_fault(&mut self, link: &Link, phase: Phase, fault: &Fault) {
        let now = unix_millis();
        link.faults.note(now, phase, fault);
        let Some(unsaid) = link.faults.admit(now, fault) else {
            return;
        };
        let more = match unsaid {
            0 => String::new(),
            more => format!(" ({more} more of this cause since the last line about it)"),
        };
        let action = match link.failure_policy.action(fault.cause) {
            _ if phase == Phase::Log => "the response was sent before".to_owned(),
            outrider_plugin_api::FailureAction::Open => "the stream goes on without it".to_owned(),
            outrider_plugin_api::FailureAction::Closed => {
                format!("the stream gets a {}", link.failure_policy.status())
            }
        };
        crate::log::log(
            LogLevel::Error,
            &format!(
                "plugin {}: failed in {phase} ({}): {}; {action}{more}",
                link.name, fault.cause, fault.message
            ),
        );
    }
}

#[cfg(test)]
mod tests;
