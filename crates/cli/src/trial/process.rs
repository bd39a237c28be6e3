//! Trial loads in a process of their own: a plugin whose loading does not end, crashes, or takes all memory becomes
//! a problem that names the plugin.
//!
//! The process is this command with [`ARGUMENT`]. It reads requests from its standard input and writes a response
//! to each to its standard output; both are one line of JSON, behind a request also the bytes of a module. One
//! process serves all plugins of a gateway. After a failure the next plugin gets a new one.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use outrider_plugin_formats::{PluginEntry, Problem, Runtime, WasmModule};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{LoadLine, Place, Trials, limits};
use crate::exit::Exit;

/// The first argument of this command in the process that loads plugins.
pub(crate) const ARGUMENT: &str = "__load-plugins";

/// How long loading a Lua plugin, or giving it a configuration, may take. Its own budget ends ordinary code far
/// earlier.
const LUA_TIMEOUT: Duration = Duration::from_secs(30);
/// The same of a Wasm plugin, whose module may have to be compiled.
const WASM_TIMEOUT: Duration = Duration::from_mins(5);
/// Longest response, in bytes.
const RESPONSE_LIMIT: u64 = 16 * 1024 * 1024;
/// Longest header of a request, in bytes.
const REQUEST_LIMIT: u64 = 256 * 1024 * 1024;

/// A plugin's code, sent once to each process.
#[derive(Debug, Serialize, Deserialize)]
struct Code {
    entry: PluginEntry,
    folder: String,
    /// File and length of the module that follows the line.
    module: Option<(String, u64)>,
    compiled_folder: Option<PathBuf>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Request {
    /// Identifies the code.
    key: String,
    code: Option<Code>,
    /// None: the code is loaded, and no more.
    config: Option<Value>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Response {
    problem: Option<Problem>,
    lines: Vec<LoadLine>,
}

/// Trial loads of one gateway.
#[derive(Debug, Default)]
pub(crate) struct TrialProcess {
    running: Option<Running>,
    lines: Vec<LoadLine>,
    /// Plugins that ended a process, with the problem: they are not tried again.
    failed: BTreeMap<String, Problem>,
    /// Another command and time limit, for tests.
    instead: Option<(Vec<String>, Duration)>,
}

impl TrialProcess {
    /// Log lines of the plugins, in the order of time.
    #[cfg(not(test))]
    pub(crate) fn into_lines(self) -> Vec<LoadLine> {
        self.lines
    }

    /// Loads `entry`, whose code is at `place`, unless that has been done, and gives it `config`.
    ///
    /// # Errors
    /// A problem in a file of the plugin; or one without a file, where the configuration is refused or the process
    /// failed.
    pub(crate) fn run(
        &mut self,
        entry: &PluginEntry,
        place: &Place<'_>,
        config: &Value,
    ) -> Result<(), Problem> {
        let key = super::key(entry, place);
        if let Some(problem) = self.failed.get(&key) {
            return Err(problem.clone());
        }
        match self.exchange(&key, entry, place, Some(config)) {
            Ok(response) => {
                for line in response.lines {
                    // One plugin is tried with each of its configurations.
                    if !self.lines.contains(&line) {
                        self.lines.push(line);
                    }
                }
                response.problem.map_or(Ok(()), Err)
            }
            Err(why) => {
                let problem = self.failure(entry, &why);
                self.failed.insert(key, problem.clone());
                Err(problem)
            }
        }
    }

    /// Checks that loading `entry` ends and leaves the process alive, whatever else is wrong with the plugin.
    ///
    /// # Errors
    /// A problem without a file.
    pub(crate) fn survive(
        &mut self,
        entry: &PluginEntry,
        place: &Place<'_>,
    ) -> Result<(), Problem> {
        let key = super::key(entry, place);
        match self.exchange(&key, entry, place, None) {
            Ok(_response) => Ok(()),
            Err(why) => Err(self.failure(entry, &why)),
        }
    }

    /// Ends the process. Returns the problem of the plugin that it was loading.
    fn failure(&mut self, entry: &PluginEntry, why: &str) -> Problem {
        let why = match self.running.take() {
            Some(running) => running.end(why),
            None => why.to_owned(),
        };
        Problem {
            file: String::new(),
            line: 0,
            column: 0,
            message: format!("the plugin `{}` cannot be loaded: {why}", entry.name),
            mend: Some("do not run this plugin in a gateway, and ask its author".to_owned()),
        }
    }

    fn exchange(
        &mut self,
        key: &str,
        entry: &PluginEntry,
        place: &Place<'_>,
        config: Option<&Value>,
    ) -> Result<Response, String> {
        let running = match &mut self.running {
            Some(running) => running,
            none => {
                let started = Running::start(self.instead.as_ref().map(|(command, _)| &**command));
                none.insert(started.map_err(|error| format!("{error:#}"))?)
            }
        };
        let is_new = running.known.insert(key.to_owned());
        let module = place.module.as_ref().filter(|_| is_new);
        let request = Request {
            key: key.to_owned(),
            code: is_new.then(|| Code {
                entry: entry.clone(),
                folder: place.folder.to_owned(),
                module: module.map(|module| (module.file.clone(), module.bytes.len() as u64)),
                compiled_folder: crate::compiled::folder(),
            }),
            config: config.cloned(),
        };
        let bytes = module.map_or(&[][..], |module| &module.bytes);
        if running.send(&request, bytes).is_err() {
            // It has ended; how, its status says.
            return Err(String::new());
        }
        let timeout = match (&self.instead, entry.runtime) {
            (Some((_, timeout)), _) => *timeout,
            (None, Runtime::Lua) => LUA_TIMEOUT,
            (None, Runtime::Wasm) => WASM_TIMEOUT,
        };
        let line = match running.responses.recv_timeout(timeout) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => {
                return Err(format!("it takes more than {} s", timeout.as_secs()));
            }
            Err(RecvTimeoutError::Disconnected) => return Err(String::new()),
        };
        serde_json::from_slice(&line)
            .map_err(|error| format!("the process that loads plugins answers nonsense: {error}"))
    }
}

/// The process.
#[derive(Debug)]
struct Running {
    child: Child,
    input: Option<ChildStdin>,
    responses: Receiver<Vec<u8>>,
    /// Code that the process has.
    known: BTreeSet<String>,
}

impl Running {
    fn start(instead: Option<&[String]>) -> anyhow::Result<Self> {
        let mut command = if let Some([program, arguments @ ..]) = instead {
            let mut command = Command::new(program);
            command.args(arguments);
            command
        } else {
            let mut command = Command::new(env::current_exe()?);
            command.arg(ARGUMENT);
            command
        };
        let mut child = command
            .env_clear()
            .current_dir(Path::new("/"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()?;
        let input = child.stdin.take();
        let (sender, responses) = channel();
        if let Some(output) = child.stdout.take() {
            thread::spawn(move || {
                let mut output = BufReader::new(output);
                loop {
                    let mut line = Vec::new();
                    let read = output
                        .by_ref()
                        .take(RESPONSE_LIMIT)
                        .read_until(b'\n', &mut line);
                    if !matches!(read, Ok(read) if read > 0) || sender.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self {
            child,
            input,
            responses,
            known: BTreeSet::new(),
        })
    }

    fn send(&mut self, request: &Request, module: &[u8]) -> anyhow::Result<()> {
        let Some(input) = &mut self.input else {
            return Ok(());
        };
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        input.write_all(&line)?;
        input.write_all(module)?;
        input.flush()?;
        Ok(())
    }

    /// Ends the process after a failure. Returns the reason, with how it ended where it ended by itself.
    fn end(mut self, why: &str) -> String {
        if !why.is_empty() {
            return why.to_owned();
        }
        // Its output is at its end, so it is about to go.
        self.input = None;
        for _ in 0..100 {
            if let Ok(Some(status)) = self.child.try_wait() {
                return ended(status);
            }
            thread::sleep(Duration::from_millis(10));
        }
        "the process that loads it closed its output".to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.input = None;
        // Errors: the process is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ended(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!(
            "loading it ended the process with signal {signal} (a crash, or more memory or CPU time than a \
             plugin may take to load)"
        ),
        None => format!("loading it ended the process ({status})"),
    }
}

/// The other side: serves requests until the input ends.
pub(crate) fn serve() -> Exit {
    match serve_all() {
        Ok(()) => Exit::Good,
        Err(error) => {
            crate::output::error(&error);
            Exit::Environment
        }
    }
}

fn serve_all() -> anyhow::Result<()> {
    limits::set()?;
    let mut input = BufReader::new(std::io::stdin().lock());
    let mut output = std::io::stdout().lock();
    let mut trials = Trials::default();
    let mut known: BTreeMap<String, (Code, Option<WasmModule>)> = BTreeMap::new();
    let mut is_confined = false;
    loop {
        let mut line = Vec::new();
        input
            .by_ref()
            .take(REQUEST_LIMIT)
            .read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        let Request { key, code, config } = serde_json::from_slice(&line)?;
        if let Some(code) = code {
            let module = match &code.module {
                None => None,
                Some((file, length)) => {
                    let mut bytes = Vec::new();
                    input.by_ref().take(*length).read_to_end(&mut bytes)?;
                    Some(WasmModule {
                        file: file.clone(),
                        bytes: bytes.into(),
                    })
                }
            };
            known.insert(key.clone(), (code, module));
        }
        let Some((code, module)) = known.get(&key) else {
            anyhow::bail!("a request names code that was not sent");
        };
        let place = Place {
            folder: &code.folder,
            module: module.clone(),
        };
        if !is_confined {
            // All requests name the same folder. Code of a plugin has not run yet.
            limits::confine(code.compiled_folder.as_deref())?;
            is_confined = true;
        }
        trials.compiled_folder.clone_from(&code.compiled_folder);
        let problem = trials.run(&code.entry, &place, config.as_ref()).err();
        let response = Response {
            problem,
            lines: trials.take_lines(),
        };
        serde_json::to_writer(&mut output, &response)?;
        output.write_all(b"\n")?;
        output.flush()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The problem that comes of a process which runs a shell's script in place of loading the plugin.
    fn problem(script: &str) -> Problem {
        let package = outrider_plugin_store::open(Path::new("../../plugins/lua/cors")).unwrap();
        let entry = crate::trial::entry_of(&package);
        let place = Place {
            folder: "cors",
            module: None,
        };
        let command = ["/bin/sh", "-c", script].map(str::to_owned);
        let mut trials = TrialProcess {
            instead: Some((command.into(), Duration::from_secs(5))),
            ..TrialProcess::default()
        };
        let first = trials.run(&entry, &place, &Value::Null).unwrap_err();
        assert_eq!(
            trials.run(&entry, &place, &Value::Null).as_ref(),
            Err(&first)
        );
        first
    }

    #[test]
    fn process_that_crashes_names_plugin_and_signal() {
        let message = problem("read line; kill -SEGV $$").message;
        assert!(
            message.contains("`cors`") && message.contains("signal 11"),
            "{message}"
        );
    }

    #[test]
    fn process_that_hangs_is_killed_and_names_plugin() {
        let message = problem("read line; while :; do :; done").message;
        assert!(
            message.contains("`cors`") && message.contains("more than 5 s"),
            "{message}"
        );
    }

    #[test]
    fn process_that_answers_nonsense_is_a_problem() {
        let message = problem("read line; echo '{'; sleep 60").message;
        assert!(
            message.contains("`cors`") && message.contains("nonsense"),
            "{message}"
        );
    }
}
