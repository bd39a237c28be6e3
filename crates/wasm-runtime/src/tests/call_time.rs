//! Time budgets of calls: the watchdog and the engine's epochs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::fake::shared;
use crate::engine::engine;
use crate::time::{CallTime, RunningCall};

#[test]
fn only_the_overdue_call_ends_at_its_deadline() {
    let (shared, engine) = (shared(), engine().unwrap());
    let [overdue, other] = [(); 2].map(|()| CallTime::new(engine, &shared));
    let slot = Arc::clone(overdue.slot());
    slot.register().unwrap();
    let call = RunningCall::begin(&slot, Duration::from_millis(5));
    assert!(overdue.check().is_ok());
    let began = Instant::now();
    while overdue.check().is_ok() {
        assert!(began.elapsed() < Duration::from_secs(20));
        assert!(other.at_deadline().is_ok());
    }
    assert!(overdue.at_deadline().is_err());
    assert!(other.at_deadline().is_ok());
    assert!(call.end().is_err());
    let next = RunningCall::begin(&slot, Duration::from_mins(1));
    assert!(overdue.at_deadline().is_ok());
    assert_eq!(next.end(), Ok(()));
}
