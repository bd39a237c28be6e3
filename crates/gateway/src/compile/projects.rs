//! `projects`: hosts, and the order of routes.

use std::collections::BTreeMap;

use outrider_plugin_formats::{LaneUse, Telemetry};
use outrider_yaml::{Field, Location};
use serde_json::{Map, Value};

use super::files::Source;
use super::lanes::{self, LaneGroups, LaneRoutes};
use super::telemetry::{self, AccessLogs};
use super::upstreams::Upstreams;
use super::{Context, Origin, metadata, mistakes, routes, scopes, shadow};
use crate::model;
use crate::plan::{Action, Match, Use};

/// A project as far as it could be read.
pub(super) struct Project {
    pub(super) name: String,
    pub(super) hosts: Vec<String>,
    /// What happens to the lane of its requests.
    pub(super) lane: Option<LaneUse>,
    pub(super) metadata: Map<String, Value>,
    /// The access logs in force, if it says anything of them.
    pub(super) telemetry: Option<AccessLogs>,
    pub(super) uses: Vec<Use>,
    pub(super) routes: Vec<Route>,
}

/// A route as far as it could be read.
pub(super) struct Route {
    pub(super) name: String,
    pub(super) location: Location,
    pub(super) matches: Option<Match>,
    pub(super) action: Option<Action>,
    /// Where requests of lanes go, if not where `action` says.
    pub(super) lanes: Option<LaneRoutes>,
    /// Where it says that requests may be upgraded.
    pub(super) upgrades: Option<(Origin, Location)>,
    pub(super) metadata: Map<String, Value>,
    /// The access logs in force, if it says anything of them.
    pub(super) telemetry: Option<AccessLogs>,
    pub(super) uses: Vec<Use>,
}

/// What has to be unique in the gateway, with where it was first.
#[derive(Default)]
struct Taken {
    names: BTreeMap<String, (Origin, Location)>,
    hosts: BTreeMap<String, (Origin, Location)>,
}

pub(super) fn build(
    context: &mut Context<'_>,
    sources: &[Source],
    upstreams: &Upstreams,
    lanes: &LaneGroups,
    telemetry: Option<&Telemetry>,
) -> Vec<Project> {
    let mut taken = Taken::default();
    let mut projects = Vec::new();
    for source in sources {
        let list = source.file.projects.value().into_iter().flatten();
        for project in list.filter_map(Field::get) {
            let project = one(
                context,
                &source.origin,
                &mut taken,
                project.location,
                &project.value,
                (upstreams, lanes),
                telemetry,
            );
            projects.push(project);
        }
    }
    projects
}

fn one(
    context: &mut Context<'_>,
    origin: &Origin,
    taken: &mut Taken,
    location: Location,
    project: &model::Project,
    (upstreams, lanes): (&Upstreams, &LaneGroups),
    gateway: Option<&Telemetry>,
) -> Project {
    let name = match context.required(origin, location, "the project", "name", &project.name) {
        None => String::new(),
        Some(name) => {
            let place = (origin.clone(), name.location);
            if let Some((first, line)) = taken.names.insert(name.value.0.clone(), place) {
                context.problem(
                    origin,
                    name.location,
                    format!(
                        "two projects have the name `{}`, the other is at {}:{}",
                        name.value.0, first.file, line.line
                    ),
                    "give one of them another name, or put their routes together",
                );
            }
            name.value.0.clone()
        }
    };
    let what = if name.is_empty() {
        "the project".to_owned()
    } else {
        format!("the project `{name}`")
    };
    let hosts = hosts(context, origin, taken, location, &what, project);
    let lane = lanes::of_project(context, origin, &project.lane, lanes);
    let metadata = metadata::read(context, origin, &project.metadata);
    let uses = scopes::read_uses(context, origin, &project.uses);
    let above = telemetry::access_logs(gateway);
    let logs = telemetry::of_scope(context, origin, &project.telemetry, &above, gateway);
    let in_force = logs.as_ref().unwrap_or(&above);
    let mut routes = Vec::new();
    if let Some(list) = context.required(origin, location, &what, "routes", &project.routes) {
        if list.value.is_empty() {
            context.problem(
                origin,
                list.location,
                format!("{what} has no route, so that all its requests get status 404"),
                "add one: `- {match: {prefix: /}, to: an-upstream}`",
            );
        }
        let mut names: BTreeMap<String, Location> = BTreeMap::new();
        for (index, route) in list.value.iter().enumerate() {
            let Some(route) = route.get() else {
                continue;
            };
            let logs =
                telemetry::of_scope(context, origin, &route.value.telemetry, in_force, gateway);
            let mut route = routes::build(context, origin, index, route, (upstreams, lanes));
            route.telemetry = logs;
            if let Some(first) = names.insert(route.name.clone(), route.location) {
                context.problem(
                    origin,
                    route.location,
                    format!(
                        "two routes have the name `{}`, the other is on line {}",
                        route.name, first.line
                    ),
                    "give one of them another name",
                );
            }
            routes.push(route);
        }
    }
    shadow::check(context, origin, &routes);
    mistakes::of_routes(context, origin, &routes);
    lanes::check_roles(context, origin, project, &routes);
    Project {
        name,
        hosts,
        lane,
        metadata,
        telemetry: logs,
        uses,
        routes: routes.into_iter().flat_map(lanes::expand).collect(),
    }
}

fn hosts(
    context: &mut Context<'_>,
    origin: &Origin,
    taken: &mut Taken,
    location: Location,
    what: &str,
    project: &model::Project,
) -> Vec<String> {
    let Some(list) = context.required(origin, location, what, "hosts", &project.hosts) else {
        return Vec::new();
    };
    if list.value.is_empty() {
        context.problem(
            origin,
            list.location,
            format!("{what} has no host"),
            "add one, or `\"*\"` for every host that no other project has",
        );
    }
    let mut hosts = Vec::new();
    for host in list.value.iter().filter_map(Field::get) {
        let place = (origin.clone(), host.location);
        if let Some((first, first_location)) = taken.hosts.get(&host.value.0) {
            let message = format!(
                "the host `{}` is taken already, at {}:{}",
                host.value.0, first.file, first_location.line
            );
            context.problem(
                origin,
                host.location,
                message,
                "a host belongs to one project, once",
            );
        } else {
            taken.hosts.insert(host.value.0.clone(), place);
            hosts.push(host.value.0.clone());
        }
    }
    hosts
}
