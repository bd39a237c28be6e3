//! A plan as the files of a state folder.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use outrider_gateway::Plan;
use outrider_gateway::envoy::{Layout, Secrets};

/// Where the files are, and where Envoy's admin interface is: at a free port of the loopback unless the
/// plan says otherwise.
pub(crate) fn layout(plan: &Plan, folder: &Path) -> Layout {
    Layout {
        directory: folder.to_string_lossy().into_owned(),
        admin: plan
            .admin
            .unwrap_or_else(|| SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        node: "outrider".to_owned(),
        secrets: Secrets::Copied,
    }
}
