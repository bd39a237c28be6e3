//! Lanes in a whole Istio on one machine: what `outrider render istio` prints, applied, and checked.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::{Args, Parser, Subcommand};
use outrider_istio_lab::mesh::Run;
use outrider_istio_lab::network;
use outrider_istio_lab::programs::{self, Programs};
use outrider_lab::exit_code;
use outrider_lab::hello::{Hello, HelloOptions};

/// Runs a chain of three services in two versions each in a whole Istio on this machine: API server, istiod, agents, stock
/// Envoys, captured traffic, strict mutual TLS. Applies what `outrider render istio` printed, and checks both lanes, the
/// fallback, a change under load, and that nothing is left.
#[derive(Debug, Parser)]
#[command(
    name = "outrider-test-istio",
    version,
    args_conflicts_with_subcommands = true,
    after_help = "\
Example, from the repository's root, as root:
  target/debug/outrider-test-istio --outrider target/debug/outrider

Exit code 0 when every claim held, 1 when one did not or when something is missing."
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, Args)]
struct Options {
    /// The outrider command; the module is beside it.
    #[arg(long, value_name = "FILE", default_value = "target/debug/outrider")]
    outrider: PathBuf,
    /// The repository, whose tests/istio has the programs' sources.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    repository: PathBuf,
    /// Where the programs are, or are built.
    #[arg(long, value_name = "FOLDER", default_value = "target/istio")]
    programs: PathBuf,
    /// Write the summary into this file, too.
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The run, inside of its network namespace.
    #[command(hide = true)]
    Inside {
        #[command(flatten)]
        options: Options,
        /// Name of the namespace.
        #[arg(long)]
        run: String,
        /// Folder of the run.
        #[arg(long)]
        folder: PathBuf,
    },
    /// A service of the chain.
    #[command(hide = true)]
    Hello {
        /// Its name.
        #[arg(long)]
        name: String,
        /// Its greeting.
        #[arg(long)]
        greeting: String,
        /// The service that it calls.
        #[arg(long)]
        next: Vec<String>,
        /// Address at which that is called.
        #[arg(long, default_value = "127.0.0.1:1")]
        at: SocketAddr,
        /// Headers that it passes on.
        #[arg(long)]
        passes: Vec<String>,
    },
    /// What Envoy's admin interface answers to a GET.
    #[command(hide = true)]
    Admin {
        /// The path.
        path: String,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.command {
        None => outside(&arguments.options),
        Some(Command::Inside {
            options,
            run,
            folder,
        }) => inside(&options, &run, &folder),
        Some(Command::Hello {
            name,
            greeting,
            next,
            at,
            passes,
        }) => hello(HelloOptions {
            name,
            greeting,
            listen: SocketAddr::from(([0, 0, 0, 0], outrider_istio_lab::pod::PORT)),
            proxy: at,
            next,
            passes,
            calls_later: None,
        }),
        Some(Command::Admin { path }) => admin(&path),
    };
    exit_code(done)
}

/// Makes the run's namespace, runs this program in it, and removes everything, whatever came of it.
fn outside(options: &Options) -> anyhow::Result<()> {
    let missing = programs::missing();
    if !missing.is_empty() {
        bail!(
            "the test of lanes in Istio cannot run here, and did not run: missing {}",
            missing.join("; ")
        );
    }
    // What an earlier run left that was killed.
    network::remove(None);
    let began = Instant::now();
    let mut tell = |line: &str| say(began, line);
    Programs::get(&options.repository, &options.programs, &mut tell)?;
    let run = network::of_run(std::process::id());
    let folder = tempfile::Builder::new()
        .prefix("outrider-istio-")
        .tempdir()?;
    let result = run_inside(options, &run, folder.path());
    let left = network::remove(Some(&run));
    let processes = network::processes_of(folder.path())?;
    result?;
    if !processes.is_empty() {
        bail!("processes are left: {}", processes.join(", "));
    }
    if !left.is_empty() {
        bail!("network namespaces are left: {}", left.join(", "));
    }
    say(began, "all processes and network namespaces are gone");
    Ok(())
}

fn run_inside(options: &Options, run: &str, folder: &Path) -> anyhow::Result<()> {
    network::make(run)?;
    // A process namespace of its own: when the run's process ends, the kernel ends all that it started, agents' Envoys too.
    let mut command = network::within(run, "unshare");
    command
        .args(["--pid", "--fork", "--kill-child=KILL", "--mount-proc"])
        .arg(std::env::current_exe()?)
        .arg("inside")
        .args(["--run", run])
        .arg("--folder")
        .arg(folder)
        .arg("--outrider")
        .arg(std::path::absolute(&options.outrider)?)
        .arg("--repository")
        .arg(std::path::absolute(&options.repository)?)
        .arg("--programs")
        .arg(std::path::absolute(&options.programs)?);
    if let Some(summary) = &options.summary {
        command.arg("--summary").arg(std::path::absolute(summary)?);
    }
    // A terminal's interrupt reaches the run, too: it ends, and what is left is removed here.
    let runtime = tokio::runtime::Runtime::new()?;
    let status = runtime.block_on(async {
        let mut child = tokio::process::Command::from(command)
            .kill_on_drop(true)
            .spawn()?;
        let mut terminated =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            status = child.wait() => anyhow::Ok(status?),
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
            _ = terminated.recv() => bail!("terminated"),
        }
    })?;
    if !status.success() {
        bail!("the run failed: {status}");
    }
    Ok(())
}

fn inside(options: &Options, run: &str, folder: &Path) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut tell = |line: &str| say(began, line);
    let programs = Programs::get(&options.repository, &options.programs, &mut tell)?;
    let module = options.outrider.with_file_name("liboutrider.so");
    let run = Run::new(run, folder, &programs, &module)?;
    let runtime = tokio::runtime::Runtime::new()?;
    let lines = runtime.block_on(outrider_istio_lab::checks::all(
        run,
        &options.outrider,
        &options.repository,
        &mut tell,
    ))?;
    if let Some(summary) = &options.summary {
        std::fs::write(summary, lines)
            .with_context(|| format!("{} cannot be written", summary.display()))?;
    }
    Ok(())
}

/// A line with the seconds since the beginning.
fn say(began: Instant, line: &str) {
    // Without a reader nothing is said.
    let _ = writeln!(
        std::io::stdout(),
        "{:>6.1} s  {line}",
        began.elapsed().as_secs_f64()
    );
}

fn hello(options: HelloOptions) -> anyhow::Result<()> {
    tokio::runtime::Runtime::new()?.block_on(async {
        let _service = Hello::start(options).await?;
        std::future::pending::<()>().await;
        Ok(())
    })
}

fn admin(path: &str) -> anyhow::Result<()> {
    let address = SocketAddr::from(([127, 0, 0, 1], 15000));
    let request = outrider_lab::client::Request::get(path).timeout(Duration::from_secs(10));
    let target = outrider_lab::client::Target::http1(address);
    let answer = tokio::runtime::Runtime::new()?.block_on(target.send(request))?;
    if answer.status != 200 {
        bail!("status {}", answer.status);
    }
    std::io::stdout().write_all(&answer.body)?;
    Ok(())
}
