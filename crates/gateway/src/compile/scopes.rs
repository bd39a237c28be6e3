//! Plugins at gateway, project and route: who is on where, with which configuration, and what of that
//! each of Envoy's documents has to say.
//!
//! The trap: Envoy hands the module only the most specific route document, so a route's holds the
//! project's part too, and a route that undoes what its project did needs a document that is empty.

use std::collections::{BTreeMap, BTreeSet};

use outrider_plugin_formats::{
    BodyMode, FORMAT, FilterConfig, LaneUse, PluginEntry, PluginSource, Problem, RouteConfig,
    RoutePlugin, Runtime,
};
use outrider_yaml::{Field, Located, Location, Node, PathSegment, Shape, Value as Tree};
use serde_json::Value;

use super::gateway::Built;
use super::plugins::{Loaded, Plugins};
use super::projects;
use super::schema_check::{Place, Violation};
use super::{Context, Origin, known_names, metadata, placed, telemetry};
use crate::merge::{compose, merge};
use crate::model;
use crate::plan::{Project, Route, Switch, Use};

/// A `use` list as it is written.
type UseList = Field<Vec<Field<Shape<model::PluginName, model::Use>>>>;

/// Reads one `use` list.
pub(super) fn read_uses(context: &mut Context<'_>, origin: &Origin, list: &UseList) -> Vec<Use> {
    let mut uses: Vec<Use> = Vec::new();
    for item in list.value().into_iter().flatten().filter_map(Field::get) {
        let Some(read) = read_use(context, origin, item) else {
            continue;
        };
        if let Some(first) = uses.iter().find(|other| other.plugin == read.plugin) {
            context.problem(
                origin,
                read.location,
                format!(
                    "the plugin `{}` is in this list twice, first on line {}",
                    read.plugin, first.location.line
                ),
                "keep one of the two; an order of plugins is given by `group` and `priority`",
            );
        } else {
            uses.push(read);
        }
    }
    uses
}

fn read_use(
    context: &mut Context<'_>,
    origin: &Origin,
    item: &Located<Shape<model::PluginName, model::Use>>,
) -> Option<Use> {
    let make = |plugin: &Located<&str>, switch, config| Use {
        plugin: plugin.value.to_owned(),
        switch,
        config,
        file: origin.file.clone(),
        location: plugin.location,
    };
    let long = match &item.value {
        Shape::Text(name) => {
            let name = Located {
                location: item.location,
                value: name.0.as_str(),
            };
            return Some(make(&name, Switch::On, None));
        }
        Shape::Mapping(long) => long,
    };
    let name = context.required(origin, item.location, "the use", "plugin", &long.plugin);
    let switch = match &long.enabled {
        // `enabled: no` is told as what it is; whatever follows from either reading would be a second complaint.
        Field::Wrong(_) => return None,
        Field::Given(enabled) if !enabled.value => Switch::Off,
        Field::Given(_) | Field::Missing => Switch::On,
    };
    let mut config = None;
    if let Some(Located { location, value }) = long.config.get() {
        if switch == Switch::Off {
            context.problem(
                origin,
                *location,
                "a plugin that is turned off here has a configuration here",
                "remove `config`, or `enabled: false`",
            );
        } else if matches!(value.value, Tree::Mapping(_) | Tree::String(_)) {
            // Whether the plugin takes a string is known when the plugin is.
            config = Some(value.clone());
        } else {
            context.problem(
                origin,
                *location,
                format!("expected a mapping, found {}", value.describe()),
                "write `config: {key: value}`, or remove the key",
            );
        }
    }
    let name = name?;
    let name = Located {
        location: name.location,
        value: name.value.0.as_str(),
    };
    Some(make(&name, switch, config))
}

/// One plugin as one scope sees it.
#[derive(Debug, Clone)]
struct State {
    switch: Switch,
    /// What narrower patches apply to.
    config: Value,
}

/// What a project or a route changes about one plugin, over the gateway.
#[derive(Debug, Clone)]
struct Change {
    switch: Switch,
    patch: Option<Value>,
}

struct Scopes<'s, 'c> {
    context: &'s mut Context<'c>,
    plugins: &'s Plugins,
    /// Names of upstreams that are declared.
    upstreams: &'s BTreeSet<String>,
    /// Plugins that some scope turns on.
    used: BTreeSet<String>,
    /// Pairs of plugin and configuration that were tried, whatever came of it.
    tried: BTreeSet<(String, String)>,
}

/// The gateway's own part, the module's document, and the projects; none if a part is missing, which
/// has been told.
pub(super) fn build(
    context: &mut Context<'_>,
    gateway: Built,
    plugins: &Plugins,
    projects: Vec<projects::Project>,
    upstreams: &BTreeSet<String>,
) -> Option<(Built, FilterConfig, Vec<Project>)> {
    let mut scopes = Scopes {
        context,
        plugins,
        upstreams,
        used: BTreeSet::new(),
        tried: BTreeSet::new(),
    };
    let states = scopes.gateway(&gateway.uses);
    let mut whole = true;
    let mut built = Vec::new();
    for project in projects {
        match scopes.project(&gateway.uses, &states, project) {
            Some(project) => built.push(project),
            None => whole = false,
        }
    }
    let filter = scopes.filter(&gateway, &states);
    whole.then_some((gateway, filter, built))
}

impl Scopes<'_, '_> {
    fn gateway(&mut self, uses: &[Use]) -> BTreeMap<String, State> {
        let mut states = BTreeMap::new();
        for item in uses {
            let config = applied(None, item);
            if self.enter(item, None) {
                self.check(item, &[item], &config);
            }
            let switch = item.switch;
            states.insert(item.plugin.clone(), State { switch, config });
        }
        states
    }

    fn project(
        &mut self,
        above: &[Use],
        gateway: &BTreeMap<String, State>,
        project: projects::Project,
    ) -> Option<Project> {
        let projects::Project {
            name,
            hosts,
            lane,
            metadata,
            telemetry,
            uses,
            routes,
        } = project;
        let lanes: Vec<LaneUse> = lane.into_iter().collect();
        let mut changes: BTreeMap<String, Change> = BTreeMap::new();
        let mut states: BTreeMap<String, State> = BTreeMap::new();
        for item in &uses {
            let wider = gateway.get(&item.plugin);
            let change = Change {
                switch: item.switch,
                patch: patch(item),
            };
            let state = self.narrow(item, wider, &[find(above, item), Some(item)]);
            changes.insert(item.plugin.clone(), change);
            states.insert(item.plugin.clone(), state);
        }
        let own = document_plugins(&changes, gateway);
        let mut whole = true;
        let mut built = Vec::new();
        for route in routes {
            let mut route_changes: BTreeMap<String, Change> = BTreeMap::new();
            for item in &route.uses {
                let in_project = states.get(&item.plugin);
                let wider = in_project.or_else(|| gateway.get(&item.plugin));
                let trail = [find(above, item), find(&uses, item), Some(item)];
                self.narrow(item, wider, &trail);
                let base = gateway
                    .get(&item.plugin)
                    .map_or(&Value::Null, |state| &state.config);
                let first = changes
                    .get(&item.plugin)
                    .and_then(|change| change.patch.clone());
                let second = patch(item);
                let patch = match (first, second) {
                    (Some(first), Some(second)) => Some(compose(base, &first, &second)),
                    (first, second) => first.or(second),
                };
                let change = Change {
                    switch: item.switch,
                    patch,
                };
                route_changes.insert(item.plugin.clone(), change);
            }
            if let Some((origin, location)) = &route.upgrades {
                let is_on = |name: &String| {
                    let narrow = route_changes.get(name).or_else(|| changes.get(name));
                    let switch = narrow.map(|change| change.switch);
                    let wide = || gateway.get(name).map(|state| state.switch);
                    switch.or_else(wide) == Some(Switch::On)
                };
                self.check_upgrades(origin, *location, &route.name, &is_on);
            }
            let filter = if route_changes.is_empty() {
                None
            } else {
                let mut all = changes.clone();
                all.append(&mut route_changes);
                let plugins = document_plugins(&all, gateway);
                Some(plugins).filter(|plugins| *plugins != own)
            };
            let logs = route
                .telemetry
                .as_ref()
                .filter(|logs| Some(*logs) != telemetry.as_ref());
            let filter = (filter.is_some() || logs.is_some()).then(|| RouteConfig {
                format: FORMAT,
                scope: format!("project {name}, route {}", route.name),
                lanes: lanes.clone(),
                telemetry: logs.or(telemetry.as_ref()).map(telemetry::document),
                plugins: filter.unwrap_or_else(|| own.clone()),
            });
            match (route.matches, route.action) {
                (Some(matches), Some(action)) => built.push(Route {
                    name: route.name,
                    matches,
                    action,
                    filter,
                    metadata: metadata::merged(&metadata, route.metadata),
                    uses: route.uses,
                }),
                _ => whole = false,
            }
        }
        let is_own = !own.is_empty() || !lanes.is_empty() || telemetry.is_some();
        let filter = is_own.then(|| RouteConfig {
            format: FORMAT,
            scope: format!("project {name}"),
            lanes,
            telemetry: telemetry.as_ref().map(telemetry::document),
            plugins: own,
        });
        whole.then_some(Project {
            name,
            hosts,
            filter,
            metadata,
            uses,
            routes: built,
        })
    }

    /// A plugin at a project or a route; `trail` is its items from the gateway down to this one.
    fn narrow(&mut self, item: &Use, wider: Option<&State>, trail: &[Option<&Use>]) -> State {
        let on = self.enter(item, wider);
        let config = applied(wider, item);
        if on {
            let trail: Vec<&Use> = trail.iter().copied().flatten().collect();
            self.check(item, &trail, &config);
        }
        State {
            switch: item.switch,
            config,
        }
    }

    /// Tells of plugins that read bodies whole on a route whose requests may be upgraded: they would wait for the
    /// connection's end.
    fn check_upgrades(
        &mut self,
        origin: &Origin,
        location: Location,
        route: &str,
        is_on: &dyn Fn(&String) -> bool,
    ) {
        let plugins = self.plugins;
        for (name, declared) in plugins.iter().filter(|(name, _)| is_on(name)) {
            let Some(loaded) = &declared.loaded else {
                continue;
            };
            let Some(what) = whole_bodies(&loaded.entry) else {
                continue;
            };
            self.context.problem(
                origin,
                location,
                format!(
                    "the plugin `{name}` reads {what} whole, and requests of the route `{route}` may be upgraded: it would \
                     wait for the end of the connection"
                ),
                format!(
                    "turn it off here (`use: [{{plugin: {name}, enabled: false}}]`), or let it stream (`body: stream` in its \
                     plugin.yaml)"
                ),
            );
        }
    }

    /// Looks at an item's name and switch. True: the plugin is on here.
    fn enter(&mut self, item: &Use, wider: Option<&State>) -> bool {
        let origin = Origin {
            file: item.file.clone(),
        };
        if !self.plugins.contains_key(&item.plugin) {
            let names = self.plugins.keys().map(String::as_str);
            let mend = known_names(&item.plugin, names, "plugins");
            self.context.problem(
                &origin,
                item.location,
                format!("there is no plugin `{}`", item.plugin),
                mend,
            );
            return false;
        }
        match item.switch {
            Switch::On => {
                self.used.insert(item.plugin.clone());
                true
            }
            Switch::Off => {
                if wider.is_none_or(|state| state.switch == Switch::Off) {
                    self.context.problem(
                        &origin,
                        item.location,
                        format!(
                            "there is nothing to turn off: no wider scope uses the plugin `{}`",
                            item.plugin
                        ),
                        "remove it from this list",
                    );
                }
                false
            }
        }
    }

    /// Checks the configuration that is in force at `item`.
    fn check(&mut self, item: &Use, trail: &[&Use], config: &Value) {
        let plugins = self.plugins;
        let Some(loaded) = plugins
            .get(&item.plugin)
            .and_then(|declared| declared.loaded.as_ref())
        else {
            return;
        };
        let own = item.config.as_ref();
        if loaded.entry.runtime == Runtime::Lua
            && let Some(text) = own.filter(|node| !matches!(node.value, Tree::Mapping(_)))
        {
            self.context.problem(
                &Origin {
                    file: item.file.clone(),
                },
                text.location,
                format!(
                    "expected a mapping, found {}: the plugin `{}` is written in Lua",
                    text.describe(),
                    item.plugin
                ),
                "write `config: {key: value}`, or remove the key",
            );
            return;
        }
        let Some(checker) = &loaded.checker else {
            self.try_plugin(item, loaded, config);
            return;
        };
        let violations = checker.violations(config);
        if violations.is_empty() {
            self.try_plugin(item, loaded, config);
        }
        for violation in violations {
            let problem = problem(item, trail, violation);
            self.context.problems.push(problem);
        }
        for violation in checker.undeclared(config, self.upstreams) {
            let warning = problem(item, trail, violation);
            self.context.warnings.push(warning);
        }
    }

    fn try_plugin(&mut self, item: &Use, loaded: &Loaded, config: &Value) {
        if !self.tried.insert((item.plugin.clone(), config.to_string())) {
            return;
        }
        let Err(problems) = self.context.loader.try_plugin(&loaded.entry, config) else {
            return;
        };
        for mut problem in problems {
            if problem.file.is_empty() {
                problem.file = item.file.to_string();
                problem.line = item.location.line;
                problem.column = item.location.column;
            }
            self.context.problems.push(problem);
        }
    }

    fn filter(&self, gateway: &Built, states: &BTreeMap<String, State>) -> FilterConfig {
        let plugins = self
            .plugins
            .iter()
            .filter(|(name, _)| self.used.contains(*name))
            .filter_map(|(name, declared)| Some((name, declared.loaded.as_ref()?)))
            .map(|(name, loaded)| {
                let state = states.get(name);
                PluginEntry {
                    enabled: state.is_some_and(|state| state.switch == Switch::On),
                    config: state
                        .map(|state| state.config.clone())
                        .filter(|config| !is_empty(config)),
                    ..loaded.entry.clone()
                }
            })
            .collect();
        FilterConfig {
            format: FORMAT,
            body_limit: Some(gateway.body_limit),
            log_folder: gateway.plugin_logs.clone(),
            // What of the machine Envoy may keep is for whoever runs it to say.
            compiled_folder: None,
            plugin_time: gateway.plugin_time,
            // Which upstreams there are is known later.
            callout_clusters: BTreeMap::new(),
            // Which groups scopes use is known later.
            lane_groups: Vec::new(),
            lanes: Vec::new(),
            telemetry: gateway.telemetry.clone(),
            plugins,
        }
    }
}

fn find<'u>(uses: &'u [Use], item: &Use) -> Option<&'u Use> {
    uses.iter().find(|other| other.plugin == item.plugin)
}

/// Which bodies a plugin reads whole, as far as its text tells. What a Wasm guest holds back is its own decision, at run time.
fn whole_bodies(entry: &PluginEntry) -> Option<&'static str> {
    let PluginSource::Inline(files) = &entry.source else {
        return None;
    };
    let has = |word: &str| files.values().any(|text| text.contains(word));
    let request = entry.body.request() == BodyMode::Whole && has("on_request_body");
    let response = entry.body.response() == BodyMode::Whole && has("on_response_body");
    match (request, response) {
        (true, true) => Some("bodies"),
        (true, false) => Some("request bodies"),
        (false, true) => Some("response bodies"),
        // A script for Envoy's Lua filter.
        (false, false) => has(":body(").then_some("bodies"),
    }
}

/// The configuration that is in force at an item.
fn applied(wider: Option<&State>, item: &Use) -> Value {
    let before = wider.map_or_else(
        || Value::Object(serde_json::Map::new()),
        |state| state.config.clone(),
    );
    match patch(item) {
        Some(patch) => merge(&before, &patch),
        None => before,
    }
}

/// An item's configuration as a patch, where it says anything.
fn patch(item: &Use) -> Option<Value> {
    let patch = item.config.as_ref().map(Node::to_json);
    patch.filter(|patch| !is_empty(patch))
}

/// Whether a configuration, or a patch, says nothing. Over a string, an empty mapping is that, too.
fn is_empty(config: &Value) -> bool {
    config
        .as_object()
        .map_or(config.is_null(), serde_json::Map::is_empty)
}

/// What a document says of plugins that differ from the gateway's scope, by name.
fn document_plugins(
    changes: &BTreeMap<String, Change>,
    gateway: &BTreeMap<String, State>,
) -> Vec<RoutePlugin> {
    changes
        .iter()
        .filter_map(|(name, change)| {
            let before = gateway.get(name).map_or(Switch::Off, |state| state.switch);
            let enabled = (change.switch != before).then_some(change.switch == Switch::On);
            let config = match change.switch {
                Switch::On => change.patch.clone().filter(|patch| !is_empty(patch)),
                Switch::Off => None,
            };
            (enabled.is_some() || config.is_some()).then(|| RoutePlugin {
                name: name.clone(),
                enabled,
                config,
            })
        })
        .collect()
}

/// A violation with its place.
fn problem(item: &Use, trail: &[&Use], violation: Violation) -> Problem {
    let (owner, location) = place(item, trail, &violation);
    let origin = Origin {
        file: owner.file.clone(),
    };
    let message = format!("plugin `{}`: {}", item.plugin, violation.message);
    placed(&origin, location, message, violation.mend)
}

/// Where a violation is written: in the narrowest scope that says the value.
fn place<'u>(item: &'u Use, trail: &[&'u Use], violation: &Violation) -> (&'u Use, Location) {
    let mut path: Vec<PathSegment> = violation
        .pointer
        .split('/')
        .skip(1)
        .map(|segment| PathSegment::Key(segment.replace("~1", "/").replace("~0", "~")))
        .collect();
    let configs = || {
        trail
            .iter()
            .rev()
            .filter_map(|item| Some((*item, item.config.as_ref()?)))
    };
    match &violation.place {
        Place::Item => return (item, item.location),
        Place::Key(key) => {
            for (owner, config) in configs() {
                let entry = config
                    .at(&path)
                    .and_then(Node::as_mapping)
                    .and_then(|mapping| mapping.entry(key));
                if let Some(entry) = entry {
                    return (owner, entry.key_location);
                }
            }
        }
        Place::Value => {}
    }
    while !path.is_empty() {
        for (owner, config) in configs() {
            if let Some(node) = config.at(&path) {
                return (owner, node.location);
            }
        }
        path.pop();
    }
    (item, item.location)
}
