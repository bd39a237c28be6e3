//! The things that are run: each mechanism with each workload, and what they are compared with.

use std::path::Path;

use serde_json::Value;

use super::filters::{Rendered, filters};
use super::scripts::Told;
use super::workload::{Mechanism, Shape, WORKLOADS};

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

    /// The names that can be asked for.
    pub fn known() -> impl Iterator<Item = &'static str> {
        WORKLOADS.iter().map(|workload| workload.name)
    }

    fn has(&self, workload: &str, mechanism: Mechanism) -> bool {
        (self.workloads.is_empty() || self.workloads.iter().any(|name| name == workload))
            && (self.mechanisms.is_empty() || self.mechanisms.contains(&mechanism))
    }
}

/// The variants of a selection, each shape's baselines first.
pub(crate) fn variants(selection: &Selection, outrider: &Path) -> anyhow::Result<Vec<Variant>> {
    let mut chosen = Vec::new();
    if selection.is_everything() {
        chosen.push(Variant {
            workload: EMPTY.to_owned(),
            mechanism: Some(Mechanism::OutriderLua),
            shape: Shape::Plain,
            filters: vec![Rendered::plugins(outrider, &[])?.filter],
        });
    }
    for workload in &WORKLOADS {
        for mechanism in Mechanism::ALL {
            if selection.has(workload.name, mechanism) {
                chosen.push(Variant {
                    workload: workload.name.to_owned(),
                    mechanism: Some(mechanism),
                    shape: workload.shape,
                    filters: filters(
                        mechanism,
                        workload.work,
                        Told::Differences,
                        workload.copies,
                        outrider,
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
                filters: Vec::new(),
            }));
        }
    }
    all.extend(chosen);
    Ok(all)
}
