//! `outrider.yaml`: its model, validation, plan and renderers.
//!
//! A compiler without files, clock or network: [`compile`] reads through a [`Loader`] and gives a
//! [`plan::Plan`] or all problems at once; [`envoy`] renders a plan as Envoy's configuration;
//! [`explain`] says what one request meets; [`schema`] and [`reference`] describe the file itself. The
//! same input gives the same bytes.

mod annotations;
mod compile;
pub mod envoy;
mod explain;
mod merge;
mod model;
pub mod plan;
mod reference;

pub use compile::{
    Compiled, CompiledMesh, Loader, access_log_operators, compile, compile_mesh, searched_folder,
};
pub use explain::{Explanation, Link, Origin, PassedOver, Request, Setting, explain};
pub use merge::{compose, merge};
pub use outrider_plugin_formats::{PluginPackage, Problem};
pub use plan::Plan;
pub use reference::{reference, schema};
