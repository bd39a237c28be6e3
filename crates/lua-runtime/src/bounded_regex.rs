//! Searches of a regular expression in long texts, which check the time while they run.
//!
//! The searches of the `regex` crate cannot be stopped. These go through the text byte by byte: a lazy DFA finds the
//! end of the leftmost match, a reverse one its start, and a simulation of the NFA ([`Threads`]) its groups. They
//! find the matches that the `regex` crate finds.
//!
//! The trap: a byte costs one table look-up in a DFA at best, and a visit of every state of the NFA at worst. So the
//! time is checked after [`STEPS`] such visits, as if each byte were the worst.

use regex_automata::hybrid::LazyStateID;
use regex_automata::hybrid::dfa::{Cache, Config, DFA};
use regex_automata::nfa::thompson::{self, NFA, State, WhichCaptures};
use regex_automata::util::primitives::StateID;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input, MatchKind};

/// Visits of states between two checks of the time, which take some tenths of a millisecond.
const STEPS: usize = 1 << 15;
/// Slot of a group that took no part.
const NO_PLACE: usize = usize::MAX;

/// The call's time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OverTime;

/// Counts visits of states, and checks the time.
struct Budget<'a> {
    left: usize,
    is_over: &'a dyn Fn() -> bool,
}

impl<'a> Budget<'a> {
    fn new(is_over: &'a dyn Fn() -> bool) -> Self {
        Self {
            left: STEPS,
            is_over,
        }
    }

    #[inline]
    fn charge(&mut self, steps: usize) -> Result<(), OverTime> {
        if let Some(left) = self.left.checked_sub(steps) {
            self.left = left;
            return Ok(());
        }
        self.left = STEPS;
        if (self.is_over)() {
            Err(OverTime)
        } else {
            Ok(())
        }
    }
}

/// Why a DFA did not answer.
enum Stop {
    Time,
    /// It cannot read this text.
    GaveUp,
}

impl From<OverTime> for Stop {
    fn from(_: OverTime) -> Self {
        Self::Time
    }
}

/// A lazy DFA and its cache.
#[derive(Debug)]
struct LazyDfa {
    dfa: DFA,
    cache: Cache,
}

impl LazyDfa {
    fn new(nfa: NFA, kind: MatchKind, capacity: usize) -> Option<Self> {
        let config = Config::new()
            .match_kind(kind)
            .cache_capacity(capacity)
            .skip_cache_capacity_check(true);
        let dfa = DFA::builder().configure(config).build_from_nfa(nfa).ok()?;
        let cache = dfa.create_cache();
        Some(Self { dfa, cache })
    }

    fn next(&mut self, state: LazyStateID, byte: u8) -> Result<LazyStateID, Stop> {
        let next = self.dfa.next_state(&mut self.cache, state, byte);
        next.map_err(|_| Stop::GaveUp)
    }

    fn end(&mut self, state: LazyStateID) -> Result<LazyStateID, Stop> {
        let next = self.dfa.next_eoi_state(&mut self.cache, state);
        next.map_err(|_| Stop::GaveUp)
    }

    /// Returns the end of the leftmost match that starts at `from` or after it.
    fn match_end(
        &mut self,
        subject: &[u8],
        from: usize,
        states: usize,
        budget: &mut Budget<'_>,
    ) -> Result<Option<usize>, Stop> {
        let input = Input::new(subject).range(from..);
        let started = self.dfa.start_state_forward(&mut self.cache, &input);
        let mut state = started.map_err(|_| Stop::GaveUp)?;
        let mut end = None;
        for (at, byte) in subject.iter().enumerate().skip(from) {
            state = self.next(state, *byte)?;
            if state.is_tagged() {
                if state.is_match() {
                    // A DFA matches a byte late.
                    end = Some(at);
                } else if state.is_dead() {
                    return Ok(end);
                } else if state.is_quit() {
                    return Err(Stop::GaveUp);
                }
            }
            budget.charge(states)?;
        }
        state = self.end(state)?;
        Ok(if state.is_match() {
            Some(subject.len())
        } else {
            end
        })
    }

    /// Returns the start of the longest match that ends at `end` and starts at `from` or after it.
    fn match_start(
        &mut self,
        subject: &[u8],
        from: usize,
        end: usize,
        states: usize,
        budget: &mut Budget<'_>,
    ) -> Result<Option<usize>, Stop> {
        let input = Input::new(subject).range(from..end).anchored(Anchored::Yes);
        let started = self.dfa.start_state_reverse(&mut self.cache, &input);
        let mut state = started.map_err(|_| Stop::GaveUp)?;
        let mut start = None;
        let before = subject.get(..end).unwrap_or_default();
        for (at, byte) in before.iter().enumerate().skip(from).rev() {
            state = self.next(state, *byte)?;
            if state.is_tagged() {
                if state.is_match() {
                    start = Some(at + 1);
                } else if state.is_dead() {
                    return Ok(start);
                } else if state.is_quit() {
                    return Err(Stop::GaveUp);
                }
            }
            budget.charge(states)?;
        }
        let behind = from.checked_sub(1).and_then(|at| subject.get(at));
        state = match behind {
            Some(byte) => self.next(state, *byte)?,
            None => self.end(state)?,
        };
        if state.is_quit() {
            return Err(Stop::GaveUp);
        }
        Ok(if state.is_match() { Some(from) } else { start })
    }
}

/// Threads of the simulated NFA, highest priority first, each with its slots.
#[derive(Debug)]
struct Threads {
    states: Vec<StateID>,
    /// Generation in which a state was added last.
    added: Vec<u64>,
    generation: u64,
    slots: Vec<usize>,
    slot_count: usize,
}

impl Threads {
    fn new(states: usize, slot_count: usize) -> Self {
        Self {
            states: Vec::new(),
            added: vec![0; states],
            generation: 1,
            slots: vec![NO_PLACE; states * slot_count],
            slot_count,
        }
    }

    fn clear(&mut self) {
        self.states.clear();
        self.generation += 1;
    }

    /// Notes a state. Returns whether it is new.
    fn add(&mut self, state: StateID) -> bool {
        match self.added.get_mut(state.as_usize()) {
            Some(added) if *added != self.generation => {
                *added = self.generation;
                true
            }
            _ => false,
        }
    }

    fn slots(&self, state: StateID) -> &[usize] {
        let start = state.as_usize() * self.slot_count;
        let slots = self.slots.get(start..start + self.slot_count);
        slots.unwrap_or_default()
    }

    fn set_slots(&mut self, state: StateID, from: &[usize]) {
        let start = state.as_usize() * self.slot_count;
        if let Some(slots) = self.slots.get_mut(start..start + self.slot_count) {
            slots.copy_from_slice(from);
        }
    }
}

/// A step of an epsilon closure.
enum Closure {
    Explore(StateID),
    Restore { slot: usize, place: usize },
}

/// The simulated NFA.
#[derive(Debug)]
struct Simulation {
    current: Threads,
    next: Threads,
    slots: Vec<usize>,
}

impl Simulation {
    fn new(nfa: &NFA) -> Self {
        let (states, slots) = (nfa.states().len(), nfa.group_info().slot_len());
        Self {
            current: Threads::new(states, slots),
            next: Threads::new(states, slots),
            slots: vec![NO_PLACE; slots],
        }
    }

    /// Adds a state and those that it reaches without a byte; `slots` are those of its thread. Returns the number of
    /// steps.
    fn explore(
        nfa: &NFA,
        threads: &mut Threads,
        slots: &mut [usize],
        state: StateID,
        subject: &[u8],
        at: usize,
    ) -> usize {
        let mut steps = 1;
        let mut stack = vec![Closure::Explore(state)];
        while let Some(step) = stack.pop() {
            steps += 1;
            let mut id = match step {
                Closure::Explore(id) => id,
                Closure::Restore { slot, place } => {
                    if let Some(slot) = slots.get_mut(slot) {
                        *slot = place;
                    }
                    continue;
                }
            };
            while threads.add(id) {
                steps += 1;
                match nfa.state(id) {
                    State::Fail => break,
                    State::Match { .. }
                    | State::ByteRange { .. }
                    | State::Sparse(_)
                    | State::Dense(_) => {
                        threads.states.push(id);
                        threads.set_slots(id, slots);
                        steps += slots.len();
                        break;
                    }
                    State::Look { look, next } => {
                        if !nfa.look_matcher().matches(*look, subject, at) {
                            break;
                        }
                        id = *next;
                    }
                    State::Union { alternates } => {
                        let Some((first, others)) = alternates.split_first() else {
                            break;
                        };
                        stack.extend(others.iter().rev().copied().map(Closure::Explore));
                        id = *first;
                    }
                    State::BinaryUnion { alt1, alt2 } => {
                        stack.push(Closure::Explore(*alt2));
                        id = *alt1;
                    }
                    State::Capture { next, slot, .. } => {
                        let slot = slot.as_usize();
                        if let Some(place) = slots.get_mut(slot) {
                            stack.push(Closure::Restore {
                                slot,
                                place: *place,
                            });
                            *place = at;
                        }
                        id = *next;
                    }
                }
            }
        }
        steps
    }

    /// Finds the leftmost match that starts at `from` or, unless `is_anchored`, after it. Its slots go to `found`.
    fn search(
        &mut self,
        nfa: &NFA,
        subject: &[u8],
        from: usize,
        is_anchored: bool,
        budget: &mut Budget<'_>,
        found: &mut Vec<usize>,
    ) -> Result<bool, OverTime> {
        let Self {
            current,
            next,
            slots,
        } = self;
        current.clear();
        next.clear();
        let mut is_found = false;
        for at in from..=subject.len() {
            if !is_found && (at == from || !is_anchored) {
                slots.fill(NO_PLACE);
                let start = nfa.start_anchored();
                budget.charge(Self::explore(nfa, current, slots, start, subject, at))?;
            } else if current.states.is_empty() {
                break;
            }
            for index in 0..current.states.len() {
                let Some(id) = current.states.get(index).copied() else {
                    break;
                };
                budget.charge(1)?;
                let target = match nfa.state(id) {
                    State::ByteRange { trans } => trans.matches(subject, at).then_some(trans.next),
                    State::Sparse(transitions) => transitions.matches(subject, at),
                    State::Dense(transitions) => transitions.matches(subject, at),
                    State::Match { .. } => {
                        found.clear();
                        found.extend_from_slice(current.slots(id));
                        is_found = true;
                        // The threads that follow have a lower priority.
                        break;
                    }
                    _ => None,
                };
                if let Some(target) = target {
                    slots.copy_from_slice(current.slots(id));
                    budget.charge(Self::explore(nfa, next, slots, target, subject, at + 1))?;
                }
            }
            std::mem::swap(current, next);
            next.clear();
        }
        Ok(is_found)
    }
}

/// A pattern that is searched with checks of the time.
#[derive(Debug)]
pub(crate) struct BoundedRegex {
    nfa: NFA,
    /// Forward and reverse, or `None` if the pattern cannot be searched by a DFA.
    dfas: Option<(LazyDfa, LazyDfa)>,
    simulation: Simulation,
    slots: Vec<usize>,
}

impl BoundedRegex {
    /// Compiles a pattern; `nfa` is its NFA, and each DFA remembers about `capacity` bytes.
    pub(crate) fn new(pattern: &str, nfa: NFA, capacity: usize) -> Self {
        let config = thompson::Config::new()
            .utf8(false)
            .reverse(true)
            .which_captures(WhichCaptures::None)
            .nfa_size_limit(Some(2 * capacity));
        let reverse = NFA::compiler()
            .syntax(syntax::Config::new().unicode(false).utf8(false))
            .configure(config)
            .build(pattern);
        let forward = LazyDfa::new(nfa.clone(), MatchKind::LeftmostFirst, capacity);
        let reverse = reverse.ok();
        let reverse = reverse.and_then(|nfa| LazyDfa::new(nfa, MatchKind::All, capacity));
        Self {
            dfas: forward.zip(reverse),
            simulation: Simulation::new(&nfa),
            slots: Vec::new(),
            nfa,
        }
    }

    /// Returns where the leftmost match that starts at `from` or after it is.
    pub(crate) fn find(
        &mut self,
        subject: &[u8],
        from: usize,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Option<(usize, usize)>, OverTime> {
        let budget = &mut Budget::new(is_over);
        match self.find_by_dfa(subject, from, budget) {
            Ok(found) => Ok(found),
            Err(Stop::Time) => Err(OverTime),
            Err(Stop::GaveUp) => {
                let found = self.simulate(subject, from, false, budget)?;
                Ok(found.then(|| self.group(0)).flatten())
            }
        }
    }

    /// Finds the match that [`BoundedRegex::find`] finds, and its groups, which are then [`BoundedRegex::group`].
    pub(crate) fn capture(
        &mut self,
        subject: &[u8],
        from: usize,
        is_over: &dyn Fn() -> bool,
    ) -> Result<bool, OverTime> {
        let budget = &mut Budget::new(is_over);
        match self.find_by_dfa(subject, from, budget) {
            Ok(None) => Ok(false),
            Ok(Some((start, end))) if self.nfa.group_info().slot_len() <= 2 => {
                self.slots.clear();
                self.slots.extend([start, end]);
                Ok(true)
            }
            Ok(Some((start, _))) => self.simulate(subject, start, true, budget),
            Err(Stop::Time) => Err(OverTime),
            Err(Stop::GaveUp) => self.simulate(subject, from, false, budget),
        }
    }

    /// Returns where a group of the match that was captured last is, or `None` if it took no part.
    pub(crate) fn group(&self, number: usize) -> Option<(usize, usize)> {
        let place = |slot: usize| self.slots.get(slot).filter(|place| **place != NO_PLACE);
        Some((*place(2 * number)?, *place(2 * number + 1)?))
    }

    fn find_by_dfa(
        &mut self,
        subject: &[u8],
        from: usize,
        budget: &mut Budget<'_>,
    ) -> Result<Option<(usize, usize)>, Stop> {
        let states = self.nfa.states().len();
        let Some((forward, reverse)) = &mut self.dfas else {
            return Err(Stop::GaveUp);
        };
        let Some(end) = forward.match_end(subject, from, states, budget)? else {
            return Ok(None);
        };
        match reverse.match_start(subject, from, end, states, budget)? {
            Some(start) => Ok(Some((start, end))),
            None => Err(Stop::GaveUp),
        }
    }

    fn simulate(
        &mut self,
        subject: &[u8],
        from: usize,
        is_anchored: bool,
        budget: &mut Budget<'_>,
    ) -> Result<bool, OverTime> {
        let Self {
            nfa,
            simulation,
            slots,
            ..
        } = self;
        simulation.search(nfa, subject, from, is_anchored, budget, slots)
    }
}
