//! One route: what it matches, and what it does.

use outrider_yaml::{Entries, Field, Located, Location};

use super::conditions::conditions;
use super::lanes::{self, LaneGroups};
use super::projects::Route;
use super::upstreams::Upstreams;
use super::{Context, Origin, known_names, metadata, scopes};
use crate::model::{self, RetryOn, Scheme, Target, text};
use crate::plan::{Action, Forward, HashKey, Match, Mirror, PathMatch, Redirect, Respond, Retries};

/// Envoy holds each fixed body in memory, for good.
pub(crate) const LONGEST_BODY: usize = 64 * 1024;

pub(super) fn build(
    context: &mut Context<'_>,
    origin: &Origin,
    index: usize,
    route: &Located<model::Route>,
    (upstreams, groups): (&Upstreams, &LaneGroups),
) -> Route {
    let Located {
        location,
        value: route,
    } = route;
    let (name, place) = match route.name.get() {
        Some(name) => (name.value.0.clone(), name.location),
        None => (format!("route-{index}"), *location),
    };
    let what = format!("the route `{name}`");
    let matches = context
        .required(origin, *location, &what, "match", &route.matches)
        .and_then(|matches| self::matches(context, origin, matches));
    let lanes = match route
        .to
        .get()
        .map(|target| (target.location, &target.value))
    {
        Some((location, Target::Mapping(target))) => {
            lanes::of_route(context, origin, location, target, groups)
        }
        _ => None,
    };
    let baseline = lanes.as_ref().map(|lanes| lanes.baseline.as_str());
    Route {
        action: action(
            context,
            origin,
            *location,
            &what,
            route,
            (upstreams, baseline),
        ),
        lanes,
        metadata: metadata::read(context, origin, &route.metadata),
        telemetry: None,
        uses: scopes::read_uses(context, origin, &route.uses),
        upgrades: route
            .upgrades
            .location()
            .map(|location| (origin.clone(), location)),
        name,
        location: place,
        matches,
    }
}

/// Tells when not exactly one of `fields` is there. True: exactly one is.
pub(super) fn exactly_one(
    context: &mut Context<'_>,
    origin: &Origin,
    owner: Location,
    what: &str,
    fields: &[(&str, Option<Location>)],
) -> bool {
    let all = fields
        .iter()
        .map(|(key, _)| format!("`{key}`"))
        .collect::<Vec<_>>()
        .join(", ");
    let mut given = fields
        .iter()
        .filter_map(|(key, location)| Some((key, (*location)?)));
    let Some((first, _)) = given.next() else {
        context.problem(
            origin,
            owner,
            format!("{what} has none of {all}"),
            "add exactly one of them",
        );
        return false;
    };
    let mut one = true;
    for (key, location) in given {
        one = false;
        context.problem(
            origin,
            location,
            format!("{what} has both `{first}` and `{key}`"),
            "keep one of them",
        );
    }
    one
}

fn matches(
    context: &mut Context<'_>,
    origin: &Origin,
    matches: &Located<model::Match>,
) -> Option<Match> {
    let value = &matches.value;
    let one = exactly_one(
        context,
        origin,
        matches.location,
        "the route's `match`",
        &[
            ("path", value.path.location()),
            ("prefix", value.prefix.location()),
            ("regex", value.regex.location()),
        ],
    );
    for (key, field) in [("path", &value.path), ("prefix", &value.prefix)] {
        if let Some(path) = field.get()
            && path.value.0.contains('?')
        {
            context.problem(
                origin,
                path.location,
                format!("the `{key}` holds a `?`, and paths are compared without the query"),
                "put conditions on the query under `query:`",
            );
        }
    }
    let mut methods: Vec<String> = Vec::new();
    if let Some(list) = value.methods.get() {
        if list.value.is_empty() {
            context.problem(
                origin,
                list.location,
                "this list of methods is empty",
                "name a method, or remove the key for any method",
            );
        }
        for method in list.value.iter().filter_map(Field::get) {
            if methods.contains(&method.value.0) {
                context.problem(
                    origin,
                    method.location,
                    format!("the method {} is listed twice", method.value.0),
                    "keep one of the two",
                );
            } else {
                methods.push(method.value.0.clone());
            }
        }
    }
    let headers = conditions(context, origin, "header", &value.headers);
    let query = conditions(context, origin, "query parameter", &value.query);
    let cookies = conditions(context, origin, "cookie", &value.cookies);
    let path = match (
        value.path.value(),
        value.prefix.value(),
        value.regex.value(),
    ) {
        (Some(path), _, _) => PathMatch::Exact(path.0.clone()),
        (_, Some(prefix), _) => PathMatch::Prefix(prefix.0.clone()),
        (_, _, Some(regex)) => PathMatch::Regex(regex.0.clone()),
        _ => return None,
    };
    one.then_some(Match {
        path,
        methods,
        headers,
        query,
        cookies,
    })
}

fn action(
    context: &mut Context<'_>,
    origin: &Origin,
    owner: Location,
    what: &str,
    route: &model::Route,
    (upstreams, baseline): (&Upstreams, Option<&str>),
) -> Option<Action> {
    exactly_one(
        context,
        origin,
        owner,
        what,
        &[
            ("to", route.to.location()),
            ("redirect", route.redirect.location()),
            ("respond", route.respond.location()),
        ],
    );
    if route.to.is_missing() {
        for (key, location) in [
            ("rewrite_prefix", route.rewrite_prefix.location()),
            ("timeout", route.timeout.location()),
            ("idle_timeout", route.idle_timeout.location()),
            ("max_stream_duration", route.max_stream_duration.location()),
            ("retries", route.retries.location()),
            ("mirror", route.mirror.location()),
            ("hash", route.hash.location()),
            ("upgrades", route.upgrades.location()),
        ] {
            if let Some(location) = location
                && !(route.redirect.is_missing() && route.respond.is_missing())
            {
                context.problem(
                    origin,
                    location,
                    format!("{what} has `{key}` without `to`"),
                    format!("remove `{key}`, it says how requests are sent to an upstream"),
                );
            }
        }
    }
    if let Some(location) = route.rewrite_prefix.location() {
        needs_prefix(context, origin, location, "rewrite_prefix", route);
    }
    if let (Some(location), false) = (
        route.timeout.location(),
        route.max_stream_duration.is_missing(),
    ) {
        context.problem(
            origin,
            location,
            format!("{what} has `timeout` and `max_stream_duration`, of which Envoy follows the second alone"),
            "remove one of them",
        );
    }
    let retries = route
        .retries
        .get()
        .and_then(|retries| self::retries(context, origin, retries, &route.timeout));
    let upgrades = upgrades(context, origin, &route.upgrades);
    let mirror = route
        .mirror
        .get()
        .and_then(|mirror| self::mirror(context, origin, mirror, upstreams));
    let targets = route
        .to
        .get()
        .map(|target| targets(context, origin, target, (upstreams, baseline)));
    let redirect = route
        .redirect
        .get()
        .map(|redirect| self::redirect(context, origin, redirect, route));
    let respond = route
        .respond
        .get()
        .and_then(|respond| self::respond(context, origin, respond));
    if let Some(to) = targets {
        let hash = hash(context, origin, &route.hash, &to, upstreams);
        return Some(Action::Forward(Forward {
            to,
            fallback: None,
            rewrite_prefix: route.rewrite_prefix.value().map(|path| path.0.clone()),
            timeout: route.timeout.value().map(|timeout| timeout.0),
            idle_timeout: route.idle_timeout.value().map(|timeout| timeout.0),
            max_stream_duration: route.max_stream_duration.value().map(|most| most.0),
            retries,
            mirror,
            hash,
            upgrades,
        }));
    }
    redirect
        .map(Action::Redirect)
        .or(respond.map(Action::Respond))
}

/// Tells when there is no such upstream.
fn known_upstream(
    context: &mut Context<'_>,
    origin: &Origin,
    location: Location,
    name: &str,
    upstreams: &Upstreams,
) {
    if !upstreams.names.contains(name) {
        let names = upstreams.names.iter().map(String::as_str);
        context.problem(
            origin,
            location,
            format!("there is no upstream `{name}`"),
            known_names(name, names, "upstreams"),
        );
    }
}

fn mirror(
    context: &mut Context<'_>,
    origin: &Origin,
    mirror: &Located<model::Mirror>,
    upstreams: &Upstreams,
) -> Option<Mirror> {
    let upstream = context.required(
        origin,
        mirror.location,
        "the route's `mirror`",
        "upstream",
        &mirror.value.upstream,
    )?;
    known_upstream(
        context,
        origin,
        upstream.location,
        &upstream.value.0,
        upstreams,
    );
    Some(Mirror {
        upstream: upstream.value.0.clone(),
        percent: mirror
            .value
            .percent
            .value()
            .map_or(100, |percent| percent.0),
        keeps_host: false,
    })
}

fn hash(
    context: &mut Context<'_>,
    origin: &Origin,
    field: &Field<Vec<Field<model::HashKey>>>,
    to: &[(String, u32)],
    upstreams: &Upstreams,
) -> Vec<HashKey> {
    let Some(list) = field.get() else {
        return Vec::new();
    };
    if list.value.is_empty() {
        context.problem(
            origin,
            list.location,
            "this list of hash keys is empty",
            "add one: `- header: x-user`; or remove the key",
        );
    }
    let by_hash = |name: &String| {
        let found = upstreams
            .built
            .iter()
            .find(|upstream| upstream.name == *name);
        // What could not be built has been told.
        found.is_none_or(|upstream| upstream.load_balancing.is_by_hash())
    };
    if !to.iter().any(|(name, _)| by_hash(name)) {
        context.problem(
            origin,
            list.location,
            "the route says what to hash, and no upstream of it balances by hash",
            "write `load_balancing: ring_hash` or `maglev` in the upstream, or remove the key",
        );
    }
    let mut keys = Vec::new();
    for key in list.value.iter().filter_map(Field::get) {
        let model::HashKey {
            header,
            cookie,
            query,
            source_ip,
        } = &key.value;
        exactly_one(
            context,
            origin,
            key.location,
            "the hash key",
            &[
                ("header", header.location()),
                ("cookie", cookie.location()),
                ("query", query.location()),
                ("source_ip", source_ip.location()),
            ],
        );
        if let Some(no) = source_ip.get().filter(|yes| !yes.value) {
            context.problem(
                origin,
                no.location,
                "a hash key that is turned off says nothing",
                "write `source_ip: true`, or remove it",
            );
        }
        let header = header.value().map(|name| HashKey::Header(name.0.clone()));
        let cookie = || cookie.value().map(|name| HashKey::Cookie(name.0.clone()));
        let query = || query.value().map(|name| HashKey::Query(name.0.clone()));
        let source_ip = || source_ip.value().map(|_| HashKey::SourceIp);
        keys.extend(header.or_else(cookie).or_else(query).or_else(source_ip));
    }
    keys
}

fn upgrades(
    context: &mut Context<'_>,
    origin: &Origin,
    field: &Field<Vec<Field<text::Upgrade>>>,
) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let Some(list) = field.get() else {
        return names;
    };
    if list.value.is_empty() {
        context.problem(
            origin,
            list.location,
            "this list of upgrades is empty",
            "name a protocol, like `websocket`, or remove the key",
        );
    }
    for name in list.value.iter().filter_map(Field::get) {
        if names.contains(&name.value.0) {
            context.problem(
                origin,
                name.location,
                format!("the upgrade `{}` is listed twice", name.value.0),
                "keep one of the two",
            );
        } else {
            names.push(name.value.0.clone());
        }
    }
    names
}

/// Only a path or its beginning can be replaced: a regular expression says no place.
fn needs_prefix(
    context: &mut Context<'_>,
    origin: &Origin,
    location: Location,
    key: &str,
    route: &model::Route,
) {
    let Some(matches) = route.matches.value() else {
        return;
    };
    if matches.path.is_missing() && matches.prefix.is_missing() && !matches.regex.is_missing() {
        context.problem(
            origin,
            location,
            format!("`{key}` replaces what `match.prefix` or `match.path` matched, and the route has neither"),
            "match by `prefix` or `path`",
        );
    }
}

fn targets(
    context: &mut Context<'_>,
    origin: &Origin,
    target: &Located<Target>,
    (upstreams, baseline): (&Upstreams, Option<&str>),
) -> Vec<(String, u32)> {
    let mut targets: Vec<(String, u32)> = Vec::new();
    let known = |context: &mut Context<'_>, location: Location, name: &str| {
        known_upstream(context, origin, location, name, upstreams);
    };
    match &target.value {
        Target::Text(name) => {
            known(context, target.location, &name.0);
            targets.push((name.0.clone(), 1));
        }
        // What is wrong with it has been told.
        Target::Mapping(_) => targets.extend(baseline.map(|name| (name.to_owned(), 1))),
        Target::List(list) => {
            let mut complete = true;
            for share in list {
                let Some(share) = share.get() else {
                    complete = false;
                    continue;
                };
                let what = "the weighted upstream";
                let upstream = context.required(
                    origin,
                    share.location,
                    what,
                    "upstream",
                    &share.value.upstream,
                );
                let weight =
                    context.required(origin, share.location, what, "weight", &share.value.weight);
                let (Some(upstream), Some(weight)) = (upstream, weight) else {
                    complete = false;
                    continue;
                };
                let name = &upstream.value.0;
                known(context, upstream.location, name);
                if targets.iter().any(|(other, _)| other == name) {
                    context.problem(
                        origin,
                        upstream.location,
                        format!("the upstream `{name}` is listed twice"),
                        "add up its weights",
                    );
                }
                targets.push((name.clone(), weight.value.0));
            }
            if complete && targets.iter().all(|(_, weight)| *weight == 0) {
                context.problem(
                    origin,
                    target.location,
                    "no upstream of this list has a weight above zero",
                    "give one of them a weight above zero",
                );
            }
        }
    }
    targets
}

fn retries(
    context: &mut Context<'_>,
    origin: &Origin,
    retries: &Located<model::Retries>,
    all: &Field<text::Duration>,
) -> Option<Retries> {
    let on = context.required(
        origin,
        retries.location,
        "`retries`",
        "on",
        &retries.value.on,
    )?;
    if on.value.is_empty() {
        context.problem(
            origin,
            on.location,
            "`retries` has no reason to retry",
            "name one: `[5xx, reset, connect-failure]`",
        );
    }
    if let Some(timeout) = retries.value.per_try_timeout.get()
        && timeout.value.0 == 0
    {
        context.problem(
            origin,
            timeout.location,
            "`per_try_timeout` is zero",
            "write a duration above zero, or remove the key",
        );
    }
    if let (Some(attempt), Some(all)) = (retries.value.per_try_timeout.get(), all.get())
        && all.value.0 > 0
        && attempt.value.0 >= all.value.0
    {
        context.warn(
            origin,
            attempt.location,
            "`per_try_timeout` is not shorter than the route's `timeout`, which ends the request first: no attempt is made anew \
             because one took too long",
            "make `timeout` longer, or `per_try_timeout` shorter",
        );
    }
    Some(Retries {
        attempts: retries
            .value
            .attempts
            .value()
            .map_or(1, |attempts| attempts.0),
        on: on
            .value
            .iter()
            .filter_map(Field::value)
            .map(|on| match on {
                RetryOn::FiveXx => "5xx",
                RetryOn::GatewayError => "gateway-error",
                RetryOn::Reset => "reset",
                RetryOn::ConnectFailure => "connect-failure",
                RetryOn::RefusedStream => "refused-stream",
                RetryOn::Retriable4xx => "retriable-4xx",
            })
            .collect(),
        per_try_timeout: retries.value.per_try_timeout.value().map(|time| time.0),
    })
}

fn redirect(
    context: &mut Context<'_>,
    origin: &Origin,
    redirect: &Located<model::Redirect>,
    route: &model::Route,
) -> Redirect {
    let value = &redirect.value;
    let missing = value.scheme.is_missing()
        && value.host.is_missing()
        && value.port.is_missing()
        && value.path.is_missing()
        && value.prefix.is_missing();
    if missing {
        context.problem(
            origin,
            redirect.location,
            "the redirect leads to where the request came",
            "add one of `scheme`, `host`, `port`, `path`, `prefix`",
        );
    }
    if let (false, Some(location)) = (value.path.is_missing(), value.prefix.location()) {
        context.problem(
            origin,
            location,
            "the redirect has both `path` and `prefix`",
            "keep one of them",
        );
    }
    if let Some(location) = value.prefix.location() {
        needs_prefix(context, origin, location, "prefix", route);
    }
    let status = match value.status.get() {
        None => 301,
        Some(status) => {
            if !matches!(status.value, 301 | 302 | 303 | 307 | 308) {
                context.problem(
                    origin,
                    status.location,
                    format!("a redirect cannot have status {}", status.value),
                    "write 301, 302, 303, 307 or 308",
                );
            }
            status.value
        }
    };
    if let Some(host) = value.host.get()
        && host.value.0.contains(['/', ':', '?', '#', ' '])
    {
        context.problem(
            origin,
            host.location,
            format!("`{}` is no host", host.value.0),
            "write the host alone; `scheme`, `port` and `path` are keys of their own",
        );
    }
    Redirect {
        scheme: value.scheme.value().map(|scheme| match scheme {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }),
        host: value.host.value().map(|host| host.0.clone()),
        port: value.port.value().map(|port| port.0),
        path: value.path.value().map(|path| path.0.clone()),
        prefix: value.prefix.value().map(|prefix| prefix.0.clone()),
        status,
    }
}

fn respond(
    context: &mut Context<'_>,
    origin: &Origin,
    respond: &Located<model::Respond>,
) -> Option<Respond> {
    let value = &respond.value;
    if let Some(body) = value.body.get()
        && body.value.len() > LONGEST_BODY
    {
        context.problem(
            origin,
            body.location,
            format!(
                "the body has {} bytes, and at most {LONGEST_BODY} may be given here",
                body.value.len()
            ),
            "serve it from an upstream",
        );
    }
    let headers = value
        .headers
        .value()
        .map(|headers| self::headers(context, origin, headers))
        .unwrap_or_default();
    let status = context.required(
        origin,
        respond.location,
        "`respond`",
        "status",
        &value.status,
    )?;
    if matches!(status.value.0, 204 | 205 | 304)
        && let Some(body) = value.body.get()
        && !body.value.is_empty()
    {
        context.problem(
            origin,
            body.location,
            format!("a response with status {} has no body", status.value.0),
            "remove `body`, or use another status",
        );
    }
    Some(Respond {
        status: status.value.0,
        body: value.body.value().cloned(),
        headers,
    })
}

fn headers(
    context: &mut Context<'_>,
    origin: &Origin,
    entries: &Entries<Field<String>>,
) -> Vec<(String, String)> {
    let mut headers: Vec<(String, String)> = Vec::new();
    for (name, value) in &entries.0 {
        let lower = match text::header_name(&name.value) {
            Ok(lower) => lower,
            Err(complaint) => {
                let (message, mend) = complaint.split_once("; ").unwrap_or((&complaint, ""));
                context.problem(origin, name.location, message, mend);
                continue;
            }
        };
        if headers.iter().any(|(other, _)| *other == lower) {
            context.problem(
                origin,
                name.location,
                format!("the header `{lower}` is here twice, letter case counts for nothing"),
                "keep one of the two",
            );
        }
        let Some(value) = value.get() else {
            continue;
        };
        if value
            .value
            .chars()
            .any(|letter| letter.is_control() && letter != '\t')
        {
            context.problem(
                origin,
                value.location,
                format!("the value of the header `{lower}` holds a line break or another control character"),
                "write it on one line",
            );
        }
        headers.push((lower, value.value.clone()));
    }
    headers
}
