//! The variants of the scenario "mechanisms": each group's baselines, and each mechanism's filters.

use std::path::Path;

use outrider_lab_report::{Absent, Pair, Role};
use serde_json::{Value, json};

use crate::bench::Mechanism;
use crate::bench::filters::{Sources, filters};
use crate::bench::scripts::Told;
use crate::bench::workload::{Shape, WORKLOADS, Workload};
use crate::scenario::{GroupSettings, Scenario};

/// Name of the cluster of the external processor.
pub(crate) const EXT_PROC: &str = "ext-proc";

/// A variant before it runs.
#[derive(Debug, Clone)]
pub(crate) struct Planned {
    pub(crate) group: String,
    pub(crate) about: String,
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) note: String,
    pub(crate) shape: Shape,
    pub(crate) filters: Vec<Value>,
    /// Whether the external processor works for it.
    pub(crate) uses_ext_proc: bool,
}

/// All variants of a scenario.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) variants: Vec<Planned>,
    pub(crate) pairs: Vec<Pair>,
    pub(crate) absent: Vec<Absent>,
}

/// Mechanism as a scenario names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    Plugin(Mechanism),
    NativeFilter,
    ExtProc,
}

const NAMES: [(&str, Named); 9] = [
    ("native-filter", Named::NativeFilter),
    ("native-module", Named::Plugin(Mechanism::Native)),
    ("outrider-lua", Named::Plugin(Mechanism::OutriderLua)),
    ("envoy-lua", Named::Plugin(Mechanism::EnvoyLua)),
    ("outrider-rust", Named::Plugin(Mechanism::OutriderRust)),
    ("envoy-rust", Named::Plugin(Mechanism::EnvoyRust)),
    ("outrider-go", Named::Plugin(Mechanism::OutriderGo)),
    ("envoy-go", Named::Plugin(Mechanism::EnvoyGo)),
    ("ext-proc", Named::ExtProc),
];

/// Pairs that a report compares: Outrider's with Envoy's own, and with native code.
const PAIRS: [(&str, &str); 4] = [
    ("outrider-lua", "envoy-lua"),
    ("outrider-rust", "envoy-rust"),
    ("outrider-go", "envoy-go"),
    ("outrider-lua", "native-module"),
];

impl Plan {
    /// Plans the variants of a scenario. What cannot be made, for example because a guest was not built, is absent with
    /// its reason.
    ///
    /// # Errors
    ///
    /// A work or a mechanism is not known.
    pub(crate) fn of(scenario: &Scenario, sources: &Sources) -> anyhow::Result<Self> {
        let mut plan = Self::default();
        for group in &scenario.groups {
            plan.add(group, sources)?;
        }
        Ok(plan)
    }

    fn add(&mut self, group: &GroupSettings, sources: &Sources) -> anyhow::Result<()> {
        let workload = workload(group)?;
        let planned = |name: &str, role: Role, filters: Vec<Value>| Planned {
            group: group.name.clone(),
            about: group.about.clone(),
            name: name.to_owned(),
            role,
            note: String::new(),
            shape: workload.shape,
            filters,
            uses_ext_proc: false,
        };
        self.variants
            .push(planned("no filter", Role::Baseline, Vec::new()));
        self.variants
            .push(planned("no filter, again", Role::Twin, Vec::new()));
        let mut indexes = Vec::new();
        for name in &group.mechanisms {
            let Some((_, named)) = NAMES.iter().find(|(one, _)| one == name) else {
                let known: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
                anyhow::bail!(
                    "group `{}`: mechanism `{name}` is not known; known are {}",
                    group.name,
                    known.join(", ")
                );
            };
            let variant = match named {
                Named::NativeFilter => Planned {
                    note: "header_mutation sets and removes the headers; it cannot read".to_owned(),
                    ..planned("native filter", Role::Measured, native_filter(group)?)
                },
                Named::ExtProc => Planned {
                    uses_ext_proc: true,
                    note: "a server in Rust in the lab's process; its CPU time counts".to_owned(),
                    ..planned(
                        "external process (ext_proc)",
                        Role::Measured,
                        vec![ext_proc_filter()],
                    )
                },
                Named::Plugin(mechanism) => match filters(
                    *mechanism,
                    &workload,
                    workload.work,
                    Told::Differences,
                    sources,
                ) {
                    Ok(filters) => planned(mechanism.title(), Role::Measured, filters),
                    Err(error) => {
                        self.absent.push(Absent {
                            group: group.name.clone(),
                            name: mechanism.title().to_owned(),
                            reason: format!("{error:#}"),
                        });
                        continue;
                    }
                },
            };
            indexes.push((name.as_str(), self.variants.len()));
            self.variants.push(variant);
        }
        let index = |name: &str| {
            indexes
                .iter()
                .find(|(one, _)| *one == name)
                .map(|(_, index)| *index)
        };
        let pairs = PAIRS.iter().filter_map(|(one, other)| {
            Some(Pair {
                variant: index(one)?,
                with: index(other)?,
            })
        });
        self.pairs.extend(pairs);
        self.absent.extend(group.absent.iter().map(|absent| Absent {
            group: group.name.clone(),
            name: absent.name.clone(),
            reason: absent.reason.clone(),
        }));
        Ok(())
    }
}

/// The work of a group, done by so many plugins.
fn workload(group: &GroupSettings) -> anyhow::Result<Workload> {
    let known = || WORKLOADS.iter().filter(|workload| !workload.is_firewall);
    let Some(workload) = known().find(|workload| workload.name == group.work) else {
        let names: Vec<&str> = known().map(|workload| workload.name).collect();
        anyhow::bail!(
            "group `{}`: work `{}` is not known; known are {}",
            group.name,
            group.work,
            names.join(", ")
        );
    };
    Ok(Workload {
        copies: group.copies,
        ..*workload
    })
}

/// Envoy's `header_mutation` filter, which sets and removes headers; for work that does just that besides reading.
fn native_filter(group: &GroupSettings) -> anyhow::Result<Vec<Value>> {
    anyhow::ensure!(
        group.work == "normal" && group.copies == 1,
        "group `{}`: mechanism `native-filter` does the work `normal` only",
        group.name
    );
    let name = |number: usize| format!("x-h-{number}");
    let set = (1..=20).map(|number| {
        json!({ "append": {
            "header": { "key": name(number), "value": "value" },
            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
        } })
    });
    let removed = (1..=20).map(|number| json!({ "remove": name(number) }));
    let mutations: Vec<Value> = set.chain(removed).collect();
    Ok(vec![json!({
        "name": "header-mutation",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
            "mutations": { "request_mutations": mutations },
        },
    })])
}

fn ext_proc_filter() -> Value {
    json!({
        "name": "ext-proc",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": { "envoy_grpc": { "cluster_name": EXT_PROC } },
            "processing_mode": { "request_header_mode": "SEND", "response_header_mode": "SEND" },
            "message_timeout": "5s",
        },
    })
}

/// The cluster of the external processor.
pub(crate) fn ext_proc_cluster(socket: &Path) -> Value {
    json!({
        "name": EXT_PROC,
        "type": "STATIC",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": { "http2_protocol_options": {} },
            },
        },
        "load_assignment": {
            "cluster_name": EXT_PROC,
            "endpoints": [{ "lb_endpoints": [
                { "endpoint": { "address": { "pipe": { "path": socket } } } },
            ] }],
        },
    })
}
