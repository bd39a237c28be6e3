//! The variants of the scenario "mechanisms": each group's baselines, and each mechanism's filters.

mod shipped;

use std::fs;
use std::net::SocketAddr;

use anyhow::Context as _;
use outrider_envoy_process::Options;
use outrider_lab_report::{Absent, Pair, Role, Variant};
use outrider_load::{RequestTemplate, Session, SessionOptions, Target};
use serde_json::{Value, json};

use crate::bench::Mechanism;
use crate::bench::bootstrap::{Answers, Listener, bootstrap};
use crate::bench::filters::filters;
use crate::bench::scripts::Told;
use crate::bench::workload::{BODY_BYTES, Shape, VALUE, WORKLOADS, Workload};
use crate::client::{self, Request};
use crate::echo::hexadecimal;
use crate::experiment::rig::{Rig, Subject};
use crate::experiment::{Pace, Prepared, Workshop};
use crate::ext_proc::{WORK_HEADER, start_ext_proc};
use crate::free_address::own_addresses;
use crate::scenario::upstream::{add_clusters, pipe_cluster, start_upstream};
use crate::scenario::{GroupSettings, Scenario};

use sha2::{Digest as _, Sha256};

/// Name of the cluster of the external processor.
pub(crate) const EXT_PROC: &str = "ext-proc";

/// A request, and what answers it.
#[derive(Debug, Clone)]
pub(crate) struct Exchange {
    pub(crate) request: RequestTemplate,
    pub(crate) answers: Answers,
    /// Status of every response.
    pub(crate) status: u16,
}

/// Proof that a variant does its work.
#[derive(Debug, Clone)]
pub(crate) struct Proof {
    pub(crate) request: Request,
    pub(crate) status: u16,
    /// Text that the response's body has.
    pub(crate) has: String,
}

/// A variant before it runs.
#[derive(Debug, Clone)]
pub(crate) struct Planned {
    pub(crate) group: String,
    pub(crate) about: String,
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) note: String,
    pub(crate) exchange: Exchange,
    pub(crate) filters: Vec<Value>,
    /// Whether the external processor works for it.
    pub(crate) uses_ext_proc: bool,
    pub(crate) proofs: Vec<Proof>,
}

/// All variants of a scenario.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) variants: Vec<Planned>,
    pub(crate) pairs: Vec<Pair>,
    pub(crate) absent: Vec<Absent>,
    pub(crate) cumulative: Vec<String>,
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
    pub(crate) fn of(scenario: &Scenario, workshop: &Workshop) -> anyhow::Result<Self> {
        let mut plan = Self::default();
        for group in &scenario.groups {
            let job = Job::of(group)?;
            plan.add(group, &job, workshop)?;
        }
        Ok(plan)
    }

    fn add(&mut self, group: &GroupSettings, job: &Job, workshop: &Workshop) -> anyhow::Result<()> {
        let planned = |name: &str, role: Role, filters: Vec<Value>| Planned {
            group: group.name.clone(),
            about: group.about.clone(),
            name: name.to_owned(),
            role,
            note: String::new(),
            exchange: job.exchange(),
            filters,
            uses_ext_proc: false,
            proofs: job.proofs(),
        };
        for (name, role) in [
            ("no filter", Role::Baseline),
            ("no filter, again", Role::Twin),
        ] {
            self.variants.push(Planned {
                exchange: job.baseline(),
                proofs: Vec::new(),
                ..planned(name, role, Vec::new())
            });
        }
        if !group.chain.is_empty() {
            for length in 1..=group.chain.len() {
                let links = group.chain.get(..length).unwrap_or_default();
                let name = links.last().map(|link| format!("+ {}", link.plugin));
                let filters = shipped::chain(links, workshop)?;
                self.variants
                    .push(planned(&name.unwrap_or_default(), Role::Measured, filters));
            }
            self.cumulative.push(group.name.clone());
        }
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
            let (title, made) = match named {
                Named::NativeFilter => ("native filter", job.native_filter(group)?),
                Named::ExtProc => (
                    "external process (ext_proc)",
                    Made {
                        note: "a server in Rust in the lab's process; its CPU time counts"
                            .to_owned(),
                        filters: vec![ext_proc_filter(&group.work)],
                    },
                ),
                Named::Plugin(mechanism) => match job.plugin(*mechanism, workshop) {
                    Ok(made) => (mechanism.title(), made),
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
            self.variants.push(Planned {
                note: made.note,
                uses_ext_proc: *named == Named::ExtProc,
                ..planned(title, Role::Measured, made.filters)
            });
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

/// Filters of a mechanism, and what is particular to them.
#[derive(Debug, Default)]
pub(crate) struct Made {
    pub(crate) note: String,
    pub(crate) filters: Vec<Value>,
}

/// What the variants of a group do.
#[derive(Debug)]
enum Job {
    /// Work of the benchmark, by scripts that do it alike in every mechanism.
    Scripts(Workload),
    /// Work of a plugin that ships.
    Shipped(shipped::Work),
    /// Plugins that ship, one after another.
    Chain,
}

impl Job {
    fn of(group: &GroupSettings) -> anyhow::Result<Self> {
        if !group.chain.is_empty() {
            return Ok(Self::Chain);
        }
        if let Some(work) = shipped::Work::parse(&group.work) {
            anyhow::ensure!(
                group.copies == 1,
                "group `{}`: the work `{}` is not done in copies",
                group.name,
                group.work
            );
            return Ok(Self::Shipped(work));
        }
        Ok(Self::Scripts(workload(group)?))
    }

    fn exchange(&self) -> Exchange {
        match self {
            Self::Scripts(workload) => Exchange {
                request: request(workload.shape),
                answers: Answers::from(workload.shape),
                status: 200,
            },
            Self::Shipped(work) => work.exchange(),
            Self::Chain => Exchange {
                request: shipped::chain_request(),
                answers: Answers::Upstream,
                status: 200,
            },
        }
    }

    /// The exchange of the baselines, which no filter answers.
    fn baseline(&self) -> Exchange {
        Exchange {
            status: 200,
            ..self.exchange()
        }
    }

    fn proofs(&self) -> Vec<Proof> {
        match self {
            Self::Scripts(_) | Self::Chain => Vec::new(),
            Self::Shipped(work) => work.proofs(),
        }
    }

    fn native_filter(&self, group: &GroupSettings) -> anyhow::Result<Made> {
        match self {
            Self::Shipped(work) => work.native_filter(),
            Self::Scripts(_) | Self::Chain => Ok(Made {
                note: "header_mutation sets and removes the headers; it cannot read".to_owned(),
                filters: native_filter(group)?,
            }),
        }
    }

    fn plugin(&self, mechanism: Mechanism, workshop: &Workshop) -> anyhow::Result<Made> {
        match self {
            Self::Scripts(workload) => Ok(Made {
                note: String::new(),
                filters: filters(
                    mechanism,
                    workload,
                    workload.work,
                    Told::Differences,
                    &workshop.sources,
                )?,
            }),
            Self::Shipped(work) => work.plugin(mechanism, workshop),
            Self::Chain => anyhow::bail!("a chain is of Outrider's Lua plugins"),
        }
    }
}

/// Starts one Envoy with a listener for each variant.
///
/// # Errors
///
/// Envoy does not start, or a variant does not do its work.
pub(crate) fn prepare(
    scenario: &Scenario,
    workshop: &Workshop,
    mut rig: Rig,
    say: &mut dyn FnMut(&str),
) -> anyhow::Result<Prepared> {
    say("rendering the variants");
    let plan = Plan::of(scenario, workshop)?;
    say("starting Envoy");
    let folder = tempfile::Builder::new().prefix("outrider-lab-").tempdir()?;
    let upstream = start_upstream(&mut rig)?;
    let ext_proc = start_ext_proc(&folder.path().join("ext-proc.sock"))?;
    let addresses = own_addresses(plan.variants.len())?;
    let listeners = plan
        .variants
        .iter()
        .zip(&addresses)
        .map(|(variant, address)| {
            Listener::new(*address, variant.exchange.answers, variant.filters.clone())
        })
        .collect();
    let mut document = bootstrap(listeners, Some(upstream), true);
    add_clusters(&mut document, [pipe_cluster(EXT_PROC, ext_proc.socket())])?;
    let file = folder.path().join("bootstrap.json");
    fs::write(&file, document.to_string())?;
    let mut options = Options::new(&workshop.envoy, file);
    options.module_folder = Some(workshop.modules.clone());
    let envoy = rig.start_envoy("Envoy", options)?;
    let processor = rig.watch_own_thread("external processor", ext_proc.thread_id())?;
    say("checking that every variant does its work");
    for (planned, address) in plan.variants.iter().zip(&addresses) {
        for proof in &planned.proofs {
            proof.check(*address).with_context(|| {
                format!("{}, {} does not do its work", planned.group, planned.name)
            })?;
        }
    }
    for (planned, address) in plan.variants.iter().zip(addresses) {
        let target = Target::parse(&format!("http://{address}/"))?;
        let options = SessionOptions {
            connections: scenario.connections,
            expected: planned.exchange.status..=planned.exchange.status,
            ..SessionOptions::default()
        };
        let mut processes = vec![envoy];
        if planned.uses_ext_proc {
            processes.push(processor);
        }
        rig.subjects.push(Subject {
            variant: planned.describe(),
            session: Session::open(&target, &options)?,
            requests: vec![planned.exchange.request.clone()],
            processes,
            meanwhile: None,
        });
    }
    rig.keep.push(Box::new(ext_proc));
    rig.keep.push(Box::new(folder));
    Ok(Prepared {
        pairs: plan.pairs,
        absent: plan.absent,
        cumulative: plan.cumulative,
        ..Prepared::new(rig, Pace::of(scenario))
    })
}

impl Planned {
    fn describe(&self) -> Variant {
        let configuration = Value::Array(self.filters.clone()).to_string();
        Variant {
            group: self.group.clone(),
            about: self.about.clone(),
            name: self.name.clone(),
            role: self.role,
            configuration: hexadecimal(Sha256::new_with_prefix(configuration)),
            note: self.note.clone(),
        }
    }
}

impl Proof {
    fn check(&self, address: SocketAddr) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let response =
            runtime.block_on(client::Target::http1(address).send(self.request.clone()))?;
        let body = String::from_utf8_lossy(&response.body);
        anyhow::ensure!(
            response.status == self.status && body.contains(&self.has),
            "it answered {} ({body:?}) in place of {} with `{}`",
            response.status,
            self.status,
            self.has
        );
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

/// The request of a shape.
fn request(shape: Shape) -> RequestTemplate {
    let get = RequestTemplate::get("/").header("host", "lab.test");
    match shape {
        Shape::Plain | Shape::Browser | Shape::Traced => get,
        Shape::TenHeaders => (1..=10).fold(get, |request, number| {
            request.header(&format!("x-h-{number}"), VALUE)
        }),
        Shape::Body => RequestTemplate {
            method: "POST".to_owned(),
            body: vec![b'b'; BODY_BYTES].into(),
            ..get
        },
    }
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

fn ext_proc_filter(work: &str) -> Value {
    let is_body = work == "body-rewrite";
    let body = if is_body { "BUFFERED" } else { "NONE" };
    let response = if work == "no-op" { "SEND" } else { "SKIP" };
    json!({
        "name": "ext-proc",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {
                "envoy_grpc": { "cluster_name": EXT_PROC },
                "initial_metadata": [{ "key": WORK_HEADER, "value": work }],
            },
            "processing_mode": {
                "request_header_mode": "SEND", "request_body_mode": body, "response_header_mode": response,
            },
            "message_timeout": "5s",
        },
    })
}
