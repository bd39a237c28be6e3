//! The control plane: an API server with etcd, and istiod.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use outrider_cluster::{Apply, Cluster};
use outrider_yaml::Document;
use serde_json::{Value, json};

use crate::network::{HOST, SERVICES};
use crate::process::Process;
use crate::programs::Programs;

/// Namespace of the control plane.
pub const SYSTEM: &str = "istio-system";
const START: Duration = Duration::from_secs(90);
/// Token of the run's administrator; nobody else reaches its API server.
const TOKEN: &str = "outrider-test-istio";

/// A running control plane.
#[derive(Debug)]
pub struct ControlPlane {
    /// The API server, as administrator.
    pub cluster: Cluster,
    /// A kubeconfig for it.
    pub kubeconfig: PathBuf,
    // istiod ends first.
    _istiod: Process,
    _api_server: Process,
}

impl ControlPlane {
    /// Starts both, with Istio's definitions.
    pub async fn start(programs: &Programs, folder: &Path) -> anyhow::Result<Self> {
        let (mut api_server, kubeconfig) = start_api_server(programs, folder)?;
        let mut cluster = connect(&mut api_server, &kubeconfig).await?;
        for namespace in [SYSTEM, "default"] {
            add_namespace(&mut cluster, namespace).await?;
        }
        let gateway_api = programs.gateway_api.join("config/crd/standard");
        for definitions in [
            programs
                .istio
                .join("manifests/charts/base/files/crd-all.gen.yaml"),
            gateway_api.join("gateway.networking.k8s.io_gatewayclasses.yaml"),
            gateway_api.join("gateway.networking.k8s.io_gateways.yaml"),
            gateway_api.join("gateway.networking.k8s.io_grpcroutes.yaml"),
            gateway_api.join("gateway.networking.k8s.io_httproutes.yaml"),
            gateway_api.join("gateway.networking.k8s.io_referencegrants.yaml"),
            gateway_api.join("gateway.networking.k8s.io_backendtlspolicies.yaml"),
            gateway_api.join("gateway.networking.k8s.io_listenersets.yaml"),
        ] {
            let text = fs::read_to_string(&definitions)
                .with_context(|| format!("{} cannot be read", definitions.display()))?;
            apply(&mut cluster, &documents(&text)?).await?;
        }
        let istiod = start_istiod(programs, folder, &kubeconfig)?;
        Ok(Self {
            cluster,
            kubeconfig,
            _istiod: istiod,
            _api_server: api_server,
        })
    }
}

fn start_api_server(programs: &Programs, folder: &Path) -> anyhow::Result<(Process, PathBuf)> {
    let certificates = folder.join("api-server");
    fs::create_dir_all(&certificates)?;
    let key = certificates.join("service-accounts.pem");
    let public_key = certificates.join("service-accounts-public.pem");
    let pair = rcgen::KeyPair::generate()?;
    fs::write(&key, pair.serialize_pem())?;
    fs::write(&public_key, pair.public_key_pem())?;
    let tokens = certificates.join("tokens.csv");
    fs::write(&tokens, format!("{TOKEN},admin,1,\"system:masters\"\n"))?;
    let mut command = Command::new(&programs.api_server);
    command
        .current_dir(&certificates)
        .env("APISERVER_ETCD_DIR", certificates.join("etcd"))
        .env("APISERVER_ETCD_CLIENT", "http://127.0.0.1:22379")
        .env("APISERVER_ETCD_PEER", "http://127.0.0.1:22380")
        .args([
            "--etcd-servers=http://127.0.0.1:22379",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--secure-port=26443",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--authorization-mode=RBAC",
            "--endpoint-reconciler-type=none",
            "--allow-privileged=true",
            "--api-audiences=https://kubernetes.default.svc,istio-ca",
        ])
        .arg(format!("--service-cluster-ip-range={SERVICES}"))
        .arg(format!("--cert-dir={}", certificates.display()))
        .arg(format!(
            "--service-account-signing-key-file={}",
            key.display()
        ))
        .arg(format!(
            "--service-account-key-file={}",
            public_key.display()
        ))
        .arg(format!("--token-auth-file={}", tokens.display()));
    let mut api_server = Process::start("api-server", folder, &mut command)?;
    let authority = certificates.join("apiserver.crt");
    api_server.wait(START, || authority.is_file())?;
    let kubeconfig = folder.join("kubeconfig");
    let content = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lab",
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "admin"}}],
        "clusters": [{"name": "lab", "cluster": {
            "server": "https://127.0.0.1:26443",
            "certificate-authority": authority,
        }}],
        "users": [{"name": "admin", "user": {"token": TOKEN}}],
    });
    let mut file = fs::File::create(&kubeconfig)?;
    writeln!(file, "{content:#}")?;
    Ok((api_server, kubeconfig))
}

/// Waits until the API server has all that it makes itself at its start.
async fn connect(api_server: &mut Process, kubeconfig: &Path) -> anyhow::Result<Cluster> {
    let mut cluster = Cluster::connect(Some(kubeconfig), None).await?;
    let made_last =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}});
    let deadline = tokio::time::Instant::now() + START;
    loop {
        match cluster.get(&made_last).await {
            Ok(Some(_)) => return Ok(cluster),
            _ if tokio::time::Instant::now() < deadline => {}
            last => bail!(
                "the API server is not ready: {last:?}\n{}",
                api_server.tail()
            ),
        }
        api_server.check()?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn start_istiod(programs: &Programs, folder: &Path, kubeconfig: &Path) -> anyhow::Result<Process> {
    let config = folder.join("istiod.yaml");
    fs::write(
        &config,
        format!(
            "rootNamespace: {SYSTEM}\ntrustDomain: cluster.local\ndefaultConfig: {{discoveryAddress: \"{HOST}:15012\"}}\n"
        ),
    )?;
    let mut command = Command::new(&programs.istiod);
    command
        .current_dir(folder)
        .arg("discovery")
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg("--meshConfig")
        .arg(&config)
        .args(["--httpAddr", "127.0.0.1:8080"])
        .args(["--httpsAddr", "127.0.0.1:15017"])
        .args(["--grpcAddr", "127.0.0.1:15010"])
        .arg("--secureGRPCAddr")
        .arg(format!("{HOST}:15012"))
        .args(["--monitoringAddr", "127.0.0.1:15014"])
        .args(["--ctrlz_address", "127.0.0.1"])
        .env("ISTIOD_CUSTOM_HOST", format!("localhost,{HOST}"))
        .envs([
            ("POD_NAMESPACE", SYSTEM),
            ("POD_NAME", "istiod-1"),
            ("REVISION", "default"),
            ("CLUSTER_ID", "Kubernetes"),
            ("INJECT_ENABLED", "false"),
            ("VALIDATION_WEBHOOK_CONFIG_NAME", ""),
            ("PILOT_CERT_PROVIDER", "istiod"),
            // Stock Envoy lacks these filters of Istio's own.
            ("PILOT_ENABLE_METADATA_EXCHANGE", "false"),
            ("PILOT_ENABLE_ALPN_FILTER", "false"),
            ("PILOT_ENABLE_NODE_UNTAINT_CONTROLLERS", "false"),
        ]);
    let mut istiod = Process::start("istiod", folder, &mut command)?;
    let address = (std::net::Ipv4Addr::LOCALHOST, 8080).into();
    istiod.wait(START, || {
        answers(address, "/ready").is_some_and(|status| status == 200)
    })?;
    Ok(istiod)
}

/// Status of a `GET`, if there is an answer at once.
pub(crate) fn answers(address: std::net::SocketAddr, path: &str) -> Option<u16> {
    use std::io::Read as _;
    let patience = Duration::from_secs(2);
    let mut stream = std::net::TcpStream::connect_timeout(&address, patience).ok()?;
    stream.set_read_timeout(Some(patience)).ok()?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    )
    .ok()?;
    let mut head = [0; 12];
    stream.read_exact(&mut head).ok()?;
    let head = std::str::from_utf8(&head).ok()?;
    head.split(' ').nth(1)?.parse().ok()
}

/// A namespace, with the account that pods run as; the controller that makes it does not run here.
pub async fn add_namespace(cluster: &mut Cluster, name: &str) -> anyhow::Result<()> {
    apply(
        cluster,
        &[
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
            json!({
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": "default", "namespace": name},
            }),
        ],
    )
    .await
}

const FORCED: Apply = Apply {
    force: true,
    dry_run: false,
};

/// Server-side apply of several resources.
pub async fn apply(cluster: &mut Cluster, resources: &[Value]) -> anyhow::Result<()> {
    for resource in resources {
        cluster
            .apply(resource, "outrider-test-istio", FORCED)
            .await?;
    }
    Ok(())
}

/// The resources of a YAML text with several documents.
pub fn documents(text: &str) -> anyhow::Result<Vec<Value>> {
    match Document::parse_all("resources", text) {
        Ok(documents) => Ok(documents
            .iter()
            .map(|document| document.root.to_json())
            .collect()),
        Err(problems) => {
            let said: Vec<String> = problems.iter().map(ToString::to_string).collect();
            bail!("{}", said.join("\n"));
        }
    }
}
