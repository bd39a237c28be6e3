//! Cases whose configuration is refused: the module gets each of them in the filter's document, has to
//! refuse it, and to go on with what it had.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use outrider_lab::Protocol;
use outrider_plugin_testkit::CaseKind;
use serde_json::Value;

use crate::check::Check;
use crate::gateway::Gateway;
use crate::replay::{Entry, Found, Tools, yaml};

const SOON: Duration = Duration::from_secs(5);

/// The plugin entry of a filter's document with this name.
fn plugin<'d>(document: &'d mut Value, name: &str) -> Option<&'d mut Value> {
    document
        .pointer_mut("/resources/0/typed_config/filter_config/value/plugins")?
        .as_array_mut()?
        .iter_mut()
        .find(|plugin| plugin.get("name").and_then(Value::as_str) == Some(name))
}

/// Tries each refusal in the place of one of `steps`' configurations of the same plugin. Answers those
/// that have none, with the reason.
pub(crate) fn try_all(
    refusals: &[Entry<'_>],
    steps: &[&Entry<'_>],
    tools: &Tools,
    found: &mut Found,
) -> anyhow::Result<Vec<((usize, usize), String)>> {
    let mut left_out = Vec::new();
    // By subject, one whose configuration is taken; a route's part would be laid over each refusal.
    let mut hosts: BTreeMap<usize, &Entry<'_>> = BTreeMap::new();
    for entry in steps {
        if entry.case.route_config.is_none() {
            hosts.entry(entry.place.0).or_insert(entry);
        }
    }
    let needed: Vec<&Entry<'_>> = hosts
        .iter()
        .filter(|(subject, _)| refusals.iter().any(|entry| entry.place.0 == **subject))
        .map(|(_, entry)| *entry)
        .collect();
    let mut gateway = None;
    if !needed.is_empty() {
        // Nobody asks anything, so nobody has to listen there.
        let nowhere = [("upstream".to_owned(), ([127, 0, 0, 1], 9).into())];
        gateway = Some(Gateway::start(tools, |listen, admin| {
            yaml(&needed, None, (listen, admin), &nowhere, Protocol::Http1)
        })?);
    }
    let good = gateway.as_ref().map(Gateway::document).transpose()?;
    for entry in refusals {
        let CaseKind::Refused(message) = &entry.case.kind else {
            continue;
        };
        let (Some(gateway), Some(good), Some(host)) = (&gateway, &good, hosts.get(&entry.place.0))
        else {
            let why = "no case of the plugin has a configuration that is accepted, in whose place this \
                       one could be tried";
            left_out.push((entry.place, why.to_owned()));
            continue;
        };
        let mut config = entry.case.config.clone();
        if let Some(patch) = &entry.case.route_config {
            config = outrider_gateway::merge(&config, patch);
        }
        let mut document = good.clone();
        let place =
            plugin(&mut document, &host.id).context("the filter's document has no such plugin")?;
        if let Some(members) = place.as_object_mut() {
            members.insert("enabled".to_owned(), true.into());
            members.insert("config".to_owned(), config);
        }
        let mark = gateway.output.mark();
        let mut check = Check::default();
        if gateway.hand_over(&document)? {
            check.differs(
                "the configuration",
                format!("refused, with {message:?}"),
                "accepted",
            );
            gateway.hand_over(good)?;
        } else if let Err(error) = gateway.output.wait_after(mark, message, SOON) {
            check.differs(
                "the configuration's refusal",
                format!("something with {message:?}"),
                error.to_string(),
            );
        }
        found.insert(entry.place, check);
    }
    if let (Some(gateway), Some(good)) = (gateway, good) {
        // It still takes what is right.
        anyhow::ensure!(gateway.hand_over(&good)?, "Envoy refuses the good document");
        gateway.stop()?;
    }
    Ok(left_out)
}
