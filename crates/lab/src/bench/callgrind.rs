//! One Envoy under callgrind, given some requests and ended.
//!
//! Callgrind counts the instructions of all threads in user mode, from when it is told to: Envoy has started then,
//! compiled what it compiles, and answered some requests. The client connects as soon as somebody listens; nothing
//! else is asked of Envoy, as an answer of the admin interface would count.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use outrider_envoy_process::{Envoy, Level, Options};

use super::bootstrap::{Answers, Listener, bootstrap};
use super::load::{Connection, numbered, request};
use super::profile::Profile;
use super::settle::settle;
use super::variant::Variant;
use crate::free_address::own_address;

/// Writing its file takes callgrind a while.
const ENDING: Duration = Duration::from_mins(5);
const ATTEMPTS: usize = 3;
/// What Envoy says of a port that is taken, by way of the system's own words.
const TAKEN: &str = "Address already in use";

/// What is run under callgrind.
#[derive(Debug)]
pub(crate) struct Callgrind {
    /// Envoy.
    pub(crate) envoy: PathBuf,
    /// Where the modules are.
    pub(crate) modules: PathBuf,
    /// Where a body's requests are answered.
    pub(crate) upstream: std::net::SocketAddr,
    /// How many requests are answered before anything is counted.
    pub(crate) warming: u64,
}

impl Callgrind {
    /// What valgrind says of its version; an error says how to get it.
    pub(crate) fn version() -> anyhow::Result<String> {
        let output = Command::new("valgrind")
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .context("valgrind counts the instructions and is not there; on Debian: apt-get install valgrind")?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Starts Envoy with a variant's filters, sends that many requests on one connection, or as many times fewer
    /// as it says, ends it. Under callgrind Envoy takes long to start, and somebody may take its port meanwhile: then once more.
    pub(crate) fn run(&self, variant: &Variant, requests: u64) -> anyhow::Result<Profile> {
        let mut result = self.attempt(variant, requests);
        for _ in 1..ATTEMPTS {
            match &result {
                Err(error) if format!("{error:#}").contains(TAKEN) => {
                    result = self.attempt(variant, requests);
                }
                _ => break,
            }
        }
        result
    }

    fn attempt(&self, variant: &Variant, requests: u64) -> anyhow::Result<Profile> {
        let folder = tempfile::Builder::new()
            .prefix("outrider-bench-")
            .tempdir()?;
        let folder = folder.path();
        let address = own_address()?;
        let listener = Listener::new(
            address,
            Answers::from(variant.shape),
            variant.filters.clone(),
        );
        let file = folder.join("bootstrap.json");
        let document = bootstrap(vec![listener], Some(self.upstream), false);
        fs::write(&file, document.to_string())?;
        let counts = folder.join("callgrind.out");
        let mut options = Options::new(self.wrapper(folder, &counts)?, file);
        options.concurrency = Some(1);
        options.module_folder = Some(self.modules.clone());
        options.log_level = Level::Error;
        let mut envoy = Envoy::start(options)?;
        let sent = self.send(&mut envoy, address, variant, requests);
        if let Err(error) = sent {
            let said: Vec<_> = envoy.last_lines().iter().map(ToString::to_string).collect();
            anyhow::bail!("{error:#}\n{}", said.join("\n"));
        }
        let mapped = mapped(envoy.process_id(), &self.envoy)?;
        envoy.stop(ENDING);
        let text = fs::read_to_string(&counts)
            .context("callgrind wrote nothing: Envoy did not end in time")?;
        Profile::parse(&text, &mapped)
    }

    fn send(
        &self,
        envoy: &mut Envoy,
        address: std::net::SocketAddr,
        variant: &Variant,
        requests: u64,
    ) -> anyhow::Result<()> {
        let bytes = request(variant.shape);
        let mut connection = Connection::open_when_there(address, || Ok(envoy.check_running()?))?;
        let mut numbers = 1..;
        let mut exchange = |connection: &mut Connection| {
            let number = numbers.next().unwrap_or_default();
            connection.exchange(&numbered(variant.shape, &bytes, number))
        };
        for _ in 0..self.warming / variant.divisor {
            exchange(&mut connection)?;
        }
        settle(envoy.process_id())?;
        switch(envoy.process_id(), "on")?;
        for _ in 0..requests / variant.divisor {
            exchange(&mut connection)?;
        }
        switch(envoy.process_id(), "off")
    }

    /// A command that is Envoy under callgrind: the process stays the same one.
    fn wrapper(&self, folder: &Path, counts: &Path) -> anyhow::Result<PathBuf> {
        let path = folder.join("envoy-under-callgrind");
        let script = format!(
            "#!/bin/sh\nexec valgrind -q --tool=callgrind --instr-atstart=no --dump-line=no --callgrind-out-file={} {} \"$@\"\n",
            quoted(counts),
            quoted(&self.envoy),
        );
        fs::write(&path, script)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(path)
    }
}

/// Has callgrind count, or not.
fn switch(process: u32, counting: &str) -> anyhow::Result<()> {
    let output = Command::new("vgdb")
        .arg(format!("--pid={process}"))
        .args(["instrumentation", counting])
        .stdin(Stdio::null())
        .output()
        .context("vgdb, which comes with valgrind, is not there")?;
    anyhow::ensure!(
        output.status.success(),
        "callgrind cannot be told to count: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// Where a process has a file in its memory.
fn mapped(process: u32, file: &Path) -> anyhow::Result<Vec<Range<u64>>> {
    let file = file.canonicalize()?;
    let maps = fs::read_to_string(format!("/proc/{process}/maps"))?;
    let ranges = ranges(&maps, &file.display().to_string());
    anyhow::ensure!(
        !ranges.is_empty(),
        "{} is not mapped where it should run",
        file.display()
    );
    Ok(ranges)
}

fn ranges(maps: &str, file: &str) -> Vec<Range<u64>> {
    let address = |digits| u64::from_str_radix(digits, 16).ok();
    maps.lines()
        .filter(|line| line.ends_with(file))
        .filter_map(|line| {
            let (start, end) = line.split_whitespace().next()?.split_once('-')?;
            Some(address(start)?..address(end)?)
        })
        .collect()
}

/// As one word of a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_a_file_are_found() {
        let maps = "00108000-02186000 r--p 00000000 fe:00 7   /opt/envoy\n\
                    02186000-0628b000 r-xp 0207d000 fe:00 7   /opt/envoy\n\
                    0a000000-0a010000 rwxp 00000000 00:00 0\n";
        assert_eq!(
            ranges(maps, "/opt/envoy"),
            [0x10_8000..0x218_6000, 0x218_6000..0x628_b000]
        );
        assert_eq!(ranges(maps, "/opt/other"), []);
        let this = std::env::current_exe().unwrap();
        assert!(!mapped(std::process::id(), &this).unwrap().is_empty());
    }

    #[test]
    fn paths_are_quoted() {
        assert_eq!(quoted(Path::new("/a b/it's")), r"'/a b/it'\''s'");
    }
}
