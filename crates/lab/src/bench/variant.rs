//! The things that are run: each mechanism with each workload, and what they are compared with.

use serde_json::Value;

use super::filters::{Rendered, Sources, filters};
use super::mechanism::{Family, Mechanism};
use super::scripts::Told;
use super::workload::{Shape, WORKLOADS, Workload};

/// The name of the baseline: no filter but the router.
pub(crate) const BASELINE: &str = "no filter";
/// The baseline once more: what it differs by is the noise.
pub(crate) const TWIN: &str = "no filter, again";
/// Outrider in the chain, with nothing to do.
pub(crate) const EMPTY: &str = "no plugin";

/// One of them.
#[derive(Debug)]
pub(crate) struct Variant {
    /// The workload's name, or that of a baseline.
    pub(crate) workload: String,
    /// Nobody for a baseline.
    pub(crate) mechanism: Option<Mechanism>,
    pub(crate) shape: Shape,
    /// See [`Workload`].
    pub(crate) divisor: u64,
    pub(crate) filters: Vec<Value>,
}

impl Variant {
    /// For progress and errors.
    pub(crate) fn name(&self) -> String {
        match self.mechanism {
            Some(mechanism) => format!("{}, {}", self.workload, mechanism.title()),
            None => format!("{} ({})", self.workload, self.shape.name()),
        }
    }
}

/// What is asked for, by name; nothing named is everything.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Names of workloads.
    pub workloads: Vec<String>,
    /// Mechanisms.
    pub mechanisms: Vec<Mechanism>,
}

impl Selection {
    /// Whether it is everything.
    pub fn is_everything(&self) -> bool {
        self.workloads.is_empty() && self.mechanisms.is_empty()
    }

    /// Whether a family has something of it.
    pub fn is_of(&self, family: Family) -> bool {
        family.workloads().any(|workload| {
            let mut mechanisms = family.mechanisms().iter();
            mechanisms.any(|mechanism| self.has(workload, *mechanism))
        })
    }

    /// The names that can be asked for.
    pub fn known() -> impl Iterator<Item = &'static str> {
        WORKLOADS.iter().map(|workload| workload.name)
    }

    /// Whether it has what a mechanism does of a workload.
    pub(crate) fn has(&self, workload: &Workload, mechanism: Mechanism) -> bool {
        mechanism.does(workload)
            && (self.workloads.is_empty()
                || self.workloads.iter().any(|name| name == workload.name))
            && (self.mechanisms.is_empty() || self.mechanisms.contains(&mechanism))
    }
}

/// The variants of a selection, each shape's baselines first.
pub(crate) fn variants(
    family: Family,
    selection: &Selection,
    sources: &Sources,
) -> anyhow::Result<Vec<Variant>> {
    let mut chosen = Vec::new();
    if selection.is_everything() {
        chosen.push(Variant {
            workload: EMPTY.to_owned(),
            mechanism: Some(family.first()),
            shape: Shape::Plain,
            divisor: 1,
            filters: vec![Rendered::plugins(sources, &[])?.filter],
        });
    }
    for workload in family.workloads() {
        for mechanism in family.mechanisms().iter().copied() {
            if selection.has(workload, mechanism) {
                chosen.push(Variant {
                    workload: workload.name.to_owned(),
                    mechanism: Some(mechanism),
                    shape: workload.shape,
                    divisor: workload.divisor,
                    filters: filters(
                        mechanism,
                        workload,
                        workload.work,
                        Told::Differences,
                        sources,
                    )?,
                });
            }
        }
    }
    let mut all = Vec::new();
    for shape in Shape::ALL {
        if chosen.iter().any(|variant| variant.shape == shape) {
            all.extend([BASELINE, TWIN].map(|name| Variant {
                workload: name.to_owned(),
                mechanism: None,
                shape,
                divisor: 1,
                filters: Vec::new(),
            }));
        }
    }
    all.extend(chosen);
    Ok(all)
}
