//! Permissions of a plugin, which only `outrider.yaml` gives: a manifest has none.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Permissions of one plugin. The default denies all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "AllowForm", into = "AllowForm")]
pub struct Allow {
    /// Upstreams that the plugin may call.
    pub upstreams: AllowedNames,
    /// Whether a request may take a route of another project after the plugin changed it.
    pub leave_project: bool,
    /// Whether the plugin may choose the endpoint that a request goes to.
    pub override_host: bool,
    /// Namespaces of dynamic metadata that the plugin may write, beside its own name and
    /// `envoy.filters.http.lua`.
    pub metadata: AllowedNames,
    /// Whether the plugin may set request headers that steer Envoy's router.
    pub router_headers: bool,
    /// Keys of filter state that Envoy reads itself and the plugin may set.
    pub typed_filter_state: AllowedNames,
}

impl Allow {
    /// Returns permissions for everything.
    pub fn all() -> Self {
        Self {
            upstreams: AllowedNames::All(All::All),
            leave_project: true,
            override_host: true,
            metadata: AllowedNames::All(All::All),
            router_headers: true,
            typed_filter_state: AllowedNames::All(All::All),
        }
    }

    /// Returns whether all permissions are denied.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Headers that begin with `x-envoy-` and only report: a plugin sets them without `router_headers`.
pub const REPORTING_HEADERS: [&str; 13] = [
    "x-envoy-attempt-count",
    "x-envoy-downstream-service-cluster",
    "x-envoy-downstream-service-node",
    "x-envoy-external-address",
    "x-envoy-internal",
    "x-envoy-ip-tags",
    "x-envoy-is-timeout-retry",
    "x-envoy-original-host",
    "x-envoy-original-method",
    "x-envoy-original-path",
    "x-envoy-original-url",
    "x-envoy-peer-metadata",
    "x-envoy-peer-metadata-id",
];

/// Names that a permission has: `all`, or a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum AllowedNames {
    /// Every name.
    All(All),
    /// These names.
    Listed(BTreeSet<String>),
}

impl AllowedNames {
    /// Returns whether no name is allowed.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Listed(names) if names.is_empty())
    }

    /// Returns whether a name is allowed.
    pub fn has(&self, name: &str) -> bool {
        match self {
            Self::All(All::All) => true,
            Self::Listed(names) => names.contains(name),
        }
    }
}

impl Default for AllowedNames {
    fn default() -> Self {
        Self::Listed(BTreeSet::new())
    }
}

/// The word for everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum All {
    /// Everything.
    All,
}

/// Permissions as they are written: `all`, or each on its own.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
enum AllowForm {
    All(All),
    Each(AllowEach),
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct AllowEach {
    /// Upstreams that the plugin may call: a list, or `all`. Default: none.
    #[serde(default, skip_serializing_if = "AllowedNames::is_empty")]
    upstreams: AllowedNames,
    /// Whether a request may take a route of another project after the plugin changed it. Default: `false`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    leave_project: bool,
    /// Whether the plugin may choose the endpoint that a request goes to. Default: `false`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    override_host: bool,
    /// Namespaces of dynamic metadata that the plugin may write, beside its own name and
    /// `envoy.filters.http.lua`: a list, or `all`. Default: none.
    #[serde(default, skip_serializing_if = "AllowedNames::is_empty")]
    metadata: AllowedNames,
    /// Whether the plugin may set request headers that steer Envoy's router (`x-envoy-max-retries`). Default:
    /// `false`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    router_headers: bool,
    /// Keys of filter state that Envoy reads itself and the plugin may set: a list, or `all`. Default: none.
    #[serde(default, skip_serializing_if = "AllowedNames::is_empty")]
    typed_filter_state: AllowedNames,
}

impl From<AllowForm> for Allow {
    fn from(form: AllowForm) -> Self {
        match form {
            AllowForm::All(All::All) => Self::all(),
            AllowForm::Each(each) => Self {
                upstreams: each.upstreams,
                leave_project: each.leave_project,
                override_host: each.override_host,
                metadata: each.metadata,
                router_headers: each.router_headers,
                typed_filter_state: each.typed_filter_state,
            },
        }
    }
}

impl From<Allow> for AllowForm {
    fn from(allow: Allow) -> Self {
        if allow == Allow::all() {
            return Self::All(All::All);
        }
        Self::Each(AllowEach {
            upstreams: allow.upstreams,
            leave_project: allow.leave_project,
            override_host: allow.override_host,
            metadata: allow.metadata,
            router_headers: allow.router_headers,
            typed_filter_state: allow.typed_filter_state,
        })
    }
}
