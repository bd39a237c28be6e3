//! The claims about lanes in a mesh, each checked.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use serde_json::{Value, json};

use crate::control_plane::{apply, documents};
use crate::mesh::{Mesh, NAMESPACE, Run};
use crate::programs::{ISTIO, KUBERNETES, succeed};

const PATH: &str = "/hello/eric";
/// Requests of each lane that are sent at a time, and how often.
const AT_ONCE: u32 = 8;
const ROUNDS: u32 = 25;
/// Time for which the load goes on before and after a change.
const AROUND: Duration = Duration::from_secs(3);

/// Number of a trace, so that each request has its own.
static TRACES: AtomicU64 = AtomicU64::new(1);

fn traceparent() -> String {
    let number = TRACES.fetch_add(1, Ordering::Relaxed);
    format!("00-{number:032x}-00000000000000a1-01")
}

/// Answer of the chain when each service greets so.
fn chain(greetings: [&str; 3]) -> String {
    let parts: Vec<String> = greetings
        .iter()
        .enumerate()
        .map(|(place, greeting)| format!("{greeting} eric@hello{}:", place + 1))
        .collect();
    parts.join("<")
}

/// What the checks report.
struct Report<'t> {
    lines: String,
    tell: &'t mut dyn FnMut(&str),
}

impl Report<'_> {
    fn held(&mut self, line: &str) {
        (self.tell)(line);
        // Writing to a string cannot fail.
        let _ = writeln!(self.lines, "- {line}");
    }
}

/// The command, and where its files are.
struct Outrider {
    command: PathBuf,
    meshes: PathBuf,
    kubeconfig: PathBuf,
}

impl Outrider {
    fn render(&self, mesh: &str, more: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new(&self.command);
        command
            .args(["render", "istio"])
            .arg(self.meshes.join(mesh))
            .args(more);
        succeed(&mut command)
    }

    fn in_cluster(&self, mesh: &str, more: &[&str]) -> anyhow::Result<String> {
        let kubeconfig = self.kubeconfig.to_string_lossy().into_owned();
        let mut all = vec!["--kubeconfig", &kubeconfig];
        all.extend(more);
        self.render(mesh, &all)
    }
}

/// Checks all claims; returns the summary, a page of Markdown.
///
/// # Errors
/// The first claim that does not hold.
pub async fn all(
    run: Run,
    outrider: &Path,
    repository: &Path,
    tell: &mut dyn FnMut(&str),
) -> anyhow::Result<String> {
    let mut report = Report {
        lines: String::new(),
        tell,
    };
    let began = Instant::now();
    let mut outrider = Outrider {
        command: outrider.to_owned(),
        meshes: repository.join("crates/istio-lab/meshes"),
        kubeconfig: PathBuf::new(),
    };
    let rendered = documents(&outrider.render("permissive.yaml", &[])?)?;
    // The ConfigMap that the injector would mount.
    let bootstrap = rendered
        .iter()
        .find_map(|resource| resource.pointer("/data/custom_bootstrap.json")?.as_str())
        .context("no bootstrap is rendered")?;
    let headers = ["traceparent".to_owned()];
    let mut mesh = Mesh::start(run, &headers, bootstrap, report.tell).await?;
    outrider.kubeconfig = mesh.control_plane.kubeconfig.clone();
    strict_tls(&mesh, &mut report).await?;
    both_lanes(&mesh, &outrider, &mut report).await?;
    many_at_once(&mesh, &mut report).await?;
    differences(&outrider, &mut report)?;
    let mesh_of_load = Arc::new(mesh);
    change_under_load(&mesh_of_load, &outrider, &mut report).await?;
    mesh = Arc::into_inner(mesh_of_load).context("the load holds the mesh")?;
    mirrored(&mesh, &outrider, &mut report).await?;
    fallback(&mut mesh, &mut report).await?;
    strict_mode(&mesh, &outrider, &mut report).await?;
    remove(&mut mesh, &outrider, &mut report).await?;
    gateway_api(&mut mesh, &outrider, &mut report).await?;
    delivery(&mut mesh, &outrider, &mut report).await?;
    Ok(format!(
        "# Lanes in a whole Istio\n\n\
         Written by `make test-istio`: Kubernetes' API server {KUBERNETES} with etcd, istiod and pilot-agent {ISTIO}, stock Envoy as \
         the gateway and as six sidecars, captured traffic, on one machine. {:.0} seconds. Each line was checked.\n\n{}",
        began.elapsed().as_secs_f64(),
        report.lines
    ))
}

async fn strict_tls(mesh: &Mesh, report: &mut Report<'_>) -> anyhow::Result<()> {
    ensure!(
        !mesh.answers_in_plain("hello1-v1").await?,
        "plain HTTP past mutual TLS is answered"
    );
    report.held("Mutual TLS is strict: plain HTTP to a service is refused.");
    Ok(())
}

fn not_rejected(mesh: &Mesh) -> anyhow::Result<()> {
    let rejected = mesh.rejected()?;
    ensure!(
        rejected.is_empty(),
        "Envoys rejected: {rejected:?}\n{}",
        mesh.logs()
    );
    Ok(())
}

async fn both_lanes(
    mesh: &Mesh,
    outrider: &Outrider,
    report: &mut Report<'_>,
) -> anyhow::Result<()> {
    let applied = outrider.in_cluster("permissive.yaml", &["--apply"])?;
    let count = applied.lines().count();
    report.held(&format!(
        "`outrider render istio --apply` makes {count} resources, and the API server takes them."
    ));
    let (fr, en) = (chain(["Bonjour"; 3]), chain(["Hello"; 3]));
    let trace = traceparent();
    let took = mesh
        .wait_for(PATH, &[("user", "fr"), ("traceparent", &trace)], &fr)
        .await?;
    for (what, path, headers, wanted) in [
        ("`user: en`", PATH, vec![("user", "en")], &en),
        ("no `user`", PATH, vec![], &en),
        ("`?lang=fr`", "/hello/eric?lang=fr", vec![], &fr),
        (
            "a lane's header from outside",
            PATH,
            vec![("x-outrider-lane", "fr"), ("x-outrider-lane-fallback", "1")],
            &en,
        ),
        ("`user: fr`", PATH, vec![("user", "fr")], &fr),
    ] {
        let trace = traceparent();
        let mut headers = headers;
        headers.push(("traceparent", &trace));
        let answer = mesh.get(path, &headers).await?;
        let body = String::from_utf8_lossy(&answer.body).into_owned();
        ensure!(body == *wanted, "{what}: wanted `{wanted}`, got `{body}`");
        ensure!(
            answer.headers.get("x-served-by") == Some("the mesh"),
            "{what}: the plugin at the gateway did not run"
        );
    }
    not_rejected(mesh)?;
    report.held(&format!(
        "`user: fr` and `?lang=fr` give `{fr}`, others `{en}`, {:.1} s after that; what clients send in the lane's headers counts \
         for nothing; a plugin of the catalog runs at the gateway. No Envoy rejected anything.",
        took.as_secs_f64()
    ));
    Ok(())
}

/// Sends one request; an error says what is wrong with its answer.
async fn one(mesh: &Mesh, user: &str, wanted: &str) -> anyhow::Result<()> {
    let trace = traceparent();
    let answer = mesh
        .get(PATH, &[("user", user), ("traceparent", &trace)])
        .await?;
    let body = String::from_utf8_lossy(&answer.body);
    ensure!(
        answer.status == 200 && body == wanted,
        "`user: {user}`: {} {body}",
        answer.status
    );
    Ok(())
}

async fn many_at_once(mesh: &Mesh, report: &mut Report<'_>) -> anyhow::Result<()> {
    let (fr, en) = (chain(["Bonjour"; 3]), chain(["Hello"; 3]));
    for _ in 0..ROUNDS {
        let mut sent = Vec::new();
        for _ in 0..AT_ONCE {
            sent.push(one(mesh, "fr", &fr));
            sent.push(one(mesh, "en", &en));
        }
        for answered in futures_util::future::join_all(sent).await {
            answered?;
        }
    }
    report.held(&format!(
        "{} requests of both lanes, {} at a time: none crosses over.",
        2 * AT_ONCE * ROUNDS,
        2 * AT_ONCE
    ));
    Ok(())
}

fn differences(outrider: &Outrider, report: &mut Report<'_>) -> anyhow::Result<()> {
    let same = outrider.in_cluster("permissive.yaml", &["--diff", "cluster"])?;
    ensure!(same.is_empty(), "a difference to what was applied: {same}");
    let Err(other) = outrider.in_cluster("changed.yaml", &["--diff", "cluster"]) else {
        bail!("no difference between two files");
    };
    ensure!(format!("{other:#}").contains("exit status: 1"), "{other:#}");
    report.held(
        "`--diff cluster` finds no difference to what was applied, and finds one after an edit.",
    );
    Ok(())
}

/// Sends requests of both lanes until it is told to stop, and counts those that fail.
async fn load(
    mesh: Arc<Mesh>,
    stop: Arc<AtomicBool>,
    user: &'static str,
    right: Vec<String>,
) -> (u64, Vec<String>) {
    let (mut sent, mut wrong) = (0, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let trace = traceparent();
        let answer = mesh
            .get(PATH, &[("user", user), ("traceparent", &trace)])
            .await;
        sent += 1;
        match answer {
            Ok(answer)
                if answer.status == 200
                    && right.iter().any(|right| right.as_bytes() == &*answer.body) => {}
            Ok(answer) => wrong.push(format!(
                "{} {}",
                answer.status,
                String::from_utf8_lossy(&answer.body)
            )),
            Err(error) => wrong.push(format!("{error:#}")),
        }
    }
    (sent, wrong)
}

async fn change_under_load(
    mesh: &Arc<Mesh>,
    outrider: &Outrider,
    report: &mut Report<'_>,
) -> anyhow::Result<()> {
    let (fr, en) = (chain(["Bonjour"; 3]), chain(["Hello"; 3]));
    let before = mesh.listener_changes()?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut loads = Vec::new();
    for (user, right) in [
        ("fr", vec![fr.clone(), en.clone()]),
        ("french", vec![en.clone(), fr.clone()]),
        ("en", vec![en.clone()]),
    ] {
        let running = load(Arc::clone(mesh), Arc::clone(&stop), user, right);
        loads.push(tokio::spawn(running));
    }
    tokio::time::sleep(AROUND).await;
    let began = Instant::now();
    outrider.in_cluster("changed.yaml", &["--apply"])?;
    let applied = began.elapsed();
    let trace = traceparent();
    let in_force = mesh
        .wait_for(PATH, &[("user", "french"), ("traceparent", &trace)], &fr)
        .await?;
    tokio::time::sleep(AROUND).await;
    stop.store(true, Ordering::Relaxed);
    let (mut sent, mut wrong) = (0, Vec::new());
    for load in loads {
        let (more, bad) = load.await?;
        sent += more;
        wrong.extend(bad);
    }
    ensure!(
        wrong.is_empty(),
        "{} of {sent} requests failed while a lane changed: {:?}",
        wrong.len(),
        wrong.first()
    );
    one(mesh, "fr", &en).await?;
    let after = mesh.listener_changes()?;
    ensure!(before == after, "listeners changed: {before:?}, {after:?}");
    not_rejected(mesh)?;
    report.held(&format!(
        "An entry rule changes under load: in force {:.2} s after `--apply` (which took {:.2} s), {sent} requests, 0 failed, \
         `listener_modified` unchanged in every Envoy.",
        in_force.as_secs_f64(),
        applied.as_secs_f64()
    ));
    // Back to the first rule.
    outrider.in_cluster("permissive.yaml", &["--apply"])?;
    let trace = traceparent();
    mesh.wait_for(PATH, &[("user", "fr"), ("traceparent", &trace)], &fr)
        .await?;
    Ok(())
}

/// Requests of the lane `fr` that came to a service's version.
fn of_lane(mesh: &Mesh, pod: &str) -> anyhow::Result<u64> {
    let seen = mesh.lanes(pod)?;
    let places = seen.pointer("/places").and_then(Value::as_array);
    let inbound = places
        .into_iter()
        .flatten()
        .find(|place| place.get("role") == Some(&json!("inbound")));
    let count = inbound.and_then(|place| place.pointer("/lanes/fr/requests")?.as_u64());
    Ok(count.unwrap_or(0))
}

async fn mirrored(mesh: &Mesh, outrider: &Outrider, report: &mut Report<'_>) -> anyhow::Result<()> {
    const REQUESTS: u64 = 20;
    outrider.in_cluster("mirrored.yaml", &["--apply"])?;
    let (fr, en) = (chain(["Bonjour"; 3]), chain(["Hello"; 3]));
    let trace = traceparent();
    mesh.wait_for(PATH, &[("user", "fr"), ("traceparent", &trace)], &en)
        .await?;
    // The copy of that request is under way.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let last = "hello3-v2";
    let before = of_lane(mesh, last)?;
    for _ in 0..REQUESTS {
        one(mesh, "fr", &en).await?;
        one(mesh, "en", &en).await?;
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while of_lane(mesh, last)? < before + REQUESTS {
        ensure!(
            Instant::now() < deadline,
            "{} of {REQUESTS} copies came to {last}",
            of_lane(mesh, last)? - before
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let copies = of_lane(mesh, last)? - before;
    ensure!(copies == REQUESTS, "{copies} copies of {REQUESTS} requests");
    not_rejected(mesh)?;
    report.held(&format!(
        "A mirrored lane: `user: fr` is answered by the baseline (`{en}`), and a copy of each of {REQUESTS} requests goes through \
         the lane to hello3."
    ));
    outrider.in_cluster("permissive.yaml", &["--apply"])?;
    let trace = traceparent();
    mesh.wait_for(PATH, &[("user", "fr"), ("traceparent", &trace)], &fr)
        .await?;
    Ok(())
}

async fn fallback(mesh: &mut Mesh, report: &mut Report<'_>) -> anyhow::Result<()> {
    mesh.remove_pod("hello2-v2").await?;
    let mixed = chain(["Bonjour", "Hello", "Bonjour"]);
    let trace = traceparent();
    let took = mesh
        .wait_for(PATH, &[("user", "fr"), ("traceparent", &trace)], &mixed)
        .await?;
    for _ in 0..20 {
        one(mesh, "fr", &mixed).await?;
        one(mesh, "en", &chain(["Hello"; 3])).await?;
    }
    let counted: u64 = mesh
        .counters("hello1-v2", "outrider.lanes.hello.fallback")?
        .values()
        .sum();
    ensure!(counted >= 20, "{counted} of 20 fallbacks counted");
    let seen = mesh.lanes("hello1-v2")?;
    let sent = seen
        .pointer("/places")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .find(|place| place.get("role") == Some(&json!("outbound")))
        .and_then(|place| place.pointer("/lanes/fr/fallbacks")?.as_u64());
    ensure!(sent >= Some(20), "the page /outrider/lanes: {seen:#}");
    not_rejected(mesh)?;
    report.held(&format!(
        "hello2's `fr` loses its last pod: the baseline serves after {:.1} s, and the lane goes on: `{mixed}`. Counted as \
         `outrider.lanes.hello.fallback`, and on the admin page that `outrider lanes` reads.",
        took.as_secs_f64()
    ));
    Ok(())
}

/// Services get no trace id here, and pass on nothing.
async fn strict_mode(
    mesh: &Mesh,
    outrider: &Outrider,
    report: &mut Report<'_>,
) -> anyhow::Result<()> {
    outrider.in_cluster("strict.yaml", &["--apply", "--prune"])?;
    // hello2's `fr` is gone, and the baseline's sidecar stamps its own lane: strict mode has no way back.
    let wanted = chain(["Bonjour", "Hello", "Hello"]);
    mesh.wait_for(PATH, &[("user", "fr")], &wanted).await?;
    let en = chain(["Hello"; 3]);
    mesh.wait_for(PATH, &[("user", "en")], &en).await?;
    not_rejected(mesh)?;
    report.held(&format!(
        "Strict mode, with services that pass on nothing: each version's sidecar writes its own lane; with hello2's `fr` gone, \
         `{wanted}`."
    ));
    Ok(())
}

async fn remove(
    mesh: &mut Mesh,
    outrider: &Outrider,
    report: &mut Report<'_>,
) -> anyhow::Result<()> {
    let rendered = documents(&outrider.render("strict.yaml", &[])?)?;
    outrider.in_cluster("strict.yaml", &["--delete"])?;
    for resource in &rendered {
        let left = mesh.control_plane.cluster.get(resource).await?;
        ensure!(left.is_none(), "still there: {resource}");
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        // Nothing leads from the gateway to a service any more.
        let answer = mesh.get(PATH, &[("user", "fr")]).await?;
        if answer.status == 404 {
            break;
        }
        ensure!(Instant::now() < deadline, "still routed: {}", answer.status);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    not_rejected(mesh)?;
    report.held("Everything is removed in the opposite order, and no Envoy rejects anything.");
    Ok(())
}

async fn gateway_api(
    mesh: &mut Mesh,
    outrider: &Outrider,
    report: &mut Report<'_>,
) -> anyhow::Result<()> {
    mesh.use_gateway_api().await?;
    outrider.in_cluster("permissive.yaml", &["--api", "gateway", "--apply"])?;
    let mixed = chain(["Bonjour", "Hello", "Bonjour"]);
    let trace = traceparent();
    mesh.wait_for(PATH, &[("user", "fr"), ("traceparent", &trace)], &mixed)
        .await?;
    for _ in 0..20 {
        one(mesh, "fr", &mixed).await?;
        one(mesh, "en", &chain(["Hello"; 3])).await?;
    }
    not_rejected(mesh)?;
    report.held(&format!(
        "`--api gateway`: HTTPRoutes over a Service for each version route the same, the fallback of hello2 included (`{mixed}`)."
    ));
    Ok(())
}

/// Deployments of somebody else's get the module, and lose it again.
async fn delivery(
    mesh: &mut Mesh,
    outrider: &Outrider,
    report: &mut Report<'_>,
) -> anyhow::Result<()> {
    let cluster = &mut mesh.control_plane.cluster;
    let mut before = Vec::new();
    for name in ["cart", "edge"] {
        let labels = json!({"app": name});
        let deployment = json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                // No controller runs here that would make pods.
                "replicas": 0,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels, "annotations": {"kept": "as it is"}},
                    "spec": {"containers": [{"name": "istio-proxy", "image": "auto"}]},
                },
            },
        });
        apply(cluster, std::slice::from_ref(&deployment)).await?;
        // What that controller would say once it has seen all changes.
        let seen = json!({"observedGeneration": 1_000_000});
        cluster.patch_status(&deployment, &seen).await?;
        let found = cluster.get(&deployment).await?.unwrap_or_default();
        before.push((deployment, found.pointer("/spec").cloned()));
    }
    outrider.in_cluster("delivery.yaml", &["--apply"])?;
    let cluster = &mut mesh.control_plane.cluster;
    for ((deployment, _), (pointer, wanted)) in before.iter().zip([
        (
            "/spec/template/metadata/annotations/sidecar.istio.io~1userVolumeMount",
            "/etc/outrider",
        ),
        (
            "/spec/template/spec/volumes/0/image/reference",
            "registry.example.com/outrider:1",
        ),
    ]) {
        let found = cluster.get(deployment).await?.unwrap_or_default();
        let value = found.pointer(pointer).and_then(Value::as_str);
        ensure!(
            value.is_some_and(|value| value.contains(wanted)),
            "{pointer}: {value:?}"
        );
    }
    outrider.in_cluster("delivery.yaml", &["--delete"])?;
    let cluster = &mut mesh.control_plane.cluster;
    for (deployment, spec) in &before {
        let found = cluster.get(deployment).await?.unwrap_or_default();
        ensure!(
            found.pointer("/spec") == spec.as_ref(),
            "not as before: {found}"
        );
    }
    report.held(
        "Deployments get the module as a volume by `--apply`, and are as before after `--delete`.",
    );
    Ok(())
}
