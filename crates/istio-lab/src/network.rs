//! Network namespaces: one with a bridge for the run, one for each pod behind it.

use std::path::Path;
use std::process::Command;

use crate::programs::succeed;

/// Address of the run's own namespace on the bridge, where the control plane listens.
pub const HOST: &str = "10.244.1.1";
/// Addresses of services.
pub const SERVICES: &str = "10.99.0.0/24";
const BRIDGE: &str = "pods";
const PREFIX: &str = "or-";

fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    succeed(Command::new("ip").args(arguments)).map(|_| ())
}

/// Name of a run's own namespace.
pub fn of_run(process: u32) -> String {
    format!("{PREFIX}{process}")
}

/// Makes a run's own namespace.
pub fn make(run: &str) -> anyhow::Result<()> {
    ip(&["netns", "add", run])?;
    ip(&["-n", run, "link", "set", "lo", "up"])?;
    ip(&["-n", run, "link", "add", BRIDGE, "type", "bridge"])?;
    let address = format!("{HOST}/24");
    ip(&["-n", run, "address", "add", &address, "dev", BRIDGE])?;
    ip(&["-n", run, "link", "set", BRIDGE, "up"])
}

/// Makes the namespace of a pod, with an address (of 10.244.1.0/24) on the bridge; returns its name. `number` is unique in
/// the run.
pub fn add_pod(run: &str, number: u8, address: &str) -> anyhow::Result<String> {
    let name = format!("{run}-{number}");
    let (outer, inner) = (format!("veth{number}"), format!("peer{number}"));
    ip(&["netns", "add", &name])?;
    ip(&["-n", &name, "link", "set", "lo", "up"])?;
    ip(&[
        "-n", run, "link", "add", &outer, "type", "veth", "peer", "name", &inner, "netns", &name,
    ])?;
    ip(&["-n", run, "link", "set", &outer, "master", BRIDGE, "up"])?;
    ip(&["-n", &name, "link", "set", &inner, "name", "eth0"])?;
    let with_mask = format!("{address}/24");
    ip(&["-n", &name, "address", "add", &with_mask, "dev", "eth0"])?;
    ip(&["-n", &name, "link", "set", "eth0", "up"])?;
    // Services' addresses have to lead somewhere before the packets are redirected.
    ip(&["-n", &name, "route", "add", "default", "via", HOST])?;
    Ok(name)
}

/// A command that runs in a namespace.
pub fn within(namespace: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]).arg(program);
    command
}

/// The namespaces that are there of a run, or of all runs whose process is gone.
fn left(of: Option<&str>) -> Vec<String> {
    let listed = succeed(Command::new("ip").args(["netns", "list"])).unwrap_or_default();
    let is_ours = |name: &str| match of {
        Some(run) => name == run || name.starts_with(&format!("{run}-")),
        None => name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split('-').next()?.parse::<u32>().ok())
            .is_some_and(|process| !std::path::Path::new(&format!("/proc/{process}")).exists()),
    };
    listed
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| is_ours(name))
        .map(str::to_owned)
        .collect()
}

/// Ends all processes of a run's namespaces, and removes these; without a run, of all runs whose process is gone. Returns the
/// names of those that could not be removed.
pub fn remove(run: Option<&str>) -> Vec<String> {
    for name in left(run) {
        end_processes(&name);
        // What cannot be removed is told by its name.
        let _ = ip(&["netns", "del", &name]);
    }
    left(run)
}

/// Processes whose command lines name a folder, each as its number and program.
pub fn processes_of(folder: &Path) -> anyhow::Result<Vec<String>> {
    let folder = folder.to_string_lossy();
    // The kernel ends a process namespace a moment after its first process.
    std::thread::sleep(std::time::Duration::from_millis(500));
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let path = entry?.path();
        // Some are no processes, and some are gone by now.
        let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(&*folder) {
            let program = line.split(' ').next().unwrap_or_default();
            found.push(format!("{} {program}", path.display()));
        }
    }
    Ok(found)
}

/// Ends all processes of a namespace, and of one pod with it.
pub fn end_processes(namespace: &str) {
    // A process may start another one while the list is read.
    for _ in 0..5 {
        let listed = succeed(Command::new("ip").args(["netns", "pids", namespace]));
        let ids: Vec<i32> = listed
            .unwrap_or_default()
            .split_whitespace()
            .filter_map(|id| id.parse().ok())
            .collect();
        if ids.is_empty() {
            return;
        }
        for id in ids.into_iter().filter_map(rustix::process::Pid::from_raw) {
            // It may have ended by itself.
            let _ = rustix::process::kill_process(id, rustix::process::Signal::KILL);
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}
