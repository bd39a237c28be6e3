//! A pod: its network namespace, its resource on the API server, an agent with a stock Envoy, and its service.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use outrider_cluster::Cluster;
use serde_json::{Map, Value, json};

use crate::control_plane::apply;
use crate::network::{self, HOST, within};
use crate::process::Process;
use crate::programs::{Programs, succeed};

/// User of agents, whose traffic is not captured.
const AGENT: u32 = 1337;
/// User of services.
const SERVICE: u32 = 1000;
const START: Duration = Duration::from_mins(1);
/// Port of every service.
pub const PORT: u16 = 8000;

/// What kind of proxy a pod has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proxy {
    /// A sidecar, through which all traffic of the pod goes.
    Sidecar,
    /// A gateway.
    Gateway,
}

/// What a pod is to be.
#[derive(Debug, Clone)]
pub struct PodOptions {
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// Labels.
    pub labels: Vec<(String, String)>,
    /// Number in the run, from 2 to 254; also the last part of its address.
    pub number: u8,
    /// Its proxy.
    pub proxy: Proxy,
    /// Arguments of this program by which its service is run, if it has one.
    pub service: Option<Vec<String>>,
}

/// A running pod.
#[derive(Debug)]
pub struct Pod {
    /// Name.
    pub name: String,
    /// Address on the bridge.
    pub address: String,
    /// Its network namespace.
    netns: String,
    resource: Value,
    // Processes end with it.
    agent: Process,
    _service: Option<Process>,
}

/// What all pods of a run share.
#[derive(Debug)]
pub struct Place<'p> {
    /// Programs.
    pub programs: &'p Programs,
    /// Name of the run's namespace.
    pub run: &'p str,
    /// Folder of the run.
    pub folder: &'p Path,
    /// Folder with `liboutrider.so`, which every user can read.
    pub module: &'p Path,
    /// This program.
    pub program: &'p Path,
    /// What is merged into the bootstraps of all proxies: a file of JSON.
    pub bootstrap_part: &'p Path,
}

impl Pod {
    /// Makes and starts a pod; it is not waited for.
    pub async fn start(
        place: &Place<'_>,
        cluster: &mut Cluster,
        options: &PodOptions,
    ) -> anyhow::Result<Self> {
        let address = format!("10.244.1.{}", options.number);
        let resource = register(cluster, options, &address).await?;
        let netns = network::add_pod(place.run, options.number, &address)?;
        let folder = place.folder.join(&options.name);
        write_identity(cluster, options, &folder).await?;
        if options.proxy == Proxy::Sidecar {
            succeed(
                within(&netns, &place.programs.agent)
                    .args(["istio-iptables", "-p", "15001", "-z", "15006", "-u", "1337"])
                    .args(["-m", "REDIRECT", "-i", "*", "-x", "", "-b", "*"])
                    .args(["-d", "15090,15021,15020"]),
            )
            .context("the pod's traffic cannot be captured")?;
        }
        let service = options.service.as_ref().map(|arguments| {
            let mut command = within(&netns, "setpriv");
            command
                .args(user(SERVICE))
                .arg(place.program)
                .args(arguments);
            Process::start("service", &folder, &mut command)
        });
        let service = service.transpose()?;
        let agent = start_agent(place, &netns, options, &address, &folder)?;
        Ok(Self {
            name: options.name.clone(),
            address,
            netns,
            resource,
            agent,
            _service: service,
        })
    }

    /// Waits until the agent says that its Envoy is ready.
    pub fn wait(&mut self) -> anyhow::Result<()> {
        let address: std::net::SocketAddr = format!("{}:15021", self.address).parse()?;
        let name = self.name.clone();
        self.agent
            .wait(START, || {
                crate::control_plane::answers(address, "/healthz/ready") == Some(200)
            })
            .with_context(|| format!("the pod {name}"))
    }

    /// What the admin interface of its Envoy answers to a `GET`.
    pub fn admin(&self, place: &Place<'_>, path: &str) -> anyhow::Result<String> {
        succeed(within(&self.netns, place.program).args(["admin", path]))
            .with_context(|| format!("the admin interface of {}", self.name))
    }

    /// The last lines of its agent's and Envoy's log.
    pub fn tail(&self) -> String {
        self.agent.tail()
    }

    /// Removes the pod, its resource included.
    pub async fn remove(self, cluster: &mut Cluster) -> anyhow::Result<()> {
        cluster.delete(&self.resource).await?;
        network::end_processes(&self.netns);
        Ok(())
    }
}

fn user(id: u32) -> [String; 5] {
    [
        "--reuid".to_owned(),
        id.to_string(),
        "--regid".to_owned(),
        id.to_string(),
        "--clear-groups".to_owned(),
    ]
}

fn labels(options: &PodOptions) -> Map<String, Value> {
    let mut labels: Map<String, Value> = options
        .labels
        .iter()
        .map(|(name, value)| (name.clone(), value.as_str().into()))
        .collect();
    // The injector sets it: without it, clients do not encrypt.
    labels.insert("security.istio.io/tlsMode".to_owned(), "istio".into());
    labels
}

async fn register(
    cluster: &mut Cluster,
    options: &PodOptions,
    address: &str,
) -> anyhow::Result<Value> {
    let resource = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": options.name,
            "namespace": options.namespace,
            "labels": labels(options),
        },
        "spec": {
            "serviceAccountName": "default",
            "containers": [{
                "name": "app",
                "image": "none",
                "ports": [{"name": "http", "containerPort": PORT}],
            }],
        },
    });
    apply(cluster, std::slice::from_ref(&resource)).await?;
    let status = json!({
        "podIP": address,
        "podIPs": [{"ip": address}],
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
    });
    cluster.patch_status(&resource, &status).await?;
    Ok(resource)
}

/// The files that kubelet would mount: a token for the authority, and the authority's certificate.
async fn write_identity(
    cluster: &mut Cluster,
    options: &PodOptions,
    folder: &Path,
) -> anyhow::Result<()> {
    let path = format!(
        "/api/v1/namespaces/{}/serviceaccounts/default/token",
        options.namespace
    );
    let wanted = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": ["istio-ca"], "expirationSeconds": 7200},
    });
    let answer = cluster.post(&path, &wanted).await?;
    let token = answer
        .pointer("/status/token")
        .and_then(Value::as_str)
        .context("no token in the answer to a TokenRequest")?;
    let root = root_certificate(cluster, &options.namespace).await?;
    for (file, content) in [
        ("var/run/secrets/tokens/istio-token", token),
        ("var/run/secrets/istio/root-cert.pem", root.as_str()),
    ] {
        let file = folder.join(file);
        fs::create_dir_all(file.parent().unwrap_or(folder))?;
        fs::write(&file, content)?;
    }
    own(folder)
}

/// istiod writes it into each namespace some time after that is made.
async fn root_certificate(cluster: &mut Cluster, namespace: &str) -> anyhow::Result<String> {
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "istio-ca-root-cert", "namespace": namespace},
    });
    let deadline = tokio::time::Instant::now() + START;
    loop {
        let found = cluster.get(&map).await?.unwrap_or_default();
        let pem = found.pointer("/data/root-cert.pem").and_then(Value::as_str);
        if let Some(pem) = pem {
            return Ok(pem.to_owned());
        }
        anyhow::ensure!(
            tokio::time::Instant::now() < deadline,
            "istiod does not write its certificate into the namespace {namespace}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Gives a folder with all in it to the agent's user.
fn own(path: &Path) -> anyhow::Result<()> {
    chown(path, Some(AGENT), Some(AGENT))?;
    if path.is_dir() {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
        for entry in fs::read_dir(path)? {
            own(&entry?.path())?;
        }
    }
    Ok(())
}

fn start_agent(
    place: &Place<'_>,
    netns: &str,
    options: &PodOptions,
    address: &str,
    folder: &Path,
) -> anyhow::Result<Process> {
    let bootstrap: PathBuf = place
        .programs
        .istio
        .join("tools/packaging/common/envoy_bootstrap.json");
    let template = place.folder.join("bootstrap.json");
    if !template.is_file() {
        fs::copy(&bootstrap, &template)?;
        fs::set_permissions(&template, fs::Permissions::from_mode(0o644))?;
    }
    let discovery = format!("{HOST}:15012");
    let config = json!({
        "discoveryAddress": discovery,
        "binaryPath": place.programs.envoy,
        "configPath": folder.join("envoy"),
        "proxyBootstrapTemplatePath": template,
        "proxyAdminPort": 15000,
        "statusPort": 15020,
        "concurrency": 1,
        "controlPlaneAuthPolicy": "MUTUAL_TLS",
        // Istio leaves most statistics out; the checks need those of rejected updates, listeners and lanes.
        "proxyStatsMatcher": {"inclusionRegexps": [".*"]},
    });
    let root = "./var/run/secrets/istio/root-cert.pem";
    let mut command = within(netns, "setpriv");
    command
        .args(user(AGENT))
        .arg(&place.programs.agent)
        .args([
            "proxy",
            match options.proxy {
                Proxy::Sidecar => "sidecar",
                Proxy::Gateway => "router",
            },
        ])
        .arg("--domain")
        .arg(format!("{}.svc.cluster.local", options.namespace))
        .current_dir(folder)
        .env("PROXY_CONFIG", config.to_string())
        .env("ENVOY_DYNAMIC_MODULES_SEARCH_PATH", place.module)
        .env("ISTIO_BOOTSTRAP_OVERRIDE", place.bootstrap_part)
        .env("POD_NAME", &options.name)
        .env("POD_NAMESPACE", &options.namespace)
        .env("INSTANCE_IP", address)
        .env("SERVICE_ACCOUNT", "default")
        .env("CA_ADDR", &discovery)
        .env("CA_ROOT_CA", root)
        .env("XDS_ROOT_CA", root)
        .env("JWT_POLICY", "third-party-jwt")
        .env("TRUST_DOMAIN", "cluster.local")
        .env("PEER_METADATA_DISCOVERY", "false")
        .env("ISTIO_META_CLUSTER_ID", "Kubernetes")
        .env("ISTIO_META_WORKLOAD_NAME", &options.name)
        .env(
            "ISTIO_METAJSON_LABELS",
            Value::Object(labels(options)).to_string(),
        )
        .env("HOME", folder);
    if options.proxy == Proxy::Sidecar {
        command.env("ISTIO_META_INTERCEPTION_MODE", "REDIRECT");
    }
    Process::start("agent", folder, &mut command)
}
