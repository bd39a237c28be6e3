//! The callbacks of a stream's phases: what they are told, and what their answers mean.

use outrider_plugin_api::{
    Call, Decision, Direction, Fault, HeaderMap, LogLevel, Pause, Phase, Reaction, Slot,
};
use wasmtime::Store;

use super::events::watch;
use super::{enter, place_of, small};
use crate::abi::action;
use crate::contexts::{Context, Wait};
use crate::exports::{Exports, OnHeaders};
use crate::state::{Moment, State};
use crate::trouble::Trouble;

/// The callback of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Headers,
    Body,
    Trailers,
}

/// What a stream's callback answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    GoesOn,
    Pauses(Pause),
}

fn map_of(part: Part, direction: Direction) -> Option<HeaderMap> {
    match (part, direction) {
        (Part::Headers, _) => Some(direction.headers()),
        (Part::Trailers, Direction::Request) => Some(HeaderMap::RequestTrailers),
        (Part::Trailers, Direction::Response) => Some(HeaderMap::ResponseTrailers),
        (Part::Body, _) => None,
    }
}

fn part_of(phase: Phase) -> Option<Part> {
    match phase {
        Phase::RequestHeaders | Phase::ResponseHeaders => Some(Part::Headers),
        Phase::RequestBody | Phase::ResponseBody => Some(Part::Body),
        Phase::RequestTrailers | Phase::ResponseTrailers => Some(Part::Trailers),
        Phase::Log => None,
    }
}

/// The guest acts for the stream of a context.
#[inline]
pub(super) fn own(store: &mut Store<State>, place: usize) {
    let state = store.data_mut();
    state.own = Some(place);
    let (id, root) = state
        .contexts
        .at(place)
        .map_or((0, 0), |context| (context.id, context.root));
    state.own_id = id;
    state.effective = id;
    state.root = root;
    state.moment = Moment::Stream;
    state.answers_stream = false;
    state.reply = None;
}

/// The call is over.
#[inline]
pub(super) fn leave(store: &mut Store<State>) {
    let state = store.data_mut();
    state.own = None;
    state.own_id = 0;
    state.effective = 0;
    state.root = 0;
    state.moment = Moment::Other;
}

/// The place of a stream's context, which is made with the first call.
#[inline]
pub(super) fn begin_stream(
    store: &mut Store<State>,
    exports: &Exports,
    root: u32,
    generation: u32,
    slot: &mut Slot,
) -> Result<usize, Trouble> {
    if let Some(place) = place_of(*slot) {
        own(store, place);
        return Ok(place);
    }
    let (place, id) = store.data_mut().contexts.add(root);
    *slot = Slot(u64::from(generation) << 32 | (place as u64 + 1));
    own(store, place);
    if let Some(on_context_create) = &exports.on_context_create {
        enter(
            store,
            "proxy_on_context_create",
            on_context_create,
            (id.cast_signed(), root.cast_signed()),
        )?;
        store.data_mut().effective = id;
    }
    Ok(place)
}

pub(super) fn run_phase(
    store: &mut Store<State>,
    exports: &Exports,
    place: usize,
    call: Call,
) -> Result<Answer, Trouble> {
    let id = store.data().own_id.cast_signed();
    let direction = call.phase.direction();
    let Some(part) = part_of(call.phase) else {
        log(store, exports, place, id)?;
        return Ok(Answer::GoesOn);
    };
    if let Some(map) = map_of(part, direction)
        && let Some(context) = store.data_mut().contexts.at_mut(place)
    {
        context.maps.open(map);
    }
    let end = i32::from(call.end_of_stream);
    let state = store.data();
    let size = |map| {
        state
            .lent
            .stream()
            .and_then(|stream| stream.header_map_len(map))
            .map_or(0, small)
    };
    let answer = match (part, direction) {
        (Part::Headers, _) => {
            let (name, function) = match direction {
                Direction::Request => ("proxy_on_request_headers", &exports.on_request_headers),
                Direction::Response => ("proxy_on_response_headers", &exports.on_response_headers),
            };
            match function {
                OnHeaders::Absent => None,
                OnHeaders::Counted(function) => {
                    let size = size(direction.headers());
                    Some(enter(store, name, function, (id, size))?)
                }
                OnHeaders::CountedAndEnd(function) => {
                    let size = size(direction.headers());
                    Some(enter(store, name, function, (id, size, end))?)
                }
            }
        }
        (Part::Body, _) => {
            let (name, function) = match direction {
                Direction::Request => ("proxy_on_request_body", &exports.on_request_body),
                Direction::Response => ("proxy_on_response_body", &exports.on_response_body),
            };
            match function {
                None => None,
                Some(function) => {
                    let body = store.data_mut().body(direction);
                    let length = body.map_or(0, |(_, length)| small(length));
                    Some(enter(store, name, function, (id, length, end))?)
                }
            }
        }
        (Part::Trailers, Direction::Request) => match &exports.on_request_trailers {
            None => None,
            Some(function) => {
                let size = size(HeaderMap::RequestTrailers);
                Some(enter(
                    store,
                    "proxy_on_request_trailers",
                    function,
                    (id, size),
                )?)
            }
        },
        (Part::Trailers, Direction::Response) => match &exports.on_response_trailers {
            None => None,
            Some(function) => {
                let size = size(HeaderMap::ResponseTrailers);
                Some(enter(
                    store,
                    "proxy_on_response_trailers",
                    function,
                    (id, size),
                )?)
            }
        },
    };
    Ok(understand(
        store,
        part,
        direction,
        answer.unwrap_or(action::CONTINUE),
    ))
}

/// What a callback's answer means.
fn understand(store: &mut Store<State>, part: Part, direction: Direction, answer: i32) -> Answer {
    let state = store.data_mut();
    state.effective = state.own_id;
    match (part, answer) {
        (_, action::CONTINUE) | (Part::Headers, action::CONTINUE_AND_END_STREAM) => Answer::GoesOn,
        (Part::Headers, action::STOP_ITERATION)
            if store.data().shared.options.allow_on_headers_stop_iteration =>
        {
            Answer::Pauses(Pause::MoreBody)
        }
        (Part::Body, action::STOP_ITERATION) => {
            hide_body(store, direction, false);
            Answer::Pauses(Pause::MoreBody)
        }
        (Part::Body, action::STOP_ITERATION_AND_WATERMARK) => {
            hide_body(store, direction, true);
            Answer::Pauses(Pause::MoreBody)
        }
        // As in Envoy, larger answers, and those below 0, count as this.
        (Part::Body, _) => {
            let state = store.data_mut();
            if let Some((hidden, length)) = state.body(direction)
                && let Some(stream) = state.stream_mut()
                && let Err(error) = stream.splice_body(direction, hidden..hidden + length, b"")
            {
                let line = format!("StopIterationNoBuffer: {error}");
                state.log(LogLevel::Warn, &line);
            }
            Answer::Pauses(Pause::MoreBody)
        }
        (Part::Headers | Part::Trailers, _) => Answer::Pauses(Pause::Event),
    }
}

/// What is there of a body is held back: the guest sees it again with what comes, or not.
fn hide_body(store: &mut Store<State>, direction: Direction, hides: bool) {
    let state = store.data_mut();
    let (before, seen) = state.body(direction).unwrap_or_default();
    if let Some(context) = state.context_mut() {
        *context.hidden(direction) = if hides { before + seen } else { 0 };
    }
}

fn log(store: &mut Store<State>, exports: &Exports, place: usize, id: i32) -> Result<(), Trouble> {
    let state = store.data_mut();
    state.moment = Moment::Log;
    if let Some(context) = state.contexts.at_mut(place) {
        for map in [
            HeaderMap::RequestHeaders,
            HeaderMap::RequestTrailers,
            HeaderMap::ResponseHeaders,
            HeaderMap::ResponseTrailers,
        ] {
            context.maps.open(map);
        }
        context.is_over = true;
    }
    if let Some(on_log) = &exports.on_log {
        enter(store, "proxy_on_log", on_log, id)?;
    }
    Ok(())
}

/// What a callback came to: its answer, unless it replied, or said that the stream goes on.
pub(super) fn conclude(
    store: &mut Store<State>,
    place: usize,
    call: Call,
    answer: Answer,
) -> Result<Decision, Fault> {
    let state = store.data_mut();
    state.refresh_route();
    let reply = state.reply.take();
    let Some(context) = state.contexts.at_mut(place) else {
        return Ok(Decision::Continue);
    };
    if call.phase == Phase::Log {
        return Ok(Decision::Continue);
    }
    if let Some(reply) = reply.or_else(|| context.reply.take()) {
        context.request.paused = false;
        context.request.go_on = false;
        return Ok(Decision::Reply(reply));
    }
    let direction = call.phase.direction();
    let wait = context.wait(direction);
    let goes_on = std::mem::take(&mut wait.go_on);
    let other = context.wait(direction.other());
    other.go_on &= other.paused;
    match answer {
        Answer::Pauses(pause) if !goes_on => {
            context.wait(direction).paused = true;
            if pause == Pause::Event || call.end_of_stream {
                watch(store, place)?;
            }
            Ok(Decision::Pause(pause))
        }
        Answer::Pauses(_) | Answer::GoesOn => {
            context.wait(direction).paused = false;
            *context.hidden(direction) = 0;
            if goes_on {
                close_maps(context, direction);
            } else if let Some(map) = part_of(call.phase).and_then(|part| map_of(part, direction)) {
                context.maps.close(map);
            }
            let waits = context.wait(direction.other()).paused;
            if waits {
                watch(store, place)?;
            }
            Ok(Decision::Continue)
        }
    }
}

fn close_maps(context: &mut Context, direction: Direction) {
    for part in [Part::Headers, Part::Trailers] {
        if let Some(map) = map_of(part, direction) {
            context.maps.close(map);
        }
    }
}

/// What follows from an event.
pub(super) fn react(store: &mut Store<State>, place: usize) -> Result<Reaction, Fault> {
    let state = store.data_mut();
    state.refresh_route();
    let reply = state.reply.take();
    let Some(context) = state.contexts.at_mut(place) else {
        return Ok(Reaction::default());
    };
    let mut reaction = Reaction {
        reply: reply.or_else(|| context.reply.take()),
        ..Reaction::default()
    };
    for direction in [Direction::Request, Direction::Response] {
        let wait = context.wait(direction);
        let goes_on = std::mem::take(&mut wait.go_on) && wait.paused;
        if goes_on {
            wait.paused = false;
            *context.hidden(direction) = 0;
            close_maps(context, direction);
        }
        match direction {
            Direction::Request => reaction.continue_request = goes_on,
            Direction::Response => reaction.continue_response = goes_on,
        }
    }
    if reaction.reply.is_some() {
        context.request = Wait::default();
    } else if context.request.paused || context.response.paused {
        watch(store, place)?;
    }
    Ok(reaction)
}
