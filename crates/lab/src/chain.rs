//! A chain of services with a gateway at its edge and a sidecar for each version of each service, on loopback: what lanes
//! are shown and tested on.
//!
//! Each proxy is an `outrider up` of its own. All of them include one file, which says which versions there are.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tempfile::TempDir;

use crate::client::{Request, Target};
use crate::free_address::own_address;
use crate::hello::{Hello, HelloOptions};
use crate::up::{Up, save};

/// Lanes of the chain, each with the word that its services greet with; the first is the baseline.
pub const LANES: [(&str, &str); 2] = [("en", "Hello"), ("fr", "Bonjour")];

/// How long a proxy may take until it serves; a cold machine reads Envoy's 100 MB first.
const READY: Duration = Duration::from_mins(2);
/// How long a change may take until it is in force in all proxies.
const CHANGE: Duration = Duration::from_secs(30);

/// A service of the chain.
#[derive(Debug, Clone)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// Services that it calls.
    pub next: Vec<String>,
}

/// How a lane gets from hop to hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Sidecars remember the lane, and restore it by a trace's id.
    Permissive,
    /// Each version's sidecar writes its own lane to what the service sends.
    Strict,
}

/// What a chain is started with.
#[derive(Debug, Clone)]
pub struct ChainOptions {
    /// The `outrider` command.
    pub outrider: PathBuf,
    /// Further arguments of `outrider up`.
    pub arguments: Vec<String>,
    /// The services; the edge calls the first.
    pub services: Vec<Service>,
    /// How a lane gets from hop to hop.
    pub mode: Mode,
    /// Headers that services pass on, in lower case.
    pub passes: Vec<String>,
    /// Services answer at once, and call the next ones so much later.
    pub calls_later: Option<Duration>,
    /// Requests for the lane `fr` stay in the baseline, and copies of them enter it.
    pub mirror: bool,
    /// Further lines of the group of lanes, indented by four spaces.
    pub group: String,
}

impl ChainOptions {
    /// A chain of `hello1` to `hello<length>`, in permissive mode, whose services pass on `x-request-id`.
    pub fn line(outrider: PathBuf, length: usize) -> Self {
        let name = |number: usize| format!("hello{number}");
        Self {
            outrider,
            arguments: Vec::new(),
            services: (1..=length)
                .map(|number| Service {
                    name: name(number),
                    next: (number < length)
                        .then(|| name(number + 1))
                        .into_iter()
                        .collect(),
                })
                .collect(),
            mode: Mode::Permissive,
            passes: vec!["x-request-id".to_owned()],
            calls_later: None,
            mirror: false,
            group: String::new(),
        }
    }
}

/// A running chain. Dropping it ends all of its processes.
#[derive(Debug)]
pub struct Chain {
    options: ChainOptions,
    folder: TempDir,
    edge: SocketAddr,
    proxies: Vec<Proxy>,
    /// By service and lane, where the sidecar takes requests; those that are served.
    versions: BTreeMap<(String, String), SocketAddr>,
}

/// One Envoy of the chain.
#[derive(Debug)]
struct Proxy {
    name: String,
    up: Up,
    admin: SocketAddr,
    _service: Option<Hello>,
}

impl Chain {
    /// Starts everything; it serves when this returns.
    pub async fn start(options: ChainOptions) -> anyhow::Result<Self> {
        let mut chain = Self {
            folder: TempDir::new()?,
            edge: own_address()?,
            proxies: Vec::new(),
            versions: BTreeMap::new(),
            options,
        };
        let mut sidecars = Vec::new();
        for service in chain.options.services.clone() {
            for (lane, greeting) in LANES {
                let inbound = own_address()?;
                chain
                    .versions
                    .insert((service.name.clone(), lane.to_owned()), inbound);
                sidecars.push((service.clone(), lane, greeting, inbound));
            }
        }
        chain.write_versions()?;
        chain.start_edge()?;
        for (service, lane, greeting, inbound) in &sidecars {
            chain
                .start_sidecar(service, lane, greeting, *inbound)
                .await?;
        }
        let first = chain
            .options
            .services
            .first()
            .context("the chain has no service")?
            .name
            .clone();
        for proxy in &mut chain.proxies {
            let (address, host) = match sidecars
                .iter()
                .find(|(service, lane, ..)| proxy.name == format!("{}-{lane}", service.name))
            {
                Some((service, _, _, inbound)) => (*inbound, service.name.clone()),
                None => continue,
            };
            proxy
                .up
                .wait_ready(address, &host, "/hello/ready", READY)
                .await
                .with_context(|| format!("sidecar {}", proxy.name))?;
        }
        let edge = chain.edge;
        if let Some(proxy) = chain.proxies.iter_mut().find(|proxy| proxy.name == "edge") {
            proxy
                .up
                .wait_ready(edge, &first, "/hello/ready", READY)
                .await
                .context("the edge")?;
        }
        Ok(chain)
    }

    /// Where clients connect.
    pub fn edge(&self) -> SocketAddr {
        self.edge
    }

    /// Sends one request to the edge and returns the answer's text.
    ///
    /// # Errors
    /// There is no answer with status 200.
    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> anyhow::Result<String> {
        let mut request = Request::get(path)
            .host("hello.example.com")
            .timeout(Duration::from_secs(30));
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let response = Target::http1(self.edge).send(request).await?;
        anyhow::ensure!(
            response.status == 200,
            "status {}: {}",
            response.status,
            response.text()
        );
        Ok(response.text())
    }

    /// Takes a version of a service out of the lanes, in all proxies, and waits until `path` with `headers` is answered
    /// with `expected`.
    ///
    /// # Errors
    /// The answer does not become this one.
    pub async fn remove_version(
        &mut self,
        (service, lane): (&str, &str),
        (path, headers): (&str, &[(&str, &str)]),
        expected: &str,
    ) -> anyhow::Result<()> {
        self.versions.remove(&(service.to_owned(), lane.to_owned()));
        self.write_versions()?;
        let began = Instant::now();
        loop {
            let answer = self.get(path, headers).await?;
            if answer == expected {
                return Ok(());
            }
            anyhow::ensure!(
                began.elapsed() < CHANGE,
                "{path} is still answered with {answer}, not with {expected}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Where the admin interfaces of all Envoys are, the edge's first.
    pub fn admins(&self) -> Vec<SocketAddr> {
        self.proxies.iter().map(|proxy| proxy.admin).collect()
    }

    /// Value of a counter of the lanes in one proxy: `edge`, or service and lane as in `hello1-fr`.
    ///
    /// # Errors
    /// There is no such proxy, or its Envoy does not answer.
    pub async fn counter(&self, proxy: &str, outcome: &str) -> anyhow::Result<u64> {
        let found = self.proxies.iter().find(|one| one.name == proxy);
        let admin = found
            .with_context(|| format!("there is no proxy {proxy}"))?
            .admin;
        let name = format!("outrider.lanes.hello.{outcome}");
        let request = Request::get(&format!("/stats?filter={name}$")).host("admin");
        let text = Target::http1(admin).send(request).await?.text();
        let value = text.lines().find_map(|line| {
            line.rsplit_once(": ")
                .filter(|(key, _)| key.ends_with(&name))
        });
        Ok(value.map_or(Ok(0), |(_, value)| value.trim().parse())?)
    }

    /// The command of one proxy is ended and started anew.
    ///
    /// # Errors
    /// It does not end, or does not serve again.
    pub async fn restart(&mut self, proxy: &str) -> anyhow::Result<()> {
        let outrider = self.options.outrider.clone();
        let arguments = self.options.arguments.clone();
        let folder = self.folder.path().join(proxy);
        let (service, lane) = proxy
            .rsplit_once('-')
            .context("a sidecar's name has its lane")?;
        let address = *self
            .versions
            .get(&(service.to_owned(), lane.to_owned()))
            .context("there is no such version")?;
        let found = self.proxies.iter_mut().find(|one| one.name == proxy);
        let found = found.with_context(|| format!("there is no proxy {proxy}"))?;
        found.up.stop().await?;
        found.up = start_up(&outrider, &folder, &arguments)?;
        found
            .up
            .wait_ready(address, service, "/hello/ready", READY)
            .await
    }

    /// Ends everything in an orderly way.
    ///
    /// # Errors
    /// A command ended before, or with a failure.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        for proxy in &mut self.proxies {
            proxy
                .up
                .stop()
                .await
                .with_context(|| format!("proxy {}", proxy.name))?;
        }
        Ok(())
    }

    /// Writes the file that all proxies include.
    fn write_versions(&self) -> anyhow::Result<()> {
        let mut text = "lanes:\n  hello:\n    baseline: en\n".to_owned();
        writeln!(
            text,
            "    enter:\n      fr: {{when: {{headers: [{{name: user, exact: fr}}]}}, mirror: {}}}",
            self.options.mirror
        )?;
        text.push_str(&self.options.group);
        text.push_str("    services:\n");
        for service in &self.options.services {
            let of_service = self
                .versions
                .keys()
                .filter(|(name, _)| *name == service.name);
            let versions: Vec<String> = of_service
                .map(|(name, lane)| format!("{lane}: {name}-{lane}"))
                .collect();
            writeln!(text, "      {}: {{{}}}", service.name, versions.join(", "))?;
        }
        text.push_str("upstreams:\n");
        for ((name, lane), address) in &self.versions {
            writeln!(text, "  {name}-{lane}: {{endpoints: [\"{address}\"]}}")?;
        }
        save(&self.folder.path().join("lanes.yaml"), text)
    }

    fn start_edge(&mut self) -> anyhow::Result<()> {
        let first = self
            .options
            .services
            .first()
            .context("the chain has no service")?;
        let text = format!(
            "gateway:\n  listeners: [{{address: \"{edge}\"}}]\n  admin: \"{{admin}}\"\n  workers: 2\n\
             projects:\n  - name: edge\n    hosts: [\"*\"]\n    lane: {{group: hello, role: edge}}\n    routes:\n      \
             - {{match: {{prefix: /}}, to: {{lanes: hello, service: {service}}}}}\n",
            edge = self.edge,
            service = first.name,
        );
        self.start_proxy("edge", &text, None)
    }

    async fn start_sidecar(
        &mut self,
        service: &Service,
        lane: &str,
        greeting: &str,
        inbound: SocketAddr,
    ) -> anyhow::Result<()> {
        let outbound = own_address()?;
        let hello = Hello::start(HelloOptions {
            name: service.name.clone(),
            greeting: greeting.to_owned(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            proxy: outbound,
            next: service.next.clone(),
            passes: self.options.passes.clone(),
            calls_later: self.options.calls_later,
        })
        .await?;
        let place = format!(", service: {}, version: {lane}", service.name);
        let own = match self.options.mode {
            Mode::Permissive => String::new(),
            Mode::Strict => format!(", own: {lane}"),
        };
        let mut text = format!(
            "gateway:\n  listeners:\n    - {{name: inbound, address: \"{inbound}\"}}\n    - {{name: outbound, address: \
             \"{outbound}\"}}\n  admin: \"{{admin}}\"\n  workers: 2\n\
             upstreams:\n  local: {{endpoints: [\"{local}\"]}}\n\
             projects:\n  - name: inbound\n    hosts: [\"*\"]\n    lane: {{group: hello, role: inbound{place}}}\n    routes: \
             [{{match: {{prefix: /}}, to: local}}]\n",
            local = hello.address(),
        );
        for next in &service.next {
            write!(
                text,
                "  - name: to-{next}\n    hosts: [{next}]\n    lane: {{group: hello, role: outbound{own}{place}}}\n    routes: \
                 [{{match: {{prefix: /}}, to: {{lanes: hello, service: {next}}}}}]\n"
            )?;
        }
        self.start_proxy(&format!("{}-{lane}", service.name), &text, Some(hello))
    }

    fn start_proxy(
        &mut self,
        name: &str,
        text: &str,
        service: Option<Hello>,
    ) -> anyhow::Result<()> {
        let folder = self.folder.path().join(name);
        fs::create_dir(&folder)?;
        let admin = own_address()?;
        let text = text.replace("{admin}", &admin.to_string());
        fs::write(
            folder.join("outrider.yaml"),
            format!("include: [../lanes.yaml]\n{text}"),
        )?;
        let up = start_up(&self.options.outrider, &folder, &self.options.arguments)?;
        self.proxies.push(Proxy {
            name: name.to_owned(),
            up,
            admin,
            _service: service,
        });
        Ok(())
    }
}

fn start_up(outrider: &Path, folder: &Path, arguments: &[String]) -> anyhow::Result<Up> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Up::start_with(
        outrider,
        &folder.join("outrider.yaml"),
        &folder.join("log"),
        &arguments,
    )
}
