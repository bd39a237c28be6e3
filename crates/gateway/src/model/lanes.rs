//! Lanes in `outrider.yaml`.

use outrider_yaml::{Entries, Field};
use schemars::JsonSchema;
use serde::Deserialize;

use super::text::{Duration, HeaderName, Name, Number, Path, Regex, Text};
use super::{CookieCondition, HeaderCondition, QueryCondition};

/// A group of lanes: a chain of services, and versions that run side by side. A request gets its lane at the edge, and keeps
/// it on all its hops.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["baseline", "services"]))]
pub(crate) struct LaneGroup {
    /// The lane of requests that no rule gives another one, and the one that serves where another lane has no version of a
    /// service.
    #[serde(default)]
    pub(crate) baseline: Field<Name>,
    /// The header that carries the lane from proxy to proxy; a request of the baseline has none. At the edge it is removed from
    /// what clients send. Default: `x-outrider-lane`.
    #[serde(default)]
    pub(crate) header: Field<HeaderName>,
    /// A key of the header `baggage` (W3C Baggage) that carries the lane as well, for services that pass baggage on, as
    /// OpenTelemetry's libraries do: they need no sidecar that remembers. Default: none.
    #[serde(default)]
    pub(crate) baggage: Field<Name>,
    /// Headers by which a request that a service sends is matched to the one that it serves: the service has to pass one of
    /// them on, as tracing libraries do. Default: `traceparent`, `b3`, `x-b3-traceid`, `uber-trace-id`, `x-datadog-trace-id`,
    /// `x-request-id`.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub(crate) correlate: Field<Vec<Field<HeaderName>>>,
    /// Headers that each request has which its service sends on its behalf, as it came in: a sidecar remembers them with the
    /// lane, and adds those that the service does not pass on. At most 16, and 4 KiB of one request. Default: none.
    #[serde(default)]
    pub(crate) carry: Field<Vec<Field<HeaderName>>>,
    /// How long a lane is remembered after the service has answered, for services that call others later. Whole seconds, at
    /// most an hour. Default: `10s`.
    #[serde(default)]
    pub(crate) remember: Field<Duration>,
    /// What decides whether a request belongs to a lane with `percent`: the first of these that it has. The same value gets
    /// the same lane on all gateways, and stays in it while the percentage grows.
    #[serde(default)]
    pub(crate) sticky: Field<Vec<Field<StickyKey>>>,
    /// Which requests enter which lane, by the lane's name, at the edge.
    #[serde(default)]
    pub(crate) enter: Field<Entries<Field<LaneEntry>>>,
    /// The services of the chain, by name; and of each, the upstream of each lane's version, by the lane's name. The baseline has
    /// a version of every service; where another lane has none, the baseline's serves.
    #[serde(default)]
    pub(crate) services: Field<Entries<Field<Entries<Field<Text>>>>>,
}

/// A part of a request by which users are told apart: exactly one of these.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StickyKey {
    /// The value of this header.
    #[serde(default)]
    pub(crate) header: Field<HeaderName>,
    /// The value of this cookie.
    #[serde(default)]
    pub(crate) cookie: Field<Text>,
    /// The value of this query parameter.
    #[serde(default)]
    pub(crate) query: Field<Text>,
}

/// Which requests enter a lane.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LaneEntry {
    /// Conditions. Default: every request.
    #[serde(default)]
    pub(crate) when: Field<LaneWhen>,
    /// How many of the requests that fulfil the conditions, in per cent, by `sticky`. Lanes of one priority share their
    /// requests out: of two lanes with 10, each gets 10. Default: 100, which gets what those with less leave.
    #[serde(default)]
    pub(crate) percent: Field<Number<0, 100>>,
    /// The requests stay in the baseline, and a copy of each enters the lane; what a copy is answered is dropped. The lane needs a
    /// version of every service. Default: the requests themselves enter the lane.
    #[serde(default)]
    pub(crate) mirror: Field<bool>,
    /// Lanes of a higher priority are asked first. Default: 0.
    #[serde(default)]
    pub(crate) priority: Field<i32>,
}

/// Conditions on a request; all that are given have to hold.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LaneWhen {
    /// Exactly this path, without the query.
    #[serde(default)]
    pub(crate) path: Field<Path>,
    /// Every path that begins so.
    #[serde(default)]
    pub(crate) prefix: Field<Path>,
    /// Every path that this regular expression matches as a whole.
    #[serde(default)]
    pub(crate) regex: Field<Regex>,
    /// Conditions on headers. Several values of a header count as one, joined by commas.
    #[serde(default)]
    pub(crate) headers: Field<Vec<Field<HeaderCondition>>>,
    /// Conditions on query parameters.
    #[serde(default)]
    pub(crate) query: Field<Vec<Field<QueryCondition>>>,
    /// Conditions on cookies.
    #[serde(default)]
    pub(crate) cookies: Field<Vec<Field<CookieCondition>>>,
    /// At least one of these holds.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub(crate) any: Field<Vec<Field<LaneWhen>>>,
    /// This does not hold.
    #[serde(default)]
    pub(crate) not: Field<Box<LaneWhen>>,
}

/// What happens to the lane of a project's requests.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["group", "role"]))]
pub(crate) struct ProjectLane {
    /// The group, under `lanes`.
    #[serde(default)]
    pub(crate) group: Field<Text>,
    /// Where this proxy stands in the chain.
    #[serde(default)]
    pub(crate) role: Field<ProjectLaneRole>,
    /// The service of the group that this proxy stands at, for `outrider lanes`; together with `version`. Default: none, and
    /// reports name it by its address.
    #[serde(default)]
    pub(crate) service: Field<Text>,
    /// The lane that the version behind this proxy belongs to, for `outrider lanes`.
    #[serde(default)]
    pub(crate) version: Field<Name>,
    /// For `role: outbound` in strict mode, where every lane has every service: the lane that the service's version belongs
    /// to. It is written to all that the service sends, and nothing is remembered. Default: what was remembered counts.
    #[serde(default)]
    pub(crate) own: Field<Name>,
}

/// Where a proxy stands in a chain of services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ProjectLaneRole {
    /// At the edge: requests come from outside, and the rules under `enter` choose their lane.
    Edge,
    /// Before a service: the lane of each request is remembered.
    Inbound,
    /// Behind a service: what it sends gets the lane of the request that it serves.
    Outbound,
}

/// A service of some lanes, as where a route's requests go.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["lanes", "service"]))]
pub(crate) struct LaneTarget {
    /// The group, under `lanes`.
    #[serde(default)]
    pub(crate) lanes: Field<Text>,
    /// The service, under `services` of the group.
    #[serde(default)]
    pub(crate) service: Field<Text>,
}
