//! Two files of gateways, compared: `outrider lab compare BEFORE AFTER`.
//!
//! Each is rendered to one static configuration and runs in an Envoy of its own, the first one twice: so the noise floor
//! holds what differs between two processes that do the same. Only the addresses of listeners and of the admin interface
//! are changed.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use outrider_envoy_process::Options;
use outrider_lab_report::{Role, Variant};
use outrider_load::{RequestTemplate, Session, SessionOptions, Target, Trust};
use outrider_yaml::Document;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::Scenario;
use crate::echo::hexadecimal;
use crate::experiment::rig::{Rig, Subject};
use crate::experiment::{Pace, Prepared, Workshop};
use crate::free_address::own_address;

const ABOUT: &str = "The same requests to the first listener of each gateway.";

/// Starts an Envoy for each configuration.
///
/// # Errors
///
/// A file is refused, or its Envoy does not start.
pub(crate) fn prepare(
    scenario: &Scenario,
    workshop: &Workshop,
    mut rig: Rig,
    say: &mut dyn FnMut(&str),
) -> anyhow::Result<Prepared> {
    let settings = scenario
        .configurations
        .as_ref()
        .context("`configurations` is missing")?;
    let folder = tempfile::Builder::new().prefix("outrider-lab-").tempdir()?;
    let before = name(&settings.before);
    let again = format!("{before}, again");
    let after = match name(&settings.after) {
        same if same == before => format!("{same} (after)"),
        other => other,
    };
    for (index, (name, file, role)) in [
        (before, &settings.before, Role::Baseline),
        (again, &settings.before, Role::Twin),
        (after, &settings.after, Role::Measured),
    ]
    .into_iter()
    .enumerate()
    {
        say(&format!("starting an Envoy for {name}"));
        let (mut document, text) = rendered(&workshop.outrider, file)?;
        let (address, is_tls) = readdress(&mut document)
            .with_context(|| format!("{} cannot be measured", file.display()))?;
        let own = folder.path().join(index.to_string());
        fs::create_dir(&own)?;
        let bootstrap = own.join("bootstrap.json");
        fs::write(&bootstrap, document.to_string())?;
        let mut options = Options::new(&workshop.envoy, bootstrap);
        options.module_folder = Some(workshop.modules.clone());
        let process = rig
            .start_envoy(&format!("Envoy, {name}"), options)
            .with_context(|| format!("Envoy does not start with {}", file.display()))?;
        let scheme = if is_tls { "https" } else { "http" };
        let target = Target::parse(&format!("{scheme}://{address}{}", settings.path))?;
        let mut request = RequestTemplate::get(&settings.path);
        if let Some(host) = &settings.host {
            request = request.header("host", host);
        }
        for line in &settings.headers {
            request = request.header_line(line)?;
        }
        let options = SessionOptions {
            connections: scenario.connections,
            trust: Trust::Anything,
            ..SessionOptions::default()
        };
        rig.subjects.push(Subject {
            variant: Variant {
                group: "configurations".to_owned(),
                about: ABOUT.to_owned(),
                name,
                role,
                configuration: hexadecimal(Sha256::new_with_prefix(text)),
                note: String::new(),
            },
            session: Session::open(&target, &options)?,
            requests: vec![request],
            processes: vec![process],
            meanwhile: None,
        });
    }
    rig.keep.push(Box::new(folder));
    Ok(Prepared::new(rig, Pace::of(scenario)))
}

/// Name of a file, with its folder where the file's own says nothing.
fn name(file: &Path) -> String {
    file.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// The static configuration of a gateway, and its text.
fn rendered(outrider: &Path, file: &Path) -> anyhow::Result<(Value, String)> {
    let output = Command::new(outrider)
        .args(["render", "envoy", "--static"])
        .arg(file)
        .output()
        .with_context(|| format!("cannot run {}", outrider.display()))?;
    anyhow::ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr).trim_end()
    );
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let document = Document::parse("envoy.yaml", &text)
        .and_then(|document| document.read::<Value>())
        .map_err(|problems| {
            let first = problems.first().map(|problem| problem.message.clone());
            anyhow::anyhow!(
                "what `outrider render envoy` printed cannot be read: {}",
                first.unwrap_or_default()
            )
        })?;
    Ok((document, text))
}

/// Gives every listener and the admin interface a free address. Returns that of the first listener, and whether it speaks
/// TLS.
fn readdress(document: &mut Value) -> anyhow::Result<(SocketAddr, bool)> {
    let set = |place: &mut Value, address: SocketAddr| {
        *place = json!({ "socket_address": {
            "address": address.ip().to_string(), "port_value": address.port(),
        } });
    };
    let admin = own_address()?;
    set(
        document
            .pointer_mut("/admin/address")
            .context("it has no admin interface")?,
        admin,
    );
    let listeners = document
        .pointer_mut("/static_resources/listeners")
        .and_then(Value::as_array_mut)
        .context("it has no listener")?;
    let mut first = None;
    for listener in listeners {
        let address = own_address()?;
        let is_tls = listener
            .pointer("/filter_chains/0/transport_socket")
            .is_some();
        set(
            listener
                .pointer_mut("/address")
                .context("a listener has no address")?,
            address,
        );
        first.get_or_insert((address, is_tls));
    }
    first.context("it has no listener")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_and_admin_get_free_addresses() {
        let address = json!({ "socket_address": { "address": "0.0.0.0", "port_value": 80 } });
        let mut document = json!({
            "admin": { "address": address },
            "static_resources": { "listeners": [
                { "address": address, "filter_chains": [{ "transport_socket": {} }] },
                { "address": address, "filter_chains": [{}] },
            ] },
        });
        let (first, is_tls) = readdress(&mut document).unwrap();
        assert!(is_tls && first.ip().is_loopback() && first.port() > 0);
        assert!(!document.to_string().contains("0.0.0.0"));
        assert!(readdress(&mut json!({ "admin": { "address": {} } })).is_err());
    }
}
