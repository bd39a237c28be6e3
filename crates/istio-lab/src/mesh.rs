//! A mesh with three services in two versions each, and a gateway; services know nothing of lanes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use outrider_lab::client::{Request, Response, Target};
use serde_json::{Value, json};

use crate::control_plane::{ControlPlane, SYSTEM, add_namespace, apply};
use crate::pod::{PORT, Place, Pod, PodOptions, Proxy};
use crate::programs::Programs;

/// Namespace of the services.
pub const NAMESPACE: &str = "shop";
/// Services in the order in which they call each other.
pub const SERVICES: [&str; 3] = ["hello1", "hello2", "hello3"];
/// Versions: label, and greeting.
pub const VERSIONS: [(&str, &str); 2] = [("v1", "Hello"), ("v2", "Bonjour")];
/// Lanes of the versions.
const LANES: [&str; 2] = ["en", "fr"];
/// Host by which clients reach the gateway.
pub const PUBLIC: &str = "hello.example.com";
const GATEWAY: &str = "ingress";
/// Port of the gateway.
const GATEWAY_PORT: u16 = 8080;
/// Number of the gateway's pod; services' follow.
const FIRST: u8 = 10;
const PATIENCE: Duration = Duration::from_mins(1);

/// Files of one run, in a folder that all users can read.
#[derive(Debug)]
pub struct Run {
    /// Name of the run's namespace.
    pub name: String,
    /// Folder of the run.
    pub folder: PathBuf,
    programs: Programs,
    module: PathBuf,
    program: PathBuf,
    bootstrap: PathBuf,
}

impl Run {
    /// Copies the programs to where every user can run them.
    pub fn new(
        name: &str,
        folder: &Path,
        programs: &Programs,
        module: &Path,
    ) -> anyhow::Result<Self> {
        let bin = folder.join("bin");
        fs::create_dir_all(&bin)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
        let copy = |from: &Path, name: &str| -> anyhow::Result<PathBuf> {
            let to = bin.join(name);
            fs::copy(from, &to).with_context(|| format!("{} cannot be copied", from.display()))?;
            fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
            Ok(to)
        };
        copy(module, "liboutrider.so")?;
        Ok(Self {
            name: name.to_owned(),
            folder: folder.to_owned(),
            programs: Programs {
                agent: copy(&programs.agent, "pilot-agent")?,
                envoy: copy(&programs.envoy, "envoy")?,
                ..programs.clone()
            },
            program: copy(&std::env::current_exe()?, "outrider-test-istio")?,
            module: bin,
            bootstrap: folder.join("custom_bootstrap.json"),
        })
    }

    fn place(&self) -> Place<'_> {
        Place {
            programs: &self.programs,
            run: &self.name,
            folder: &self.folder,
            module: &self.module,
            program: &self.program,
            bootstrap_part: &self.bootstrap,
        }
    }
}

/// A running mesh.
#[derive(Debug)]
pub struct Mesh {
    run: Run,
    /// Its control plane.
    pub control_plane: ControlPlane,
    gateway: Pod,
    /// By name: `hello1-v1`.
    pods: BTreeMap<String, Pod>,
}

impl Mesh {
    /// Starts everything; `tell` gets a line after each step.
    pub async fn start(
        run: Run,
        headers: &[String],
        bootstrap: &str,
        tell: &mut dyn FnMut(&str),
    ) -> anyhow::Result<Self> {
        fs::write(&run.bootstrap, bootstrap)?;
        fs::set_permissions(&run.bootstrap, fs::Permissions::from_mode(0o644))?;
        let mut control_plane = ControlPlane::start(&run.programs, &run.folder).await?;
        tell("API server and istiod");
        let cluster = &mut control_plane.cluster;
        add_namespace(cluster, NAMESPACE).await?;
        apply(cluster, &resources()).await?;
        let place = run.place();
        let gateway = PodOptions {
            name: GATEWAY.to_owned(),
            namespace: SYSTEM.to_owned(),
            labels: vec![("istio".to_owned(), "ingressgateway".to_owned())],
            number: FIRST,
            proxy: Proxy::Gateway,
            service: None,
        };
        let mut gateway = Pod::start(&place, cluster, &gateway).await?;
        let mut pods = BTreeMap::new();
        let mut number = FIRST;
        for service in SERVICES {
            for (version, greeting) in VERSIONS {
                number += 1;
                let options = service_pod(service, version, greeting, number, headers);
                let pod = Pod::start(&place, cluster, &options).await?;
                pods.insert(pod.name.clone(), pod);
            }
        }
        slices(cluster, &gateway, &pods).await?;
        for pod in pods.values_mut().chain([&mut gateway]) {
            pod.wait()?;
        }
        tell("a gateway, and three services in two versions, each with an agent and a stock Envoy");
        Ok(Self {
            run,
            control_plane,
            gateway,
            pods,
        })
    }

    /// Sends a request through the gateway.
    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> anyhow::Result<Response> {
        let mut request = Request::get(path).host(PUBLIC).timeout(PATIENCE);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let address = format!("{}:{GATEWAY_PORT}", self.gateway.address).parse()?;
        Ok(Target::http1(address).send(request).await?)
    }

    /// Sends a request until its answer is the one wanted, for a minute at most; returns the time that it took.
    pub async fn wait_for(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> anyhow::Result<Duration> {
        let began = Instant::now();
        loop {
            let answer = self.get(path, headers).await;
            let said = match &answer {
                Ok(response) => format!(
                    "{} {}",
                    response.status,
                    String::from_utf8_lossy(&response.body)
                ),
                Err(error) => format!("{error:#}"),
            };
            if said == format!("200 {body}") {
                return Ok(began.elapsed());
            }
            if began.elapsed() > PATIENCE {
                bail!(
                    "{path} with {headers:?}: wanted `{body}`, got `{said}`\n{}",
                    self.logs()
                );
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// All pods, the gateway's first.
    fn all(&self) -> impl Iterator<Item = &Pod> {
        [&self.gateway].into_iter().chain(self.pods.values())
    }

    /// The pod of a service's version, or the gateway's.
    fn pod(&self, name: &str) -> anyhow::Result<&Pod> {
        self.all()
            .find(|pod| pod.name == name)
            .with_context(|| format!("there is no pod {name}"))
    }

    /// Counters of one Envoy whose names have a text.
    pub fn counters(&self, pod: &str, part: &str) -> anyhow::Result<BTreeMap<String, u64>> {
        let pod = self.pod(pod)?;
        let text = pod.admin(&self.run.place(), &format!("/stats?filter={part}"))?;
        Ok(text
            .lines()
            .filter_map(|line| {
                let (name, value) = line.rsplit_once(": ")?;
                Some((name.to_owned(), value.parse().ok()?))
            })
            .collect())
    }

    /// What `outrider lanes` reads of one Envoy.
    pub fn lanes(&self, pod: &str) -> anyhow::Result<Value> {
        let page = self.pod(pod)?.admin(&self.run.place(), "/outrider/lanes")?;
        Ok(serde_json::from_str(&page)?)
    }

    /// What any Envoy rejected: its counters of rejected updates that are not zero, by pod.
    pub fn rejected(&self) -> anyhow::Result<Vec<String>> {
        let mut rejected = Vec::new();
        for pod in self.all() {
            for part in ["update_rejected", "config_fail"] {
                let counters = self.counters(&pod.name, part)?;
                ensure!(!counters.is_empty(), "{} has no counter `{part}`", pod.name);
                for (name, count) in counters {
                    if count > 0 {
                        rejected.push(format!("{}: {name}: {count}", pod.name));
                    }
                }
            }
        }
        Ok(rejected)
    }

    /// How often the listeners of all Envoys were modified or added, by pod.
    pub fn listener_changes(&self) -> anyhow::Result<BTreeMap<String, u64>> {
        let mut changes = BTreeMap::new();
        for pod in self.all() {
            let counters = self.counters(&pod.name, "listener_manager.listener_modified")?;
            ensure!(
                !counters.is_empty(),
                "{} does not count its listeners' changes",
                pod.name
            );
            changes.insert(pod.name.clone(), counters.values().sum());
        }
        Ok(changes)
    }

    /// Whether plain HTTP to a service's port is answered, past its Envoy's TLS.
    pub async fn answers_in_plain(&self, pod: &str) -> anyhow::Result<bool> {
        let address = format!("{}:{PORT}", self.pod(pod)?.address).parse()?;
        let request = Request::get("/hello/eric").timeout(Duration::from_secs(5));
        Ok(Target::http1(address).send(request).await.is_ok())
    }

    /// Removes the pod of a version, as scaling it to zero does.
    pub async fn remove_pod(&mut self, name: &str) -> anyhow::Result<()> {
        let pod = self
            .pods
            .remove(name)
            .with_context(|| format!("there is no pod {name}"))?;
        let cluster = &mut self.control_plane.cluster;
        slices(cluster, &self.gateway, &self.pods).await?;
        pod.remove(cluster).await
    }

    /// Replaces Istio's Gateway by one of Gateway API, for the same pod.
    pub async fn use_gateway_api(&mut self) -> anyhow::Result<()> {
        let cluster = &mut self.control_plane.cluster;
        let istio_s = json!({
            "apiVersion": "networking.istio.io/v1",
            "kind": "Gateway",
            "metadata": {"name": "public", "namespace": SYSTEM},
        });
        cluster.delete(&istio_s).await?;
        let gateway = json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": {"name": "public", "namespace": SYSTEM},
            "spec": {
                "gatewayClassName": "istio",
                // The pods of this service are the gateway: istiod makes none.
                "addresses": [{
                    "type": "Hostname",
                    "value": format!("{GATEWAY}.{SYSTEM}.svc.cluster.local"),
                }],
                "listeners": [{
                    "name": "http",
                    "port": GATEWAY_PORT,
                    "protocol": "HTTP",
                    "allowedRoutes": {"namespaces": {"from": "All"}},
                }],
            },
        });
        apply(cluster, &[gateway]).await
    }

    /// The last lines of all logs.
    pub fn logs(&self) -> String {
        let of = |pod: &Pod| format!("--- {}\n{}", pod.name, pod.tail());
        self.all().map(of).collect::<Vec<_>>().join("\n")
    }
}

fn service_pod(
    service: &str,
    version: &str,
    greeting: &str,
    number: u8,
    headers: &[String],
) -> PodOptions {
    let place = SERVICES.iter().position(|name| *name == service);
    let next = place.and_then(|place| SERVICES.get(place + 1));
    let mut arguments: Vec<String> = ["hello", "--name", service, "--greeting", greeting]
        .map(str::to_owned)
        .to_vec();
    for header in headers {
        arguments.extend(["--passes".to_owned(), header.clone()]);
    }
    if let (Some(next), Some(place)) = (next, place) {
        arguments.extend(["--next".to_owned(), (*next).to_owned()]);
        arguments.extend([
            "--at".to_owned(),
            format!("{}:{PORT}", cluster_ip(place + 1)),
        ]);
    }
    PodOptions {
        name: format!("{service}-{version}"),
        namespace: NAMESPACE.to_owned(),
        labels: vec![
            ("app".to_owned(), service.to_owned()),
            ("version".to_owned(), version.to_owned()),
        ],
        number,
        proxy: Proxy::Sidecar,
        service: Some(arguments),
    }
}

/// Address of a service, by its place.
fn cluster_ip(place: usize) -> String {
    format!("10.99.0.{}", 100 + place)
}

/// What there is before anything of Outrider: services, mutual TLS, the gateway's listener.
fn resources() -> Vec<Value> {
    let mut resources = vec![
        json!({
            "apiVersion": "security.istio.io/v1",
            "kind": "PeerAuthentication",
            "metadata": {"name": "default", "namespace": SYSTEM},
            "spec": {"mtls": {"mode": "STRICT"}},
        }),
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": GATEWAY, "namespace": SYSTEM},
            "spec": {"ports": [{"name": "http", "port": GATEWAY_PORT, "targetPort": GATEWAY_PORT}]},
        }),
        json!({
            "apiVersion": "networking.istio.io/v1",
            "kind": "Gateway",
            "metadata": {"name": "public", "namespace": SYSTEM},
            "spec": {
                "selector": {"istio": "ingressgateway"},
                "servers": [{
                    "port": {"number": GATEWAY_PORT, "name": "http", "protocol": "HTTP"},
                    "hosts": ["*"],
                }],
            },
        }),
    ];
    for (place, service) in SERVICES.iter().enumerate() {
        resources.push(json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": service, "namespace": NAMESPACE},
            "spec": {
                "clusterIP": cluster_ip(place),
                "selector": {"app": service},
                "ports": [{"name": "http", "port": PORT, "targetPort": PORT}],
            },
        }));
    }
    resources
}

/// Writes which pods each service has; the controller that does it does not run here.
async fn slices(
    cluster: &mut outrider_cluster::Cluster,
    gateway: &Pod,
    pods: &BTreeMap<String, Pod>,
) -> anyhow::Result<()> {
    let slice = |service: &str, namespace: &str, port: u16, members: Vec<&Pod>| {
        let endpoints: Vec<Value> = members
            .into_iter()
            .map(|pod| {
                json!({
                    "addresses": [pod.address],
                    "conditions": {"ready": true},
                    "targetRef": {"kind": "Pod", "name": pod.name, "namespace": namespace},
                })
            })
            .collect();
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{service}-1"),
                "namespace": namespace,
                "labels": {"kubernetes.io/service-name": service},
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
            "endpoints": endpoints,
        })
    };
    let mut all = vec![slice(GATEWAY, SYSTEM, GATEWAY_PORT, vec![gateway])];
    for service in SERVICES {
        let members = pods
            .values()
            .filter(|pod| pod.name.starts_with(&format!("{service}-")))
            .collect();
        all.push(slice(service, NAMESPACE, PORT, members));
        // Of the Services that `--api gateway` makes.
        for ((version, _), lane) in VERSIONS.iter().zip(LANES) {
            let members = pods.get(&format!("{service}-{version}"));
            let name = format!("{service}-{lane}");
            all.push(slice(&name, NAMESPACE, PORT, members.into_iter().collect()));
        }
    }
    apply(cluster, &all).await
}
