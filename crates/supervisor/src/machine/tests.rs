//! Each test tells a story as events, and compares what is to be done. Revisions are numbers.

use super::Action::{
    Apply, Busy, Compile, Drain, Exit as End, Kill, Offer, Release, Start, TellFallback,
};
use super::Event::{
    Applied, BrokeOff, Changed, Compiled, Declined, Drained, Ended, Refused, StartRefused, Started,
    Stop, TakeOver, TakeOverFailed, TakenOver, Time, Withdrawn,
};
use super::*;

/// A machine, and a clock that tests set.
struct Story {
    machine: Machine<u32>,
    now: Instant,
}

impl Story {
    fn new(fallback: Option<u32>) -> Self {
        Self {
            machine: Machine::new(fallback),
            now: Instant::now(),
        }
    }

    /// One that serves revision 1.
    fn serving() -> Self {
        let mut story = Self::new(None);
        assert_eq!(story.on(Changed), [Compile]);
        assert_eq!(story.on(Compiled(1)), [Start(1)]);
        assert_eq!(story.on(Started), []);
        assert!(story.machine.is_in_step());
        story
    }

    fn on(&mut self, event: Event<u32>) -> Vec<Action<u32>> {
        self.machine.handle(self.now, event)
    }

    fn after(&mut self, milliseconds: u64) -> Vec<Action<u32>> {
        self.now += Duration::from_millis(milliseconds);
        self.on(Time)
    }

    fn change_to(&mut self, revision: u32) -> Vec<Action<u32>> {
        assert_eq!(self.on(Changed), [Compile]);
        self.on(Compiled(revision))
    }
}

fn apply(from: &[u32], to: u32) -> Vec<Action<u32>> {
    let from = from.to_vec();
    vec![Apply { from, to }]
}

#[test]
fn change_is_compiled_and_applied() {
    let mut story = Story::serving();
    assert_eq!(story.change_to(2), apply(&[1], 2));
    assert_eq!(story.on(Time), []);
    assert_eq!(story.on(Applied), []);
    assert!(story.machine.is_in_step());
    assert_eq!(story.machine.taken(), Some(&2));
}

#[test]
fn file_that_changes_while_it_is_compiled_is_compiled_again() {
    let mut story = Story::serving();
    assert_eq!(story.on(Changed), [Compile]);
    assert_eq!(story.on(Changed), []);
    assert_eq!(story.on(Compiled(2)), [Compile]);
    assert_eq!(story.on(Compiled(3)), apply(&[1], 3));
}

#[test]
fn change_that_comes_while_another_is_applied_follows_it() {
    let mut story = Story::serving();
    assert_eq!(story.change_to(2), apply(&[1], 2));
    assert_eq!(story.change_to(3), []);
    assert_eq!(story.on(Applied), apply(&[2], 3));
}

#[test]
fn what_the_file_or_envoy_refuses_changes_nothing_and_is_not_tried_again() {
    let mut story = Story::serving();
    assert_eq!(story.on(Changed), [Compile]);
    assert_eq!(story.on(Refused), []);
    assert_eq!(story.change_to(2), apply(&[1], 2));
    assert_eq!(story.on(Declined), []);
    assert_eq!(story.after(60_000), []);
    assert_eq!(story.machine.taken(), Some(&1));
    // Saved again, it is.
    assert_eq!(story.change_to(2), apply(&[1], 2));
    assert_eq!(story.on(Declined), []);
    assert_eq!(story.change_to(1), []);
}

/// A disk that is full, or an Envoy that does not answer.
#[test]
fn change_that_broke_off_is_tried_again_with_growing_pauses() {
    let mut story = Story::serving();
    assert_eq!(story.change_to(2), apply(&[1], 2));
    assert_eq!(story.on(BrokeOff), []);
    assert!(!story.machine.is_in_step());
    assert_eq!(story.after(499), []);
    assert_eq!(story.after(1), apply(&[1, 2], 2));
    assert_eq!(story.on(BrokeOff), []);
    assert_eq!(story.after(999), []);
    assert_eq!(story.after(1), apply(&[1, 2], 2));
    assert_eq!(story.on(Applied), []);
    assert!(story.machine.is_in_step());
}

/// Nobody knows what is served, so the file that says what was served before is handed over, too.
#[test]
fn revert_after_a_change_that_broke_off_is_applied() {
    let mut story = Story::serving();
    assert_eq!(story.change_to(2), apply(&[1], 2));
    assert_eq!(story.on(BrokeOff), []);
    assert_eq!(story.change_to(1), apply(&[1, 2], 1));
    assert_eq!(story.on(BrokeOff), []);
    assert_eq!(story.change_to(3), apply(&[1, 2], 3));
    assert_eq!(story.on(BrokeOff), []);
    assert_eq!(story.after(500), apply(&[1, 2, 3], 3));
}

#[test]
fn after_a_refusal_what_is_unknown_becomes_known() {
    let mut story = Story::serving();
    assert_eq!(story.change_to(2), apply(&[1], 2));
    assert_eq!(story.on(BrokeOff), []);
    assert_eq!(story.on(Changed), [Compile]);
    assert_eq!(story.on(Refused), []);
    assert_eq!(story.after(500), apply(&[1, 2], 2));
    // Envoy refused it, and took the old one back.
    assert_eq!(story.on(Declined), []);
    assert_eq!(story.machine.taken(), Some(&1));
    assert_eq!(story.after(60_000), []);
}

#[test]
fn envoy_that_ends_is_started_again_with_growing_pauses() {
    let mut story = Story::serving();
    assert_eq!(story.on(Ended), [Start(1)]);
    assert_eq!(story.on(Ended), []);
    assert_eq!(story.after(499), []);
    assert_eq!(story.after(1), [Start(1)]);
    assert_eq!(story.on(Started), []);
    assert_eq!(story.on(Ended), []);
    assert_eq!(story.after(1000), [Start(1)]);
    for _ in 0..20 {
        assert_eq!(story.on(Ended), []);
        assert_eq!(story.after(30_000), [Start(1)]);
    }
    assert_eq!(story.on(Started), []);
    // It has run for a while: the next end is the first.
    assert_eq!(story.after(60_000), []);
    assert_eq!(story.on(Ended), [Start(1)]);
}

#[test]
fn envoy_starts_again_with_what_it_took_and_gets_the_file_then() {
    let mut story = Story::serving();
    assert_eq!(story.change_to(2), apply(&[1], 2));
    assert_eq!(story.on(Ended), [Start(1)]);
    assert_eq!(story.on(Started), apply(&[1], 2));
    assert_eq!(story.on(BrokeOff), []);
    assert_eq!(story.after(500), apply(&[1, 2], 2));
    assert_eq!(story.on(Ended), []);
    assert_eq!(story.change_to(3), []);
    assert_eq!(story.after(500), [Start(1)]);
    assert_eq!(story.on(Started), apply(&[1], 3));
}

/// A certificate is gone, or a port is taken.
#[test]
fn start_that_envoy_refuses_after_it_served_is_tried_again() {
    let mut story = Story::serving();
    assert_eq!(story.on(Ended), [Start(1)]);
    assert_eq!(story.on(StartRefused), [Kill]);
    assert_eq!(story.after(499), []);
    assert_eq!(story.after(1), [Start(1)]);
    assert_eq!(story.on(StartRefused), [Kill]);
    // The file may have another certificate; if that one is refused as well, the one before has its turn.
    assert_eq!(story.change_to(2), []);
    assert_eq!(story.after(1000), [Start(2)]);
    assert_eq!(story.on(StartRefused), [Kill]);
    assert_eq!(story.after(2000), [Start(1)]);
    assert_eq!(story.on(StartRefused), [Kill]);
    assert_eq!(story.after(4000), [Start(2)]);
    assert_eq!(story.on(Started), []);
    assert!(story.machine.is_in_step());
    assert_eq!(story.machine.taken(), Some(&2));
}

#[test]
fn file_that_is_refused_at_first_ends_the_gateway_or_falls_back() {
    let mut story = Story::new(None);
    assert_eq!(story.on(Changed), [Compile]);
    assert_eq!(story.on(Refused), [End(Exit::Refused)]);
    let mut story = Story::new(Some(7));
    assert_eq!(story.on(Changed), [Compile]);
    assert_eq!(story.on(Refused), [TellFallback, Start(7)]);
    assert_eq!(story.on(Started), []);
    assert_eq!(story.after(60_000), []);
    assert_eq!(story.change_to(8), apply(&[7], 8));
}

#[test]
fn file_that_envoy_refuses_at_first_ends_the_gateway_or_falls_back() {
    let mut story = Story::new(None);
    assert_eq!(story.change_to(1), [Start(1)]);
    assert_eq!(story.on(StartRefused), [Kill, End(Exit::Refused)]);
    let mut story = Story::new(Some(7));
    assert_eq!(story.change_to(8), [Start(8)]);
    assert_eq!(story.on(StartRefused), [Kill, TellFallback, Start(7)]);
    assert_eq!(story.on(Started), []);
    assert_eq!(story.after(60_000), []);
    assert_eq!(story.change_to(9), apply(&[7], 9));
    // A fallback that is refused as well is the end.
    let mut story = Story::new(Some(7));
    assert_eq!(story.change_to(8), [Start(8)]);
    assert_eq!(story.on(StartRefused), [Kill, TellFallback, Start(7)]);
    assert_eq!(story.on(StartRefused), [Kill, End(Exit::Refused)]);
}

#[test]
fn envoy_that_ends_at_its_first_start_ends_the_gateway() {
    let mut story = Story::new(None);
    assert_eq!(story.change_to(1), [Start(1)]);
    assert_eq!(story.on(Ended), [End(Exit::EnvoyEnded)]);
}

#[test]
fn gateway_drains_before_it_ends() {
    let mut story = Story::serving();
    assert_eq!(story.on(Stop), [Drain]);
    assert_eq!(story.on(Stop), []);
    assert_eq!(story.on(Changed), []);
    assert_eq!(story.on(Drained), [End(Exit::Stopped)]);
    let mut story = Story::serving();
    assert_eq!(story.on(Stop), [Drain]);
    assert_eq!(story.on(Ended), [End(Exit::Stopped)]);
    let mut story = Story::serving();
    assert_eq!(story.on(Ended), [Start(1)]);
    assert_eq!(story.on(Stop), [Kill, End(Exit::Stopped)]);
    let mut story = Story::new(None);
    assert_eq!(story.on(Changed), [Compile]);
    assert_eq!(story.on(Stop), [Kill, End(Exit::Stopped)]);
}

#[test]
fn another_command_takes_over() {
    let mut story = Story::serving();
    assert_eq!(story.on(TakeOver), [Offer]);
    assert_eq!(story.on(TakenOver), [Release]);
    // Nothing of this gateway's is this command's any more.
    assert_eq!(story.on(Changed), []);
    assert_eq!(story.on(Stop), []);
    assert_eq!(story.after(60_000), []);
    assert_eq!(story.on(Drained), [End(Exit::TakenOver)]);
}

#[test]
fn take_over_waits_for_a_change_and_changes_wait_for_a_take_over() {
    let mut story = Story::serving();
    assert_eq!(story.change_to(2), apply(&[1], 2));
    assert_eq!(story.on(TakeOver), [Busy]);
    assert_eq!(story.on(BrokeOff), []);
    assert_eq!(story.on(TakeOver), [Busy], "what is served is unknown");
    assert_eq!(story.after(500), apply(&[1, 2], 2));
    assert_eq!(story.on(Applied), []);
    assert_eq!(story.on(TakeOver), [Offer]);
    assert_eq!(story.on(TakeOver), [Busy], "one at a time");
    assert_eq!(story.change_to(3), []);
    assert_eq!(story.on(Withdrawn), apply(&[2], 3));
    assert_eq!(story.on(Withdrawn), [], "it had withdrawn before");
}

/// The sockets may be the other's by now: this Envoy is started anew.
#[test]
fn take_over_that_fails_late_starts_envoy_anew() {
    let mut story = Story::serving();
    assert_eq!(story.on(TakeOver), [Offer]);
    assert_eq!(story.change_to(2), []);
    assert_eq!(story.on(TakeOverFailed), [Kill, Start(1)]);
    assert_eq!(story.on(Started), apply(&[1], 2));
    assert_eq!(story.on(TakeOverFailed), []);
}

#[test]
fn envoy_that_ends_during_a_take_over_is_started_again_unless_the_other_serves_first() {
    let mut story = Story::serving();
    assert_eq!(story.on(TakeOver), [Offer]);
    assert_eq!(story.on(Ended), [Start(1)]);
    assert_eq!(story.on(TakenOver), [Kill, Release]);
    assert_eq!(story.on(Drained), [End(Exit::TakenOver)]);
    let mut story = Story::serving();
    assert_eq!(story.on(TakeOver), [Offer]);
    assert_eq!(story.on(Stop), [Drain]);
    assert_eq!(story.on(TakenOver), [], "a stop is a stop");
}

/// Whatever happens in whatever order: one Envoy and one change at a time, nothing is compiled twice at once, and in the
/// end, when nothing fails any more, what the file says is served.
#[test]
fn any_order_of_events_ends_with_the_file_served() {
    let mut seed: u64 = 1;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    };
    for _ in 0..2000 {
        let mut story = Story::serving();
        let (mut is_compiling, mut is_starting, mut is_applying, mut runs) =
            (false, false, false, true);
        let mut file = 1;
        let mut steps = random(60) + 20;
        loop {
            let is_calm = steps == 0;
            let calm = |chance: u64| !is_calm && chance == 0;
            let event = if is_compiling && random(2) == 0 {
                is_compiling = false;
                if calm(random(4)) {
                    Refused
                } else {
                    Compiled(file)
                }
            } else if is_starting && random(2) == 0 {
                is_starting = false;
                runs = true;
                let chance = random(4);
                if calm(chance) {
                    runs = false;
                    Ended
                } else if calm(chance.saturating_sub(1)) {
                    runs = false;
                    StartRefused
                } else {
                    Started
                }
            } else if is_applying && random(2) == 0 {
                is_applying = false;
                match random(4) {
                    0 if !is_calm => BrokeOff,
                    1 if !is_calm => Declined,
                    _ => Applied,
                }
            } else if runs && !is_applying && calm(random(6)) {
                // Another command begins to take over, and gives up, at once or after some time.
                let offered = story.on(TakeOver) == [Offer];
                if offered && random(2) == 0 {
                    runs = false;
                    assert!(matches!(
                        story.on(TakeOverFailed)[..],
                        [Kill, Start(_)] | [Kill]
                    ));
                    is_starting = matches!(story.machine.envoy, super::Envoy::Starting);
                    continue;
                }
                Withdrawn
            } else if runs && calm(random(8)) {
                runs = false;
                is_applying = false;
                Ended
            } else if calm(random(3)) {
                file += 1;
                Changed
            } else {
                story.now += Duration::from_secs(40);
                Time
            };
            let idle = is_calm && event == Time && !is_compiling && !is_starting && !is_applying;
            let actions = story.on(event);
            if idle && actions.is_empty() {
                break;
            }
            for action in actions {
                match action {
                    Compile => assert!(!std::mem::replace(&mut is_compiling, true)),
                    Start(_) => {
                        assert!(!runs && !std::mem::replace(&mut is_starting, true));
                    }
                    Apply { from, .. } => {
                        assert!(runs && !from.is_empty());
                        assert!(!std::mem::replace(&mut is_applying, true));
                    }
                    Kill => assert!(!runs),
                    other => panic!("{other:?}"),
                }
            }
            if is_calm || steps > 1 {
                steps = steps.saturating_sub(1);
            } else {
                // The file is saved once more, and nothing fails from here on.
                steps = 0;
                file += 1;
                for action in story.on(Changed) {
                    assert_eq!(action, Compile);
                    is_compiling = true;
                }
            }
        }
        assert!(runs);
        assert_eq!(story.machine.taken(), Some(&file));
        assert!(story.machine.is_in_step());
    }
}
