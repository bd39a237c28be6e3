//! Resources into a cluster.
//!
//! All of them are tried before the first is changed. What brings the module to proxies is rolled out before any filter
//! needs it: a filter without its module answers every request with 500.

use std::time::Duration;

use anyhow::Context as _;
use outrider_cluster::{Apply, Cluster, named};
use outrider_mesh::{MANAGED_BY, Resource};
use serde_json::{Value, json};

use super::diff::left_over;
use crate::exit::Exit;
use crate::output;

/// Longest wait for the pods of one Deployment.
const ROLLOUT: Duration = Duration::from_mins(10);

pub(super) async fn run(
    cluster: &mut Cluster,
    resources: &[Resource],
    force: bool,
    prune: bool,
) -> anyhow::Result<Exit> {
    for resource in resources {
        let how = Apply {
            force,
            dry_run: true,
        };
        cluster
            .apply(&resource.object, MANAGED_BY, how)
            .await
            .context("nothing was changed")?;
    }
    let mut rolled = Vec::new();
    for resource in resources {
        if resource.kind() != "Deployment" {
            wait(cluster, &mut rolled).await?;
        }
        let before = cluster.get(&resource.object).await?;
        let how = Apply {
            force,
            dry_run: false,
        };
        let after = cluster.apply(&resource.object, MANAGED_BY, how).await?;
        let version = |object: &Value| object.pointer("/metadata/resourceVersion").cloned();
        let word = match before {
            None => "created",
            Some(before) if version(&before) == version(&after) => "unchanged",
            Some(_) => "changed",
        };
        output::line(format_args!("{word} {}", named(&resource.object)));
        if resource.kind() == "Deployment" && word != "unchanged" {
            rolled.push(&resource.object);
        }
    }
    wait(cluster, &mut rolled).await?;
    for stale in left_over(cluster, resources).await? {
        if prune {
            cluster.delete(&stale).await?;
            output::line(format_args!("removed {}", named(&stale)));
        } else {
            output::note(format_args!(
                "{} was made by outrider and is not in the file any more; --prune removes it",
                named(&stale)
            ));
        }
    }
    Ok(Exit::Good)
}

/// Removes resources, what needs others first. A Deployment is somebody else's, and loses only what was applied to it.
pub(super) async fn undo(cluster: &mut Cluster, resources: &[Resource]) -> anyhow::Result<Exit> {
    for resource in resources.iter().rev() {
        let object = &resource.object;
        if resource.kind() != "Deployment" {
            if cluster.delete(object).await? {
                output::line(format_args!("removed {}", named(object)));
            }
            continue;
        }
        if cluster.get(object).await?.is_none() {
            continue;
        }
        // A manager that applies nothing gives up all of its fields.
        let nothing = json!({
            "apiVersion": resource.api_version(),
            "kind": resource.kind(),
            "metadata": {"name": resource.name(), "namespace": resource.namespace()},
        });
        let how = Apply {
            force: true,
            dry_run: false,
        };
        cluster.apply(&nothing, MANAGED_BY, how).await?;
        output::line(format_args!("restored {}", named(object)));
    }
    Ok(Exit::Good)
}

/// Waits until Deployments are rolled out, and forgets them.
async fn wait(cluster: &mut Cluster, deployments: &mut Vec<&Value>) -> anyhow::Result<()> {
    for deployment in deployments.drain(..) {
        output::note(format_args!(
            "waiting for the pods of {}",
            named(deployment)
        ));
        cluster
            .wait_for_rollout(deployment, ROLLOUT)
            .await
            .context("filters that need the module were not applied")?;
    }
    Ok(())
}
