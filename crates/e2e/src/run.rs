//! `outrider` run to its end, for commands that do not serve and for `up` when it must refuse.

use std::fmt;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::{cache_folder, command, envoy, module};

/// How long a command may take. The longest are those that start an Envoy which then cannot serve.
const PATIENCE: Duration = Duration::from_mins(1);

/// What a command that has ended said.
#[derive(Debug, Clone)]
pub struct Run {
    /// Its exit code; -1 when a signal ended it.
    pub code: i32,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "exit code {}\n--- standard output\n{}\n--- standard error\n{}",
            self.code, self.stdout, self.stderr
        )
    }
}

/// Runs `outrider` in `folder` with these arguments, on the Envoy and the module under test unless
/// `variables` says otherwise. An empty value removes a variable.
///
/// # Errors
/// It does not start, or does not end within a minute.
pub fn outrider(
    folder: &Path,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> anyhow::Result<Run> {
    let mut run = Command::new(command()?);
    run.args(arguments)
        .current_dir(folder)
        .env("OUTRIDER_ENVOY", envoy()?)
        .env("OUTRIDER_MODULE", module()?)
        .env("XDG_CACHE_HOME", cache_folder()?)
        .env("XDG_STATE_HOME", folder.join(".state"))
        .env_remove("STATE_DIRECTORY")
        .env("NO_COLOR", "1");
    for (name, value) in variables {
        if value.is_empty() {
            run.env_remove(name);
        } else {
            run.env(name, value);
        }
    }
    finish(run)
}

/// Runs a command to its end.
///
/// # Errors
/// It does not start, or does not end within a minute.
pub fn finish(mut command: Command) -> anyhow::Result<Run> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("the command does not start")?;
    let stdout = child.stdout.take().map(collect);
    let stderr = child.stderr.take().map(collect);
    let said = |reader: Option<thread::JoinHandle<String>>| {
        reader
            .and_then(|reader| reader.join().ok())
            .unwrap_or_default()
    };
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if began.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            bail!(
                "the command did not end within {PATIENCE:?}:\n{}\n{}",
                said(stdout),
                said(stderr)
            );
        }
        thread::sleep(Duration::from_millis(5));
    };
    Ok(Run {
        code: status.code().unwrap_or(-1),
        stdout: said(stdout),
        stderr: said(stderr),
    })
}

fn collect(mut source: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What came before a broken pipe is what there is.
        drop(source.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
