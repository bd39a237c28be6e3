//! `lanes`: groups, what projects do with a request's lane, and one route for each lane that has a version of a service.

use std::collections::{BTreeMap, BTreeSet};

use outrider_plugin_formats::{
    LaneCondition, LaneGroup, LanePart, LanePlace, LaneRole, LaneRule, LaneTest, LaneUse,
    MIRRORED_LANE, WHOLE_LANE_WEIGHT,
};
use outrider_yaml::{Field, Located, Location};

use super::conditions::conditions;
use super::files::Source;
use super::projects::Route;
use super::routes::exactly_one;
use super::{Context, Origin, known_names};
use crate::model::{self, ProjectLaneRole, text};
use crate::plan::{self, Action, Condition, Forward, Mirror, ValueMatch};

/// Header that carries the lane, by default.
const HEADER: &str = "x-outrider-lane";
/// Headers that trace ids are looked for in, by default.
const CORRELATE: [&str; 6] = [
    "traceparent",
    "b3",
    "x-b3-traceid",
    "uber-trace-id",
    "x-datadog-trace-id",
    "x-request-id",
];
/// Milliseconds for which a lane is remembered, by default, and at most.
const REMEMBER: u64 = 10_000;
const LONGEST_REMEMBER: u64 = 3_600_000;
/// Most headers that are carried along.
const MOST_CARRIED: usize = 16;
/// Longest name of a lane, in bytes: with [`MIRRORED_LANE`] it is still a label's value in Kubernetes.
const LONGEST_NAME: usize = 56;
/// Headers that cannot carry a lane: proxies remove or rewrite them.
const NOT_CARRIERS: [&str; 14] = [
    "baggage",
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-request-id",
];

/// The groups that are declared, by name.
pub(super) type LaneGroups = BTreeMap<String, Group>;

/// A group as far as it could be read.
pub(super) struct Group {
    pub(super) origin: Origin,
    pub(super) location: Location,
    pub(super) form: LaneGroup,
    /// By service: the upstream of each lane's version, the lanes in the order in which they are written.
    pub(super) services: BTreeMap<String, Vec<(String, String)>>,
}

/// Where requests of lanes go.
pub(super) struct LaneRoutes {
    /// Name of the group.
    pub(super) group: String,
    /// Where the group was named.
    pub(super) location: Location,
    /// Upstream of the baseline.
    pub(super) baseline: String,
    header: String,
    /// Lanes other than the baseline that have a version of the service, each with its upstream.
    versions: Vec<(String, String)>,
    /// Those of them that get copies of requests.
    mirrored: Vec<String>,
}

/// Reads all groups.
pub(super) fn build(
    context: &mut Context<'_>,
    sources: &[Source],
    upstreams: &BTreeSet<String>,
) -> LaneGroups {
    let mut groups = LaneGroups::new();
    for source in sources {
        let origin = &source.origin;
        let Some(entries) = source.file.lanes.value() else {
            continue;
        };
        for (name, group) in &entries.0 {
            if text::plugin_name(&name.value).is_err() {
                context.problem(
                    origin,
                    name.location,
                    format!("`{}` is no name of a group of lanes", name.value),
                    "use lower-case letters, digits and hyphens",
                );
            }
            if let Some(first) = groups.get(&name.value) {
                let message = format!(
                    "two groups of lanes have the name `{}`, the other is at {}:{}",
                    name.value, first.origin.file, first.location.line
                );
                context.problem(
                    origin,
                    name.location,
                    message,
                    "give one of them another name",
                );
                continue;
            }
            if let Some(group) = group.get() {
                let built = one(context, origin, name, &group.value, upstreams);
                groups.insert(name.value.clone(), built);
            }
        }
    }
    groups
}

/// The groups' documents that projects use.
pub(super) fn used(groups: LaneGroups, projects: Option<&[plan::Project]>) -> Vec<LaneGroup> {
    let mut used = BTreeSet::new();
    for project in projects.unwrap_or_default() {
        let lanes = project.filter.iter().flat_map(|filter| &filter.lanes);
        used.extend(lanes.map(|lane| lane.group.as_str()));
    }
    let groups = groups.into_values().map(|group| group.form);
    groups
        .filter(|form| used.contains(form.name.as_str()))
        .collect()
}

fn one(
    context: &mut Context<'_>,
    origin: &Origin,
    name: &Located<String>,
    group: &model::LaneGroup,
    upstreams: &BTreeSet<String>,
) -> Group {
    let what = format!("the lanes `{}`", name.value);
    let baseline = context
        .required(origin, name.location, &what, "baseline", &group.baseline)
        .map(|baseline| {
            lane_name(context, origin, baseline.location, &baseline.value.0);
            baseline.value.0.clone()
        });
    let correlate = correlate(context, origin, &group.correlate);
    let carry = carry(context, origin, &group.carry);
    let header = header(context, origin, &group.header, &correlate);
    check_carry(context, origin, group, &header, &correlate);
    let services = services(
        context,
        origin,
        name.location,
        &what,
        group,
        baseline.as_deref(),
        upstreams,
    );
    let sticky = sticky(context, origin, &group.sticky);
    let rules = rules(context, origin, group, &services);
    let remember = group.remember.get().map_or(REMEMBER, |remember| {
        let milliseconds = remember.value.0;
        if milliseconds % 1000 != 0 || !(1000..=LONGEST_REMEMBER).contains(&milliseconds) {
            context.problem(
                origin,
                remember.location,
                "`remember` is not a number of whole seconds from 1 to 3600",
                "write a duration like `10s` or `5m`",
            );
        }
        milliseconds
    });
    Group {
        origin: origin.clone(),
        location: name.location,
        form: LaneGroup {
            name: name.value.clone(),
            header,
            baggage: group.baggage.value().map(|key| key.0.clone()),
            fallback: None,
            baseline: baseline.unwrap_or_default(),
            correlate,
            carry,
            remember: u32::try_from(remember / 1000).unwrap_or(u32::MAX),
            sticky,
            rules,
        },
        services,
    }
}

/// Tells of names that proxies would not take from a header.
fn lane_name(context: &mut Context<'_>, origin: &Origin, location: Location, name: &str) {
    let complaint = match text::name(name) {
        Err(complaint) => complaint,
        Ok(_) if name.len() > LONGEST_NAME => format!(
            "the name of this lane has {} bytes; use at most {LONGEST_NAME}",
            name.len()
        ),
        Ok(_) if name.starts_with(MIRRORED_LANE) => format!(
            "a lane cannot be called `{name}`: `{MIRRORED_LANE}` begins what proxies call requests that are to be mirrored; use \
             another name"
        ),
        Ok(_) => return,
    };
    let (message, mend) = complaint.split_once("; ").unwrap_or((&complaint, ""));
    context.problem(origin, location, message, mend);
}

fn correlate(
    context: &mut Context<'_>,
    origin: &Origin,
    field: &Field<Vec<Field<text::HeaderName>>>,
) -> Vec<String> {
    let Some(list) = field.get() else {
        return CORRELATE.map(str::to_owned).to_vec();
    };
    if list.value.is_empty() {
        context.problem(
            origin,
            list.location,
            "this list of headers is empty, so that no request can be matched",
            "name a header, like `traceparent`, or remove the key",
        );
    }
    distinct(context, origin, &list.value)
}

/// The names of a list; tells of those that are there twice.
fn distinct(
    context: &mut Context<'_>,
    origin: &Origin,
    list: &[Field<text::HeaderName>],
) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in list.iter().filter_map(Field::get) {
        if names.contains(&name.value.0) {
            context.problem(
                origin,
                name.location,
                format!("the header `{}` is listed twice", name.value.0),
                "keep one of the two",
            );
        } else {
            names.push(name.value.0.clone());
        }
    }
    names
}

fn carry(
    context: &mut Context<'_>,
    origin: &Origin,
    field: &Field<Vec<Field<text::HeaderName>>>,
) -> Vec<String> {
    let Some(list) = field.get() else {
        return Vec::new();
    };
    if list.value.len() > MOST_CARRIED {
        context.problem(
            origin,
            list.location,
            format!("these are {} headers to carry along", list.value.len()),
            format!("name at most {MOST_CARRIED}"),
        );
    }
    distinct(context, origin, &list.value)
}

/// Tells of headers to carry along that proxies handle themselves, or the lanes do.
fn check_carry(
    context: &mut Context<'_>,
    origin: &Origin,
    group: &model::LaneGroup,
    header: &str,
    correlate: &[String],
) {
    let list = group.carry.value().into_iter().flatten();
    for carried in list.filter_map(Field::get) {
        let name = &carried.value.0;
        let complaint = if name == header {
            "it is the header of the lane, which goes along by itself"
        } else if correlate.contains(name) {
            "it is one of the headers that requests are matched by, which the service passes on"
        } else if NOT_CARRIERS.contains(&name.as_str()) || name.starts_with("x-envoy-") {
            "proxies set or remove it themselves"
        } else {
            continue;
        };
        context.problem(
            origin,
            carried.location,
            format!("the header `{name}` cannot be carried along: {complaint}"),
            "remove it from the list",
        );
    }
}

fn header(
    context: &mut Context<'_>,
    origin: &Origin,
    field: &Field<text::HeaderName>,
    correlate: &[String],
) -> String {
    let Some(header) = field.get() else {
        return HEADER.to_owned();
    };
    let name = &header.value.0;
    let complaint = if NOT_CARRIERS.contains(&name.as_str()) || name.starts_with("x-envoy-") {
        Some("proxies set or remove it themselves")
    } else if correlate.contains(name) {
        Some("it is one of the headers that requests are matched by")
    } else {
        None
    };
    if let Some(complaint) = complaint {
        context.problem(
            origin,
            header.location,
            format!("the header `{name}` cannot carry a lane: {complaint}"),
            format!("use a header of your own, like `{HEADER}`"),
        );
    }
    name.clone()
}

fn services(
    context: &mut Context<'_>,
    origin: &Origin,
    owner: Location,
    what: &str,
    group: &model::LaneGroup,
    baseline: Option<&str>,
    upstreams: &BTreeSet<String>,
) -> BTreeMap<String, Vec<(String, String)>> {
    let mut services = BTreeMap::new();
    let Some(entries) = context.required(origin, owner, what, "services", &group.services) else {
        return services;
    };
    if entries.value.0.is_empty() {
        context.problem(
            origin,
            entries.location,
            format!("{what} have no service"),
            "add one: `cart: {v1: cart-v1, v2: cart-v2}`",
        );
    }
    for (service, versions) in &entries.value.0 {
        let mut read: Vec<(String, String)> = Vec::new();
        for (lane, upstream) in versions.value().into_iter().flat_map(|entries| &entries.0) {
            lane_name(context, origin, lane.location, &lane.value);
            let Some(upstream) = upstream.get() else {
                continue;
            };
            let name = &upstream.value.0;
            if !upstreams.contains(name) {
                context.problem(
                    origin,
                    upstream.location,
                    format!("there is no upstream `{name}`"),
                    known_names(name, upstreams.iter().map(String::as_str), "upstreams"),
                );
            }
            read.push((lane.value.clone(), name.clone()));
        }
        if let (Some(baseline), Some(versions)) = (baseline, versions.get())
            && !versions
                .value
                .0
                .iter()
                .any(|(lane, _)| lane.value == baseline)
        {
            context.problem(
                origin,
                service.location,
                format!("the service `{}` has no version of the baseline, `{baseline}`", service.value),
                format!("add `{baseline}:` with its upstream: it serves where another lane has no version"),
            );
        }
        services.insert(service.value.clone(), read);
    }
    services
}

fn sticky(
    context: &mut Context<'_>,
    origin: &Origin,
    field: &Field<Vec<Field<model::lanes::StickyKey>>>,
) -> Vec<LanePart> {
    let mut parts = Vec::new();
    for key in field.value().into_iter().flatten().filter_map(Field::get) {
        let model::lanes::StickyKey {
            header,
            cookie,
            query,
        } = &key.value;
        exactly_one(
            context,
            origin,
            key.location,
            "the sticky key",
            &[
                ("header", header.location()),
                ("cookie", cookie.location()),
                ("query", query.location()),
            ],
        );
        let header = header.value().map(|name| LanePart::Header(name.0.clone()));
        let cookie = || cookie.value().map(|name| LanePart::Cookie(name.0.clone()));
        let query = || query.value().map(|name| LanePart::Query(name.0.clone()));
        parts.extend(header.or_else(cookie).or_else(query));
    }
    parts
}

fn rules(
    context: &mut Context<'_>,
    origin: &Origin,
    group: &model::LaneGroup,
    services: &BTreeMap<String, Vec<(String, String)>>,
) -> Vec<LaneRule> {
    let mut rules = Vec::new();
    for (lane, entry) in group
        .enter
        .value()
        .into_iter()
        .flat_map(|entries| &entries.0)
    {
        let known: BTreeSet<&str> = services
            .values()
            .flatten()
            .map(|(lane, _)| lane.as_str())
            .collect();
        if !known.contains(lane.value.as_str()) && !services.is_empty() {
            context.problem(
                origin,
                lane.location,
                format!("no service has a version of the lane `{}`", lane.value),
                known_names(&lane.value, known.iter().copied(), "services"),
            );
        }
        let Some(entry) = entry.get() else {
            continue;
        };
        let percent = entry.value.percent.value().map_or(100, |percent| percent.0);
        if percent < 100 && group.sticky.is_missing() {
            context.problem(
                origin,
                entry.value.percent.location().unwrap_or(entry.location),
                format!(
                    "the lane `{}` has a share of the requests, and nothing tells users apart",
                    lane.value
                ),
                "add `sticky:` to the group, like `sticky: [{cookie: user}]`",
            );
        }
        let is_mirrored = entry.value.mirror.value().is_some_and(|mirror| *mirror);
        if is_mirrored && known.contains(lane.value.as_str()) {
            check_mirrored(context, origin, lane, group, services);
        }
        rules.push(LaneRule {
            lane: if is_mirrored {
                format!("{MIRRORED_LANE}{}", lane.value)
            } else {
                lane.value.clone()
            },
            when: entry
                .value
                .when
                .get()
                .map_or(LaneCondition::All(Vec::new()), |when| {
                    self::when(context, origin, when.location, &when.value)
                }),
            priority: entry.value.priority.value().copied().unwrap_or(0),
            weight: percent * (WHOLE_LANE_WEIGHT / 100),
        });
    }
    rules
}

/// Tells of services where copies would reach the baseline's version, which would do everything twice.
fn check_mirrored(
    context: &mut Context<'_>,
    origin: &Origin,
    lane: &Located<String>,
    group: &model::LaneGroup,
    services: &BTreeMap<String, Vec<(String, String)>>,
) {
    if group
        .baseline
        .value()
        .is_some_and(|baseline| baseline.0 == lane.value)
    {
        context.problem(
            origin,
            lane.location,
            "the baseline cannot be mirrored: its requests would be copied to where they go",
            "remove `mirror`, or the entry",
        );
        return;
    }
    let lacks =
        |versions: &Vec<(String, String)>| versions.iter().all(|(one, _)| *one != lane.value);
    let lacking = services.iter().find(|(_, versions)| lacks(versions));
    if let Some((service, _)) = lacking {
        context.problem(
            origin,
            lane.location,
            format!(
                "the lane `{}` is mirrored, and `{service}` has no version of it: copies would reach the baseline's, which would \
                 do everything twice",
                lane.value
            ),
            format!("give `{service}` a version of the lane, or remove `mirror`"),
        );
    }
}

fn when(
    context: &mut Context<'_>,
    origin: &Origin,
    location: Location,
    when: &model::LaneWhen,
) -> LaneCondition {
    let paths = [
        ("path", when.path.location()),
        ("prefix", when.prefix.location()),
        ("regex", when.regex.location()),
    ];
    if paths.iter().any(|(_, location)| location.is_some()) {
        exactly_one(context, origin, location, "the lane's `when`", &paths);
    }
    let mut all = Vec::new();
    let mut on_path = |test: Option<LaneTest>| {
        all.extend(test.map(|test| LaneCondition::Part(LanePart::Path, test)));
    };
    on_path(
        when.path
            .value()
            .map(|path| LaneTest::Exact(path.0.clone())),
    );
    on_path(
        when.prefix
            .value()
            .map(|path| LaneTest::Prefix(path.0.clone())),
    );
    on_path(
        when.regex
            .value()
            .map(|regex| LaneTest::Regex(regex.0.clone())),
    );
    let headers = conditions(context, origin, "header", &when.headers);
    let query = conditions(context, origin, "query parameter", &when.query);
    let cookies = conditions(context, origin, "cookie", &when.cookies);
    all.extend(
        headers
            .into_iter()
            .map(|one| condition(LanePart::Header, one)),
    );
    all.extend(query.into_iter().map(|one| condition(LanePart::Query, one)));
    all.extend(
        cookies
            .into_iter()
            .map(|one| condition(LanePart::Cookie, one)),
    );
    if let Some(list) = when.any.get() {
        if list.value.is_empty() {
            context.problem(
                origin,
                list.location,
                "this list of conditions is empty, so that no request fulfils it",
                "add a condition, or remove the key",
            );
        }
        let any = list.value.iter().filter_map(Field::get);
        let any = any.map(|one| self::when(context, origin, one.location, &one.value));
        all.push(LaneCondition::Any(any.collect()));
    }
    if let Some(not) = when.not.get() {
        let not = self::when(context, origin, not.location, &not.value);
        all.push(LaneCondition::Not(Box::new(not)));
    }
    match <[LaneCondition; 1]>::try_from(all) {
        Ok([one]) => one,
        Err(all) => LaneCondition::All(all),
    }
}

fn condition(part: fn(String) -> LanePart, condition: Condition) -> LaneCondition {
    let part = part(condition.name);
    let (test, is_inverted) = match condition.value {
        ValueMatch::Exact(text) => (LaneTest::Exact(text), condition.invert),
        ValueMatch::Prefix(text) => (LaneTest::Prefix(text), condition.invert),
        ValueMatch::Suffix(text) => (LaneTest::Suffix(text), condition.invert),
        ValueMatch::Contains(text) => (LaneTest::Contains(text), condition.invert),
        ValueMatch::Regex(text) => (LaneTest::Regex(text), condition.invert),
        ValueMatch::Present(is_there) => (LaneTest::Present, is_there == condition.invert),
    };
    let condition = LaneCondition::Part(part, test);
    if is_inverted {
        LaneCondition::Not(Box::new(condition))
    } else {
        condition
    }
}

/// What a project says of the lane of its requests.
pub(super) fn of_project(
    context: &mut Context<'_>,
    origin: &Origin,
    field: &Field<model::ProjectLane>,
    groups: &LaneGroups,
) -> Option<LaneUse> {
    let Located { location, value } = field.get()?;
    let what = "the project's `lane`";
    let group = context.required(origin, *location, what, "group", &value.group);
    let role = context.required(origin, *location, what, "role", &value.role);
    let group = group.filter(|group| known(context, origin, &text_of(group), groups).is_some());
    let own = value.own.get();
    for (one, other, missing) in [
        (
            value.service.location(),
            value.version.location(),
            "version",
        ),
        (
            value.version.location(),
            value.service.location(),
            "service",
        ),
    ] {
        if let (Some(place), None) = (one, other) {
            context.problem(
                origin,
                place,
                format!("{what} has no `{missing}`, without which this says nothing"),
                format!("add `{missing}:`, or remove the key"),
            );
        }
    }
    let place = match (value.service.value(), value.version.value()) {
        (Some(service), Some(version)) => Some(LanePlace {
            service: service.0.clone(),
            version: version.0.clone(),
        }),
        _ => None,
    };
    if let (Some(role), Some(group), None) = (role, group, &place)
        && role.value == ProjectLaneRole::Inbound
        && let Some(known) = groups.get(&group.value.0)
        && let Some(lane) = known.form.mirrored().next()
    {
        context.problem(
            origin,
            *location,
            format!("{what} does not say which version it stands at, and the lane `{lane}` is mirrored: copies could not be told from originals"),
            "add `service:` and `version:`",
        );
    }
    if let (Some(own), Some(role)) = (own, role) {
        if role.value != ProjectLaneRole::Outbound {
            context.problem(
                origin,
                own.location,
                "`own` says which lane a service's requests get, and this project is not its `outbound` side",
                "remove it, or write `role: outbound`",
            );
        }
        lane_name(context, origin, own.location, &own.value.0);
    }
    Some(LaneUse {
        group: group?.value.0.clone(),
        role: match (role?.value, own) {
            (ProjectLaneRole::Edge, _) => LaneRole::Edge,
            (ProjectLaneRole::Inbound, _) => LaneRole::Inbound,
            (ProjectLaneRole::Outbound, None) => LaneRole::Outbound,
            (ProjectLaneRole::Outbound, Some(own)) => LaneRole::Stamp(own.value.0.clone()),
        },
        place,
    })
}

fn text_of(name: &Located<model::Text>) -> Located<String> {
    Located {
        location: name.location,
        value: name.value.0.clone(),
    }
}

/// The group of this name; tells when there is none.
pub(super) fn known<'g>(
    context: &mut Context<'_>,
    origin: &Origin,
    name: &Located<String>,
    groups: &'g LaneGroups,
) -> Option<&'g Group> {
    let group = groups.get(&name.value);
    if group.is_none() {
        context.problem(
            origin,
            name.location,
            format!("there are no lanes `{}`", name.value),
            known_names(&name.value, groups.keys().map(String::as_str), "lanes"),
        );
    }
    group
}

/// Where a route's requests of lanes go.
pub(super) fn of_route(
    context: &mut Context<'_>,
    origin: &Origin,
    location: Location,
    target: &model::LaneTarget,
    groups: &LaneGroups,
) -> Option<LaneRoutes> {
    let what = "the route's `to`";
    let group = context.required(origin, location, what, "lanes", &target.lanes);
    let service = context.required(origin, location, what, "service", &target.service);
    let name = group?;
    let group = known(context, origin, &text_of(name), groups)?;
    let service = service?;
    let Some(versions) = group.services.get(&service.value.0) else {
        context.problem(
            origin,
            service.location,
            format!(
                "the lanes `{}` have no service `{}`",
                name.value.0, service.value.0
            ),
            known_names(
                &service.value.0,
                group.services.keys().map(String::as_str),
                "services",
            ),
        );
        return None;
    };
    let is_baseline = |(lane, _): &&(String, String)| *lane == group.form.baseline;
    let (_, baseline) = versions.iter().find(is_baseline)?;
    Some(LaneRoutes {
        group: name.value.0.clone(),
        location: name.location,
        baseline: baseline.clone(),
        header: group.form.header.clone(),
        versions: versions
            .iter()
            .filter(|version| !is_baseline(version))
            .cloned()
            .collect(),
        mirrored: group.form.mirrored().map(str::to_owned).collect(),
    })
}

/// Tells of routes by lane in a project that says nothing of that group: clients would choose the lane.
pub(super) fn check_roles(
    context: &mut Context<'_>,
    origin: &Origin,
    project: &model::Project,
    routes: &[Route],
) {
    let group = match &project.lane {
        Field::Missing => None,
        Field::Wrong(_) => return,
        Field::Given(lane) => match &lane.value.group {
            Field::Missing | Field::Wrong(_) => return,
            Field::Given(group) => Some(&group.value.0),
        },
    };
    for lanes in routes.iter().filter_map(|route| route.lanes.as_ref()) {
        if group != Some(&lanes.group) {
            context.problem(
                origin,
                lanes.location,
                format!(
                    "the route goes to a service of the lanes `{}`, and its project does not say what happens to their header",
                    lanes.group
                ),
                format!(
                    "add `lane: {{group: {}, role: edge}}` to the project: otherwise clients choose their lane themselves",
                    lanes.group
                ),
            );
        }
    }
}

/// One route for each lane with a version of its own, and the one for all other requests.
pub(super) fn expand(route: Route) -> Vec<Route> {
    let mut routes = Vec::new();
    if let (Some(lanes), Some(matches), Some(Action::Forward(forward))) =
        (&route.lanes, &route.matches, &route.action)
    {
        let own = |name: &str, forward: Forward| {
            let mut matches = matches.clone();
            matches.headers.push(Condition {
                name: lanes.header.clone(),
                value: ValueMatch::Exact(name.to_owned()),
                invert: false,
            });
            Route {
                name: format!("{}/{name}", route.name),
                location: route.location,
                matches: Some(matches),
                action: Some(Action::Forward(forward)),
                lanes: None,
                // Told once, of the baseline's.
                upgrades: None,
                metadata: route.metadata.clone(),
                telemetry: route.telemetry.clone(),
                uses: route.uses.clone(),
            }
        };
        for (lane, upstream) in &lanes.versions {
            let mut moved = forward.clone();
            moved.to = vec![(upstream.clone(), 1)];
            moved.fallback = (*upstream != lanes.baseline).then(|| lanes.baseline.clone());
            routes.push(own(lane, moved));
            if lanes.mirrored.contains(lane) {
                let mut copied = forward.clone();
                copied.mirror = Some(Mirror {
                    upstream: upstream.clone(),
                    percent: 100,
                    // Sidecars of both versions take the same hosts.
                    keeps_host: true,
                });
                routes.push(own(&format!("{MIRRORED_LANE}{lane}"), copied));
            }
        }
    }
    routes.push(route);
    routes
}
