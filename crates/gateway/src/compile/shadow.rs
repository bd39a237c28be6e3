//! Routes that can never match, because one before them takes all their requests.
//!
//! Told only where it is certain: a wider or equal set of paths, of methods, and conditions that the
//! later route has too. Indexed by path, so that ten thousand routes do not become fifty million pairs.

use std::collections::BTreeMap;

use super::projects::Route;
use super::{Context, Origin};
use crate::plan::{Condition, Match, PathMatch};

#[derive(Default)]
struct Earlier<'r> {
    exact: BTreeMap<&'r str, Vec<&'r Route>>,
    prefix: BTreeMap<&'r str, Vec<&'r Route>>,
    regex: BTreeMap<&'r str, Vec<&'r Route>>,
    /// Bytes of the longest prefix.
    longest: usize,
}

pub(super) fn check(context: &mut Context<'_>, origin: &Origin, routes: &[Route]) {
    let mut earlier = Earlier::default();
    for route in routes {
        let Some(matches) = &route.matches else {
            continue;
        };
        if let Some(taker) = earlier.taker(matches) {
            context.problem(
                origin,
                route.location,
                format!(
                    "the route `{}` can never match: the route `{}` on line {} takes all its requests",
                    route.name, taker.name, taker.location.line
                ),
                "move it before that one, or remove it",
            );
        }
        earlier.add(route, matches);
    }
}

impl<'r> Earlier<'r> {
    fn add(&mut self, route: &'r Route, matches: &'r Match) {
        let routes = match &matches.path {
            PathMatch::Exact(path) => self.exact.entry(path).or_default(),
            PathMatch::Prefix(prefix) => {
                self.longest = self.longest.max(prefix.len());
                self.prefix.entry(prefix).or_default()
            }
            PathMatch::Regex(regex) => self.regex.entry(regex).or_default(),
        };
        routes.push(route);
    }

    fn taker(&self, later: &Match) -> Option<&'r Route> {
        let same = match &later.path {
            PathMatch::Exact(path) => self.exact.get(path.as_str()),
            PathMatch::Prefix(_) => None,
            PathMatch::Regex(regex) => self.regex.get(regex.as_str()),
        };
        let begin = match &later.path {
            PathMatch::Exact(path) | PathMatch::Prefix(path) => path.as_str(),
            // Every path begins so.
            PathMatch::Regex(_) => "/",
        };
        let prefixes = (0..=begin.len().min(self.longest))
            .filter_map(|end| begin.get(..end))
            .filter_map(|prefix| self.prefix.get(prefix));
        same.into_iter()
            .chain(prefixes)
            .flatten()
            .filter(|route| {
                route
                    .matches
                    .as_ref()
                    .is_some_and(|earlier| takes_all_of(earlier, later))
            })
            .min_by_key(|route| route.location)
            .copied()
    }
}

/// Whether, paths aside, `earlier` takes every request that `later` takes.
fn takes_all_of(earlier: &Match, later: &Match) -> bool {
    let methods = earlier.methods.is_empty()
        || (!later.methods.is_empty()
            && later
                .methods
                .iter()
                .all(|method| earlier.methods.contains(method)));
    let within = |earlier: &[Condition], later: &[Condition]| {
        earlier.iter().all(|condition| later.contains(condition))
    };
    methods
        && within(&earlier.headers, &later.headers)
        && within(&earlier.query, &later.query)
        && within(&earlier.cookies, &later.cookies)
}
