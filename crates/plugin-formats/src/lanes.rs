//! Lanes in the module's documents: the groups of a filter's configuration, and what a scope does with a request's lane.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Share of all requests, in hundredths of a per cent: [`LaneRule::weight`] of a lane without a `percent`.
pub const WHOLE: u32 = 10_000;

/// Begins the lane of requests that are still to be mirrored: `mirror.fr` is served by the baseline, and a copy of each enters
/// the lane `fr`, at the first service that such a request comes to. No lane is called so.
pub const MIRROR: &str = "mirror.";

/// Group of lanes: a chain of services, some of which are there in several versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LaneGroup {
    /// Name of the group.
    pub name: String,
    /// Header that carries the lane from one proxy to the next, in lower case.
    pub header: String,
    /// Key of the member of `baggage` that carries the lane, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baggage: Option<String>,
    /// Header that is set to `1` on requests of a lane whose route leads to a cluster without a usable host, so that another
    /// route sends them to the baseline, in lower case. One that others sent is removed. Absent: routes need no such help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<String>,
    /// Lane that serves where another lane has no version of a service. Its requests have no header.
    pub baseline: String,
    /// Headers whose values tell that two requests belong together, in lower case.
    pub correlate: Vec<String>,
    /// Headers that are carried along unchanged where services do not pass them on, in lower case.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub carry: Vec<String>,
    /// Seconds for which a trace is remembered after its last request has ended.
    pub remember: u32,
    /// Parts of a request that decide about lanes with a share; the first that a request has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sticky: Vec<LanePart>,
    /// Entry rules, in the order in which they are written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<LaneRule>,
}

impl LaneGroup {
    /// Lanes that get copies of requests.
    pub fn mirrored(&self) -> impl Iterator<Item = &str> {
        let lanes = self.rules.iter().map(|rule| rule.lane.as_str());
        lanes.filter_map(|lane| lane.strip_prefix(MIRROR))
    }
}

/// Entry rule: which requests get a lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LaneRule {
    /// Name of the lane, behind [`MIRROR`] if it gets copies.
    pub lane: String,
    /// Condition that a request fulfils.
    pub when: LaneCondition,
    /// Lanes of a higher priority are asked first.
    #[serde(default)]
    pub priority: i32,
    /// Share of the requests that fulfil the condition, at most [`WHOLE`].
    pub weight: u32,
}

impl LaneRule {
    /// The lane as services have versions of it: without [`MIRROR`].
    pub fn of_services(&self) -> &str {
        self.lane.strip_prefix(MIRROR).unwrap_or(&self.lane)
    }
}

/// Condition of an entry rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LaneCondition {
    /// All of these; with none of them, every request.
    All(Vec<LaneCondition>),
    /// At least one of these.
    Any(Vec<LaneCondition>),
    /// Not this one.
    Not(Box<LaneCondition>),
    /// The part of the request passes the test; a part that is not there passes none.
    Part(LanePart, LaneTest),
}

/// Part of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LanePart {
    /// Header of this name.
    Header(String),
    /// First query parameter of this name.
    Query(String),
    /// First cookie of this name.
    Cookie(String),
    /// Path without the query.
    Path,
}

/// Test of a part of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LaneTest {
    /// The part is there.
    Present,
    /// The part is this.
    Exact(String),
    /// The part begins so.
    Prefix(String),
    /// The part ends so.
    Suffix(String),
    /// The part has this anywhere.
    Contains(String),
    /// The whole part matches the regular expression.
    Regex(String),
}

/// What a scope does with the lane of its requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LaneUse {
    /// Name of the group.
    pub group: String,
    /// Role of the proxy in the chain.
    pub role: LaneRole,
    /// Service and version that the proxy stands at, for reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<LanePlace>,
}

/// Version of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LanePlace {
    /// Name of the service in the group.
    pub service: String,
    /// Name of the version: that of its lane.
    pub version: String,
}

/// Role of a proxy in a chain of services.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LaneRole {
    /// Requests come from outside: the entry rules choose their lane.
    Edge,
    /// Requests are for the proxy's service: their lane is remembered.
    Inbound,
    /// Requests are the service's: they get the lane of the request that caused them.
    Outbound,
    /// Requests are the service's: they get this lane, which the service's version belongs to.
    Stamp(String),
}
