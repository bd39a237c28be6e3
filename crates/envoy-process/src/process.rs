//! One running Envoy.
//!
//! It runs in a process group of its own, so that a Ctrl-C in the terminal reaches the command only,
//! which can then drain. It ends with its owner: see [`crate::guard`].

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::admin::{Admin, Answer, Counters};
use crate::diagnosis;
use crate::error::Error;
use crate::guard::Guard;
use crate::hot_restart::{Generation, HotRestart};
use crate::log::{self, FORMAT, Level, LogLine, LogSink, Ring};

const POLL: Duration = Duration::from_millis(10);
const LINES_TOLD: usize = 15;
/// Makes `/drain_listeners` close listeners, and no more: otherwise it asks connections to close before the listeners are
/// closed. Envoy may drop this guard in a later minor; see [`Envoy::drain`].
const RUNTIME: &str = "layered_runtime: {layers: [{name: outrider-process, static_layer: \
                       {envoy.reloadable_features.non_graceful_drain_notifies_connections: false}}]}";
/// How long Envoy may take at most to close its listeners.
const CLOSES_WITHIN: Duration = Duration::from_secs(1);
/// Connections without a request for so long are idle.
const QUIET: Duration = Duration::from_secs(1);

/// Where Envoy's standard output goes (access logs written to `/dev/stdout`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StandardOutput {
    /// Where this process's goes.
    Inherit,
    /// Nowhere.
    Discard,
}

/// How to start an Envoy.
pub struct Options {
    /// The executable.
    pub binary: PathBuf,
    /// Its bootstrap. It must have an admin interface; port 0 is fine.
    pub bootstrap: PathBuf,
    /// Worker threads; Envoy's own default is one for each core.
    pub concurrency: Option<u32>,
    /// The folder that holds `liboutrider.so`.
    pub module_folder: Option<PathBuf>,
    /// The file that Envoy writes its admin address to; `admin-address.txt` beside the bootstrap.
    pub admin_address_file: PathBuf,
    /// How long the connections of a listener that is replaced or drained may last. 60 s.
    pub drain_time: Duration,
    /// The least level that Envoy writes; `info`.
    pub log_level: Level,
    /// Where its standard output goes; nowhere.
    pub standard_output: StandardOutput,
    /// Called with each line of its log.
    pub log_sink: Option<LogSink>,
    /// Whether another Envoy can take over from it, or it takes over from another; not.
    pub hot_restart: Option<HotRestart>,
    /// Further arguments.
    pub extra_arguments: Vec<OsString>,
}

impl Options {
    /// The usual way, with the defaults that the fields name.
    pub fn new(binary: impl Into<PathBuf>, bootstrap: impl Into<PathBuf>) -> Self {
        let bootstrap = bootstrap.into();
        Self {
            binary: binary.into(),
            admin_address_file: bootstrap.with_file_name("admin-address.txt"),
            bootstrap,
            concurrency: None,
            module_folder: None,
            drain_time: Duration::from_mins(1),
            log_level: Level::Info,
            standard_output: StandardOutput::Discard,
            log_sink: None,
            hot_restart: None,
            extra_arguments: Vec::new(),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("binary", &self.binary)
            .field("bootstrap", &self.bootstrap)
            .finish_non_exhaustive()
    }
}

/// A piece of dynamic configuration that Envoy refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// The counter that tells of it, without `.update_rejected`: `listener_manager.lds`.
    pub subscription: String,
    /// How often.
    pub times: u64,
}

/// What [`Envoy::drain`] came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// No request is under way, and no connection is in use.
    Idle,
    /// Time is up, and this many requests are under way.
    Busy(u64),
}

/// What clients have under way.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    connections: u64,
    requests: u64,
    /// Requests since Envoy started.
    begun: u64,
}

/// A running Envoy. Dropping it kills it.
#[derive(Debug)]
pub struct Envoy {
    child: Child,
    /// Dropped, in [`Envoy::reaped`] or with `self`, only after Envoy has ended.
    guard: Option<Guard>,
    admin_address_file: PathBuf,
    admin: OnceLock<Admin>,
    ring: Ring,
    reader: Option<JoinHandle<()>>,
    ended: Option<ExitStatus>,
    /// `None`: no other Envoy can take over from it, or one has.
    hot_restart: Option<HotRestart>,
}

impl Envoy {
    /// Starts Envoy and returns at once; see [`Envoy::wait_ready`].
    ///
    /// # Errors
    /// The executable cannot be run, or its files cannot be prepared.
    pub fn start(options: Options) -> Result<Self, Error> {
        // A stale address would be another process's.
        match fs::remove_file(&options.admin_address_file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::file(options.admin_address_file, error));
            }
            _ => {}
        }
        let mut command = Command::new(&options.binary);
        command
            .arg("--config-path")
            .arg(&options.bootstrap)
            .args(["--config-yaml", RUNTIME])
            .arg("--admin-address-path")
            .arg(&options.admin_address_file)
            .args(["--log-format", FORMAT, "--log-format-escaped"])
            .arg("--log-level")
            .arg(options.log_level.to_string())
            // A field that Envoy does not know is a mistake in a renderer.
            .arg("--reject-unknown-dynamic-fields")
            // Who follows an access log sees a request within a second, not within ten.
            .args(["--file-flush-interval-msec", "1000"])
            // Connections of a draining listener are asked to close at once, not spread over time.
            .args(["--drain-strategy", "immediate", "--drain-time-s"])
            .arg(options.drain_time.as_secs().to_string());
        match &options.hot_restart {
            Some(hot_restart) => command.args(hot_restart.arguments()),
            // Several Envoys on one machine.
            None => command.arg("--disable-hot-restart"),
        };
        if let Some(concurrency) = options.concurrency {
            command.arg("--concurrency").arg(concurrency.to_string());
        }
        if let Some(folder) = &options.module_folder {
            command.env("ENVOY_DYNAMIC_MODULES_SEARCH_PATH", folder);
        }
        command
            .args(&options.extra_arguments)
            .stdin(Stdio::null())
            .stdout(match options.standard_output {
                StandardOutput::Inherit => Stdio::inherit(),
                StandardOutput::Discard => Stdio::null(),
            })
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child = command.spawn().map_err(|why| Error::CannotRun {
            path: options.binary.clone(),
            why,
        })?;
        let ring = Ring::default();
        let reader = child.stderr.take().map(|stderr| {
            let ring = ring.clone();
            let sink = options.log_sink;
            thread::spawn(move || log::read(stderr, &ring, sink))
        });
        let mut envoy = Self {
            guard: None,
            admin_address_file: options.admin_address_file,
            admin: OnceLock::new(),
            ring,
            reader,
            ended: None,
            hot_restart: options.hot_restart,
            child,
        };
        // On an error `envoy` is dropped, and that kills it.
        envoy.guard = Some(
            Guard::over(envoy.child.id()).map_err(|why| Error::CannotRun {
                path: PathBuf::from("/bin/sh"),
                why,
            })?,
        );
        Ok(envoy)
    }

    /// The process.
    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Which one it is for an Envoy that takes over from it; `None`: none can.
    pub fn generation(&self) -> Option<Generation> {
        self.hot_restart.as_ref()?.generation()
    }

    /// Another Envoy has taken over from this one.
    pub fn taken_over(&mut self) {
        self.hot_restart = None;
    }

    /// Waits until `/ready` says so: every listener, cluster and route that Envoy waits for has been
    /// loaded or refused.
    ///
    /// # Errors
    /// Envoy ended (why is told), or time is up.
    pub fn wait_ready(&mut self, timeout: Duration) -> Result<(), Error> {
        let start = Instant::now();
        let mut seen = "its admin interface does not listen".to_owned();
        loop {
            self.check_running()?;
            if let Some(admin) = self.find_admin() {
                match admin.get("/ready") {
                    Ok(answer) if answer.status == 200 => return Ok(()),
                    Ok(answer) => seen = format!("it says {}", answer.body.trim()),
                    Err(error) => seen = error.to_string(),
                }
            }
            if start.elapsed() >= timeout {
                return Err(Error::NotReady {
                    after: timeout,
                    reason: seen,
                });
            }
            thread::sleep(POLL);
        }
    }

    /// Returns an error that tells why when Envoy has ended.
    pub fn check_running(&mut self) -> Result<(), Error> {
        let Some(status) = self.exit_status() else {
            return Ok(());
        };
        let lines = self.ring.lines();
        let skipped = lines.len().saturating_sub(LINES_TOLD);
        Err(Error::Ended {
            status: status.to_string(),
            reason: diagnosis::of_end(&lines, status.signal()),
            last_lines: lines.iter().skip(skipped).map(LogLine::to_string).collect(),
        })
    }

    /// How Envoy ended, if it has.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            self.reaped(status);
        }
        self.ended
    }

    /// The admin interface.
    ///
    /// # Errors
    /// Envoy has not yet said where it is; after [`Envoy::wait_ready`] it has.
    pub fn admin(&self) -> Result<&Admin, Error> {
        self.find_admin().ok_or_else(|| Error::NotReady {
            after: Duration::ZERO,
            reason: "its admin interface does not listen".to_owned(),
        })
    }

    /// `GET path` on the admin interface.
    pub fn admin_get(&self, path: &str) -> Result<Answer, Error> {
        self.admin()?.get(path)
    }

    /// `POST path` on the admin interface.
    pub fn admin_post(&self, path: &str) -> Result<Answer, Error> {
        self.admin()?.post(path)
    }

    /// Counters and gauges whose names match the regular expression.
    pub fn stats(&self, filter: &str) -> Result<Counters, Error> {
        self.admin()?.stats(filter)
    }

    /// Every kind of dynamic configuration of which Envoy refused some version since it started.
    pub fn rejections(&self) -> Result<Vec<Rejection>, Error> {
        Ok(self
            .stats(r"\.update_(rejected|failure)$")?
            .into_iter()
            .filter(|(name, times)| *times > 0 && !name.starts_with("cluster."))
            .filter_map(|(name, times)| {
                let (subscription, _) = name.rsplit_once('.')?;
                Some(Rejection {
                    subscription: subscription.to_owned(),
                    times,
                })
            })
            .collect())
    }

    /// The last lines of its log, at most 200.
    pub fn last_lines(&self) -> Vec<LogLine> {
        self.ring.lines()
    }

    /// Stops listening, then asks every connection to close after its current request, and waits until no connection is
    /// open, at most `timeout` altogether. Connections on which no request comes for a second are not waited for.
    /// `interrupted` is asked again and again; once it says yes, waiting ends.
    ///
    /// Listening ends first, and while Envoy serves on. A connection that the kernel has accepted and Envoy has not is reset
    /// when the listener closes, with the request that its client has sent. Clients that are asked to close connect again at
    /// once: they have to be refused by then. A client that happens to connect in that moment is not protected.
    ///
    /// # Errors
    /// The admin interface does not answer.
    pub fn drain(
        &self,
        timeout: Duration,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Drained, Error> {
        let start = Instant::now();
        self.close_listeners((timeout / 5).min(CLOSES_WITHIN))?;
        self.admin_post("/drain_listeners?graceful")?;
        let mut last = self.load()?;
        let mut active_at = Instant::now();
        loop {
            let load = self.load()?;
            let now = Instant::now();
            if load.requests > 0 || load.begun != last.begun {
                active_at = now;
            }
            last = load;
            if load.connections == 0 || now.duration_since(active_at) >= QUIET {
                return Ok(Drained::Idle);
            }
            if start.elapsed() >= timeout || interrupted() {
                return Ok(match load.requests {
                    0 => Drained::Idle,
                    requests => Drained::Busy(requests),
                });
            }
            thread::sleep(POLL);
        }
    }

    /// Closes every listener's socket, and waits until they are closed, at most `timeout`.
    fn close_listeners(&self, timeout: Duration) -> Result<(), Error> {
        let start = Instant::now();
        let counters =
            || self.stats(r"^listener_manager\.(listener_stopped|total_listeners_active)$");
        let of = |counters: &Counters, name: &str| counters.get(name).copied().unwrap_or(0);
        let (active, stopped) = (
            "listener_manager.total_listeners_active",
            "listener_manager.listener_stopped",
        );
        let before = counters()?;
        let wanted = of(&before, stopped) + of(&before, active);
        self.admin_post("/drain_listeners")?;
        // The workers stop accepting first, each when it comes to it.
        while of(&counters()?, stopped) < wanted && start.elapsed() < timeout {
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// What clients have under way; the admin interface does not count.
    fn load(&self) -> Result<Load, Error> {
        let mut load = Load::default();
        let stats = self.stats(r"^http\..*\.downstream_(rq_active|rq_total|cx_active)$")?;
        for (name, value) in stats
            .iter()
            .filter(|(name, _)| !name.starts_with("http.admin."))
        {
            if name.ends_with("rq_active") {
                load.requests += value;
            } else if name.ends_with("rq_total") {
                load.begun += value;
            } else {
                load.connections += value;
            }
        }
        Ok(load)
    }

    /// Asks Envoy to end (SIGTERM), and kills it when it has not within `grace`.
    pub fn stop(mut self, grace: Duration) {
        if self.exit_status().is_some() {
            return;
        }
        // Not reaped yet, so the number is still this child's.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let start = Instant::now();
        while self.exit_status().is_none() && start.elapsed() < grace {
            thread::sleep(POLL);
        }
        // `drop` kills what is left.
    }

    fn find_admin(&self) -> Option<&Admin> {
        if self.admin.get().is_none() {
            let text = fs::read_to_string(&self.admin_address_file).ok()?;
            let address = text.trim().parse().ok()?;
            // Only this object fills it in.
            let _ = self.admin.set(Admin::new(address));
        }
        self.admin.get()
    }

    fn reaped(&mut self, status: ExitStatus) {
        self.ended = Some(status);
        self.guard = None;
        if let Some(reader) = self.reader.take() {
            // A panic of the sink was told on its own thread.
            let _ = reader.join();
        }
        let _ = fs::remove_file(&self.admin_address_file);
        if let Some(hot_restart) = &self.hot_restart {
            hot_restart.clean();
        }
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        if self.ended.is_some() {
            return;
        }
        let _ = self.child.kill();
        if let Ok(status) = self.child.wait() {
            self.reaped(status);
        }
    }
}
