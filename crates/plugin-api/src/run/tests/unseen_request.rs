//! Responses to requests that a plugin was not given.

use std::sync::{Arc, Mutex};

use super::wire::{Asked, Wire, link, link_with_request, streaming};
use crate::{Decision, Direction, FailureAction, Link, Phase, Reply};

const RESPONSE: &[(&str, &str)] = &[(":status", "404")];

type Phases = Arc<Mutex<Vec<Phase>>>;

fn strict() -> (Link, Phases) {
    let phases = Phases::default();
    let noted = Arc::clone(&phases);
    let link = link_with_request(streaming(), move |asked, _| {
        if let Asked::Call(call) = asked {
            noted.lock().unwrap().push(call.phase);
        }
        Ok(Decision::Continue)
    });
    (link, phases)
}

fn lenient() -> (Link, Phases) {
    let phases = Phases::default();
    let noted = Arc::clone(&phases);
    let link = link(FailureAction::Closed, streaming(), move |asked, _| {
        if let Asked::Call(call) = asked {
            noted.lock().unwrap().push(call.phase);
        }
        Ok(Decision::Continue)
    });
    (link, phases)
}

#[test]
fn response_without_request_reaches_only_plugins_that_see_it_and_the_log_all() {
    let ((strict, few), (lenient, all)) = (strict(), lenient());
    let mut wire = Wire::new(vec![strict, lenient]);
    wire.headers(Direction::Response, RESPONSE, false);
    wire.body(Direction::Response, b"no", true);
    wire.log();
    assert_eq!(wire.sent(Direction::Response).body, b"no");
    assert_eq!(*few.lock().unwrap(), [Phase::Log]);
    let seen = [Phase::ResponseHeaders, Phase::ResponseBody, Phase::Log];
    assert_eq!(*all.lock().unwrap(), seen);
}

#[test]
fn response_after_the_request_reaches_all() {
    let (strict, phases) = strict();
    let mut wire = Wire::new(vec![strict]);
    wire.headers(Direction::Request, &[(":path", "/")], true);
    wire.headers(Direction::Response, RESPONSE, true);
    wire.log();
    let seen = [Phase::RequestHeaders, Phase::ResponseHeaders, Phase::Log];
    assert_eq!(*phases.lock().unwrap(), seen);
}

#[test]
fn reply_of_a_plugin_in_front_is_not_shown_to_one_without_the_request() {
    let replies = link(FailureAction::Closed, streaming(), |asked, _| match asked {
        Asked::Call(call) if call.phase == Phase::RequestHeaders => {
            Ok(Decision::Reply(Box::new(Reply {
                status: 403,
                ..Reply::default()
            })))
        }
        _ => Ok(Decision::Continue),
    });
    let ((front, before), (behind, after)) = (strict(), strict());
    let mut wire = Wire::new(vec![front, replies, behind]);
    wire.headers(Direction::Request, &[(":path", "/")], true);
    wire.log();
    assert_eq!(wire.reply.as_ref().map(|reply| reply.status), Some(403));
    let seen = [Phase::RequestHeaders, Phase::ResponseHeaders, Phase::Log];
    assert_eq!(*before.lock().unwrap(), seen);
    assert_eq!(*after.lock().unwrap(), [Phase::Log]);
}

#[test]
fn paused_plugin_sees_the_response_that_comes_meanwhile() {
    let phases = Phases::default();
    let noted = Arc::clone(&phases);
    let paused = link_with_request(streaming(), move |asked, stream| {
        let Asked::Call(call) = asked else {
            return Ok(Decision::Continue);
        };
        noted.lock().unwrap().push(call.phase);
        if call.phase == Phase::RequestHeaders {
            stream
                .start_timer(std::time::Duration::from_secs(1))
                .unwrap();
            return Ok(Decision::Pause(crate::Pause::Event));
        }
        Ok(Decision::Continue)
    });
    let (behind, after) = strict();
    let mut wire = Wire::new(vec![paused, behind]);
    wire.headers(Direction::Request, &[(":path", "/")], true);
    wire.headers(Direction::Response, &[(":status", "504")], true);
    let seen = [Phase::RequestHeaders, Phase::ResponseHeaders];
    assert_eq!(*phases.lock().unwrap(), seen);
    assert!(after.lock().unwrap().is_empty());
}
