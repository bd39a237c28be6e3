//! The stream as one plugin sees it during one call: the host's, but for the response that another
//! plugin has just made ([`LocalResponse`]), and for the part of a body that the call is about.

mod memory;

use std::ops::Range;
use std::time::Duration;

use crate::attribute::Attribute;
use crate::callout::{
    CalloutFailure, CalloutId, CalloutRequest, HttpStreamId, HttpStreamRequest, WakeId,
};
use crate::chain::Link;
use crate::framing::{self, HeaderError, LONGEST_NAME, Rule};
use crate::host::{BodyBuffer, Host};
use crate::journal::{Journal, OldHeader, OldPart};
use crate::local::LocalResponse;
use crate::log_budget::{LogAdmission, log_line};
use crate::memory::{ENTRY_COST, Kept, StreamMemory, headers_cost};
use crate::metadata::{MetadataSource, MetadataTree};
use crate::metric::MetricId;
use crate::permissions::{MetadataDenied, Permissions};
use crate::phase::{Direction, HeaderMap};
use crate::stream::{
    BodyError, FilterStateError, FilterStateKind, LogLevel, MetadataError, OverrideHostError,
    OverrideHostFallback, Scalar, Stream, Timing,
};
use crate::waits::{FREE_CALLOUTS, Starter, Waits};

/// Part of a body: offsets into what is held back followed by what was just received. They stay
/// true when the proxy moves the received part to the held one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Window {
    pub(crate) fn len(self) -> usize {
        self.end.saturating_sub(self.start)
    }
}

/// What may happen to the length of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    /// The headers wait for the body, so `content-length` follows it.
    Follows,
    /// The headers may be gone: a `content-length` in them is a promise.
    Announced,
}

/// The body that a call may see.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyView {
    pub(crate) direction: Direction,
    pub(crate) window: Window,
    pub(crate) length: Length,
}

/// How many bytes the plugins of one stream may add to its headers and trailers, in all: as much as Envoy takes of a
/// client by default. An upstream that gets more than it takes may end an HTTP/2 connection, and with it the streams of
/// other tenants on it.
pub const MOST_HEADER_BYTES: usize = 60 * 1024;

/// How many bytes the plugins of one stream may write to its metadata and filter state, in all.
pub const MOST_STATE_BYTES: usize = 1024 * 1024;

/// What plugins have changed on a stream that the chain has to set right.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Changes {
    /// The `content-length` of the request's headers, or of the response's, does not follow from the body.
    pub(crate) lengths: [bool; 2],
    /// A part of the body has another size than it came with, in each direction, and no `content-length` said so.
    pub(crate) resized: [bool; 2],
    /// The response has another status than it came with.
    pub(crate) status: bool,
    /// The link that had the route chosen anew, until the new one is checked.
    pub(crate) rerouted_by: Option<usize>,
    /// Bytes that were written to metadata and filter state.
    pub(crate) state_bytes: usize,
    /// Bytes that were added to headers and trailers.
    pub(crate) header_bytes: usize,
}

/// The index of a direction.
pub(crate) fn side(direction: Direction) -> usize {
    usize::from(direction == Direction::Response)
}

pub(crate) struct View<'a, H: Host> {
    pub(crate) host: &'a mut H,
    /// The plugin's place in the chain.
    pub(crate) called: &'a Link,
    pub(crate) link: usize,
    pub(crate) direction: Direction,
    pub(crate) local: Option<&'a mut LocalResponse>,
    pub(crate) body: Option<BodyView>,
    pub(crate) waits: &'a mut Waits,
    pub(crate) changes: &'a mut Changes,
    /// Memory reservations of the stream's plugins.
    pub(crate) memory: &'a mut StreamMemory,
    /// Bytes that the call has put into a body and not taken out again.
    pub(crate) grown: usize,
    /// Bytes that the call has put in and taken out again, which are still reserved.
    pub(crate) grown_credit: usize,
    /// Records old values, where the call's changes may have to be undone.
    pub(crate) journal: Option<&'a mut Journal>,
    /// Whether the link still holds the headers of the request, and those of the response.
    pub(crate) holds_headers: [bool; 2],
    /// The direction in which the call may make a body where the message has none.
    pub(crate) makes_body: Option<Direction>,
    /// Whether the call is one that may wait.
    pub(crate) may_wait: bool,
    /// Whether the chain still holds the request headers.
    pub(crate) may_route: bool,
}

/// Bytes held back, and bytes received, of a direction.
pub(crate) fn lengths<H: Host>(host: &H, direction: Direction) -> (usize, usize) {
    (
        host.buffer_len(direction, BodyBuffer::Held),
        host.buffer_len(direction, BodyBuffer::Received),
    )
}

/// Visits the part of the host's bytes that lies in a window.
fn visit_window<H: Host>(
    host: &H,
    direction: Direction,
    window: Window,
    visit: &mut dyn FnMut(&[u8]),
) {
    let mut offset = 0;
    for buffer in [BodyBuffer::Held, BodyBuffer::Received] {
        host.buffer_pieces(direction, buffer, &mut |piece| {
            let from = window.start.saturating_sub(offset).min(piece.len());
            let to = window.end.saturating_sub(offset).min(piece.len());
            if let Some(part) = piece.get(from..to)
                && !part.is_empty()
            {
                visit(part);
            }
            offset += piece.len();
        });
    }
}

impl<H: Host> View<'_, H> {
    fn may_start(&self) -> Result<(), CalloutFailure> {
        if self.may_wait {
            self.waits.room(self.link)
        } else {
            Err(CalloutFailure::StreamOver)
        }
    }

    /// Charges a callout to the plugin's CPU share, unless it is one of the stream's first.
    fn charge_callout(&mut self) {
        if self.waits.count_callout(self.link) > FREE_CALLOUTS
            && let Some(plugin) = &self.called.plugin
        {
            plugin.charge_callout(self.host.worker());
        }
    }

    /// Checks that the call may send so many bytes on an HTTP stream.
    fn may_send(
        &mut self,
        id: HttpStreamId,
        last: bool,
        bytes: usize,
    ) -> Result<(), CalloutFailure> {
        if !self.may_wait {
            return Err(CalloutFailure::StreamOver);
        }
        let may = self.waits.may_send(id, self.link, last, bytes);
        if let Err(CalloutFailure::Memory(exceeded)) = &may {
            self.log_exceeded(*exceeded);
        }
        may
    }

    fn starter(&self) -> Starter {
        Starter {
            link: self.link,
            direction: self.direction,
        }
    }

    /// The cluster for a callout to an upstream; logs a denial.
    fn cluster_of<'c>(
        &self,
        permissions: &'c Permissions,
        upstream: &'c [u8],
    ) -> Result<&'c [u8], CalloutFailure> {
        permissions
            .callout_cluster(upstream)
            .inspect_err(|_denied| {
                self.log_denial(&permissions.upstream_denied(&self.called.name, upstream));
            })
    }

    fn may_write_metadata(&self, namespace: &[u8]) -> Result<(), MetadataDenied> {
        let Link {
            permissions, name, ..
        } = self.called;
        permissions
            .write_metadata(name, namespace)
            .inspect_err(|denied| self.log_denial(&denied.to_string()))
    }

    /// Checks that the plugin may set a header that steers the router; logs a denial.
    fn may_steer_router(&self, known: &'static str, name: &[u8]) -> Result<(), HeaderError> {
        let Link {
            permissions,
            name: plugin,
            ..
        } = self.called;
        if permissions.router_headers {
            return Ok(());
        }
        let name = String::from_utf8_lossy(name.get(..256).unwrap_or(name));
        self.log_denial(&format!(
            "the plugin may not set the header `{name}`, which steers Envoy's router; set \
             `plugins.{plugin}.allow.router_headers: true` in outrider.yaml"
        ));
        Err(HeaderError::Router(known))
    }

    /// Checks the headers of a callout against the plugin's permissions; logs a denial.
    fn may_call_with(&self, headers: &[(&[u8], &[u8])]) -> Result<(), CalloutFailure> {
        let Link {
            permissions, name, ..
        } = self.called;
        permissions.callout_headers(headers).inspect_err(|denied| {
            self.log_denial(&format!(
                "callout: {denied} (`plugins.{name}.allow.router_headers`)"
            ));
        })
    }

    /// Logs that a permission is missing, which a plugin may keep for itself.
    fn log_denial(&self, message: &str) {
        if self.called.permissions.logs_denial(self.host.unix_millis()) {
            self.host
                .log(LogLevel::Warn, &self.called.name, &log_line(message));
        }
    }

    fn is_local(&self, map: HeaderMap) -> bool {
        self.local.is_some()
            && matches!(
                map,
                HeaderMap::ResponseHeaders | HeaderMap::ResponseTrailers
            )
    }

    /// A header of a response that a plugin has just made.
    #[cold]
    fn local_header(&self, map: HeaderMap, name: &[u8], index: usize) -> Option<&[u8]> {
        self.local_headers(map)?
            .headers()
            .filter(|(key, _)| key.eq_ignore_ascii_case(name))
            .nth(index)
            .map(|(_, value)| value)
    }

    fn local_headers(&self, map: HeaderMap) -> Option<&LocalResponse> {
        self.local
            .as_deref()
            .filter(|_| map == HeaderMap::ResponseHeaders)
    }

    fn change_local(&mut self, map: HeaderMap, change: impl FnOnce(&mut LocalResponse)) -> bool {
        match self.local.as_deref_mut() {
            Some(local) if map == HeaderMap::ResponseHeaders => {
                change(local);
                true
            }
            _ => false,
        }
    }

    /// Counts what a change adds to the headers.
    #[inline]
    fn count_header(&mut self, name: &[u8], value: &[u8]) -> Result<(), HeaderError> {
        let bytes = self.changes.header_bytes + name.len() + value.len();
        if bytes > MOST_HEADER_BYTES {
            return Err(HeaderError::TooLarge);
        }
        self.reserve(Kept::WithStream, name.len() + value.len())?;
        self.changes.header_bytes = bytes;
        Ok(())
    }

    /// Logs that a value of metadata is not written.
    #[cold]
    fn refuse_metadata(&self) {
        if self.host.log_enabled(LogLevel::Warn) {
            let message = format!(
                "a value of metadata is not written: plugins may write {MOST_STATE_BYTES} bytes of metadata and \
                 filter state on one stream"
            );
            self.host.log(LogLevel::Warn, &self.called.name, &message);
        }
    }

    /// Records the values of a header that is about to change.
    #[inline]
    fn note_header(&mut self, map: HeaderMap, name: &[u8]) {
        if self.journal.is_some() {
            self.record_header(map, name);
        }
    }

    #[cold]
    fn record_header(&mut self, map: HeaderMap, name: &[u8]) {
        if self
            .journal
            .as_ref()
            .is_some_and(|journal| journal.has(map, name))
        {
            return;
        }
        let values = (0..self.header_count(map, name))
            .filter_map(|index| Some(self.header(map, name, index)?.to_vec()))
            .collect();
        if let Some(journal) = &mut self.journal {
            journal.headers.push(OldHeader {
                map,
                name: name.to_vec(),
                values,
            });
        }
    }

    /// Records the part of a body that is about to be replaced.
    fn note_part(
        &mut self,
        direction: Direction,
        base: usize,
        part: Window,
        replaced_by: usize,
    ) -> Result<(), BodyError> {
        let Some(journal) = &mut self.journal else {
            return Ok(());
        };
        if let Err(exceeded) = journal.reserve(&self.called.memory, part.len() + ENTRY_COST) {
            self.log_exceeded(exceeded);
            return Err(exceeded.into());
        }
        let mut bytes = Vec::with_capacity(part.len());
        match &self.local {
            Some(local) if direction == Direction::Response => {
                bytes.extend_from_slice(local.body.get(part.start..part.end).unwrap_or_default());
            }
            _ => visit_window(self.host, direction, part, &mut |piece| {
                bytes.extend_from_slice(piece);
            }),
        }
        if let Some(journal) = &mut self.journal {
            journal.parts.push(OldPart {
                direction,
                start: part.start.saturating_sub(base),
                bytes,
                replaced_by,
            });
        }
        Ok(())
    }

    /// Records the marks of the chain that are about to change.
    fn note_changes(&mut self) {
        if let Some(journal) = &mut self.journal {
            journal.changes.get_or_insert(*self.changes);
        }
    }

    /// Replaces a header's values, whatever it is.
    #[expect(
        clippy::inline_always,
        reason = "called once for each header that is set, and a fifth of it is the call: counted"
    )]
    #[inline(always)]
    fn put_header(&mut self, map: HeaderMap, name: &[u8], value: &[u8]) -> Result<(), HeaderError> {
        self.count_header(name, value)?;
        self.note_header(map, name);
        let done = if self.is_local(map) {
            self.change_local(map, |local| local.set(name, value))
        } else {
            self.host.set_header(map, name, value)
        };
        present(done)
    }

    /// Adds a value to a header, whatever it is.
    #[inline]
    fn append_header(
        &mut self,
        map: HeaderMap,
        name: &[u8],
        value: &[u8],
    ) -> Result<(), HeaderError> {
        self.count_header(name, value)?;
        self.note_header(map, name);
        let done = if self.is_local(map) {
            self.change_local(map, |local| {
                if !value.is_empty() {
                    local.add(name, value);
                }
            })
        } else {
            self.host.add_header(map, name, value)
        };
        present(done)
    }

    /// Removes a header, whatever it is.
    fn drop_header(&mut self, map: HeaderMap, name: &[u8]) -> Result<(), HeaderError> {
        self.note_header(map, name);
        let done = if self.is_local(map) {
            self.change_local(map, |local| local.remove(name))
        } else {
            self.host.remove_header(map, name)
        };
        present(done)
    }

    /// Whether a header has this value, and no other.
    fn has_just(&self, map: HeaderMap, name: &[u8], value: &[u8]) -> bool {
        self.header(map, name, 0) == Some(value) && self.header_count(map, name) == 1
    }

    /// The direction whose headers a map holds, if they have gone on to the next link.
    fn is_gone(&self, map: HeaderMap) -> bool {
        let [request, response] = self.holds_headers;
        match map {
            HeaderMap::RequestHeaders => !request,
            HeaderMap::ResponseHeaders => !response,
            HeaderMap::RequestTrailers | HeaderMap::ResponseTrailers => false,
        }
    }

    /// The `content-length` of a map stands until the headers go on, and is settled then.
    fn note_length(&mut self, map: HeaderMap) {
        self.note_changes();
        let [request, response] = &mut self.changes.lengths;
        match map {
            HeaderMap::RequestHeaders => *request = true,
            HeaderMap::ResponseHeaders => *response = true,
            HeaderMap::RequestTrailers | HeaderMap::ResponseTrailers => {}
        }
    }

    #[cold]
    fn set_by_rule(
        &mut self,
        rule: Rule,
        map: HeaderMap,
        name: &[u8],
        value: &[u8],
    ) -> Result<(), HeaderError> {
        rule.check_map(map)?;
        if self.has_just(map, name, value) {
            return Ok(());
        }
        rule.check(value)?;
        match rule {
            Rule::Connection(name) => return Err(HeaderError::Connection(name)),
            Rule::Router(known) => self.may_steer_router(known, name)?,
            Rule::Length | Rule::Status if self.is_gone(map) => return Ok(()),
            Rule::Length => self.note_length(map),
            Rule::Method => {
                let old = self.header(map, name, 0);
                if framing::frames(value) || old.is_some_and(framing::frames) {
                    let fault = "cannot change to or from `HEAD` and `CONNECT`: how the response is framed \
                                 follows from it";
                    return Err(HeaderError::Pseudo(":method", fault));
                }
            }
            Rule::Status => {
                let old = self.header(map, name, 0);
                if old.is_some_and(|old| old.starts_with(b"1")) {
                    let fault = "cannot change: the response switches protocols";
                    return Err(HeaderError::Pseudo(":status", fault));
                }
                self.note_changes();
                self.changes.status = true;
            }
            _ => {}
        }
        self.put_header(map, name, value)
    }

    #[cold]
    fn add_by_rule(
        &mut self,
        rule: Rule,
        map: HeaderMap,
        name: &[u8],
        value: &[u8],
    ) -> Result<(), HeaderError> {
        let is_there = self.header_count(map, name) > 0;
        if value.is_empty() {
            Ok(())
        } else if let Rule::Router(known) = rule {
            if self.has_just(map, name, value) {
                return Ok(());
            }
            self.may_steer_router(known, name)?;
            self.append_header(map, name, value)
        } else if !is_there || self.has_just(map, name, value) {
            self.set_by_rule(rule, map, name, value)
        } else {
            Err(match rule {
                Rule::Connection(name) => HeaderError::Connection(name),
                Rule::Length => HeaderError::Length,
                _ => HeaderError::Pseudo(rule.name(), "has one value; replace it"),
            })
        }
    }

    #[cold]
    fn remove_by_rule(
        &mut self,
        rule: Rule,
        map: HeaderMap,
        name: &[u8],
    ) -> Result<(), HeaderError> {
        if self.header_count(map, name) == 0 {
            return Ok(());
        }
        match rule {
            Rule::Length if self.is_gone(map) => Ok(()),
            // The proxy writes its own where they are needed, but for those of a message that switches
            // protocols.
            Rule::Connection(own @ ("upgrade" | "connection" | ":protocol"))
                if own != "connection" || self.header_count(map, b"upgrade") > 0 =>
            {
                Err(HeaderError::Connection(own))
            }
            Rule::Plain | Rule::Length | Rule::Connection(_) | Rule::Router(_) => {
                self.drop_header(map, name)
            }
            _ => Err(HeaderError::Pseudo(rule.name(), "cannot be removed")),
        }
    }

    /// Whether the response that this stream gets has no body.
    fn response_has_no_body(&self) -> bool {
        let method = self.host.header(HeaderMap::RequestHeaders, b":method", 0);
        let status = self.header(HeaderMap::ResponseHeaders, b":status", 0);
        method.is_some_and(|method| method.eq_ignore_ascii_case(b"HEAD"))
            || status
                .and_then(framing::length)
                .and_then(|status| u16::try_from(status).ok())
                .is_some_and(framing::has_no_body)
    }

    /// Makes a body where the message has none.
    fn make_body(&mut self, direction: Direction, bytes: &[u8]) -> Result<(), BodyError> {
        if bytes.is_empty() || (direction == Direction::Response && self.response_has_no_body()) {
            return Ok(());
        }
        self.charge_body(direction, 0, bytes.len())?;
        match self.local.as_deref_mut() {
            Some(local) if direction == Direction::Response => local.body = bytes.to_vec(),
            _ => {
                let limit = self.host.buffer_limit();
                if limit > 0 && bytes.len() > limit {
                    return Err(BodyError::TooLarge(limit));
                }
                if !self.host.buffer_append(direction, BodyBuffer::Held, bytes) {
                    return Err(BodyError::NoBody);
                }
            }
        }
        self.body = Some(BodyView {
            direction,
            window: Window {
                start: 0,
                end: bytes.len(),
            },
            length: Length::Follows,
        });
        if let Some(journal) = &mut self.journal {
            journal.made_body = Some(direction);
        }
        self.write_length(direction, bytes.len());
        Ok(())
    }

    /// Replaces a part of a body, and records it for undoing.
    fn replace_part(
        &mut self,
        direction: Direction,
        body: BodyView,
        part: Window,
        bytes: &[u8],
    ) -> Result<(), BodyError> {
        let before = self
            .journal
            .as_ref()
            .map_or(0, |journal| journal.parts.len());
        self.note_part(direction, body.window.start, part, bytes.len())?;
        match self.local.as_deref_mut() {
            Some(local) if direction == Direction::Response => {
                let part = part.start..part.end;
                if local.body.get(part.clone()).is_some() {
                    local.body.splice(part, bytes.iter().copied());
                }
                Ok(())
            }
            _ => {
                let done = replace_in_host(self.host, direction, part, bytes);
                if done.is_err()
                    && let Some(journal) = &mut self.journal
                {
                    journal.parts.truncate(before);
                }
                done
            }
        }
    }

    /// Writes the length of a body into its headers, which are still here.
    fn write_length(&mut self, direction: Direction, length: usize) {
        let length = length.to_string();
        let map = direction.headers();
        self.note_length(map);
        // Headers that are not there need no length.
        let _ = self.put_header(map, b"content-length", length.as_bytes());
    }
}

/// The changes that need no copy of other bytes: adding at the end, and removing at the beginning of
/// one of the two buffers.
fn change_at_an_end<H: Host>(
    host: &mut H,
    direction: Direction,
    part: Window,
    bytes: &[u8],
    held: usize,
    total: usize,
) -> Option<bool> {
    if part.len() == 0 && bytes.is_empty() {
        return Some(true);
    }
    if part.len() == 0 && part.start == total {
        let buffer = if held == total && held > 0 {
            BodyBuffer::Held
        } else {
            BodyBuffer::Received
        };
        return Some(
            host.buffer_append(direction, buffer, bytes)
                || (held == total
                    && buffer == BodyBuffer::Received
                    && host.buffer_append(direction, BodyBuffer::Held, bytes)),
        );
    }
    if !bytes.is_empty() {
        return None;
    }
    let buffer = if part.start == 0 && part.end <= held {
        BodyBuffer::Held
    } else if part.start == held {
        BodyBuffer::Received
    } else {
        return None;
    };
    Some(host.buffer_drain(direction, buffer, part.len()))
}

/// Replaces a part of a body in the host's buffers.
pub(crate) fn replace_in_host<H: Host>(
    host: &mut H,
    direction: Direction,
    window: Window,
    bytes: &[u8],
) -> Result<(), BodyError> {
    let (held, received) = lengths(host, direction);
    let total = held + received;
    if let Some(done) = change_at_an_end(host, direction, window, bytes, held, total) {
        return if done { Ok(()) } else { Err(BodyError::NoBody) };
    }
    // The bytes around the part, in the buffer that has to be written anew; copied only when
    // the part lies in the middle.
    let mut around = Vec::new();
    let in_held = window.end <= held && held > 0;
    let (buffer, first, last) = if in_held {
        (BodyBuffer::Held, 0, held)
    } else {
        (BodyBuffer::Received, held, total)
    };
    let spans = window.start < first || window.end > last;
    if spans || window.start > first || window.end < last {
        for part in [BodyBuffer::Held, BodyBuffer::Received] {
            host.buffer_pieces(direction, part, &mut |piece| {
                around.extend_from_slice(piece);
            });
        }
    }
    let from = if spans { 0 } else { first };
    let to = if spans { total } else { last };
    let before = around.get(from..window.start).unwrap_or_default();
    let after = around.get(window.end..to).unwrap_or_default();
    let mut write = |buffer, old: usize, new: &[&[u8]]| {
        (old == 0 || host.buffer_drain(direction, buffer, old))
            && new
                .iter()
                .all(|part| part.is_empty() || host.buffer_append(direction, buffer, part))
    };
    let new = [before, bytes, after];
    let written = if spans {
        // All of it goes where the proxy can take it: to what is being received, or else to what
        // is held back.
        write(BodyBuffer::Held, held, &[])
            && (write(BodyBuffer::Received, received, &new) || write(BodyBuffer::Held, 0, &new))
    } else {
        write(buffer, last - first, &new) || (received == 0 && write(BodyBuffer::Held, 0, &new))
    };
    if written {
        Ok(())
    } else {
        Err(BodyError::NoBody)
    }
}

/// The answer of a host that sent on an HTTP stream, or could not.
fn sent(done: bool) -> Result<(), CalloutFailure> {
    if done {
        Ok(())
    } else {
        Err(CalloutFailure::StreamOver)
    }
}

/// The answer of a host that changed a map, or has none.
fn present(done: bool) -> Result<(), HeaderError> {
    if done {
        Ok(())
    } else {
        Err(HeaderError::Absent)
    }
}

impl<H: Host> Stream for View<'_, H> {
    fn worker(&self) -> usize {
        self.host.worker()
    }

    fn header(&self, map: HeaderMap, name: &[u8], index: usize) -> Option<&[u8]> {
        if name.len() > LONGEST_NAME {
            return None;
        }
        if self.is_local(map) {
            self.local_header(map, name, index)
        } else {
            self.host.header(map, name, index)
        }
    }

    fn header_count(&self, map: HeaderMap, name: &[u8]) -> usize {
        if name.len() > LONGEST_NAME {
            return 0;
        }
        if self.is_local(map) {
            self.local_headers(map).map_or(0, |local| local.count(name))
        } else {
            self.host.header_count(map, name)
        }
    }

    fn header_map_len(&self, map: HeaderMap) -> Option<usize> {
        if self.is_local(map) {
            self.local_headers(map).map(|local| local.headers().count())
        } else {
            self.host.header_map_len(map)
        }
    }

    fn headers<'s>(&'s self, map: HeaderMap, visit: &mut dyn FnMut(&'s [u8], &'s [u8])) {
        if self.is_local(map) {
            for (name, value) in self
                .local_headers(map)
                .iter()
                .flat_map(|local| local.headers())
            {
                visit(name, value);
            }
        } else {
            self.host.headers(map, visit);
        }
    }

    fn set_header(&mut self, map: HeaderMap, name: &[u8], value: &[u8]) -> Result<(), HeaderError> {
        if value.is_empty() {
            return self.remove_header(map, name);
        }
        framing::check_sendable(name, value)?;
        match Rule::in_map(map, name) {
            Rule::Plain => self.put_header(map, name, value),
            rule => self.set_by_rule(rule, map, name, value),
        }
    }

    fn add_header(&mut self, map: HeaderMap, name: &[u8], value: &[u8]) -> Result<(), HeaderError> {
        framing::check_sendable(name, value)?;
        let rule = Rule::in_map(map, name);
        if rule != Rule::Plain {
            return self.add_by_rule(rule, map, name, value);
        }
        self.append_header(map, name, value)
    }

    fn remove_header(&mut self, map: HeaderMap, name: &[u8]) -> Result<(), HeaderError> {
        if name.len() > LONGEST_NAME {
            return Ok(());
        }
        match Rule::in_map(map, name) {
            Rule::Plain => self.drop_header(map, name),
            rule => self.remove_by_rule(rule, map, name),
        }
    }

    fn body_len(&self, direction: Direction) -> Option<usize> {
        self.body
            .filter(|body| body.direction == direction)
            .map(|body| body.window.len())
    }

    fn body_pieces(&self, direction: Direction, visit: &mut dyn FnMut(&[u8])) {
        let Some(body) = self.body.filter(|body| body.direction == direction) else {
            return;
        };
        match &self.local {
            Some(local) if direction == Direction::Response => {
                if let Some(part) = local.body.get(body.window.start..body.window.end) {
                    visit(part);
                }
            }
            _ => visit_window(self.host, direction, body.window, visit),
        }
    }

    fn splice_body(
        &mut self,
        direction: Direction,
        part: Range<usize>,
        bytes: &[u8],
    ) -> Result<(), BodyError> {
        let Some(body) = self.body.filter(|body| body.direction == direction) else {
            return if self.makes_body == Some(direction) {
                self.make_body(direction, bytes)
            } else {
                Err(BodyError::NoBody)
            };
        };
        let old = body.window.len();
        let end = part.end.min(old);
        let part = Window {
            start: body.window.start + part.start.min(end),
            end: body.window.start + end,
        };
        let new = old - part.len() + bytes.len();
        let announced = self.header_count(direction.headers(), b"content-length") > 0;
        if announced && body.length == Length::Announced && new != old {
            return Err(BodyError::LengthAnnounced);
        }
        let limit = self.host.buffer_limit();
        let total = match &self.local {
            Some(local) if direction == Direction::Response => local.body.len(),
            _ => {
                let (held, received) = lengths(self.host, direction);
                held + received
            }
        };
        if limit > 0 && new > old && total.saturating_sub(old) + new > limit {
            return Err(BodyError::TooLarge(limit));
        }
        self.charge_body(direction, old, new)?;
        let done = self.replace_part(direction, body, part, bytes);
        if done.is_err() {
            self.charge_body(direction, new, old)?;
            return done;
        }
        let window = Window {
            start: body.window.start,
            end: body.window.start + new,
        };
        self.body = Some(BodyView { window, ..body });
        if announced && body.length == Length::Follows {
            self.write_length(direction, new);
        }
        if !announced
            && new != old
            && let Some(resized) = self.changes.resized.get_mut(side(direction))
        {
            *resized = true;
        }
        Ok(())
    }

    fn metadata(&self, source: MetadataSource, namespace: &[u8], key: &[u8]) -> Option<Scalar<'_>> {
        self.host.metadata(source, namespace, key)
    }

    fn set_metadata(
        &mut self,
        namespace: &[u8],
        key: &[u8],
        value: Scalar<'_>,
    ) -> Result<(), MetadataError> {
        self.may_write_metadata(namespace)?;
        let length = match value {
            Scalar::String(text) => text.len(),
            Scalar::Number(_) | Scalar::Bool(_) => 0,
        };
        if !self.count_state(namespace.len() + key.len() + length)? {
            self.refuse_metadata();
            return Ok(());
        }
        self.host.set_metadata(namespace, key, value);
        Ok(())
    }

    fn set_metadata_tree(
        &mut self,
        namespace: &[u8],
        key: &[u8],
        value: &MetadataTree,
    ) -> Result<(), MetadataError> {
        self.may_write_metadata(namespace)?;
        if !self.count_state(namespace.len() + key.len() + value.size())? {
            self.refuse_metadata();
            return Ok(());
        }
        self.host.set_metadata_tree(namespace, key, value);
        Ok(())
    }

    fn metadata_list(
        &self,
        source: MetadataSource,
        namespace: &[u8],
        key: &[u8],
        visit: &mut dyn FnMut(Scalar<'_>),
    ) -> bool {
        self.host.metadata_list(source, namespace, key, visit)
    }

    fn metadata_names(
        &self,
        source: MetadataSource,
        namespace: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8]),
    ) {
        self.host.metadata_names(source, namespace, visit);
    }

    fn filter_state(&self, key: &[u8]) -> Option<&[u8]> {
        self.host.filter_state(key)
    }

    fn set_filter_state(
        &mut self,
        key: &[u8],
        value: &[u8],
        kind: FilterStateKind,
    ) -> Result<(), FilterStateError> {
        let permissions = &self.called.permissions;
        permissions
            .set_filter_state(key, kind)
            .inspect_err(|denied| {
                // A runtime tries other keys as objects first, and stores bytes where that fails.
                if [Permissions::PROXY_KEYS, Permissions::COPIES]
                    .iter()
                    .any(|beginning| key.starts_with(beginning))
                {
                    let key = String::from_utf8_lossy(key.get(..256).unwrap_or(key));
                    self.log_denial(&format!("filter state `{key}` {denied}"));
                }
            })?;
        if !self.count_state(key.len() + value.len())? {
            return Err(FilterStateError::TooLarge);
        }
        self.host.set_filter_state(key, value, kind)
    }

    fn attribute(&self, attribute: Attribute) -> Option<Scalar<'_>> {
        let milliseconds = |time: Duration| Scalar::Number(time.as_secs_f64() * 1000.0);
        match attribute {
            Attribute::ResponseCode => self
                .response_code()
                .map(|code| Scalar::Number(f64::from(code))),
            Attribute::RequestTime => Some(Scalar::Number(self.host.start_unix_millis() as f64)),
            Attribute::RequestDuration => self.host.timing().complete.map(milliseconds),
            Attribute::ResponseBackendLatency => {
                let timing = self.host.timing();
                timing
                    .last_upstream_received?
                    .checked_sub(timing.first_upstream_sent?)
                    .map(milliseconds)
            }
            _ if attribute.follows_from_headers() => {
                attribute.of_headers(|map, name| self.header(map, name, 0))
            }
            _ => self.host.attribute(attribute),
        }
    }

    fn timing(&self) -> Timing {
        self.host.timing()
    }

    fn response_code(&self) -> Option<u16> {
        match self.local_headers(HeaderMap::ResponseHeaders) {
            Some(local) => std::str::from_utf8(local.get(b":status", 0)?)
                .ok()?
                .parse()
                .ok(),
            None => self.host.response_code(),
        }
    }

    fn clear_route_cache(&mut self) -> bool {
        if self.may_route {
            if let Some(journal) = &mut self.journal {
                journal.routed = true;
            }
            if !self.called.permissions.leave_project {
                self.changes.rerouted_by = Some(self.link);
            }
            self.host.clear_route_cache();
        }
        self.may_route
    }

    fn usable_hosts(&self) -> usize {
        if self.may_route {
            self.host.usable_hosts()
        } else {
            0
        }
    }

    fn set_upstream_override_host(
        &mut self,
        host: &[u8],
        otherwise: OverrideHostFallback,
    ) -> Result<(), OverrideHostError> {
        if !self.called.permissions.override_host {
            self.log_denial(&format!(
                "{}: `plugins.{}.allow.override_host`",
                OverrideHostError::NotAllowed,
                self.called.name
            ));
            return Err(OverrideHostError::NotAllowed);
        }
        if !self.may_route {
            return Err(OverrideHostError::TooLate);
        }
        if self.host.set_upstream_override_host(host, otherwise) {
            Ok(())
        } else {
            Err(OverrideHostError::NoAddress)
        }
    }

    fn upstream_denied(&self, upstream: &[u8]) -> String {
        let Link {
            permissions, name, ..
        } = self.called;
        permissions.upstream_denied(name, upstream)
    }

    fn start_callout(&mut self, request: &CalloutRequest<'_>) -> Result<CalloutId, CalloutFailure> {
        self.may_start()?;
        let permissions = &self.called.permissions;
        let cluster = self.cluster_of(permissions, request.cluster)?;
        self.may_call_with(request.headers)?;
        let headers = framing::request_headers(request.headers, Some(request.body.len()))?;
        let request = CalloutRequest {
            cluster,
            headers: &headers,
            ..*request
        };
        let memory = self.reserve_request(request.headers, request.body)?;
        let id = self.host.start_callout(&request)?;
        self.charge_callout();
        self.waits
            .add(WakeId::Callout(id), self.starter(), false, memory);
        Ok(id)
    }

    fn start_http_stream(
        &mut self,
        request: &HttpStreamRequest<'_>,
    ) -> Result<HttpStreamId, CalloutFailure> {
        self.may_start()?;
        let permissions = &self.called.permissions;
        let cluster = self.cluster_of(permissions, request.cluster)?;
        let length = request.end_of_stream.then_some(request.body.len());
        self.may_call_with(request.headers)?;
        let headers = framing::request_headers(request.headers, length)?;
        let request = HttpStreamRequest {
            cluster,
            headers: &headers,
            ..*request
        };
        let memory = self.reserve_request(request.headers, request.body)?;
        let id = self.host.start_http_stream(&request)?;
        self.charge_callout();
        let sending = !request.end_of_stream;
        self.waits
            .add(WakeId::HttpStream(id), self.starter(), sending, memory);
        Ok(id)
    }

    fn send_http_stream_data(
        &mut self,
        id: HttpStreamId,
        data: &[u8],
        end_of_stream: bool,
    ) -> Result<(), CalloutFailure> {
        self.may_send(id, end_of_stream, data.len())?;
        sent(self.host.send_http_stream_data(id, data, end_of_stream))
    }

    fn send_http_stream_trailers(
        &mut self,
        id: HttpStreamId,
        trailers: &[(&[u8], &[u8])],
    ) -> Result<(), CalloutFailure> {
        let trailers = framing::request_trailers(trailers);
        self.may_send(id, true, headers_cost(&trailers))?;
        sent(self.host.send_http_stream_trailers(id, &trailers))
    }

    fn start_timer(&mut self, delay: Duration) -> Result<u64, CalloutFailure> {
        self.may_start()?;
        let id = self
            .host
            .start_timer(delay)
            .ok_or(CalloutFailure::StreamOver)?;
        self.waits.add_timer(id, self.link, self.direction);
        Ok(id)
    }

    fn cancel(&mut self, id: WakeId) {
        self.waits.cancel(id, self.link, self.host);
    }

    fn add_metric(&mut self, metric: MetricId, amount: i64) {
        self.host.add_metric(metric, amount);
    }

    fn record_metric(&mut self, metric: MetricId, value: u64) {
        self.host.record_metric(metric, value);
    }

    fn metric(&self, metric: MetricId) -> Option<u64> {
        self.host.metric(metric)
    }

    fn log_enabled(&self, level: LogLevel) -> bool {
        self.host.log_enabled(level)
    }

    fn log(&self, level: LogLevel, message: &str) {
        if !self.host.log_enabled(level) {
            return;
        }
        let line = log_line(message);
        match self.called.logs.admit(line.len()) {
            LogAdmission::Written => self.host.log(level, &self.called.name, &line),
            LogAdmission::Dropped => {}
            LogAdmission::Reported(report) => {
                self.host.log(LogLevel::Warn, &self.called.name, &report);
            }
        }
    }

    fn unix_millis(&self) -> u64 {
        self.host.unix_millis()
    }

    fn start_unix_millis(&self) -> u64 {
        self.host.start_unix_millis()
    }
}
