//! Programs that the run needs: Istio's and Kubernetes', built from `tests/istio` once, and those of the system.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use outrider_envoy_process::Search;

/// Version of Istio that `tests/istio/istio/go.mod` holds.
pub const ISTIO: &str = "1.31.0";
/// Version of Kubernetes that `tests/istio/apiserver/go.mod` holds.
pub const KUBERNETES: &str = "v1.36.3";

/// Programs of the system, each with the package of Debian that has it.
const TOOLS: [(&str, &str); 4] = [
    ("go", "golang, 1.26 or later"),
    ("ip", "iproute2"),
    ("iptables", "iptables"),
    ("setpriv", "util-linux"),
];

/// Where everything is.
#[derive(Debug, Clone)]
pub struct Programs {
    /// kube-apiserver with etcd in one process.
    pub api_server: PathBuf,
    /// istiod.
    pub istiod: PathBuf,
    /// pilot-agent.
    pub agent: PathBuf,
    /// Stock Envoy.
    pub envoy: PathBuf,
    /// Sources of Istio, with its definitions of resources and its bootstrap.
    pub istio: PathBuf,
    /// Sources of Gateway API, with its definitions.
    pub gateway_api: PathBuf,
}

/// Says what is missing on this machine; empty: nothing.
pub fn missing() -> Vec<String> {
    let mut missing = Vec::new();
    if !rustix::process::geteuid().is_root() {
        missing.push("root: network namespaces and iptables need it".to_owned());
    }
    let folders: Vec<PathBuf> = std::env::var_os("PATH")
        .map(|path| std::env::split_paths(&path).collect())
        .unwrap_or_default();
    for (tool, package) in TOOLS {
        if !folders.iter().any(|folder| folder.join(tool).is_file()) {
            missing.push(format!("`{tool}` (Debian: {package})"));
        }
    }
    if missing.is_empty() && !can_make_namespaces() {
        missing.push("network namespaces: `ip netns add` is refused here".to_owned());
    }
    missing
}

fn can_make_namespaces() -> bool {
    let name = format!("or-{}-try", std::process::id());
    let ip = |verb: &str| {
        Command::new("ip")
            .args(["netns", verb, &name])
            .output()
            .is_ok_and(|output| output.status.success())
    };
    ip("add") && ip("del")
}

impl Programs {
    /// Finds or builds all programs. `tell` gets a line before each build, which takes minutes.
    pub fn get(
        repository: &Path,
        output: &Path,
        tell: &mut dyn FnMut(&str),
    ) -> anyhow::Result<Self> {
        std::fs::create_dir_all(output)?;
        let output = std::path::absolute(output)?;
        let sources = repository.join("tests/istio");
        let istio_version = format!("-X istio.io/istio/pkg/version.buildVersion={ISTIO}");
        let kubernetes_version =
            format!("-X k8s.io/component-base/version.gitVersion={KUBERNETES}");
        let mut build = |module: &str, package: &str, name: &str, version: &str| {
            let path = output.join(name);
            if path.is_file() {
                return anyhow::Ok(path);
            }
            tell(&format!("building {name}"));
            // A build that breaks off leaves nothing under the name.
            let unfinished = output.join(format!("{name}.new"));
            let mut go = Command::new("go");
            go.current_dir(sources.join(module))
                .env("GOFLAGS", "-buildvcs=false -mod=readonly")
                .args(["build", "-p", "2", "-trimpath", "-ldflags"])
                .arg(format!("-s -w {version}"))
                .arg("-o")
                .arg(&unfinished)
                .arg(package);
            succeed(&mut go).with_context(|| format!("{name} cannot be built"))?;
            std::fs::rename(&unfinished, &path)?;
            Ok(path)
        };
        let istiod = build("istio", "./discovery", "istiod", &istio_version)?;
        let agent = build("istio", "./agent", "pilot-agent", &istio_version)?;
        let api_server = build("apiserver", ".", "kube-apiserver", &kubernetes_version)?;
        let sources_of = |module: &str| -> anyhow::Result<PathBuf> {
            let mut download = Command::new("go");
            download
                .current_dir(sources.join("istio"))
                .args(["mod", "download", "-json", module]);
            let said: serde_json::Value = serde_json::from_str(&succeed(&mut download)?)?;
            match said.get("Dir").and_then(serde_json::Value::as_str) {
                Some(folder) => Ok(folder.into()),
                None => bail!("go does not say where the sources of {module} are: {said}"),
            }
        };
        Ok(Self {
            api_server,
            istiod,
            agent,
            envoy: Search::from_environment(None).find()?.binary,
            istio: sources_of("istio.io/istio")?,
            gateway_api: sources_of("sigs.k8s.io/gateway-api")?,
        })
    }
}

/// Runs a command to its end, and returns what it wrote; an error has what it complained of.
pub fn succeed(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let arguments: Vec<String> = command
        .get_args()
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let output = command
        .output()
        .with_context(|| format!("`{name}` cannot be run"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "`{name} {}`: {}: {}",
            arguments.join(" "),
            output.status,
            said.trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
