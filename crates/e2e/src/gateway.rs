//! A gateway as a user runs it: `outrider up FILE`.

use std::fs;
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use outrider_envoy_process::Admin;
use outrider_lab::client::{Request, Response, Target};
use serde_json::Value;
use tempfile::TempDir;

use crate::{Output, cache_folder, command, envoy, free_address, module, process, root};

/// The gateway's file.
const FILE: &str = "outrider.yaml";

/// The folder of the command's state, beside the file.
const STATES: &str = ".state";

/// The socket of a service manager, beside the file.
const NOTIFICATIONS: &str = "notify";

/// How long a gateway may take to serve. Debug builds on a busy machine are slow.
const READY: Duration = Duration::from_mins(1);

/// The last line of what the command says of its start.
const STARTED: &str = "Ctrl-C drains and stops";

/// How to run a gateway.
#[derive(Debug, Clone, Copy, Default)]
pub struct GatewayOptions {
    /// Pass `--verbose`.
    pub verbose: bool,
    /// Leave what the command says unread, as a terminal does that is stopped.
    pub unread: bool,
    /// Listen to the command as systemd does, with a watchdog of 0.4 s; see [`Gateway::notifications`].
    pub notified: bool,
}

/// What Envoy did with a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It serves by it.
    Taken,
    /// It goes on with what it had.
    Refused,
}

/// A running `outrider up`. Dropping it kills the command, and with it Envoy.
#[derive(Debug)]
pub struct Gateway {
    folder: TempDir,
    child: Child,
    /// What the command tells a service manager.
    pub notifications: Output,
    /// What the command says, both streams.
    pub output: Output,
    /// Where the gateway listens.
    pub address: SocketAddr,
    /// Envoy's admin interface.
    pub admin: Admin,
}

impl Gateway {
    /// Runs `outrider up` on `yaml` and waits until it serves. In the text, `{listen}` stands for the
    /// listener's address, `{admin}` for the admin interface's, `{plugins}` for the folder of the
    /// plugins that ship, and `{here}` for the file's own folder.
    ///
    /// # Errors
    /// The gateway does not come up; the error tells what the command said.
    pub fn start(yaml: &str) -> anyhow::Result<Self> {
        Self::start_with(yaml, &[], GatewayOptions::default())
    }

    /// As [`Gateway::start`], with further files beside `outrider.yaml` (path and content).
    ///
    /// # Errors
    /// As [`Gateway::start`].
    pub fn start_with(
        yaml: &str,
        files: &[(&str, &str)],
        options: GatewayOptions,
    ) -> anyhow::Result<Self> {
        Self::start_on(&envoy()?, yaml, files, options)
    }

    /// As [`Gateway::start_with`], with an Envoy whose drained listeners last two seconds, not a minute.
    ///
    /// # Errors
    /// As [`Gateway::start`].
    pub fn start_with_short_drain(
        yaml: &str,
        files: &[(&str, &str)],
        options: GatewayOptions,
    ) -> anyhow::Result<Self> {
        let folder = TempDir::new()?;
        let wrapper = folder.path().join("envoy");
        // The command's own value follows the name of the option.
        let script = format!(
            "#!/bin/sh\nlast=\nfor argument do\n  shift\n  [ \"$last\" = --drain-time-s ] && argument=2\n  \
             last=$argument\n  set -- \"$@\" \"$argument\"\ndone\nexec '{}' \"$@\"\n",
            envoy()?.display()
        );
        fs::write(&wrapper, script)?;
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))?;
        // Envoy has replaced the script when this returns.
        Self::start_on(&wrapper, yaml, files, options)
    }

    fn start_on(
        envoy: &Path,
        yaml: &str,
        files: &[(&str, &str)],
        options: GatewayOptions,
    ) -> anyhow::Result<Self> {
        let folder = TempDir::new()?;
        let address = free_address()?;
        let admin = free_address()?;
        for (path, content) in files {
            write_file(&folder.path().join(path), content)?;
        }
        let file = folder.path().join(FILE);
        write_file(&file, &fill(yaml, folder.path(), address, admin))?;
        let mut arguments = Vec::new();
        if options.verbose {
            arguments.push("--verbose");
        }
        let notifications = Output::default();
        if options.notified {
            let socket = UnixDatagram::bind(folder.path().join(NOTIFICATIONS))?;
            notifications.read_from(Datagrams(socket));
        }
        let (child, output) = spawn(folder.path(), envoy, &arguments, options)?;
        let mut gateway = Self {
            folder,
            child,
            notifications,
            output,
            address,
            admin: Admin::new(admin),
        };
        gateway.wait_ready(!options.unread)?;
        Ok(gateway)
    }

    /// Ends the command, and starts it anew with further arguments, on the same file, addresses and state.
    ///
    /// # Errors
    /// The command does not end well, or does not serve again.
    pub fn restart(&mut self, arguments: &[&str]) -> anyhow::Result<()> {
        self.interrupt()?;
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.child.try_wait()?.is_none() {
            ensure!(Instant::now() < deadline, "outrider up does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        (self.child, self.output) = spawn(
            self.folder.path(),
            &envoy()?,
            arguments,
            GatewayOptions::default(),
        )?;
        self.wait_ready(true)
    }

    /// Starts another command that takes over, with further arguments; waits until it serves, and until the first one has
    /// ended well. Returns what that one said.
    ///
    /// # Errors
    /// The other command does not take over, or this one does not end well.
    pub fn take_over(&mut self, arguments: &[&str]) -> anyhow::Result<Output> {
        let arguments = [&["--take-over"], arguments].concat();
        let options = GatewayOptions::default();
        let next = spawn(self.folder.path(), &envoy()?, &arguments, options)?;
        let mut old = std::mem::replace(&mut self.child, next.0);
        let said = std::mem::replace(&mut self.output, next.1);
        let deadline = Instant::now() + READY;
        let taken_over = self.wait_ready(true).and_then(|()| {
            loop {
                if let Some(status) = old.try_wait()? {
                    ensure!(status.success(), "it ended with {status}");
                    return Ok(());
                }
                ensure!(Instant::now() < deadline, "it does not end");
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        drop(old.kill());
        drop(old.wait());
        taken_over.with_context(|| format!("the gateway before said:\n{}", said.text()))?;
        Ok(said)
    }

    fn wait_ready(&mut self, is_read: bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + READY;
        loop {
            if let Some(status) = self.child.try_wait()? {
                // The readers of its output are a moment behind.
                std::thread::sleep(Duration::from_millis(100));
                bail!("outrider up ended with {status}:\n{}", self.output.text());
            }
            let ready = self
                .admin
                .get("/ready")
                .is_ok_and(|answer| answer.status == 200);
            if ready && std::net::TcpStream::connect(self.address).is_ok() {
                if is_read {
                    // Whoever waits for what it says next must not find what it says of its start.
                    self.output.wait(STARTED, READY)?;
                }
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("outrider up does not serve:\n{}", self.output.text());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The folder that `outrider.yaml` is in.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The file's path.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join(FILE)
    }

    /// Saves another text as `outrider.yaml`, as editors do: a new file is renamed over the old one.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, yaml: &str) -> anyhow::Result<()> {
        self.save_file(
            "outrider.yaml",
            &fill(yaml, self.folder.path(), self.address, self.admin.address()),
        )
    }

    /// Saves a file beside it, in the same way.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save_file(&self, path: &str, content: &str) -> anyhow::Result<()> {
        let path = self.folder.path().join(path);
        let new = path.with_extension("saving");
        write_file(&new, content)?;
        fs::rename(new, path)?;
        Ok(())
    }

    /// Saves another text and waits until the command says that it is live.
    ///
    /// # Errors
    /// It does not become live within ten seconds; the error tells what the command said.
    pub fn update(&self, yaml: &str) -> anyhow::Result<String> {
        let mark = self.output.mark();
        self.save(yaml)?;
        self.output
            .wait_after(mark, "applied in", Duration::from_secs(10))
    }

    /// The listener for a client of HTTP/1.1.
    pub fn http1(&self) -> Target {
        Target::http1(self.address)
    }

    /// The listener for a client of HTTP/2.
    pub fn http2(&self) -> Target {
        Target::http2(self.address)
    }

    /// Sends one request over HTTP/1.1, on a connection of its own.
    ///
    /// # Errors
    /// There is no whole response.
    pub async fn send(&self, request: Request) -> anyhow::Result<Response> {
        Ok(self.http1().send(request).await?)
    }

    /// The value of a counter or gauge; 0 when Envoy has none of that name.
    ///
    /// # Errors
    /// The admin interface does not answer.
    pub fn stat(&self, name: &str) -> anyhow::Result<u64> {
        stat(&self.admin, name)
    }

    /// Memory that Envoy has allocated, in bytes.
    ///
    /// # Errors
    /// The admin interface does not answer.
    pub fn memory(&self) -> anyhow::Result<u64> {
        let answer = self.admin.get("/memory")?;
        let memory: Value = serde_json::from_str(&answer.body)?;
        let allocated = memory.get("allocated").and_then(Value::as_str);
        Ok(allocated.context("no `allocated` in /memory")?.parse()?)
    }

    /// Ends the command as Ctrl-C does, and waits for it. Fails if Envoy refused any update.
    ///
    /// # Errors
    /// An update was refused, the command does not end, or ends with a failure.
    pub fn stop(self) -> anyhow::Result<Output> {
        assert_no_rejections(&self.admin)?;
        self.stop_after_refusals()
    }

    /// As [`Gateway::stop`], where it belongs to the test that Envoy refused something.
    ///
    /// # Errors
    /// The command does not end, or ends with a failure.
    pub fn stop_after_refusals(self) -> anyhow::Result<Output> {
        self.interrupt()?;
        self.wait_end()
    }

    /// Waits for the end of a command that was interrupted before. Fails if it did not end well.
    ///
    /// # Errors
    /// The command does not end, or ends with a failure.
    pub fn wait_end(mut self) -> anyhow::Result<Output> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(status) = self.child.try_wait()? {
                ensure!(
                    status.success(),
                    "outrider up ended with {status}:\n{}",
                    self.output.text()
                );
                self.output.assert_no_bugs()?;
                return Ok(self.output.clone());
            }
            ensure!(
                Instant::now() < deadline,
                "outrider up does not end:\n{}",
                self.output.text()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Envoy's process.
    ///
    /// # Errors
    /// It has ended.
    pub fn envoy_process(&self) -> anyhow::Result<u32> {
        process::child(self.child.id(), "envoy")
    }

    /// The file of Envoy's configuration with this name (`ecds.json`), in the command's state folder.
    ///
    /// # Errors
    /// There is none.
    pub fn state_file(&self, name: &str) -> anyhow::Result<PathBuf> {
        let states = self.folder.path().join(STATES).join("outrider");
        for entry in fs::read_dir(&states)?.filter_map(Result::ok) {
            let file = entry.path().join(name);
            if file.is_file() {
                return Ok(file);
            }
        }
        bail!("no {name} in any state folder of {}", states.display())
    }

    /// The socket at which the command is asked to be taken over.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn control(&self) -> anyhow::Result<UnixStream> {
        let bootstrap = self.state_file("bootstrap.json")?;
        let folder = bootstrap.parent().context("a file without a folder")?;
        // The path may be too long for a socket.
        let folder = fs::File::open(folder)?;
        let path = format!("/proc/self/fd/{}/control.sock", folder.as_raw_fd());
        Ok(UnixStream::connect(path)?)
    }

    /// Reads a file of Envoy's configuration.
    ///
    /// # Errors
    /// There is none, or it is no JSON.
    pub fn state(&self, name: &str) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&fs::read_to_string(
            self.state_file(name)?,
        )?)?)
    }

    /// Gives a document to Envoy behind the command's back, as another control plane would, and waits
    /// for the verdict. `ecds.json` is told by the filter's counters, `rds.json` by the routes'.
    ///
    /// # Errors
    /// There is no verdict within ten seconds.
    pub fn hand_over(&self, name: &str, document: &Value) -> anyhow::Result<Verdict> {
        let before = self.verdicts(name)?;
        let file = self.state_file(name)?;
        let new = file.with_extension("handed");
        fs::write(&new, document.to_string())?;
        fs::rename(new, file)?;
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let now = self.verdicts(name)?;
            if now.1 > before.1 {
                return Ok(Verdict::Refused);
            }
            if now.0 > before.0 {
                return Ok(Verdict::Taken);
            }
            ensure!(
                Instant::now() < deadline,
                "Envoy did not take up {name}:\n{}",
                self.output.text()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// How often Envoy took a document, and how often it refused one.
    fn verdicts(&self, name: &str) -> anyhow::Result<(u64, u64)> {
        let subscription = match name {
            "ecds.json" => r"^extension_config_discovery\.http_filter\.outrider\.",
            "rds.json" => r"^http\..*\.rds\..*\.",
            "cds.json" => r"^cluster_manager\.cds\.",
            _ => r"^listener_manager\.lds\.",
        };
        let counters = self.admin.stats(&format!(
            "{subscription}(update_success|update_rejected|update_failure|config_fail)$"
        ))?;
        let sum = |taken: bool| {
            counters
                .iter()
                .filter(|(name, _)| name.ends_with(".update_success") == taken)
                .map(|(_, value)| value)
                .sum()
        };
        Ok((sum(true), sum(false)))
    }

    /// Waits until a counter or gauge is as wanted.
    ///
    /// # Errors
    /// It is not within ten seconds; the error tells its value.
    pub fn wait_stat(&self, name: &str, wanted: impl Fn(u64) -> bool) -> anyhow::Result<u64> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let value = self.stat(name)?;
            if wanted(value) {
                return Ok(value);
            }
            ensure!(Instant::now() < deadline, "{name} stays at {value}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Counters and gauges whose names end so, one line each; for asserting that all are zero.
    ///
    /// # Errors
    /// The admin interface does not answer.
    pub fn not_zero(&self, endings: &str) -> anyhow::Result<Vec<String>> {
        let counters = self.admin.stats(&format!("({endings})$"))?;
        Ok(counters
            .iter()
            .filter(|(_, value)| **value > 0)
            .map(|(name, value)| format!("{name}: {value}"))
            .collect())
    }

    /// Sends SIGINT, as Ctrl-C does.
    ///
    /// # Errors
    /// There is no such process any more.
    pub fn interrupt(&self) -> anyhow::Result<()> {
        self.signal("INT")
    }

    /// Sends a signal to the command: `HUP`.
    ///
    /// # Errors
    /// There is no such process any more.
    pub fn signal(&self, name: &str) -> anyhow::Result<()> {
        process::signal(self.child.id(), name)
    }
}

/// The messages that come to a socket, one after the other.
struct Datagrams(UnixDatagram);

impl std::io::Read for Datagrams {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.recv(buffer)
    }
}

/// Starts `outrider up` on the file in `folder`.
fn spawn(
    folder: &Path,
    envoy: &Path,
    arguments: &[&str],
    options: GatewayOptions,
) -> anyhow::Result<(Child, Output)> {
    let mut command = if options.notified {
        // As systemd does: the watchdog is of this process only.
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", r#"WATCHDOG_PID=$$ exec "$0" "$@""#]);
        shell.arg(command()?);
        shell
    } else {
        Command::new(command()?)
    };
    command
        .arg("up")
        .arg(folder.join(FILE))
        .args(arguments)
        .env("OUTRIDER_ENVOY", envoy)
        .env("OUTRIDER_MODULE", module()?)
        .env("XDG_CACHE_HOME", cache_folder()?)
        .env("XDG_STATE_HOME", folder.join(STATES))
        .env_remove("STATE_DIRECTORY")
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if options.notified {
        command
            .env("NOTIFY_SOCKET", folder.join(NOTIFICATIONS))
            .env("WATCHDOG_USEC", "400000");
    }
    let mut child = command.spawn().context("outrider does not start")?;
    let output = Output::default();
    // Pipes that are not taken stay open, and nobody reads them.
    if !options.unread
        && let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take())
    {
        output.read_from(stdout);
        output.read_from(stderr);
    }
    Ok((child, output))
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // SIGTERM lets the command stop its Envoy; what is left after that is killed.
        let pid = self.child.id().to_string();
        if matches!(self.child.try_wait(), Ok(None)) {
            drop(Command::new("kill").args(["-TERM", &pid]).status());
            let deadline = Instant::now() + Duration::from_secs(10);
            while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The value of a counter or gauge; 0 when Envoy has none of that name.
pub(crate) fn stat(admin: &Admin, name: &str) -> anyhow::Result<u64> {
    let answer = admin.get(&format!("/stats?filter=^{}$", name.replace('.', "\\.")))?;
    let value = answer
        .body
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name}: ")));
    Ok(value.map_or(Ok(0), str::parse)?)
}

/// Fails if Envoy refused any configuration.
pub(crate) fn assert_no_rejections(admin: &Admin) -> anyhow::Result<()> {
    let answer = admin.get("/stats?filter=(update_rejected|config_fail|update_failure)$")?;
    let refused: Vec<&str> = answer
        .body
        .lines()
        .filter(|line| !line.ends_with(": 0"))
        .collect();
    ensure!(
        refused.is_empty(),
        "Envoy refused configuration: {refused:?}"
    );
    Ok(())
}

fn fill(yaml: &str, folder: &Path, address: SocketAddr, admin: SocketAddr) -> String {
    yaml.replace("{listen}", &address.to_string())
        .replace("{admin}", &admin.to_string())
        .replace(
            "{plugins}",
            &root().join("plugins/lua").display().to_string(),
        )
        .replace("{here}", &folder.display().to_string())
}

fn write_file(path: &Path, content: &str) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, content).with_context(|| path.display().to_string())
}
