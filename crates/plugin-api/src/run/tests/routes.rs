//! A request cannot leave its project.

use std::sync::Arc;

use super::wire::{Wire, link, streaming};
use crate::{Chain, ChainRun, Decision, Direction, FailureAction, HeaderMap, Link, Permissions};

const GET: &[(&str, &str)] = &[(":method", "GET"), (":path", "/"), (":authority", "a.test")];

/// A stream of project `a` whose plugin goes to a route with this chain.
fn rerouted(to: Option<Chain>) -> Wire {
    rerouted_by(|_link| {}, to)
}

fn rerouted_by(change: impl Fn(&mut Link), to: Option<Chain>) -> Wire {
    let mut plugin = link(FailureAction::Open, streaming(), |_, stream| {
        stream
            .set_header(HeaderMap::RequestHeaders, b":authority", b"b.test")
            .unwrap();
        assert!(stream.clear_route_cache());
        Ok(Decision::Continue)
    });
    change(&mut plugin);
    let mut wire = Wire::new(Vec::new());
    wire.run = ChainRun::new(Arc::new(Chain::new(vec![plugin]).of_project("project a")));
    wire.host.route = to.map(Arc::new);
    wire.headers(Direction::Request, GET, true);
    wire
}

#[test]
fn request_that_leaves_its_project_ends() {
    for to in [
        Chain::new(Vec::new()).of_project("project b"),
        Chain::new(Vec::new()),
    ] {
        let wire = rerouted(Some(to));
        let reply = wire.reply.as_ref().unwrap();
        assert_eq!(
            (reply.status, &*reply.details),
            (403, "outrider.p.left_project")
        );
        assert_eq!(wire.sent(Direction::Request).headers, None);
        assert_eq!(wire.host.faults.len(), 1);
    }
}

#[test]
fn request_that_stays_in_its_project_or_matches_no_route_goes_on() {
    for to in [Some(Chain::new(Vec::new()).of_project("project a")), None] {
        let wire = rerouted(to);
        assert_eq!(wire.reply, None);
        assert!(wire.sent(Direction::Request).ended);
    }
}

#[test]
fn request_leaves_its_project_by_a_plugin_that_may() {
    let may = |link: &mut Link| link.permissions = Arc::new(Permissions::all());
    let wire = rerouted_by(may, Some(Chain::new(Vec::new()).of_project("project b")));
    assert_eq!(wire.reply, None);
    assert!(wire.sent(Direction::Request).ended);
}
