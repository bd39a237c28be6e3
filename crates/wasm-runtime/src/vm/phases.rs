//! The callbacks of a stream's phases: what they are told, and what their answers mean.

use outrider_plugin_api::{
    Call, Decision, Direction, Fault, HeaderMap, LogLevel, Pause, Phase, Reaction, Slot,
};
use wasmtime::Store;

use super::events::{background_with_streams, has_background, watch};
use super::{enter, finish, place_of, small};
use crate::abi::action;
use crate::contexts::{Context, Wait};
use crate::exports::{Exports, OnHeaders};
use crate::state::State;
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

/// The map that a phase brings.
#[inline]
fn map_of_phase(phase: Phase) -> Option<HeaderMap> {
    part_of(phase).and_then(|part| map_of(part, phase.direction()))
}

fn part_of(phase: Phase) -> Option<Part> {
    match phase {
        Phase::RequestHeaders | Phase::ResponseHeaders => Some(Part::Headers),
        Phase::RequestBody | Phase::ResponseBody => Some(Part::Body),
        Phase::RequestTrailers | Phase::ResponseTrailers => Some(Part::Trailers),
        Phase::Log => None,
    }
}

/// What became of a stream's call.
pub(super) enum Came {
    /// What mostly does.
    GoesOn,
    Otherwise(Box<Result<Decision, Fault>>),
}

/// Calls the guest for a phase of a stream, whose context is made with the first call.
#[inline]
pub(super) fn call(
    store: &mut Store<State>,
    exports: &Exports,
    (root, generation): (u32, u32),
    slot: &mut Slot,
    call: Call,
) -> Result<Came, Trouble> {
    let state = store.data_mut();
    state.catch_up();
    // One by one where each callback is traced, and where something comes between them.
    let sequences = match &exports.sequences {
        Some(sequences) if state.gate.is_open() && !has_background(state) => Some(sequences),
        _ => None,
    };
    let (place, answer) = match (place_of(*slot), call.phase, sequences) {
        (None, Phase::RequestHeaders, Some(sequences)) => {
            let (place, id) = add(state, root, generation, slot);
            let size = count(state, HeaderMap::RequestHeaders);
            let end = i32::from(call.end_of_stream);
            let arguments = (id.cast_signed(), root.cast_signed(), size, end);
            let answer = sequences.begin(store, arguments)?;
            let answer = understand(store, Part::Headers, Direction::Request, answer);
            (place, answer)
        }
        (Some(place), Phase::Log, Some(sequences)) if state.contexts.has_no_callouts(place) => {
            state.act_for(place);
            state.log_comes();
            let id = state.own_id.cast_signed();
            sequences.end(store, id)?;
            let state = store.data_mut();
            state.contexts.remove(place);
            state.act_for_none();
            *slot = Slot::default();
            return Ok(Came::GoesOn);
        }
        _ => {
            let place = begin_stream(store, exports, (root, generation), slot)?;
            background_with_streams(store, exports)?;
            (place, run_phase(store, exports, call)?)
        }
    };
    let came = conclude(store, place, call, answer);
    if call.phase == Phase::Log {
        // As in Envoy, the rest follows at once, and what the guest says in it is heard.
        finish(store, exports, place)?;
        *slot = Slot::default();
    }
    store.data_mut().act_for_none();
    Ok(came)
}

/// A stream's context: its place, and its number.
#[inline]
fn add(state: &mut State, root: u32, generation: u32, slot: &mut Slot) -> (usize, u32) {
    let (place, id) = state.contexts.add(root);
    *slot = Slot(u64::from(generation) << 32 | (place as u64 + 1));
    state.act_for(place);
    (place, id)
}

/// The place of the stream's context, which is made with the first call.
#[inline]
fn begin_stream(
    store: &mut Store<State>,
    exports: &Exports,
    (root, generation): (u32, u32),
    slot: &mut Slot,
) -> Result<usize, Trouble> {
    if let Some(place) = place_of(*slot) {
        store.data_mut().act_for(place);
        return Ok(place);
    }
    let (place, id) = add(store.data_mut(), root, generation, slot);
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

/// How many pairs a map of the stream's has.
#[inline]
fn count(state: &State, map: HeaderMap) -> i32 {
    let stream = state.lent.stream();
    stream
        .and_then(|stream| stream.header_map_len(map))
        .map_or(0, small)
}

#[inline]
fn run_phase(store: &mut Store<State>, exports: &Exports, call: Call) -> Result<Answer, Trouble> {
    let id = store.data().own_id.cast_signed();
    let direction = call.phase.direction();
    let Some(part) = part_of(call.phase) else {
        log(store, exports, id)?;
        return Ok(Answer::GoesOn);
    };
    if let Some(map) = map_of(part, direction) {
        store.data_mut().map_comes(map);
    }
    let end = i32::from(call.end_of_stream);
    let size = |map| count(store.data(), map);
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

fn log(store: &mut Store<State>, exports: &Exports, id: i32) -> Result<(), Trouble> {
    store.data_mut().log_comes();
    if let Some(on_log) = &exports.on_log {
        enter(store, "proxy_on_log", on_log, id)?;
    }
    Ok(())
}

/// What a callback came to: its answer, unless it replied, or said that the stream goes on.
#[inline]
fn conclude(store: &mut Store<State>, place: usize, call: Call, answer: Answer) -> Came {
    let state = store.data_mut();
    if answer == Answer::GoesOn
        && state.reply.is_none()
        && let Some(context) = state.contexts.at_mut(place)
        && context.is_quiet()
    {
        if let Some(map) = map_of_phase(call.phase) {
            context.maps.close(map);
        }
        return Came::GoesOn;
    }
    match decide(store, place, call, answer) {
        Ok(Decision::Continue) => Came::GoesOn,
        otherwise => Came::Otherwise(Box::new(otherwise)),
    }
}

/// The same with all that may follow from a callback.
#[inline(never)]
fn decide(
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
            } else if let Some(map) = map_of_phase(call.phase) {
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
